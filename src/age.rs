//! How old the oldest of any number of waiting things is, in constant memory and without a lock.
//!
//! A call enters with the time of its arrival and leaves with the same time. Arrivals are counted per bucket of time;
//! the oldest bucket that still counts something tells the age. A call costs two compare-and-swaps, however many others
//! wait, and looking costs the same for one call as for a million.
//!
//! # Invariants
//!
//! 1. There are [`LEVELS`] rings of [`BUCKETS`] buckets. A bucket of level `n + 1` is [`FACTOR`] times as wide as one of
//!    level `n`, and the buckets nest. So a time names exactly one bucket at each level.
//! 2. A bucket's word holds the lap of its ring and a count. Laps only grow.
//! 3. Whoever needs a bucket for a later lap than the one in it takes the bucket over with one compare-and-swap and
//!    carries the old count one level up. Hence the count of a time stands at the lowest level whose bucket has not moved
//!    on to a later lap, and both arrival and departure find it by the same walk.
//! 4. Between taking a bucket over and carrying the count up, a departure may get there first and leave a negative count.
//!    The sum is right at every moment; only the reader sees a call missing for those nanoseconds.

use crate::sync::{AtomicU64, Ordering};

const BUCKETS: usize = 32;
const LEVELS: usize = 12;
/// log2 of how much wider the next level's buckets are.
const FACTOR_SHIFT: u32 = 2;
#[cfg(doc)]
const FACTOR: u64 = 1 << FACTOR_SHIFT;
/// log2 of the finest bucket's width in nanoseconds: 2.1 ms. The 12th level's ring spans 78 hours.
const FINEST_SHIFT: u32 = 21;

/// The ages of what waits at one place. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Ages {
    rings: Box<[[AtomicU64; BUCKETS]]>,
    /// How many wait that arrived longer ago than the widest ring spans.
    ancient: AtomicU64,
    /// How many wait in all. Lets the reader skip the rings of a place where nothing waits.
    waiting: AtomicU64,
}

/// The oldest arrival among what waits, as well as its bucket tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Oldest {
    /// It arrived no later than this: a bound that never makes the age too high.
    pub(crate) latest: u64,
}

impl Ages {
    pub(crate) fn new() -> Self {
        Self::with_levels(LEVELS)
    }

    fn with_levels(levels: usize) -> Self {
        Self {
            rings: (0..levels).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
            ancient: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        }
    }

    /// Something arrived at `time`.
    pub(crate) fn enter(&self, time: u64) {
        // Relaxed: a gauge for skipping empty places; the rings carry the ordering.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.adjust(0, time, 1);
    }

    /// What arrived at `time` waits no longer.
    pub(crate) fn leave(&self, time: u64) {
        self.adjust(0, time, -1);
        // Relaxed: as in `enter`.
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> u64 {
        // Relaxed: a gauge. An arrival may be seen before its bucket is, never the other way round for long.
        self.waiting.load(Ordering::Relaxed)
    }

    /// The oldest of what waits; `None` where nothing does.
    pub(crate) fn oldest(&self) -> Option<Oldest> {
        if self.waiting() == 0 {
            return None;
        }
        // Relaxed: as `waiting`. Arrived before anything that the rings could tell apart.
        if (self.ancient.load(Ordering::Relaxed) as i64) > 0 {
            return Some(Oldest { latest: 0 });
        }
        let mut oldest: Option<(u64, u64)> = None;
        for (level, ring) in self.rings.iter().enumerate() {
            for (index, bucket) in ring.iter().enumerate() {
                // Relaxed: each word is whole in itself, and nothing is read through it.
                let (lap, count) = unpack(bucket.load(Ordering::Relaxed));
                if lap > 0 && count > 0 {
                    let start = start_of(level, index, lap);
                    if oldest.is_none_or(|(known, _)| start < known) {
                        oldest = Some((start, start + (1 << shift_of(level))));
                    }
                }
            }
        }
        oldest.map(|(_, latest)| Oldest { latest })
    }

    /// Adds `delta` where the count of `time` stands (invariant 3), starting at `level`.
    fn adjust(&self, mut level: usize, time: u64, delta: i32) {
        while let Some(ring) = self.rings.get(level) {
            let tick = time >> shift_of(level);
            let index = tick as usize % BUCKETS;
            // Laps count from 1: 0 is a bucket never used.
            let lap = (tick / BUCKETS as u64) as u32 + 1;
            // Relaxed: the compare-and-swap decides.
            let mut word = ring[index].load(Ordering::Relaxed);
            loop {
                let (held, count) = unpack(word);
                if held > lap {
                    break;
                }
                let next = if held == lap { pack(lap, count.wrapping_add(delta)) } else { pack(lap, delta) };
                // AcqRel: an arrival's count must be visible to whoever finds its lap here or a later one.
                match ring[index].compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => {
                        if held < lap && count != 0 {
                            self.adjust(level + 1, start_of(level, index, held), count);
                        }
                        return;
                    }
                    Err(actual) => word = actual,
                }
            }
            level += 1;
        }
        // Relaxed: a sum that nothing else is read through. Two's complement: a negative delta wraps as it should.
        self.ancient.fetch_add(i64::from(delta) as u64, Ordering::Relaxed);
    }
}

fn shift_of(level: usize) -> u32 {
    FINEST_SHIFT + FACTOR_SHIFT * level as u32
}

/// The earliest time that falls into a bucket at a lap.
fn start_of(level: usize, index: usize, lap: u32) -> u64 {
    ((u64::from(lap) - 1) * BUCKETS as u64 + index as u64) << shift_of(level)
}

fn pack(lap: u32, count: i32) -> u64 {
    u64::from(lap) << 32 | u64::from(count as u32)
}

fn unpack(word: u64) -> (u32, i32) {
    ((word >> 32) as u32, word as u32 as i32)
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const HOUR: u64 = 3_600_000 * MS;

    #[test]
    fn nothing_waiting_has_no_age() {
        let ages = Ages::new();
        assert_eq!(ages.oldest(), None);
        ages.enter(5 * MS);
        ages.leave(5 * MS);
        assert_eq!((ages.oldest(), ages.waiting()), (None, 0));
    }

    #[test]
    fn one_that_never_leaves_is_the_oldest_through_a_week_of_others() {
        let ages = Ages::new();
        ages.enter(3 * MS);
        let mut now = 3 * MS;
        while now < 24 * 7 * HOUR {
            now += now / 3 + MS;
            ages.enter(now);
            let Some(oldest) = ages.oldest() else { panic!("one waits") };
            let age = now - 3 * MS;
            let told = now.saturating_sub(oldest.latest);
            assert!(told <= age, "told {told} of {age}");
            assert!(told as f64 >= 0.8 * age as f64 - 3.0 * MS as f64, "told only {told} of {age}");
            ages.leave(now);
        }
        ages.leave(3 * MS);
        assert_eq!((ages.oldest(), ages.waiting()), (None, 0));
    }

    #[test]
    fn memory_is_the_same_for_a_million() {
        let ages = Ages::new();
        for call in 0..1_000_000_u64 {
            ages.enter(call * 1_000);
        }
        assert_eq!(ages.waiting(), 1_000_000);
        for call in 0..999_999_u64 {
            ages.leave(call * 1_000);
        }
        let Some(oldest) = ages.oldest() else { panic!("one waits") };
        let (arrived, precision) = (999_999_000, 1 << FINEST_SHIFT);
        assert!((arrived..=arrived + precision).contains(&oldest.latest));
    }

    proptest! {
        /// Against a plain list: never too old, and at most an eighth and one bucket too young.
        #[test]
        fn the_oldest_is_told_within_an_eighth(
            steps in proptest::collection::vec((0_u64..400 * MS, any::<bool>(), any::<prop::sample::Index>()), 1..400),
        ) {
            let ages = Ages::new();
            let mut waiting: Vec<u64> = Vec::new();
            let mut now = 1;
            for (pause, arrives, which) in steps {
                now += pause;
                if arrives || waiting.is_empty() {
                    ages.enter(now);
                    waiting.push(now);
                } else {
                    ages.leave(waiting.swap_remove(which.index(waiting.len())));
                }
                prop_assert_eq!(ages.waiting(), waiting.len() as u64);
                let told = ages.oldest().map(|oldest| now.saturating_sub(oldest.latest));
                match waiting.iter().min() {
                    None => prop_assert_eq!(told, None),
                    Some(&first) => {
                        let Some(told) = told else { panic!("{} wait", waiting.len()) };
                        let age = now - first;
                        prop_assert!(told <= age);
                        prop_assert!(told + age / 8 + (1 << FINEST_SHIFT) >= age, "told {} of {}", told, age);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, starvation_loom))]
mod models {
    use super::*;
    use loom::{sync::Arc, thread};

    /// A time in a bucket and one in the same bucket a lap later: the second takes the bucket over.
    const EARLY: u64 = 1;
    const LATER: u64 = EARLY + ((BUCKETS as u64) << FINEST_SHIFT);

    #[test]
    fn a_departure_meets_a_take_over() {
        loom::model(|| {
            let ages = Arc::new(Ages::with_levels(2));
            ages.enter(EARLY);
            let taker = {
                let ages = ages.clone();
                thread::spawn(move || ages.enter(LATER))
            };
            ages.leave(EARLY);
            taker.join().unwrap();
            // Only the later one is left, wherever the early one's count had gone.
            assert_eq!(ages.waiting(), 1);
            assert_eq!(
                ages.oldest(),
                Some(Oldest { latest: (LATER >> FINEST_SHIFT << FINEST_SHIFT) + (1 << FINEST_SHIFT) })
            );
            ages.leave(LATER);
            assert_eq!(ages.oldest(), None);
            let left: i64 = ages.rings.iter().flatten().map(|b| i64::from(unpack(b.load(Ordering::Relaxed)).1)).sum();
            assert_eq!(left, 0);
        });
    }

    #[test]
    fn two_arrivals_take_over_and_nothing_is_lost() {
        loom::model(|| {
            let ages = Arc::new(Ages::with_levels(2));
            ages.enter(EARLY);
            let taker = {
                let ages = ages.clone();
                thread::spawn(move || ages.enter(LATER))
            };
            ages.enter(LATER);
            taker.join().unwrap();
            assert_eq!(ages.waiting(), 3);
            let count: i64 = ages.rings.iter().flatten().map(|b| i64::from(unpack(b.load(Ordering::Relaxed)).1)).sum();
            assert_eq!(count, 3);
            let Some(oldest) = ages.oldest() else { panic!("three wait") };
            assert_eq!(oldest.latest, 1 << (FINEST_SHIFT + FACTOR_SHIFT));
        });
    }
}
