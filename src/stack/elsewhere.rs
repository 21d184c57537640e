//! Where stacks are not taken.

use super::{CannotCapture, Capture};
use crate::frame::StackTrace;
use std::ops::Range;

/// Whose stack to take.
#[allow(dead_code, reason = "nobody is looked at")]
pub(super) struct Subject<'a> {
    pub(super) tid: u32,
    pub(super) bounds: Option<Range<u64>>,
    pub(super) is_same: &'a dyn Fn() -> bool,
}

/// Takes none.
pub(super) struct Taker;

impl Taker {
    pub(super) fn new(_signals: bool) -> Self {
        Self
    }

    pub(super) fn take(&mut self, _subject: &Subject<'_>) -> Result<Capture, CannotCapture> {
        Err(CannotCapture::NotSupported)
    }

    pub(super) fn take_asleep(&mut self, subject: &Subject<'_>) -> Result<Capture, CannotCapture> {
        self.take(subject)
    }

    pub(super) fn abandoned(&self) -> u64 {
        0
    }
}

/// Tells of none.
#[derive(Debug)]
pub(super) struct Teller;

impl Teller {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn refresh(&mut self) {}

    pub(super) fn tell(&mut self, _capture: &Capture) -> StackTrace {
        StackTrace { frames: Vec::new(), culprit: None, complete: false }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use crate::stack::{CannotCapture, Capturer};

    #[test]
    fn no_stack_is_taken() {
        let mut capturer = Capturer::new(true);
        assert_eq!(capturer.capture(1, None, &|| true).err(), Some(CannotCapture::NotSupported));
        assert_eq!(capturer.counts().requests(), 1);
        assert_eq!(capturer.counts().not_supported, 1);
    }
}
