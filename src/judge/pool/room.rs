//! Calls wait for a thread of a pool that is not full.

use super::{Pool, STARVED};
use crate::cause::{Action, Cause};
use crate::evidence::ThreadLimits;
use crate::judge::{LIKELY, SURE, Verdict, machine};
use std::time::Duration;

impl Pool {
    /// The pool does not take calls though it could.
    pub(super) fn stalled(&self) -> Option<Verdict> {
        let held = self.executing;
        if let Some(limits) = self.refused {
            let limits = told(&limits);
            let evidence =
                format!("the system refuses another thread{limits}; the pool has {held} that execute watched calls");
            let advice = "Look at the limits on threads and memory of the process, its user and its container: the pool \
                          swallows the error as long as it has any thread";
            return Some(
                Verdict::new(Cause::PoolStalled, SURE, evidence)
                    .detail("no_thread")
                    .advise(Action::CheckLimits, advice.to_owned()),
            );
        }
        // They are counted at different moments.
        let idle = self.idle.filter(|&idle| idle > 0 && self.waiting > 0 && self.age >= Duration::from_millis(100))?;
        let evidence = format!("{idle} of its {} threads have nothing to do", self.threads.unwrap_or(idle));
        let advice =
            "The pool does not wake its threads: look at what stops them, and report it to the runtime's authors";
        Some(
            Verdict::new(Cause::PoolStalled, LIKELY, evidence)
                .detail("idle_threads")
                .advise(Action::LookAtHost, advice.to_owned()),
        )
    }

    /// The pool has fewer threads than it may, or gives others their thread at once: it is not full. Then the thread that a
    /// call was given does not get to run it.
    pub(super) fn has_room(&self) -> Option<Verdict> {
        // Tokio starts a thread for whatever finds none that idles, as long as it may.
        let below = self.cap.zip(self.threads).filter(|(cap, threads)| threads < cap);
        let fewer = self.cap.filter(|&cap| self.crowd.executing.recent() < cap && !self.canary_waits());
        let told = match (below, fewer) {
            (Some((cap, threads)), _) => format!("the pool has {threads} of the {cap} threads that it may have"),
            (None, Some(cap)) if self.canary.is_some() => {
                let seen = self.crowd.executing.recent();
                format!(
                    "{seen} of {cap} threads execute watched calls, and a call of the detector's own got one at once"
                )
            }
            _ if self.overtaken => "a later call of the detector's own got a thread at once".to_owned(),
            _ => return None,
        };
        let (detail, whose, confidence) = machine::whose(&self.machine, self.cpus);
        let evidence = format!("{told}; {whose}");
        let busy = self.machine.idle.is_some_and(|idle| idle * 5 < self.machine.of.saturating_mul(self.cpus));
        let advice = "The pool has room, so its size is not the reason: look at what keeps its threads from running";
        if busy || self.without_cpu.is_at_least(STARVED) || detail != Some("neighbours") {
            let mut verdict = Verdict::new(Cause::CpuContention, confidence, evidence);
            verdict.detail = detail;
            return Some(verdict.advise(Action::LookAtHost, advice.to_owned()));
        }
        let mut verdict = Verdict::undetermined("the pool has room, and calls wait", evidence, advice.to_owned());
        verdict.action = Action::LookAtHost;
        Some(verdict)
    }
}

/// What may be why a thread is refused, in numbers; the memory for its stack may be, too.
fn told(limits: &ThreadLimits) -> String {
    let of_process = limits.threads.map(|threads| format!("the process has {threads}"));
    let of_group = limits.group_limit.zip(limits.group_threads);
    let of_group = of_group.map(|(limit, threads)| format!("its group may have {limit} and has {threads}"));
    let of_user = limits.user_limit.map(|limit| format!("its user may have {limit}"));
    let all: Vec<String> = [of_process, of_group, of_user].into_iter().flatten().collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limits_that_are_known_are_told() {
        assert_eq!(told(&ThreadLimits::default()), "");
        let of_process = ThreadLimits { threads: Some(64), ..ThreadLimits::default() };
        assert_eq!(told(&of_process), " (the process has 64)");
        let all = ThreadLimits { group_limit: Some(70), group_threads: Some(69), user_limit: Some(500), ..of_process };
        assert_eq!(told(&all), " (the process has 64, its group may have 70 and has 69, its user may have 500)");
    }
}
