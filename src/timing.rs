//! The phases of one call: four marks in, four durations out that sum to the whole, exactly.

use std::time::Duration;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Outcome {
    /// The closure returned.
    Returned,
    /// The closure panicked.
    Panicked,
    /// The closure was dropped unrun: aborted while it was queued, or its runtime or pool shut down before its turn.
    /// (Tokio's `JoinError::is_cancelled` does not tell the two apart, and nor does this.)
    Cancelled,
    /// The runtime had already shut down when the call was made; the closure was dropped at once.
    Rejected,
}

impl Outcome {
    /// The outcome in a word, as it stands in spans and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Returned => "returned",
            Self::Panicked => "panicked",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }
}

/// Where the time of one blocking call went.
///
/// The four wall-clock phases sum to [`total`](Self::total) exactly, to the nanosecond, for every call and outcome. A
/// call that ended early has only the phases that it reached; the others are zero.
///
/// | phase | from | to |
/// |---|---|---|
/// | [`queue_wait`](Self::queue_wait) | the call | its start on a thread, or its being dropped unrun |
/// | [`execution`](Self::execution) | its start | its end |
/// | [`resume_delay`](Self::resume_delay) | its end | the poll of the task that was already waiting for it |
/// | [`unclaimed`](Self::unclaimed) | its end | the first poll, where nobody was waiting yet |
///
/// At most one of the last two is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CallTiming {
    /// Waiting for a thread of the pool.
    #[cfg_attr(feature = "serde", serde(rename = "queue_wait_us", serialize_with = "crate::wire::us"))]
    pub queue_wait: Duration,
    /// On the pool's thread.
    #[cfg_attr(feature = "serde", serde(rename = "execution_us", serialize_with = "crate::wire::us"))]
    pub execution: Duration,
    /// CPU time of the pool's thread during the execution: close to it where the call computes, close to zero where it
    /// waits for something. `None` where the system does not tell, where the closure never ran, and for seven of eight
    /// calls of an op whose executions are so short (under 20 us on average) that asking would make them slower.
    #[cfg_attr(feature = "serde", serde(rename = "cpu_us", serialize_with = "crate::wire::maybe_us"))]
    pub cpu: Option<Duration>,
    /// The result was there, and the waiting task had not been polled yet: the executor's delay.
    #[cfg_attr(feature = "serde", serde(rename = "resume_delay_us", serialize_with = "crate::wire::us"))]
    pub resume_delay: Duration,
    /// The result lay ready because nobody had asked for it yet. Nobody's fault.
    #[cfg_attr(feature = "serde", serde(rename = "unclaimed_us", serialize_with = "crate::wire::us"))]
    pub unclaimed: Duration,
    /// How the call ended.
    pub outcome: Outcome,
    #[cfg_attr(feature = "serde", serde(rename = "total_us", serialize_with = "crate::wire::us"))]
    total: Duration,
}

/// What was noted during a call, in nanoseconds of [`clock`](crate::clock).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marks {
    pub(crate) enqueued: u64,
    pub(crate) started: Option<u64>,
    pub(crate) finished: u64,
    pub(crate) resumed: u64,
    /// A task was waiting for the result when it came.
    pub(crate) awaited: bool,
    pub(crate) cpu: Option<u64>,
    pub(crate) outcome: Outcome,
}

impl CallTiming {
    pub(crate) fn new(marks: Marks) -> Self {
        // The clocks of two cores may differ by a little: no mark is before the one that it follows.
        let started = marks.started.map(|started| started.max(marks.enqueued));
        let finished = marks.finished.max(started.unwrap_or(marks.enqueued));
        let resumed = marks.resumed.max(finished);
        let queue_wait = started.unwrap_or(finished) - marks.enqueued;
        let execution = started.map_or(0, |started| finished - started);
        let ready = resumed - finished;
        let (resume_delay, unclaimed) = if marks.awaited { (ready, 0) } else { (0, ready) };
        Self {
            queue_wait: Duration::from_nanos(queue_wait),
            execution: Duration::from_nanos(execution),
            cpu: marks.cpu.map(Duration::from_nanos),
            resume_delay: Duration::from_nanos(resume_delay),
            unclaimed: Duration::from_nanos(unclaimed),
            outcome: marks.outcome,
            total: Duration::from_nanos(resumed - marks.enqueued),
        }
    }

    /// The timing of what never was.
    pub(crate) fn nothing() -> Self {
        let outcome = Outcome::Cancelled;
        Self::new(Marks { enqueued: 0, started: None, finished: 0, resumed: 0, awaited: false, cpu: None, outcome })
    }

    /// From the call to the poll that took its result: the sum of the four phases.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.total
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any marks, also ones that run backwards: the phases sum to the total.
        #[test]
        fn the_phases_sum_to_the_total(
            enqueued in any::<u32>(), started in proptest::option::of(any::<u32>()), finished in any::<u32>(),
            resumed in any::<u32>(), awaited in any::<bool>(),
        ) {
            let timing = CallTiming::new(Marks {
                enqueued: enqueued.into(), started: started.map(u64::from), finished: finished.into(),
                resumed: resumed.into(), awaited, cpu: None, outcome: Outcome::Returned,
            });
            let sum = timing.queue_wait + timing.execution + timing.resume_delay + timing.unclaimed;
            prop_assert_eq!(sum, timing.total());
            prop_assert!(timing.resume_delay.is_zero() || timing.unclaimed.is_zero());
            prop_assert!(started.is_some() || timing.execution.is_zero());
        }
    }

    #[test]
    fn the_marks_in_order_are_told_as_they_are() {
        let timing = CallTiming::new(Marks {
            enqueued: 100,
            started: Some(164),
            finished: 169,
            resumed: 170,
            awaited: true,
            cpu: Some(2),
            outcome: Outcome::Panicked,
        });
        let nanos = [timing.queue_wait, timing.execution, timing.resume_delay, timing.unclaimed, timing.total()];
        assert_eq!(nanos.map(|d| d.as_nanos()), [64, 5, 1, 0, 70]);
        assert_eq!((timing.cpu, timing.outcome), (Some(Duration::from_nanos(2)), Outcome::Panicked));
    }
}
