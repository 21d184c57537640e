//! Distributions and counters that the hot path writes and a snapshot reads.
//!
//! The distributions are `histogram`'s: log-linear buckets, here 16 to each doubling, so that a percentile is told
//! within 6.25 % at any size from a nanosecond to 73 minutes. Longer values count as 73 minutes.

use histogram::{AtomicHistogram, Config, Histogram};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// 2^4 buckets to a doubling.
const GROUPING_POWER: u8 = 4;
/// 2^42 ns: 73 minutes.
const MAX_VALUE_POWER: u8 = 42;
const MAX_VALUE: u64 = (1 << MAX_VALUE_POWER) - 1;

/// Checked when the crate is compiled, so that nothing can fail where a thread meets its first op.
const CONFIG: Config = match Config::new(GROUPING_POWER, MAX_VALUE_POWER) {
    Ok(config) => config,
    Err(_) => panic!("the powers above do not make a histogram"),
};

/// A distribution of durations in nanoseconds, and their exact sum.
#[derive(Debug)]
pub(crate) struct Durations {
    buckets: AtomicHistogram,
    sum: AtomicU64,
}

impl Durations {
    pub(crate) fn new() -> Self {
        Self { buckets: AtomicHistogram::with_config(&CONFIG), sum: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn record(&self, nanos: u64) {
        // The clamp leaves no value out of range: nothing is dropped here.
        let _ = self.buckets.increment(nanos.min(MAX_VALUE));
        // Relaxed: a sum that is read for itself.
        self.sum.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }

    /// Adds what has been recorded to `buckets`; returns the sum.
    pub(crate) fn add_to(&self, buckets: &mut Histogram) -> u64 {
        // The layouts are the same, and the counts far from overflowing.
        let _ = buckets.checked_add_assign(&self.buckets.load());
        self.sum()
    }
}

/// The same where a single thread writes: two loads and two stores, where an atomic addition is ten times as dear.
#[derive(Debug)]
pub(crate) struct OwnDurations {
    buckets: Box<[AtomicU64; CONFIG.total_buckets()]>,
    sum: AtomicU64,
}

impl OwnDurations {
    fn new() -> Self {
        Self { buckets: Box::new([const { AtomicU64::new(0) }; CONFIG.total_buckets()]), sum: AtomicU64::new(0) }
    }

    /// To be called by one thread at a time, the owner of the slot that this belongs to.
    #[inline]
    pub(crate) fn record(&self, nanos: u64) {
        // Relaxed: there is one writer, and readers want each figure for itself.
        let add =
            |figure: &AtomicU64, by| figure.store(figure.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        add(&self.buckets[bucket_of(nanos.min(MAX_VALUE))], 1);
        add(&self.sum, nanos);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }

    /// Adds what has been recorded to `buckets`; returns the sum.
    pub(crate) fn add_to(&self, buckets: &mut Histogram) -> u64 {
        for (here, own) in buckets.as_mut_slice().iter_mut().zip(&*self.buckets) {
            *here += own.load(Ordering::Relaxed);
        }
        self.sum.load(Ordering::Relaxed)
    }
}

/// The bucket of a value in `histogram`'s layout, which the crate keeps to itself: values up to twice the grouping have
/// one each, then every doubling is cut into as many as the grouping.
#[inline]
fn bucket_of(value: u64) -> usize {
    const GROUPING: u32 = GROUPING_POWER as u32;
    let power = 63 - (value | 1 << GROUPING).leading_zeros();
    let shift = power - GROUPING;
    ((shift as usize) << GROUPING) + (value >> shift) as usize
}

/// An empty distribution with the layout of [`Durations`].
pub(crate) fn empty() -> Histogram {
    Histogram::with_config(&CONFIG)
}

/// What one thread has measured of the polls of one op. Only that thread writes it.
#[derive(Debug)]
pub(crate) struct PollFigures {
    pub(crate) poll_duration: OwnDurations,
    pub(crate) schedule_latency: OwnDurations,
}

impl PollFigures {
    pub(crate) fn new() -> Self {
        Self { poll_duration: OwnDurations::new(), schedule_latency: OwnDurations::new() }
    }
}

/// What is measured of the calls of one op, on whichever threads they ran.
#[derive(Debug)]
pub(crate) struct CallFigures {
    pub(crate) queue_wait: Durations,
    pub(crate) execution: Durations,
    pub(crate) resume_delay: Durations,
    pub(crate) started: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) panicked: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// Calls that ran or run although their handle is gone.
    pub(crate) abandoned: AtomicU64,
    /// CPU time of the executions whose CPU time is known, and their wall time: the share is of these alone.
    pub(crate) cpu: AtomicU64,
    pub(crate) cpu_known_execution: AtomicU64,
    /// Calls whose wait was over the floor and longer than their op's executions are on average (of its first calls: than
    /// their own), and those waits' sum.
    pub(crate) dominated: AtomicU64,
    pub(crate) dominated_wait: AtomicU64,
    /// Calls that a thread of their own pool waited for, how many it waits for now, and the op (its place and one) that
    /// it executed when that happened last.
    pub(crate) nested: AtomicU64,
    pub(crate) nested_now: AtomicU64,
    pub(crate) nested_in: AtomicU32,
    /// Of those calls, how many were made on such a thread, too.
    pub(crate) nested_made: AtomicU64,
    /// Calls made on a thread of their own pool, whoever waits for them.
    pub(crate) made_inside: AtomicU64,
    /// The op (its place and one) that made the last of them: a watched future, or another call.
    pub(crate) caller: AtomicU32,
}

impl CallFigures {
    pub(crate) fn new() -> Self {
        Self {
            queue_wait: Durations::new(),
            execution: Durations::new(),
            resume_delay: Durations::new(),
            started: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            cpu: AtomicU64::new(0),
            cpu_known_execution: AtomicU64::new(0),
            dominated: AtomicU64::new(0),
            dominated_wait: AtomicU64::new(0),
            nested: AtomicU64::new(0),
            nested_now: AtomicU64::new(0),
            nested_in: AtomicU32::new(0),
            nested_made: AtomicU64::new(0),
            made_inside: AtomicU64::new(0),
            caller: AtomicU32::new(0),
        }
    }

    /// How long an execution takes on average; none before the first has ended.
    pub(crate) fn usual_execution(&self) -> Option<u64> {
        let ended = self.returned.load(Ordering::Relaxed) + self.panicked.load(Ordering::Relaxed);
        self.execution.sum().checked_div(ended)
    }

    /// Whether to ask for the CPU time of the next execution: always, unless they are so short that the two system
    /// calls, about half a microsecond, would tell; then of every eighth.
    pub(crate) fn asks_for_cpu(&self) -> bool {
        const SHORT: u64 = 20_000;
        let ended = self.returned.load(Ordering::Relaxed);
        ended < 64 || ended.is_multiple_of(8) || self.usual_execution().is_none_or(|usual| usual >= SHORT)
    }

    /// Executions under way.
    pub(crate) fn executing(&self) -> u64 {
        // Relaxed: a gauge from two counters; ended first, so that an execution is seen too long rather than never.
        let ended = self.returned.load(Ordering::Relaxed) + self.panicked.load(Ordering::Relaxed);
        self.started.load(Ordering::Relaxed).saturating_sub(ended)
    }
}

/// Adds to a counter that is read for itself alone: nothing is published through it, hence Relaxed.
#[inline]
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_are_those_of_the_library() {
        let edges = (0..MAX_VALUE_POWER).flat_map(|power| {
            let edge = 1_u64 << power;
            [edge - 1, edge, edge + 1, edge + edge / 3, edge + edge / 2]
        });
        for value in (0..5_000).chain(edges).chain([MAX_VALUE]) {
            let mut buckets = empty();
            assert!(buckets.increment(value).is_ok());
            assert_eq!(buckets.as_slice().iter().position(|&count| count == 1), Some(bucket_of(value)), "{value}");
        }
    }

    #[test]
    fn what_one_thread_records_adds_up() {
        let own = OwnDurations::new();
        let mut buckets = empty();
        for nanos in [0, 3, 3, 1_000_000, u64::MAX >> 1] {
            own.record(nanos);
        }
        assert_eq!(own.add_to(&mut buckets), 1_000_006 + (u64::MAX >> 1));
        assert_eq!(buckets.as_slice().iter().sum::<u64>(), 5);
        assert_eq!(own.add_to(&mut buckets), 1_000_006 + (u64::MAX >> 1));
        assert_eq!(buckets.as_slice()[3], 4);
    }

    #[test]
    fn every_duration_is_counted_and_the_sum_is_exact() {
        let durations = Durations::new();
        for nanos in [0, 1, 17, 1_000, 64_000_000_000, MAX_VALUE, MAX_VALUE + 1, 1 << 50] {
            durations.record(nanos);
        }
        let mut buckets = empty();
        let sum = durations.add_to(&mut buckets);
        assert_eq!(buckets.as_slice().iter().sum::<u64>(), 8);
        assert_eq!(sum, 1 + 17 + 1_000 + 64_000_000_000 + MAX_VALUE + (MAX_VALUE + 1) + (1 << 50));
    }
}
