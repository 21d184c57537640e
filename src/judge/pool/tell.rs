//! How the figures of a pool read.

use super::Pool;
use crate::incident::Culprit;
use std::time::Duration;

impl Pool {
    pub(super) fn tell_waiting(&self) -> String {
        match (self.waiting, self.most_waiting) {
            (0, 0) => match self.canary.filter(|_| self.canary_waits()) {
                Some(canary) => format!("a call of the detector's own waited for a thread for {canary:.1?}"),
                None => "calls have waited for a thread for longer than they usually run".to_owned(),
            },
            (0, most) => format!("up to {most} waited for a thread, the longest for {:.1?}", self.longest_wait),
            (waiting, _) => {
                let (calls, verb) = if waiting == 1 { ("call", "waits") } else { ("calls", "wait") };
                // An age of 0 is younger than can be told.
                let age = if self.age.is_zero() { String::new() } else { format!(", the oldest for {:.1?}", self.age) };
                format!("{waiting} {calls} {verb} for a thread{age}")
            }
        }
    }

    pub(super) fn tell_holder(&self, first: &Culprit) -> String {
        let Culprit { op, count, oldest, .. } = first;
        let of = match self.cap {
            Some(cap) => format!("{count} of the pool's {cap} threads"),
            None => format!("{count} of {} threads seen", self.seen(first)),
        };
        format!("{of} are held by `{op}`, for up to {oldest:.1?}")
    }

    pub(super) fn tell_progress(&self) -> String {
        match (self.counted.ended, self.usual()) {
            (0, Some(usual)) => format!("{usual:.1?} are usual for it"),
            (0, None) => "none has ended lately".to_owned(),
            (ended, _) => format!("{ended} of the pool's calls ended lately"),
        }
    }

    pub(super) fn tell_without_cpu(&self) -> String {
        let percent = self.without_cpu.percent().unwrap_or(0);
        let of = Duration::from_nanos(self.without_cpu.of);
        format!("a thread of the pool was ready to run and had no CPU for {percent} % of {of:.1?}")
    }

    pub(super) fn tell_enough(&self, op: &str) -> String {
        let enough = match self.enough_threads() {
            Some(enough) => format!("a pool of {enough} would have let every call start at once{}", self.tell_gain()),
            None => "give the pool as many as there are calls at once".to_owned(),
        };
        let had = self.waits_inside.map_or(String::new(), |wait| {
            format!(
                ". It waits for `{wait}` on the pool's threads: wait for that before the call is made, not inside it"
            )
        });
        format!(
            "`{op}` waits for something else than a CPU, so threads are nearly free: {enough}. The cure is an async client{had}"
        )
    }

    pub(super) fn tell_perhaps_enough(&self, op: &str) -> String {
        let enough = self.enough_threads();
        let enough = enough.map_or(String::new(), |enough| format!(" (one of {enough} lets every call start at once)"));
        format!(
            "`{op}` waits for other threads. If those wait for something outside, as those of a client do, a bigger pool \
             helps{enough}; the cure is an async client. If they compute, or if all calls wait for the same lock, permit or \
             connection, more threads only wait for it as well: look at what that is"
        )
    }

    /// What a call would have taken then, and what it took.
    fn tell_gain(&self) -> String {
        let counted = &self.counted;
        let mean = |time: u64, calls: u64| time.checked_div(calls).map(Duration::from_nanos);
        let execution = mean(counted.execution_time, counted.ended);
        match (execution, mean(counted.queue_wait, counted.started)) {
            (Some(execution), Some(wait)) => {
                let threads = self.crowd.executing.recent();
                format!(": {execution:.1?} a call on average instead of {:.1?} with {threads}", execution + wait)
            }
            _ => String::new(),
        }
    }
}

pub(super) fn computes(op: &str) -> String {
    format!("`{op}` computes: run it on a pool of as many threads as there are CPUs; more threads help nobody")
}
