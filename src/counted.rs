//! What one op has counted, as figures that only grow.

use crate::figures::CallFigures;
use crate::lately::Plus;
use crate::op::Op;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counted {
    ($($(#[$of:meta])* $field:ident,)+) => {
        /// The counters of one op, or what they have grown by.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct Counted {
            $($(#[$of])* pub(crate) $field: u64,)+
        }

        impl Counted {
            /// What has been counted since `before`.
            pub(crate) fn since(self, before: Self) -> Self {
                Self { $($field: self.$field.saturating_sub(before.$field),)+ }
            }
        }

        impl Plus for Counted {
            fn plus(self, more: Self) -> Self {
                Self { $($field: self.$field + more.$field,)+ }
            }
        }
    };
}

counted! {
    long_polls,
    long_poll_time,
    /// Polls that came too long after their waking.
    late_polls,
    late_poll_time,
    /// Calls that waited too long for a thread, and for longer than they run.
    dominated,
    dominated_wait,
    /// Waits that were pending for too long.
    long_waits,
    long_wait_time,
    /// All waits that ended.
    wait_time,
    /// Waits dropped without ever having been polled.
    unpolled,
    /// Calls: started, and what they waited; ended, and what they ran; claimed, and what that took.
    started,
    queue_wait,
    ended,
    execution_time,
    resume_delay,
    /// CPU time of the executions of which it is known, and their time.
    cpu,
    cpu_known_execution,
    /// Calls that run for nobody.
    abandoned,
    /// Calls that a thread of their own pool waited for.
    nested,
    /// Calls made on a thread of their own pool.
    made_inside,
}

impl Counted {
    /// What an op has counted since the process started.
    pub(crate) fn of(op: &Op) -> Self {
        // Relaxed: each figure is read for itself.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut this = Self {
            long_polls: read(&op.long_polls),
            long_poll_time: read(&op.long_poll_time),
            late_polls: read(&op.late_polls),
            late_poll_time: read(&op.late_poll_time),
            ..Self::default()
        };
        if let Some(calls) = op.known_calls() {
            this.count_calls(calls);
        }
        if let Some(waits) = op.known_waits() {
            this.long_waits = read(&waits.long);
            this.long_wait_time = read(&waits.long_time);
            this.wait_time = waits.duration.sum();
            this.unpolled = read(&waits.unpolled);
        }
        this
    }

    fn count_calls(&mut self, calls: &CallFigures) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.dominated = read(&calls.dominated);
        self.dominated_wait = read(&calls.dominated_wait);
        self.started = read(&calls.started);
        self.queue_wait = calls.queue_wait.sum();
        self.ended = read(&calls.returned) + read(&calls.panicked);
        self.execution_time = calls.execution.sum();
        self.resume_delay = calls.resume_delay.sum();
        self.cpu = read(&calls.cpu);
        self.cpu_known_execution = read(&calls.cpu_known_execution);
        self.abandoned = read(&calls.abandoned);
        self.nested = read(&calls.nested);
        self.made_inside = read(&calls.made_inside);
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// The share of the executions' time on a CPU; none where it is not known.
    pub(crate) fn cpu_share(&self) -> Option<f64> {
        (self.cpu_known_execution > 0).then(|| (self.cpu as f64 / self.cpu_known_execution as f64).min(1.0))
    }
}
