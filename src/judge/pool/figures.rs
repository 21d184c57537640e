//! What follows from the figures of a pool at once.

use super::Pool;
use crate::conduct::{Conduct, Manner};
use crate::incident::Culprit;
use std::time::Duration;

impl Pool {
    /// How long an execution of the op that holds most of the threads takes on average.
    pub(super) fn usual(&self) -> Option<Duration> {
        self.history.execution_time.checked_div(self.history.ended).map(Duration::from_nanos)
    }

    /// The share of time on a CPU: of what has ended lately, or of what that op has ever done, or else of what one of the
    /// threads does now.
    pub(super) fn cpu_share(&self) -> Option<f64> {
        let live = || self.conduct.cpu_percent().map(|percent| percent as f64 / 100.0);
        self.counted.cpu_share().or(self.history.cpu_share()).or_else(live)
    }

    /// The same of the time in which they were not short of a CPU, as far as that was seen.
    pub(super) fn cpu_share_of_had(&self) -> Option<f64> {
        let without = self.without_cpu.part as f64 / self.without_cpu.of.max(1) as f64;
        // Of what was without a CPU all of the time nothing is left to tell by.
        self.cpu_share().map(|share| if without < 1.0 { (share / (1.0 - without)).min(1.0) } else { share })
    }

    /// Whether a thread that executes calls wanted a CPU nearly whenever it was looked at: what of its time it had none is
    /// known less exactly than that.
    pub(super) fn never_sleeps(&self) -> bool {
        /// So many percent of the time are within the error of looking.
        const SLEEPS: u64 = 10;
        let Conduct { of, on_cpu, waited, .. } = self.conduct;
        of > 0 && of.saturating_sub(on_cpu).saturating_sub(waited).saturating_mul(100) < of.saturating_mul(SLEEPS)
    }

    /// What executes mostly sleeps until another thread wakes it: a client that has threads of its own, or what all share.
    pub(super) fn waits_for_threads(&self) -> bool {
        matches!(self.conduct.manner(), Some(Manner::Parked | Manner::Asleep))
    }

    /// The most threads that watched calls have held at once lately.
    pub(super) fn seen(&self, first: &Culprit) -> u64 {
        self.crowd.executing.recent().max(first.count)
    }

    /// The observer's own call had to wait, too.
    pub(super) fn canary_waits(&self) -> bool {
        /// Less is how long it takes to wake a thread.
        const LEAST: Duration = Duration::from_millis(5);
        let long = (self.longest_wait.min(Duration::from_millis(25)) / 2).max(LEAST);
        self.canary.is_some_and(|canary| canary >= long)
    }

    /// The smallest pool in which no call would have waited, where it is known and larger than what was seen at work.
    pub(super) fn enough_threads(&self) -> Option<u64> {
        Some(self.enough).filter(|&enough| enough > self.crowd.executing.recent())
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use crate::counted::Counted;
    use crate::judge::pool::judge;
    use crate::lately::Share;
    use std::panic::Location;

    #[test]
    fn who_never_sleeps_computes_however_little_of_its_time_it_has_a_cpu() {
        let detail = |waited| {
            let counted =
                Counted { started: 27, ended: 27, cpu: 300, cpu_known_execution: 1_000, ..Counted::default() };
            let mut pool = Pool { counted, history: counted, cap: Some(4), executing: 4, cpus: 2, ..Pool::default() };
            pool.crowd.executing.see(4);
            (pool.without_cpu, pool.conduct) = (Share { part: 45, of: 100 }, Conduct::new(1_000, 300, waited, None));
            let (op, location, oldest) = ("trace", Location::caller(), Duration::from_secs(1));
            let holder = Culprit { op, location, role: "occupant", count: 4, oldest, share: None, stack: None };
            judge(vec![holder], Vec::new(), &pool).0.detail
        };
        assert_eq!([detail(690), detail(400)], [Some("cpu"), Some("mixed")]);
    }
}
