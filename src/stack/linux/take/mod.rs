//! Taking a stack: `/proc` tells of a sleeping thread all that is needed, and a signal reaches one that computes.
//!
//! Nothing here takes a lock that a watched thread can hold, allocates while a signal is under way, or waits without a
//! bound. What the kernel waits for on its own, to read memory that has been swapped out or that another thread is about
//! to map anew, no program can bound: it is what any page fault waits for.

mod asleep;
mod cell;
mod handler;
mod install;
mod signal;
mod task;
mod word;

use super::memory::{self, Memory};
use crate::stack::{CannotCapture, Capture};
use asleep::Seen;
use signal::Signals;
use std::ops::Range;
use task::Task;
pub(super) use task::{is_filtered, open_at};

/// How much of a stack is copied at most.
const LONGEST: usize = 256 << 10;
/// The same where it is not known where the stack ends: more would only be what happens to lie behind it.
const LONGEST_UNBOUNDED: usize = 64 << 10;
/// What functions may use below the stack pointer.
const RED_ZONE: u64 = if cfg!(target_arch = "x86_64") { 128 } else { 0 };

/// How often one that was found asleep when it was to be sent a signal is read from outside again.
const ROUNDS: usize = 2;

/// Whose stack to take.
pub(in crate::stack) struct Subject<'a> {
    pub(in crate::stack) tid: u32,
    /// Where the stack lies that it was started on.
    pub(in crate::stack) bounds: Option<Range<u64>>,
    /// Whether the thread that is meant is still there.
    pub(in crate::stack) is_same: &'a dyn Fn() -> bool,
}

impl Subject<'_> {
    fn check(&self) -> Result<(), CannotCapture> {
        if (self.is_same)() { Ok(()) } else { Err(CannotCapture::Gone) }
    }

    /// How much to copy from here on. A stack pointer outside the bounds is on a stack of a coroutine, say.
    fn length_from(&self, stack: u64) -> usize {
        length_within(self.bounds.as_ref().map_or((0, 0), |bounds| (bounds.start, bounds.end)), stack)
    }
}

/// The handler of the signal asks as well, so this must not panic.
fn length_within((start, end): (u64, u64), stack: u64) -> usize {
    if start <= stack && stack < end {
        usize::try_from(end - stack).map_or(LONGEST, |length| length.min(LONGEST))
    } else {
        LONGEST_UNBOUNDED
    }
}

/// Takes stacks.
pub(in crate::stack) struct Taker {
    memory: Memory,
    signals: Option<Signals>,
}

impl Taker {
    pub(in crate::stack) fn new(signals: bool) -> Self {
        Self { memory: Memory::new(LONGEST), signals: signals.then(Signals::new) }
    }

    pub(in crate::stack) fn take(&mut self, subject: &Subject<'_>) -> Result<Capture, CannotCapture> {
        let task = Task::open(subject.tid)?;
        // The files that are open now stay with the thread that they are of: if the one that is meant is still there, its.
        subject.check()?;
        for _ in 0..ROUNDS {
            match asleep::take(&task, subject, &mut self.memory, self.signals.is_some())? {
                Seen::Asleep(capture) => return Ok(capture),
                Seen::Computing(standing) => {
                    let Some(signals) = &mut self.signals else { return Err(CannotCapture::Computing) };
                    if let Some(capture) = signals.take(&task, subject, standing)? {
                        return Ok(capture);
                    }
                }
            }
        }
        Err(CannotCapture::Restless)
    }

    /// No signal is sent, whatever the thread does.
    pub(in crate::stack) fn take_asleep(&mut self, subject: &Subject<'_>) -> Result<Capture, CannotCapture> {
        let task = Task::open(subject.tid)?;
        match asleep::take(&task, subject, &mut self.memory, false)? {
            Seen::Asleep(capture) => Ok(capture),
            Seen::Computing(_) => Err(CannotCapture::Computing),
        }
    }

    /// How many buffers had to be left to a thread that had begun to fill them and came to no end.
    pub(in crate::stack) fn abandoned(&self) -> u64 {
        self.signals.as_ref().map_or(0, |signals| signals.abandoned)
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
