//! All figures at one moment, by op and runtime, and their difference over an interval.

use crate::figures::{self, CallFigures, Durations};
use crate::op::{self, Op};
use crate::runtime::RuntimeSnapshot;
use crate::sample::ObserverFigures;
use crate::{clock, slot};
use histogram::Histogram;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// All figures at one moment. Made by [`Detector::snapshot`](crate::Detector::snapshot).
///
/// Counters and distributions run from the process's start; for an interval take two and call [`since`](Self::since).
/// Gauges (what is queued, executing or pending, and the ages) are of the moment.
///
/// As JSON (feature `serde`) durations are microseconds under names that end in `_us`; an absent figure is null.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The ops met so far, one entry per site and runtime.
    pub ops: Vec<OpSnapshot>,
    /// The runtimes that the detector is attached to.
    pub runtimes: Vec<RuntimeSnapshot>,
    /// What the detector itself costs, and how well it does.
    pub observer: ObserverSnapshot,
    #[cfg_attr(feature = "serde", serde(skip))]
    taken: u64,
}

/// The figures of one op on one runtime.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OpSnapshot {
    /// Its name.
    pub op: &'static str,
    /// Where it is.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::location"))]
    pub location: &'static Location<'static>,
    /// The runtime, by Tokio's own number; `None` for what runs outside of any. Tokio may give a number again once its
    /// runtime is gone.
    pub runtime: Option<u64>,
    /// Calls that wait for a thread now.
    pub queued: u64,
    /// Calls that execute now.
    pub executing: u64,
    /// How long the oldest queued call has been waiting, at least: it may be an eighth and 2 ms more.
    #[cfg_attr(feature = "serde", serde(rename = "oldest_queued_us", serialize_with = "crate::wire::maybe_us"))]
    pub oldest_queued: Option<Duration>,
    /// Waits (`instrument_wait`) that are pending now.
    pub pending_waits: u64,
    /// How long the oldest of them has been pending, at least, as for `oldest_queued`.
    #[cfg_attr(feature = "serde", serde(rename = "oldest_wait_us", serialize_with = "crate::wire::maybe_us"))]
    pub oldest_wait: Option<Duration>,
    /// How its calls ended.
    pub outcomes: Outcomes,
    /// Calls: from the call to its start.
    pub queue_wait: Distribution,
    /// Calls: from the start to the end.
    pub execution: Distribution,
    /// Calls: from the end to the poll of the task that was waiting.
    pub resume_delay: Distribution,
    /// The share of the executions' time that their threads were on a CPU, from 0 to 1: near 1 they compute, near 0
    /// they wait for something. `None` before the first has ended, and where the system does not tell.
    pub cpu_share: Option<f64>,
    /// Futures: each poll.
    pub poll_duration: Distribution,
    /// Futures: from each waking to the poll.
    pub schedule_latency: Distribution,
    /// Polls over the threshold.
    pub long_polls: u64,
    /// Futures that completed.
    pub futures_completed: u64,
    /// Futures that were dropped before they completed.
    pub futures_dropped: u64,
    /// Waits: each that ended, with those that were dropped, as by a timeout.
    pub wait: Distribution,
    /// Waits that were dropped before what they waited for was there.
    pub waits_dropped: u64,
    #[cfg_attr(feature = "serde", serde(skip))]
    index: u32,
    #[cfg_attr(feature = "serde", serde(skip))]
    cpu: (u64, u64),
}

/// How calls ended, by count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Outcomes {
    /// The closure returned.
    pub returned: u64,
    /// The closure panicked.
    pub panicked: u64,
    /// The closure was dropped unrun.
    pub cancelled: u64,
    /// The runtime had shut down before.
    pub rejected: u64,
    /// Of those that ran: how many ran, or run, on although their handle is gone. They work for nobody.
    pub abandoned: u64,
}

/// A distribution of durations. Percentiles and the maximum are told within 6.25 %, from above; `None` where nothing was
/// recorded.
#[derive(Clone)]
#[non_exhaustive]
pub struct Distribution {
    /// How many.
    pub count: u64,
    /// Their exact sum.
    pub sum: Duration,
    /// The median.
    pub p50: Option<Duration>,
    /// Nine of ten are no longer.
    pub p90: Option<Duration>,
    /// 99 of 100 are no longer.
    pub p99: Option<Duration>,
    /// The longest, as well as a percentile is told.
    pub max: Option<Duration>,
    buckets: Histogram,
}

/// What the detector costs, and how well it does.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ObserverSnapshot {
    /// CPU time of the observing thread; `None` where the system does not tell.
    #[cfg_attr(feature = "serde", serde(rename = "cpu_us", serialize_with = "crate::wire::maybe_us"))]
    pub cpu: Option<Duration>,
    /// How often it has looked.
    pub ticks: u64,
    /// How many looks came so late that they could open no incident.
    pub late_ticks: u64,
    /// How late all looks were together.
    #[cfg_attr(feature = "serde", serde(rename = "lateness_us", serialize_with = "crate::wire::us"))]
    pub lateness: Duration,
    /// The latest look since the start, also in a difference of two snapshots.
    #[cfg_attr(feature = "serde", serde(rename = "longest_lateness_us", serialize_with = "crate::wire::us"))]
    pub longest_lateness: Duration,
    /// Reports that a sink or a subscriber did not get because it had not taken the earlier ones.
    pub dropped_reports: u64,
    /// Reports that a sink panicked over.
    pub failed_reports: u64,
    /// Episodes that were not reported because too many of their kind had been.
    pub muted_incidents: u64,
    /// Looks that found an episode and could not open it because too many were open.
    pub unopened_incidents: u64,
    /// Stacks of threads that were taken, those that could not be, and those that were left out because so many had been
    /// lately.
    pub stacks_taken: u64,
    /// See [`stacks_taken`](Self::stacks_taken).
    pub stacks_refused: u64,
    /// See [`stacks_taken`](Self::stacks_taken).
    pub stacks_left_out: u64,
    /// Stacks and dumps that came to nothing because of a fault in this crate, which was caught: zero, unless there is one.
    pub stacks_failed: u64,
    /// Look-ups of ops that found no place: more than 4,095 ops, counted together as one.
    pub overflowed_ops: u64,
}

impl Snapshot {
    pub(crate) fn take(runtimes: Vec<RuntimeSnapshot>, observer: ObserverSnapshot) -> Self {
        let now = clock::now();
        Self { ops: op::all().map(|op| OpSnapshot::of(op, now)).collect(), runtimes, observer, taken: now }
    }

    /// The entries of an op, one per place and runtime.
    pub fn op<'a>(&'a self, op: &'a str) -> impl Iterator<Item = &'a OpSnapshot> {
        self.ops.iter().filter(move |entry| entry.op == op)
    }

    /// What has been counted between `earlier` and this snapshot; the gauges are this one's.
    ///
    /// Taken the wrong way round, the counts are 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut ops = self.ops.clone();
        for op in &mut ops {
            if let Some(before) = earlier.ops.iter().find(|before| before.index == op.index) {
                op.subtract(before);
            }
        }
        let runtimes = self.runtimes.clone();
        Self { ops, runtimes, observer: self.observer.since(&earlier.observer), taken: self.taken }
    }

    /// How much time lies between `earlier` and this snapshot.
    #[must_use]
    pub fn elapsed_since(&self, earlier: &Self) -> Duration {
        Duration::from_nanos(self.taken.saturating_sub(earlier.taken))
    }
}

impl OpSnapshot {
    fn of(op: &'static Op, now: u64) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let calls = op.known_calls();
        let of_calls =
            |which: fn(&CallFigures) -> &Durations| calls.map_or_else(Distribution::empty, |calls| which(calls).into());
        let waits = op.known_waits();
        let age = |oldest: crate::age::Oldest| Duration::from_nanos(now.saturating_sub(oldest.latest));
        let (mut poll_duration, mut schedule_latency) = (Distribution::empty(), Distribution::empty());
        for figures in slot::all().filter_map(|slot| slot.figures(op.index)) {
            poll_duration.add(|buckets| figures.poll_duration.add_to(buckets));
            schedule_latency.add(|buckets| figures.schedule_latency.add_to(buckets));
        }
        let mut this = Self {
            op: op.name,
            location: op.location,
            runtime: op.runtime.and_then(op::runtime_number),
            queued: op.queued.waiting(),
            executing: calls.map_or(0, CallFigures::executing),
            oldest_queued: op.queued.oldest().map(age),
            pending_waits: waits.map_or(0, |waits| waits.pending.waiting() + waits.woken.waiting()),
            oldest_wait: waits.and_then(|waits| waits.pending.oldest()).map(age),
            outcomes: calls.map_or_else(Outcomes::default, |calls| Outcomes {
                returned: read(&calls.returned),
                panicked: read(&calls.panicked),
                cancelled: read(&calls.cancelled),
                rejected: read(&calls.rejected),
                abandoned: read(&calls.abandoned),
            }),
            queue_wait: of_calls(|calls| &calls.queue_wait),
            execution: of_calls(|calls| &calls.execution),
            resume_delay: of_calls(|calls| &calls.resume_delay),
            cpu_share: None,
            poll_duration: poll_duration.told(),
            schedule_latency: schedule_latency.told(),
            long_polls: read(&op.long_polls),
            futures_completed: read(&op.futures_completed),
            futures_dropped: read(&op.futures_dropped),
            wait: waits.map_or_else(Distribution::empty, |waits| (&waits.duration).into()),
            waits_dropped: waits.map_or(0, |waits| read(&waits.dropped)),
            index: op.index,
            cpu: calls.map_or((0, 0), |calls| (read(&calls.cpu), read(&calls.cpu_known_execution))),
        };
        this.share_cpu();
        this
    }

    fn share_cpu(&mut self) {
        let (cpu, execution) = self.cpu;
        self.cpu_share = (execution > 0).then(|| (cpu as f64 / execution as f64).min(1.0));
    }

    fn subtract(&mut self, before: &Self) {
        for (now, before) in [
            (&mut self.outcomes.returned, before.outcomes.returned),
            (&mut self.outcomes.panicked, before.outcomes.panicked),
            (&mut self.outcomes.cancelled, before.outcomes.cancelled),
            (&mut self.outcomes.rejected, before.outcomes.rejected),
            (&mut self.outcomes.abandoned, before.outcomes.abandoned),
            (&mut self.long_polls, before.long_polls),
            (&mut self.futures_completed, before.futures_completed),
            (&mut self.futures_dropped, before.futures_dropped),
            (&mut self.waits_dropped, before.waits_dropped),
            (&mut self.cpu.0, before.cpu.0),
            (&mut self.cpu.1, before.cpu.1),
        ] {
            *now = now.saturating_sub(before);
        }
        for (now, before) in [
            (&mut self.queue_wait, &before.queue_wait),
            (&mut self.execution, &before.execution),
            (&mut self.resume_delay, &before.resume_delay),
            (&mut self.poll_duration, &before.poll_duration),
            (&mut self.schedule_latency, &before.schedule_latency),
            (&mut self.wait, &before.wait),
        ] {
            now.subtract(before);
        }
        self.share_cpu();
    }
}

impl From<&Durations> for Distribution {
    fn from(durations: &Durations) -> Self {
        let mut this = Self::empty();
        this.add(|buckets| durations.add_to(buckets));
        this.told()
    }
}

impl std::fmt::Debug for Distribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { count, sum, p50, p90, p99, max, .. } = self;
        // Without the buckets: hundreds of numbers.
        f.debug_struct("Distribution")
            .field("count", count)
            .field("sum", sum)
            .field("p50", p50)
            .field("p90", p90)
            .field("p99", p99)
            .field("max", max)
            .finish_non_exhaustive()
    }
}

impl Distribution {
    /// The average; `None` where nothing was recorded.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let nanos = self.sum.as_nanos().checked_div(u128::from(self.count))?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }

    fn empty() -> Self {
        Self { count: 0, sum: Duration::ZERO, p50: None, p90: None, p99: None, max: None, buckets: figures::empty() }
    }

    /// Adds what `add` adds to the buckets, whose sum it returns.
    fn add(&mut self, add: impl FnOnce(&mut Histogram) -> u64) {
        let sum = add(&mut self.buckets);
        self.sum = self.sum.saturating_add(Duration::from_nanos(sum));
    }

    fn subtract(&mut self, before: &Self) {
        for (here, before) in self.buckets.as_mut_slice().iter_mut().zip(before.buckets.as_slice()) {
            *here = here.saturating_sub(*before);
        }
        self.sum = self.sum.saturating_sub(before.sum);
        *self = self.clone().told();
    }

    /// Tells count and percentiles from the buckets.
    fn told(mut self) -> Self {
        self.count = self.buckets.as_slice().iter().sum();
        let quantile = |q: f64| {
            let bucket = self.buckets.quantile_bucket(q).ok().flatten()?;
            // No single one was longer than all together.
            Some(Duration::from_nanos(bucket.end()).min(self.sum))
        };
        (self.p50, self.p90, self.p99, self.max) = (quantile(0.5), quantile(0.9), quantile(0.99), quantile(1.0));
        self
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Distribution {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        // Polls are often shorter than a microsecond, so these are not whole numbers.
        let us = |duration: Duration| duration.as_nanos() as f64 / 1_000.0;
        let mut fields = serializer.serialize_struct("Distribution", 6)?;
        fields.serialize_field("count", &self.count)?;
        fields.serialize_field("sum_us", &us(self.sum))?;
        fields.serialize_field("p50_us", &self.p50.map(us))?;
        fields.serialize_field("p90_us", &self.p90.map(us))?;
        fields.serialize_field("p99_us", &self.p99.map(us))?;
        fields.serialize_field("max_us", &self.max.map(us))?;
        fields.end()
    }
}

impl ObserverSnapshot {
    pub(crate) fn of(figures: &ObserverFigures) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            cpu: figures.cpu_known.load(Ordering::Relaxed).then(|| Duration::from_nanos(read(&figures.cpu))),
            ticks: read(&figures.looks),
            late_ticks: read(&figures.late_looks),
            lateness: Duration::from_nanos(read(&figures.lateness)),
            longest_lateness: Duration::from_nanos(read(&figures.longest_lateness)),
            dropped_reports: read(&figures.dropped_reports),
            failed_reports: read(&figures.failed_reports),
            muted_incidents: read(&figures.muted),
            unopened_incidents: read(&figures.unopened),
            stacks_taken: read(&figures.stacks_taken),
            stacks_refused: read(&figures.stacks_refused),
            stacks_left_out: read(&figures.stacks_left_out),
            stacks_failed: read(&figures.stacks_failed),
            overflowed_ops: op::overflowed(),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            // Before its first look it had used none.
            cpu: self.cpu.map(|now| now.saturating_sub(before.cpu.unwrap_or_default())),
            ticks: self.ticks.saturating_sub(before.ticks),
            late_ticks: self.late_ticks.saturating_sub(before.late_ticks),
            lateness: self.lateness.saturating_sub(before.lateness),
            longest_lateness: self.longest_lateness,
            dropped_reports: self.dropped_reports.saturating_sub(before.dropped_reports),
            failed_reports: self.failed_reports.saturating_sub(before.failed_reports),
            muted_incidents: self.muted_incidents.saturating_sub(before.muted_incidents),
            unopened_incidents: self.unopened_incidents.saturating_sub(before.unopened_incidents),
            stacks_taken: self.stacks_taken.saturating_sub(before.stacks_taken),
            stacks_refused: self.stacks_refused.saturating_sub(before.stacks_refused),
            stacks_left_out: self.stacks_left_out.saturating_sub(before.stacks_left_out),
            stacks_failed: self.stacks_failed.saturating_sub(before.stacks_failed),
            overflowed_ops: self.overflowed_ops.saturating_sub(before.overflowed_ops),
        }
    }
}
