//! Telling of a copied stack: `unwind` finds the callers by the tables that compilers leave for exceptions, `symbols` finds the
//! functions' names by debug info or the table of symbols, and `names` makes them readable.
//!
//! All of it reads copies, of the process's memory and of the files that are mapped: no lock of the loader is taken, and what
//! is damaged or gone is told as missing. What is held of them is bounded.

mod elf;
mod modules;
mod names;
mod pages;
mod prologue;
mod symbols;
mod unwind;

use crate::frame::{Frame, StackTrace};
use crate::stack::Capture;
use names::by_type::{culprit, name_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use symbols::Symbols;
use unwind::{End, INSTRUCTION_POINTER, MOST, Unwinder};

/// Tells of stacks. What it has read of the program it keeps.
#[derive(Debug)]
pub(in crate::stack) struct Teller {
    unwinder: Unwinder,
    symbols: Symbols,
    trust: Trust,
}

/// How much is read of the program. Less after a panic of a reader, which would come again with the next stack, and each time
/// be told by the program's own panic hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    All,
    NoDebugInfo,
    NoNames,
    Nothing,
}

impl Trust {
    fn less(self) -> Self {
        match self {
            Self::All => Self::NoDebugInfo,
            Self::NoDebugInfo => Self::NoNames,
            Self::NoNames | Self::Nothing => Self::Nothing,
        }
    }
}

impl Teller {
    pub(in crate::stack) fn new() -> Self {
        Self::with(Trust::All)
    }

    fn with(trust: Trust) -> Self {
        Self { unwinder: Unwinder::new(), symbols: Symbols::new(trust == Trust::All), trust }
    }

    /// A library may have been loaded in the place of another: what is mapped is looked at again.
    pub(in crate::stack) fn refresh(&mut self) {
        self.unwinder.modules.refresh();
    }

    pub(in crate::stack) fn tell(&mut self, capture: &Capture) -> StackTrace {
        while self.trust != Trust::Nothing {
            // Whoever has panicked may have left half of something: all of it is made anew.
            match catch_unwind(AssertUnwindSafe(|| self.read(capture))) {
                Ok(trace) => return trace,
                Err(_) => *self = Self::with(self.trust.less()),
            }
        }
        let next = capture.registers.0[INSTRUCTION_POINTER];
        StackTrace {
            frames: next.map(|next| Frame::unknown("", next)).into_iter().collect(),
            culprit: None,
            complete: false,
        }
    }

    fn read(&mut self, capture: &Capture) -> StackTrace {
        let unwound = self.unwinder.unwind(capture, MOST);
        let mut frames = match self.trust {
            Trust::All | Trust::NoDebugInfo => self.symbols.frames(&unwound, &self.unwinder.modules),
            Trust::NoNames | Trust::Nothing => unwound.places.iter().map(|place| self.unnamed(place.address)).collect(),
        };
        let culprit = culprit(&frames);
        // One that only the types in it name is called by these.
        if let Some(frame) = culprit.and_then(|at| frames.get_mut(at)) {
            frame.function = name_of(frame).or(frame.function.take());
        }
        StackTrace { frames, culprit, complete: unwound.end == End::Root }
    }

    fn unnamed(&self, address: u64) -> Frame {
        match self.unwinder.modules.find(address) {
            Some(module) => {
                let kind = names::kind::of(None, module.name(), None);
                Frame { kind, ..Frame::unknown(module.name(), module.offset(address)) }
            }
            None => Frame::unknown("", address),
        }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod damage;
#[cfg(all(test, not(starvation_loom)))]
mod taken;
#[cfg(all(test, not(starvation_loom)))]
mod tests;
