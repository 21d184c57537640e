//! When the process, or this machine's CPUs, had no time for the observer, and so perhaps for nobody.

use std::collections::VecDeque;

/// How many are remembered. An activity older than all of them keeps a few too many milliseconds of age.
const REMEMBERED: usize = 4_096;

/// The stretches of time by which looks were late, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    recent: VecDeque<Pause>,
    /// How long they were together, with those that are forgotten.
    sum: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    from: u64,
    to: u64,
    /// How long those before it were together.
    before: u64,
}

impl Pauses {
    /// Adds one, later than those before.
    pub(crate) fn add(&mut self, from: u64, to: u64) {
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(Pause { from, to, before: self.sum });
        self.sum += to.saturating_sub(from);
    }

    /// How much of the time since `since` was paused.
    pub(crate) fn since(&self, since: u64) -> u64 {
        let first = self.recent.partition_point(|pause| pause.to <= since);
        match self.recent.get(first) {
            Some(pause) => self.sum - pause.before - since.saturating_sub(pause.from),
            None => 0,
        }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_paused_is_what_lies_after() {
        let mut pauses = Pauses::default();
        pauses.add(100, 200);
        pauses.add(500, 550);
        assert_eq!([50, 150, 200, 300, 520, 550, 700].map(|since| pauses.since(since)), [150, 100, 50, 50, 30, 0, 0]);
    }

    #[test]
    fn those_remembered_are_bounded() {
        let mut pauses = Pauses::default();
        for at in 0..100_000 {
            pauses.add(at * 10, at * 10 + 5);
        }
        assert_eq!(pauses.recent.len(), REMEMBERED);
        assert_eq!(pauses.since(999_950), 25);
    }

    proptest! {
        #[test]
        fn it_is_the_sum_of_the_overlaps(lengths in proptest::collection::vec((1_u64..50, 0_u64..50), 1..60), since in 0_u64..3_000) {
            let (mut pauses, mut at, mut expected) = (Pauses::default(), 0, 0);
            for (gap, length) in lengths {
                let (from, to) = (at + gap, at + gap + length);
                pauses.add(from, to);
                expected += to.saturating_sub(from.max(since));
                at = to;
            }
            prop_assert_eq!(pauses.since(since), expected);
        }
    }
}
