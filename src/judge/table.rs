//! The table of suspects: every cause that there could be, ruled on with a number.

use super::{nanos, so_many};
use crate::cause::{Cause, Ruling};
use crate::counted::Counted;
use crate::facts::{Facts, OpFacts, RuntimeFacts};
use crate::incident::{Phases, Suspect};
use tokio::runtime;

/// Less time than this says nothing.
const SOME: u64 = 50_000_000;

/// What a table is about.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) facts: &'a Facts,
    /// The runtime; none for all.
    pub(crate) runtime: Option<runtime::Id>,
    /// The cause that was found, and the number that convicts it.
    pub(crate) convicted: (Cause, &'a str),
    /// The causes of other incidents that are open.
    pub(crate) others: &'a [Cause],
}

/// What clears a suspect, or that nobody knows.
enum Finding {
    Cleared(String),
    Contributing(String),
    Unknown(String),
}

/// Rules on one suspect.
type Rule<'a> = fn(&Scope<'a>) -> Finding;

/// All of them, the convicted first.
pub(crate) fn suspects<'a>(scope: &Scope<'a>) -> Vec<Suspect> {
    let all: [(Cause, Rule<'a>); 12] = [
        (Cause::PoolSaturated, Scope::pool_saturated),
        (Cause::PoolDeadlock, Scope::pool_deadlock),
        (Cause::PoolLeak, Scope::pool_leak),
        (Cause::PoolStalled, Scope::pool_stalled),
        (Cause::LongPoll, Scope::long_poll),
        (Cause::Overloaded, Scope::overloaded),
        (Cause::ProcessPaused, Scope::process_paused),
        (Cause::CpuContention, Scope::cpu_contention),
        (Cause::DownstreamLimit, Scope::downstream_limit),
        (Cause::SlowWork, Scope::slow_work),
        (Cause::DispatchOverhead, Scope::dispatch_overhead),
        (Cause::Unfair, Scope::unfair),
    ];
    let (convicted, evidence) = scope.convicted;
    let mut suspects: Vec<Suspect> = all
        .into_iter()
        .map(|(cause, rule)| {
            if cause == convicted {
                return Suspect { cause, ruling: Ruling::Convicted, evidence: evidence.to_owned() };
            }
            let (ruling, evidence) = match rule(scope) {
                Finding::Cleared(number) if scope.others.contains(&cause) => (Ruling::Contributing, number),
                Finding::Cleared(number) => (Ruling::Cleared, number),
                Finding::Contributing(number) => (Ruling::Contributing, number),
                Finding::Unknown(missing) => (Ruling::Unknown, missing),
            };
            Suspect { cause, ruling, evidence }
        })
        .collect();
    suspects.sort_by_key(|suspect| match suspect.ruling {
        Ruling::Convicted => 0,
        Ruling::Contributing => 1,
        Ruling::Cleared => 2,
        Ruling::Unknown => 3,
    });
    suspects
}

/// Where the time of the calls went that were counted; none where there were none.
pub(crate) fn phases(counted: &Counted) -> Option<Phases> {
    let any = counted.queue_wait + counted.execution_time > 0;
    any.then(|| Phases {
        queue_wait: nanos(counted.queue_wait),
        execution: nanos(counted.execution_time),
        resume_delay: nanos(counted.resume_delay),
    })
}

impl Scope<'_> {
    fn counted(&self) -> Counted {
        self.facts.counted(self.runtime)
    }

    fn ops(&self) -> impl Iterator<Item = &OpFacts> {
        self.facts.ops.iter().filter(|op| self.runtime.is_none() || op.site.runtime == self.runtime)
    }

    fn runtimes(&self) -> impl Iterator<Item = &RuntimeFacts> {
        self.facts.runtimes.iter().filter(|known| self.runtime.is_none() || known.last.runtime == self.runtime)
    }

    /// The op with the most of something, and how much.
    fn most(&self, of: impl Fn(&OpFacts) -> u64) -> Option<(&'static str, u64)> {
        let most = self.ops().max_by_key(|op| of(op))?;
        Some((most.site.name, of(most))).filter(|(_, of)| *of > 0)
    }

    fn pool_saturated(&self) -> Finding {
        let counted = self.counted();
        let canary = self.runtimes().filter(|runtime| runtime.last.canary.is_some()).map(|it| it.canary.recent()).max();
        let wait = counted.queue_wait.checked_div(counted.started);
        if counted.dominated > 0 {
            let calls = so_many(counted.dominated, "call", "calls");
            return Finding::Contributing(format!(
                "{calls} waited {:.1?} in all for a thread",
                nanos(counted.dominated_wait)
            ));
        }
        if let Some(waits) = self.waiting_canary() {
            return Finding::Contributing(format!(
                "a call of the detector's own has been waiting for a thread for {:.1?}",
                nanos(waits)
            ));
        }
        match (wait, canary) {
            (Some(wait), _) => Finding::Cleared(format!(
                "{} got a thread after {:.1?} on average",
                so_many(counted.started, "call", "calls"),
                nanos(wait)
            )),
            (None, Some(canary)) => {
                Finding::Cleared(format!("a call of the detector's own got a thread {}", soon(canary)))
            }
            (None, None) => match self.most(|op| op.executing.recent()) {
                Some((op, held)) => Finding::Cleared(format!("`{op}` holds {held} threads and nothing waits for one")),
                None => Finding::Cleared("0 watched calls were made".to_owned()),
            },
        }
    }

    /// For how long a call of the detector's own has been waiting for a thread, where one is.
    fn waiting_canary(&self) -> Option<u64> {
        let waiting = self.runtimes().filter(|runtime| runtime.last.canary_waits);
        waiting.filter_map(|runtime| runtime.last.canary).max()
    }

    fn pool_deadlock(&self) -> Finding {
        match self.counted().nested {
            0 => Finding::Cleared("0 calls were waited for on a thread of their own pool".to_owned()),
            nested => Finding::Contributing(format!("{nested} calls were waited for on a thread of their own pool")),
        }
    }

    fn pool_leak(&self) -> Finding {
        let never = |op: &OpFacts| if op.history.ended == 0 { op.execution_age.recent() } else { 0 };
        match self.most(never) {
            Some((op, age)) => {
                Finding::Unknown(format!("no call of `{op}` has ended yet, the oldest runs for {:.1?}", nanos(age)))
            }
            None => {
                let ended = self.counted().ended;
                Finding::Cleared(format!("{} ended, none is of an op that never ends", so_many(ended, "call", "calls")))
            }
        }
    }

    fn pool_stalled(&self) -> Finding {
        let runtime = self.runtimes().find(|runtime| runtime.last.canary.is_some());
        let held = self.ops().map(|op| op.executing.recent()).sum::<u64>();
        match (self.counted().started, runtime) {
            (0, _) if self.waiting_canary().is_some() => {
                Finding::Unknown("the pool has taken no call lately, nor one of the detector's own".to_owned())
            }
            (0, None) => Finding::Cleared("0 watched calls were made".to_owned()),
            (0, Some(runtime)) => Finding::Cleared(format!(
                "the pool took a call of the detector's own {}",
                soon(runtime.canary.recent())
            )),
            (started, _) => Finding::Cleared(format!("its threads took {started} calls, up to {held} at once")),
        }
    }

    fn long_poll(&self) -> Finding {
        let counted = self.counted();
        if counted.long_polls > 0 {
            let polls = so_many(counted.long_polls, "poll was", "polls were");
            return Finding::Contributing(format!(
                "{polls} over the threshold, {:.1?} in all",
                nanos(counted.long_poll_time)
            ));
        }
        let frozen = self.runtimes().filter(|it| !it.last.current_thread && it.last.workers > 0);
        match frozen.map(|it| it.frozen.recent()).max() {
            Some(0) => Finding::Cleared("0 watched polls were over the threshold; no worker stood still".to_owned()),
            Some(frozen) => Finding::Cleared(format!(
                "0 watched polls were over the threshold; no worker stood still for longer than {:.1?}",
                nanos(frozen)
            )),
            None => Finding::Cleared("0 watched polls were over the threshold".to_owned()),
        }
    }

    fn overloaded(&self) -> Finding {
        let counted = self.counted();
        let beat = self.runtimes().filter(|it| it.last.beat_late.is_some()).map(|it| it.beat_late.recent()).max();
        let beat = beat.map_or(String::new(), |beat| format!("; timers at most {:.1?} late", nanos(beat)));
        let probe = self.runtimes().map(|it| it.probe.recent()).max().unwrap_or(0);
        match counted.late_polls {
            0 if probe >= SOME => {
                Finding::Contributing(format!("a task of the detector's own waited for {:.1?}{beat}", nanos(probe)))
            }
            0 => Finding::Cleared(format!("0 watched polls came late{beat}")),
            late => Finding::Contributing(format!(
                "{} came late, {:.1?} in all{beat}",
                so_many(late, "poll", "polls"),
                nanos(counted.late_poll_time)
            )),
        }
    }

    fn process_paused(&self) -> Finding {
        let (stopped, of) = (nanos(self.facts.stopped.recent()), nanos(self.facts.elapsed()));
        let told = format!("the process was stopped for {stopped:.1?} of {of:.1?}");
        // What is less is how precisely it can be told.
        if self.facts.stopped.recent() >= SOME && self.facts.stopped.recent() * 20 > self.facts.elapsed() {
            Finding::Contributing(told)
        } else {
            Finding::Cleared(told)
        }
    }

    fn cpu_contention(&self) -> Finding {
        let facts = self.facts;
        let machine = facts.machine.recent();
        let waited = facts.paused.recent().saturating_sub(facts.stopped.recent());
        let percent = waited * 100 / facts.elapsed();
        let mut told = format!("the observer waited for a CPU for {percent} % of the time");
        if let Some(throttled) = machine.throttled {
            told += &format!("; {:.1?} held back by a quota", nanos(throttled));
        }
        let of_all = |part: u64| part * 100 / machine.of.saturating_mul(facts.cpus).max(1);
        if let Some(own) = machine.own {
            told += &format!("; this process used {} % of the CPUs", of_all(own));
        }
        let excused = facts.excused.recent();
        if excused.count > 0 || percent >= 20 && waited >= SOME {
            told += &format!(
                "; {} without one",
                so_many(excused.count, "poll or wait was slow", "polls or waits were slow")
            );
            return Finding::Contributing(told);
        }
        Finding::Cleared(told)
    }

    fn downstream_limit(&self) -> Finding {
        let counted = self.counted();
        if counted.long_waits > 0 {
            let waits = so_many(counted.long_waits, "wait", "waits");
            return Finding::Contributing(format!(
                "{waits} over the floor, {:.1?} in all",
                nanos(counted.long_wait_time)
            ));
        }
        let watched = self.facts.ops.iter().any(|op| op.history.wait_time > 0 || op.wait_age.recent() > 0);
        match self.most(|op| op.wait_age.recent()) {
            _ if !watched => Finding::Unknown("no wait is wrapped in `instrument_wait`".to_owned()),
            Some((op, age)) => Finding::Cleared(format!("the longest wait was {:.1?}, for `{op}`", nanos(age))),
            None => Finding::Cleared(format!("watched waits took {:.1?} in all", nanos(counted.wait_time))),
        }
    }

    fn slow_work(&self) -> Finding {
        let counted = self.counted();
        let Some(mean) = counted.execution_time.checked_div(counted.ended) else {
            return match self.most(|op| op.execution_age.recent()) {
                Some((op, age)) => {
                    Finding::Unknown(format!("no call has ended lately, and one of `{op}` runs for {:.1?}", nanos(age)))
                }
                None => Finding::Cleared("0 watched calls have ended".to_owned()),
            };
        };
        let all = counted.queue_wait + counted.execution_time + counted.resume_delay;
        Finding::Cleared(format!(
            "a call executes for {:.1?} on average, {} % of its time",
            nanos(mean),
            counted.execution_time * 100 / all.max(1)
        ))
    }

    fn dispatch_overhead(&self) -> Finding {
        let counted = self.counted();
        match counted.resume_delay.checked_div(counted.ended) {
            None => Finding::Cleared("0 watched calls have ended".to_owned()),
            Some(resume) => {
                let calls = so_many(counted.ended, "call", "calls");
                Finding::Cleared(format!("{calls}; the way back to the task took {:.1?} each", nanos(resume)))
            }
        }
    }

    fn unfair(&self) -> Finding {
        match self.most(|op| op.unpolled) {
            Some((op, times)) => Finding::Unknown(format!("`{op}` was dropped unpolled {times} times")),
            None => Finding::Cleared("0 watched waits were left unpolled".to_owned()),
        }
    }
}

/// How soon a call got its thread, when one was last sent.
fn soon(wait: u64) -> String {
    const AT_ONCE: u64 = 1_000_000;
    if wait < AT_ONCE { "at once".to_owned() } else { format!("within {:.1?}", nanos(wait)) }
}
