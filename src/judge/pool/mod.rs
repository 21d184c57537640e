//! Why calls wait for a thread of a pool.
//!
//! A ladder; the first step that applies tells. Before anybody is accused of holding the threads it is asked whether the
//! pool takes calls at all, whether the threads seen are all that there are, whether they are given the CPU, and whether
//! anything moves.

mod figures;
mod nest;
mod room;
mod tell;

pub(crate) use nest::{Nest, leaking};

use super::{LIKELY, OPEN, SURE, Verdict, machine, so_many};
use crate::cause::{Action, Cause, Effect};
use crate::conduct::{Conduct, Manner};
use crate::counted::Counted;
use crate::evidence::ThreadLimits;
use crate::facts::Crowd;
use crate::incident::{Culprit, Victim};
use crate::lately::Share;
use crate::sample::Machine;
use std::time::Duration;
use tell::computes;

/// From this share of CPU time in their executions on calls count as computing, up to the other as waiting.
const COMPUTES: f64 = 0.7;
const WAITS: f64 = 0.3;
/// From this share of the machine's CPUs on that a pool uses, its threads may have to wait for one.
const BUSY: f64 = 0.25;
/// From this percentage of time without a CPU on, what is slow about the pool's threads may not be their work.
const STARVED: u64 = 30;
const MOSTLY: u64 = 70;
/// From this one on it is told that they were short of it.
const SHORT: u64 = 5;
/// An execution of up to so many times its op's average is no sign that it may never end.
const AS_USUAL: u32 = 4;
/// Of the calls that hold threads so many percent run for nobody: then they are a part of the trouble.
const ABANDONED: u64 = 50;

/// A wait this old does not come from a pool that moves.
const AGED: Duration = Duration::from_secs(1);

/// A pool for whose threads calls wait, as it has been lately.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// How many wait now, and how long the oldest has.
    pub(crate) waiting: u64,
    pub(crate) age: Duration,
    /// The same at its worst.
    pub(crate) most_waiting: u64,
    pub(crate) longest_wait: Duration,
    /// How many execute now, and how many calls it has had.
    pub(crate) executing: u64,
    pub(crate) crowd: Crowd,
    /// The most threads that it may have, where that is known.
    pub(crate) cap: Option<u64>,
    /// The threads that it has and those that idle, where that is known; the system refuses it more.
    pub(crate) threads: Option<u64>,
    pub(crate) idle: Option<u64>,
    pub(crate) refused: Option<ThreadLimits>,
    /// How long the observer's own call waits or waited, where it makes any; and that one got its thread at once which was
    /// made after calls that still wait.
    pub(crate) canary: Option<Duration>,
    pub(crate) overtaken: bool,
    /// Most of the time in which calls waited no watched call held a thread.
    pub(crate) uncovered: bool,
    /// Jobs of other ops that have been executing, perhaps on the same pool.
    pub(crate) other_jobs: u64,
    /// Workers stand still that have nobody to hand their work over to.
    pub(crate) workers_stuck: bool,
    /// What has ended, of all its ops.
    pub(crate) counted: Counted,
    /// What the op that holds most of the threads has counted since the process started.
    pub(crate) history: Counted,
    /// How many calls threads of the pool wait for, and in which ops.
    pub(crate) nested: u64,
    pub(crate) nest: Option<Nest>,
    /// Calls wait that were made on threads of this pool.
    pub(crate) made_inside: bool,
    /// The waiting calls came long after those that hold the threads, and are not of their op.
    pub(crate) came_later: bool,
    /// How many threads are held by ops of which no call has ever ended, and for how long the youngest op has held one.
    pub(crate) lost: u64,
    pub(crate) lost_for: Duration,
    /// From so long on.
    pub(crate) lost_after: Duration,
    /// What a thread that executes calls did, and of how much time it had no CPU.
    pub(crate) conduct: Conduct,
    pub(crate) without_cpu: Share,
    pub(crate) machine: Machine,
    pub(crate) cpus: u64,
    /// The smallest pool that would have had no call wait; 0 where that is not known.
    pub(crate) enough: u64,
    /// An op whose waits for something that is handed out pass on threads of this pool.
    pub(crate) waits_inside: Option<&'static str>,
    /// Where in the code most of its threads were found that are in calls which nobody wrapped, and how many those were.
    pub(crate) unwrapped: Option<(u64, String)>,
}

/// The verdict on a pool, and whether it is of who holds its threads.
pub(crate) fn judge(culprits: Vec<Culprit>, victims: Vec<Victim>, pool: &Pool) -> (Verdict, bool) {
    let first = culprits.first();
    let steps = pool.stalled().or_else(|| match first {
        None => pool.has_room().or_else(|| Some(pool.nobody_seen())),
        Some(first) => pool
            .deadlocked()
            .or_else(|| pool.leaked(first))
            .or_else(|| pool.has_room())
            .or_else(|| pool.others_hold(first))
            .or_else(|| pool.no_cpu(first))
            .or_else(|| pool.nothing_ends(first)),
    });
    let hidden = steps.as_ref().is_some_and(|verdict| verdict.cause == Cause::PoolSaturated);
    let mut verdict = match (steps, first) {
        (Some(verdict), _) => verdict,
        (None, Some(first)) => pool.saturated(first),
        (None, None) => pool.nobody_seen(),
    };
    let waiting = pool.tell_waiting();
    verdict.evidence = if verdict.evidence.is_empty() { waiting } else { format!("{waiting}; {}", verdict.evidence) };
    // Who is not found at fault is not named for it.
    let found = matches!(verdict.cause, Cause::PoolSaturated | Cause::PoolLeak | Cause::PoolDeadlock);
    let of_holder = first.is_some() && (found && !hidden || verdict.detail == Some(NOTHING_ENDS));
    if verdict.cause == Cause::PoolDeadlock {
        verdict.culprits.extend(pool.nest.as_ref().map(|nest| nest.outer.clone()));
    } else if of_holder {
        verdict.culprits = culprits;
    }
    if of_holder && victims.is_empty() && pool.canary_waits() {
        // A pool may be exactly as large as what it is for.
        verdict.confidence = verdict.confidence.min(OPEN);
        verdict.advice +=
            ". Nobody that is watched waits; files, name lookups, stdin and stdout use this pool, too, and would";
    }
    verdict.victims = victims;
    verdict = verdict.effect(Effect::HandOffLost, pool.workers_stuck);
    (verdict, of_holder)
}

const NOTHING_ENDS: &str = "the calls that hold this pool do not end: long calls, a leak or a deadlock";

fn unwatched(detail: &'static str, evidence: String) -> Verdict {
    let advice = "Wrap the other users of this pool (files, name lookups, stdin, other blocking calls) to see who holds its \
                  threads";
    Verdict::undetermined(detail, evidence, advice.to_owned())
}

impl Pool {
    fn nobody_seen(&self) -> Verdict {
        if self.other_jobs > 0 {
            let evidence = format!("{} of other ops execute", so_many(self.other_jobs, "job", "jobs"));
            return unwatched("jobs of other ops execute, perhaps on the same pool", evidence);
        }
        if self.canary_waits() {
            return self.hidden();
        }
        unwatched("no watched call holds a thread of this pool", String::new())
    }

    /// The observer's own call had to wait, so the pool is full: of calls that nobody wrapped.
    fn hidden(&self) -> Verdict {
        let canary = self.canary.unwrap_or_default();
        let mut evidence = match self.cap {
            Some(cap) => format!(
                "{} of the pool's {cap} threads are held by calls that nobody wrapped",
                cap.saturating_sub(self.executing)
            ),
            None => "its threads are held by calls that nobody wrapped".to_owned(),
        };
        // Where nothing else waits that has been said already.
        if self.waiting > 0 || self.most_waiting > 0 {
            evidence += &format!(", and a call of the detector's own waited for {canary:.1?}");
        }
        if let Some((threads, place)) = &self.unwrapped {
            let were = if *threads == 1 { "was" } else { "were" };
            evidence += &format!("; {threads} of those threads {were} found at {place}");
        }
        let advice = "Files, name lookups (every connect to a host name), stdin and stdout use this pool, too. Give it more \
                      threads if what they do is wait; wrap its other users to see who holds them";
        // What the threads of others do nobody can say.
        Verdict::new(Cause::PoolSaturated, LIKELY, evidence).advise(Action::RaisePool, advice.to_owned())
    }

    /// All that hold threads wait for calls that are queued behind them.
    fn deadlocked(&self) -> Option<Verdict> {
        let nest = self.nest.as_ref()?;
        let (outer, inner) = (nest.outer.op, nest.inner);
        let held = self.executing;
        let full = self.cap.is_none_or(|cap| held >= cap) || self.canary_waits();
        if self.nested < held || self.waiting == 0 || !full || self.counted.ended > 0 && self.age < AGED {
            return None;
        }
        let evidence = format!(
            "all {held} threads are held by `{outer}`, each waiting for a call of `{inner}` ({}) that is queued behind it; nothing \
             can end",
            nest.inner_location,
        );
        Some(
            Verdict::new(Cause::PoolDeadlock, SURE, evidence)
                .detail(nest.detail())
                .advise(Action::AvoidNested, nest.advice()),
        )
    }

    /// Most of the threads seen are held by calls that never end.
    fn leaked(&self, first: &Culprit) -> Option<Verdict> {
        let parked = matches!(self.conduct.manner(), Some(Manner::Parked | Manner::Asleep));
        let full = self.cap.is_none_or(|cap| self.seen(first) >= cap);
        if self.lost * 2 < self.seen(first) || self.lost_for < self.lost_after {
            return None;
        }
        if parked && full && (self.made_inside || !self.came_later) {
            // Threads that sleep until another one wakes them may as well wait for what is queued behind them.
            return None;
        }
        let evidence = format!("{}; not one of its calls has ever ended", self.tell_holder(first));
        let (lost, op) = (self.lost, first.op);
        let advice = format!(
            "{} lost to `{op}`: give what is meant to run for ever a thread of its own (`std::thread`), and what waits for \
             something outside a timeout",
            so_many(lost, "thread is", "threads are")
        );
        Some(Verdict::new(Cause::PoolLeak, LIKELY, evidence).advise(Action::DedicatedThread, advice))
    }

    /// The threads seen are not all that there are.
    fn others_hold(&self, first: &Culprit) -> Option<Verdict> {
        let (seen, ever) = (self.seen(first), self.crowd.executing.ever());
        if self.uncovered {
            if self.canary_waits() {
                return Some(self.hidden());
            }
            let detail = "no watched call held a thread of this pool for most of the wait";
            return Some(unwatched(detail, String::new()));
        }
        if self.other_jobs > 0 {
            let jobs = so_many(self.other_jobs, "job of another op executes", "jobs of other ops execute");
            let evidence = format!("{}; {jobs}, too", self.tell_holder(first));
            return Some(unwatched("jobs of other ops execute, perhaps on the same pool", evidence));
        }
        let all = self.cap.unwrap_or(ever);
        // Half of the threads and more are seen: who holds those holds the pool.
        if seen >= all || seen * 2 > all && self.canary_waits() {
            return None;
        }
        if self.canary_waits() {
            return Some(self.hidden());
        }
        let known = match self.cap {
            Some(cap) => format!("the pool has {cap}"),
            None => format!("the pool has run {ever} watched calls at once before"),
        };
        let detail = "other threads of this pool are held by nobody that is watched";
        Some(unwatched(detail, format!("{}; {known}", self.tell_holder(first))))
    }

    /// Nothing moves, and for longer than usual.
    fn nothing_ends(&self, first: &Culprit) -> Option<Verdict> {
        let as_usual = self.usual().is_some_and(|usual| first.oldest <= usual.saturating_mul(AS_USUAL));
        let never = self.history.ended == 0 && first.count * 2 >= self.seen(first);
        if !never && (self.counted.ended > 0 || as_usual) {
            return None;
        }
        let none = if never { "none of its calls has ended yet" } else { "none has ended lately" };
        let evidence = format!("{}; {none}", self.tell_holder(first));
        let advice = format!(
            "If `{}` waits for something outside, give it a timeout; if it is meant to run for ever, a thread of its own; \
             if it waits for a call of this pool, it waits for ever",
            first.op
        );
        Some(Verdict::undetermined(NOTHING_ENDS, evidence, advice))
    }

    /// Whether the threads want a CPU and do not get it, though the calls do not show it in CPU time.
    fn is_starved(&self) -> bool {
        // A thread that wants a CPU whenever it is looked at does not wait for anything else, however little it gets.
        let wants = self.without_cpu.is_at_least(STARVED) || self.conduct.manner() == Some(Manner::Computing);
        wants && self.cpu_share().is_none_or(|share| share < COMPUTES)
    }

    /// The threads are not given the CPU, or may not be, by somebody else than each other.
    fn no_cpu(&self, first: &Culprit) -> Option<Verdict> {
        let threads = self.seen(first);
        let told = format!("{}; {}", self.tell_holder(first), self.tell_progress());
        let advice = "Look at what else uses this machine's CPUs: more threads would only share them out thinner";
        if self.is_starved() && threads <= self.cpus {
            let (detail, whose, confidence) = machine::whose(&self.machine, self.cpus);
            let evidence = format!("{told}; {}; {whose}", self.tell_without_cpu());
            let action = if detail == Some("quota") { Action::FitWorkersToQuota } else { Action::LookAtHost };
            let mut verdict = Verdict::new(Cause::CpuContention, confidence, evidence);
            verdict.detail = detail;
            return Some(verdict.advise(action, advice.to_owned()));
        }
        // Where nobody tells how long threads wait for a CPU, those of a busy machine may do so.
        let may_be = |share: f64| share < COMPUTES && share * threads as f64 >= BUSY * self.cpus as f64;
        let unknown = self.without_cpu.of == 0 && self.cpu_share().is_some_and(may_be);
        unknown.then(|| {
            let detail = "not known how long the pool's threads waited for a CPU";
            let mut verdict = Verdict::undetermined(detail, told, advice.to_owned());
            verdict.action = Action::LookAtHost;
            verdict
        })
    }

    /// The threads are all held by calls that come and go. What helps depends on what they do.
    fn saturated(&self, first: &Culprit) -> Verdict {
        let (op, share) = (first.op, self.cpu_share_of_had());
        let mut evidence = format!("{}; {}", self.tell_holder(first), self.tell_progress());
        if let Some(share) = share {
            let short = self.without_cpu.is_at_least(SHORT);
            let of = if short { "the time in which they were not short of one" } else { "their time" };
            evidence += &format!(", on a CPU for {:.0} % of {of}", share * 100.0);
        }
        // More threads that want a CPU than there are: they take it from each other.
        // What little of the time they were not short of one does not tell what they would do with more.
        let little = self.without_cpu.is_at_least(MOSTLY);
        let among_themselves = self.is_starved() && (little || share.is_none_or(|share| share >= COMPUTES));
        if among_themselves {
            evidence += &format!("; {}; there are {} CPUs", self.tell_without_cpu(), self.cpus);
        }
        if self.cap.is_none() && self.seen(first) > 1 {
            evidence += &format!("; a pool of {}, by what was seen", self.seen(first));
        }
        let (detail, action, advice) = match share {
            _ if among_themselves => (Some("cpu"), Action::BoundCpuPool, computes(op)),
            Some(share) if share >= COMPUTES || share > WAITS && self.never_sleeps() => {
                (Some("cpu"), Action::BoundCpuPool, computes(op))
            }
            Some(share) if share <= WAITS && self.conduct.manner() == Some(Manner::Locked) => {
                let advice = format!(
                    "The threads that execute `{op}` mostly wait for a lock, one for the other: hold it for a shorter time, or \
                     not at all; with more threads only more of them wait"
                );
                (Some("io"), Action::ShortenLock, advice)
            }
            Some(share) if share <= WAITS && self.waits_for_threads() => {
                (Some("io"), Action::RaisePool, self.tell_perhaps_enough(op))
            }
            Some(share) if share <= WAITS => (Some("io"), Action::RaisePool, self.tell_enough(op)),
            Some(_) => {
                let advice = format!(
                    "`{op}` computes and waits in turns: give it a pool of its own, a few threads for each CPU"
                );
                (Some("mixed"), Action::SeparatePool, advice)
            }
            None => (None, Action::SeparatePool, format!("Give `{op}` a pool of its own: others need not wait for it")),
        };
        let known = share.is_some() && (self.counted.ended > 0 || self.usual().is_some());
        let mut verdict = Verdict::new(Cause::PoolSaturated, if known { SURE } else { OPEN }, evidence);
        verdict.detail = detail;
        if action == Action::RaisePool && self.waits_for_threads() {
            verdict.confidence = verdict.confidence.min(LIKELY);
        }
        verdict = verdict.advise(action, advice);
        verdict.pool = match action {
            Action::RaisePool => self.enough_threads(),
            Action::BoundCpuPool => Some(self.cpus),
            _ => None,
        };
        let abandoned = self.counted.abandoned * 100 >= self.counted.started.max(1) * ABANDONED;
        if abandoned && self.counted.abandoned > 2 {
            verdict.evidence += &format!("; {} calls ran for nobody", self.counted.abandoned);
            verdict.action = Action::CancelAbandoned;
            verdict.advice = format!(
                "Abort queued calls whose callers have left (keep the handle and abort it on drop), so that `{op}` works for \
                 somebody; then: {}",
                verdict.advice
            );
            verdict = verdict.effect(Effect::AbandonedWork, true);
        }
        verdict
    }
}
