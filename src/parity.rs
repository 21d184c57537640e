//! Which workers are stuck, from two counters that any build of Tokio has: no wrapper, no flag, no hook.
//!
//! A worker counts each park and each unpark, so an odd count means parked. It publishes that count and how long it has
//! been busy before a park, after an unpark, and every so many polls in between (61 by default). A worker that is not
//! parked and whose figures stand still is in one poll, or in an unbroken row of fewer polls than that. The two cannot be
//! told apart from here: 61 polls of 2 ms each look like one of 120 ms. So it is a reason to look closer, not a proof.
//!
//! What it cannot see: the root future of `block_on` on a multi-thread runtime, which runs on its caller's thread. What it
//! does not take for stuck, rightly: a worker inside `block_in_place` that a free pool thread has replaced.

use std::ops::Range;

/// The published figures of one worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Parks and unparks: odd while it is parked.
    pub(crate) moves: u64,
    /// How long it has been busy, in nanoseconds.
    pub(crate) busy: u64,
}

impl Reading {
    pub(crate) fn is_parked(self) -> bool {
        self.moves % 2 == 1
    }

    /// It has not yet published anything: it has not started, or is still in its first polls.
    fn is_first(self) -> bool {
        self == Self::default()
    }
}

/// A worker that is not parked and whose figures stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frozen {
    pub(crate) worker: usize,
    /// The last look that saw other figures, or none: it did something after that.
    pub(crate) after: u64,
    /// The first look that saw these figures: it has published nothing since. Ages are counted from here.
    pub(crate) since: u64,
    /// It has published something before. Otherwise it may as well not have started yet.
    pub(crate) started: bool,
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    reading: Reading,
    after: u64,
    since: u64,
}

/// The workers of one runtime, over the looks.
#[derive(Debug, Default)]
pub(crate) struct Parity {
    workers: Vec<Watched>,
    looked_at: u64,
    parked: usize,
    moved: usize,
}

impl Parity {
    /// One look. The number of workers does not change; the first look makes room for them.
    pub(crate) fn look(&mut self, now: u64, readings: impl Iterator<Item = Reading>) {
        let before = self.looked_at;
        (self.looked_at, self.parked, self.moved) = (now, 0, 0);
        for (worker, reading) in readings.enumerate() {
            self.parked += usize::from(reading.is_parked());
            match self.workers.get_mut(worker) {
                Some(watched) if watched.reading == reading => {}
                Some(watched) => {
                    *watched = Watched { reading, after: before, since: now };
                    self.moved += 1;
                }
                // What it was before the first look nobody knows.
                None => self.workers.push(Watched { reading, after: now, since: now }),
            }
        }
    }

    /// How many workers there are that tell of themselves; 0 where the platform's atomics are too narrow for that.
    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked
    }

    /// How many workers have published something since the look before.
    pub(crate) fn moved(&self) -> usize {
        self.moved
    }

    /// The workers that have stood still over at least one whole stretch between two looks. Each still has to be old
    /// enough to matter.
    pub(crate) fn frozen(&self) -> impl Iterator<Item = Frozen> {
        let still = |watched: &Watched| !watched.reading.is_parked() && watched.since < self.looked_at;
        self.workers.iter().enumerate().filter(move |(_, watched)| still(watched)).map(|(worker, watched)| Frozen {
            worker,
            after: watched.after,
            since: watched.since,
            started: !watched.reading.is_first(),
        })
    }
}

/// The figures of the workers in `range` as they are now; none where Tokio's atomics are too narrow to have them.
#[cfg(target_has_atomic = "64")]
pub(crate) fn readings(
    metrics: &tokio::runtime::RuntimeMetrics,
    range: Range<usize>,
) -> impl Iterator<Item = Reading> + '_ {
    range.map(|worker| Reading {
        moves: metrics.worker_park_unpark_count(worker),
        busy: crate::clock::nanos(metrics.worker_total_busy_duration(worker)),
    })
}

#[cfg(not(target_has_atomic = "64"))]
pub(crate) fn readings(_: &tokio::runtime::RuntimeMetrics, _: Range<usize>) -> impl Iterator<Item = Reading> + '_ {
    std::iter::empty()
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    const PARKED: Reading = Reading { moves: 7, busy: 500 };
    const ACTIVE: Reading = Reading { moves: 8, busy: 500 };

    fn looks(looks: &[(u64, &[Reading])]) -> Parity {
        let mut parity = Parity::default();
        for (now, readings) in looks {
            parity.look(*now, readings.iter().copied());
        }
        parity
    }

    #[test]
    fn a_worker_that_is_not_parked_and_stands_still_is_frozen_since_the_first_look_that_saw_it_so() {
        let parity = looks(&[(10, &[PARKED, PARKED]), (20, &[ACTIVE, PARKED]), (30, &[ACTIVE, PARKED])]);
        let frozen: Vec<_> = parity.frozen().collect();
        assert_eq!(frozen, [Frozen { worker: 0, after: 10, since: 20, started: true }]);
        assert_eq!((parity.parked(), parity.moved(), parity.workers()), (1, 0, 2));
    }

    #[test]
    fn one_look_alone_accuses_nobody() {
        assert_eq!(looks(&[(10, &[ACTIVE])]).frozen().count(), 0);
        assert_eq!(looks(&[(10, &[PARKED]), (20, &[ACTIVE])]).frozen().count(), 0);
    }

    #[test]
    fn a_worker_that_publishes_or_parks_is_free_again() {
        let busier = Reading { busy: 600, ..ACTIVE };
        for next in [busier, Reading { moves: 9, ..ACTIVE }, Reading { moves: 10, ..ACTIVE }] {
            let parity = looks(&[(10, &[ACTIVE]), (20, &[ACTIVE]), (30, &[next])]);
            assert_eq!(parity.frozen().count(), 0, "{next:?}");
            assert_eq!(parity.moved(), 1);
        }
        let again = looks(&[(10, &[ACTIVE]), (20, &[ACTIVE]), (30, &[busier]), (40, &[busier])]);
        assert_eq!(again.frozen().next().map(|frozen| (frozen.after, frozen.since)), Some((20, 30)));
    }

    #[test]
    fn a_worker_that_never_published_is_told_apart() {
        let parity = looks(&[(10, &[Reading::default()]), (20, &[Reading::default()])]);
        assert_eq!(parity.frozen().next().map(|frozen| frozen.started), Some(false));
    }

    #[test]
    fn without_figures_nobody_is_frozen_and_nobody_parked() {
        let parity = looks(&[(10, &[]), (20, &[])]);
        assert_eq!((parity.frozen().count(), parity.parked(), parity.workers()), (0, 0, 0));
    }
}
