//! Takes stacks, one at a time, and counts what became of it.

use super::machine::{Subject, Taker, Teller};
use super::{CannotCapture, Capture, Way};
use crate::frame::StackTrace;
use std::fmt;
use std::ops::Range;

/// What became of all that was asked for: the sum of these fields, without `abandoned`, is how often that was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Read from outside.
    pub(crate) asleep: u64,
    /// Copied by the thread itself.
    pub(crate) signalled: u64,
    pub(crate) not_supported: u64,
    pub(crate) gone: u64,
    pub(crate) computing: u64,
    pub(crate) restless: u64,
    pub(crate) not_visible: u64,
    pub(crate) not_readable: u64,
    pub(crate) no_answer: u64,
    pub(crate) not_sent: u64,
    pub(crate) too_many: u64,
    /// Buffers left to a thread that had begun to fill them and came to no end: each can be used again once it has.
    pub(crate) abandoned: u64,
}

impl Counts {
    #[cfg(test)]
    pub(crate) fn refused(&self) -> u64 {
        self.not_supported
            + self.gone
            + self.computing
            + self.restless
            + self.not_visible
            + self.not_readable
            + self.no_answer
            + self.not_sent
            + self.too_many
    }

    #[cfg(test)]
    pub(crate) fn requests(&self) -> u64 {
        self.asleep + self.signalled + self.refused()
    }

    fn count(&mut self, answer: &Result<Capture, CannotCapture>) {
        let field = match answer {
            Ok(Capture { way: Way::Asleep, .. }) => &mut self.asleep,
            Ok(Capture { way: Way::Signal, .. }) => &mut self.signalled,
            Err(CannotCapture::NotSupported) => &mut self.not_supported,
            Err(CannotCapture::Gone) => &mut self.gone,
            Err(CannotCapture::Computing) => &mut self.computing,
            Err(CannotCapture::Restless | CannotCapture::Over) => &mut self.restless,
            Err(CannotCapture::NotVisible) => &mut self.not_visible,
            Err(CannotCapture::NotReadable) => &mut self.not_readable,
            Err(CannotCapture::NoAnswer) => &mut self.no_answer,
            Err(CannotCapture::NotSent) => &mut self.not_sent,
            Err(CannotCapture::TooMany) => &mut self.too_many,
        };
        *field += 1;
    }
}

/// Takes the stacks of other threads. It belongs to one thread, the observing one, which must not be asked for its own.
pub(crate) struct Capturer {
    taker: Taker,
    teller: Teller,
    counts: Counts,
}

impl Capturer {
    /// `signals`: whether threads that keep computing may be sent SIGURG. All memory that is needed is taken here.
    pub(crate) fn new(signals: bool) -> Self {
        Self { taker: Taker::new(signals), teller: Teller::new(), counts: Counts::default() }
    }

    /// Takes the stack of a thread: some 15 us if it sleeps, 4 ms if it computes, 14 ms more if it has no CPU or
    /// does not take the signal, and 50 ms at worst.
    ///
    /// `bounds` is where the stack lies that the thread was started on, as `evidence::own_stack` told it; without that no more
    /// than 64 KiB are copied, and what lies behind the stack may be among them.
    ///
    /// `is_same` tells whether the thread that is meant is still known. A thread makes itself unknown before it ends. So if
    /// it is known after its files were opened, they are its own; and if it is known after a signal was answered, its id
    /// had not passed to another thread by then, and it was this thread that answered. It is asked a few times, and not
    /// while a signal is under way.
    pub(crate) fn capture(
        &mut self,
        tid: u32,
        bounds: Option<Range<u64>>,
        is_same: &dyn Fn() -> bool,
    ) -> Result<Capture, CannotCapture> {
        let answer = self.taker.take(&Subject { tid, bounds, is_same });
        self.counts.count(&answer);
        self.counts.abandoned = self.taker.abandoned();
        answer
    }

    /// The same of a thread of which nobody has told, and only if it sleeps: whose stack it is shows on the stack.
    pub(crate) fn capture_asleep(&mut self, tid: u32) -> Result<Capture, CannotCapture> {
        let answer = self.taker.take_asleep(&Subject { tid, bounds: None, is_same: &|| true });
        self.counts.count(&answer);
        answer
    }

    /// The functions on a stack, with their names. Some 100 us, and milliseconds the first time; where there is debug info,
    /// hundreds of them.
    pub(crate) fn tell(&mut self, capture: &Capture) -> StackTrace {
        self.teller.tell(capture)
    }

    /// To be called once in a while: libraries come and go.
    pub(crate) fn refresh(&mut self) {
        self.teller.refresh();
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl fmt::Debug for Capturer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capturer").field("counts", &self.counts).finish_non_exhaustive()
    }
}
