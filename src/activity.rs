//! What a thread is doing, as one word: an op, a kind, a start.

/// How many ops there can be; see `op`.
pub(crate) const MAX_OPS: usize = 1 << OP_BITS;
const OP_BITS: u32 = 12;
const KIND_BITS: u32 = 2;
/// A frame's start is kept in units of 64 ns, in 50 bits: it wraps after 2.2 years.
pub(crate) const UNIT_SHIFT: u32 = 6;
const TIME_BITS: u32 = 64 - OP_BITS - KIND_BITS;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// What kind of activity a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One poll, or the drop, of a watched future.
    Poll = 1,
    /// The execution of a blocking call.
    Execution = 2,
    /// One poll of a watched future outside of any task: of the root of a `block_on`, which may run on its caller's thread.
    Root = 3,
}

/// An activity as one word. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Activity(pub(crate) u64);

impl Activity {
    #[inline]
    pub(crate) fn new(kind: Kind, op: u32, start: u64) -> Self {
        // What does not fit into the time's bits the shift drops.
        Self((start >> UNIT_SHIFT) << (OP_BITS + KIND_BITS) | u64::from(op) << KIND_BITS | kind as u64)
    }

    pub(crate) fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    pub(crate) fn kind(self) -> Kind {
        match self.0 & ((1 << KIND_BITS) - 1) {
            1 => Kind::Poll,
            2 => Kind::Execution,
            _ => Kind::Root,
        }
    }

    pub(crate) fn op(self) -> u32 {
        (self.0 >> KIND_BITS) as u32 & (MAX_OPS as u32 - 1)
    }

    /// When it started, given that it started within two years before `now`. Up to 63 ns early.
    pub(crate) fn start(self, now: u64) -> u64 {
        let passed = ((now >> UNIT_SHIFT).wrapping_sub(self.0 >> (OP_BITS + KIND_BITS))) & TIME_MASK;
        // A start on another core may be ahead of `now` by a few units: that is no age, not one of two years.
        if passed > TIME_MASK / 2 { now } else { (now >> UNIT_SHIFT).saturating_sub(passed) << UNIT_SHIFT }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_activity_is_read_as_it_was_written(op in 0..MAX_OPS as u32, start in 0_u64..1 << 60, age in 0_u64..1 << 54) {
            for kind in [Kind::Poll, Kind::Execution, Kind::Root] {
                let activity = Activity::new(kind, op, start);
                let now = start + age;
                prop_assert_eq!((activity.kind(), activity.op()), (kind, op));
                prop_assert!(start - activity.start(now) < 64);
                prop_assert!(Activity::from_word(activity.0).is_some());
            }
        }
    }

    #[test]
    fn a_start_ahead_of_the_reader_is_no_age() {
        let activity = Activity::new(Kind::Poll, 7, 1_000_000);
        assert_eq!(activity.start(999_000), 999_000);
    }
}
