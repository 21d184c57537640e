//! Distributions and counters that the hot path writes and a snapshot reads.
//!
//! The distributions are `histogram`'s: log-linear buckets, here 16 to each doubling, so that a percentile is told
//! within 6.25 % at any size from a nanosecond to 73 minutes. Longer values count as 73 minutes.

use histogram::{AtomicHistogram, Config, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};

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

    pub(crate) fn load(&self) -> (Histogram, u64) {
        (self.buckets.load(), self.sum())
    }
}

/// An empty distribution with the layout of [`Durations`].
pub(crate) fn empty() -> Histogram {
    Histogram::with_config(&CONFIG)
}

/// What one thread has measured of the polls of one op. Only that thread writes it.
#[derive(Debug)]
pub(crate) struct PollFigures {
    pub(crate) poll_duration: Durations,
    pub(crate) schedule_latency: Durations,
}

impl PollFigures {
    pub(crate) fn new() -> Self {
        Self { poll_duration: Durations::new(), schedule_latency: Durations::new() }
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
    /// Calls whose wait was over the floor and longer than their execution, and those waits' sum.
    pub(crate) dominated: AtomicU64,
    pub(crate) dominated_wait: AtomicU64,
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
        }
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
    fn every_duration_is_counted_and_the_sum_is_exact() {
        let durations = Durations::new();
        for nanos in [0, 1, 17, 1_000, 64_000_000_000, MAX_VALUE, MAX_VALUE + 1, 1 << 50] {
            durations.record(nanos);
        }
        let (buckets, sum) = durations.load();
        assert_eq!(buckets.as_slice().iter().sum::<u64>(), 8);
        assert_eq!(sum, 1 + 17 + 1_000 + 64_000_000_000 + MAX_VALUE + (MAX_VALUE + 1) + (1 << 50));
    }
}
