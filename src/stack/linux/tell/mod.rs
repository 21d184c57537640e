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

use crate::frame::StackTrace;
use crate::stack::Capture;
use names::by_type::{culprit, name_of};
use symbols::Symbols;
use unwind::{End, MOST, Unwinder};

/// Tells of stacks. What it has read of the program it keeps.
#[derive(Debug)]
pub(in crate::stack) struct Teller {
    unwinder: Unwinder,
    symbols: Symbols,
}

impl Teller {
    pub(in crate::stack) fn new() -> Self {
        Self { unwinder: Unwinder::new(), symbols: Symbols::new() }
    }

    /// A library may have been loaded in the place of another: what is mapped is looked at again.
    pub(in crate::stack) fn refresh(&mut self) {
        self.unwinder.modules.refresh();
    }

    pub(in crate::stack) fn tell(&mut self, capture: &Capture) -> StackTrace {
        let unwound = self.unwinder.unwind(capture, MOST);
        let mut frames = self.symbols.frames(&unwound, &self.unwinder.modules);
        let culprit = culprit(&frames);
        // One that only the types in it name is called by these.
        if let Some(frame) = culprit.and_then(|at| frames.get_mut(at)) {
            frame.function = name_of(frame).or(frame.function.take());
        }
        StackTrace { frames, culprit, complete: unwound.end == End::Root }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod damage;
#[cfg(all(test, not(starvation_loom)))]
mod taken;
