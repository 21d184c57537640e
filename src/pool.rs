//! Why calls wait for a thread of a pool. Pure: no clock, nothing read.
//!
//! A ladder; the first step that applies tells. Before anybody is accused of holding the threads it is asked whether the
//! threads seen are all that there are, whether anything moves, and whether they are given the CPU.

use crate::cause::{Action, Cause};
use crate::incident::{Advice, Culprit, Diagnosis, Victim};
use crate::peak::Crowd;
use crate::sample::Counted;
use crate::suspect::Share;
use std::time::Duration;

/// From this share of CPU time in their executions on calls count as computing, up to the other as waiting.
const COMPUTES: f64 = 0.7;
const WAITS: f64 = 0.3;
/// From this share of the machine's CPUs on that a pool uses, its threads may have to wait for one.
const BUSY: f64 = 0.25;
/// From this percentage of time without a CPU on, what is slow about the pool's threads may not be their work.
const STARVED: u64 = 30;
/// An execution of up to so many times its op's average is no sign that it may never end.
const AS_USUAL: u32 = 4;

/// A pool for whose threads calls wait, as it has been lately.
#[derive(Debug)]
pub(crate) struct Pool {
    /// How many wait now, and how long the oldest has.
    pub(crate) waiting: u64,
    pub(crate) age: Duration,
    /// The same at its worst.
    pub(crate) most_waiting: u64,
    pub(crate) longest_wait: Duration,
    /// How many calls it has had, waiting or executing.
    pub(crate) crowd: Crowd,
    /// Most of the time in which calls waited no watched call held a thread.
    pub(crate) uncovered: bool,
    /// Jobs of other ops that have been executing, perhaps on the same pool.
    pub(crate) other_jobs: u64,
    /// What has ended, of all its ops.
    pub(crate) counted: Counted,
    /// What the op that holds most of the threads has counted since the process started.
    pub(crate) history: Counted,
    /// Of how much time a thread that executes calls had no CPU.
    pub(crate) without_cpu: Share,
    pub(crate) cpus: u64,
}

/// What a step of the ladder has found.
#[derive(Debug)]
struct Finding {
    cause: Cause,
    detail: Option<&'static str>,
    /// Beside how many wait, and for how long.
    evidence: Option<String>,
    action: Action,
    advice: String,
    /// It is known who holds the threads, though perhaps not why.
    of_holder: bool,
}

/// The diagnosis of a pool, and whether it is of who holds its threads.
pub(crate) fn judge(culprits: Vec<Culprit>, victims: Vec<Victim>, pool: &Pool) -> (Diagnosis, bool) {
    let finding = match culprits.first() {
        None => pool.nobody_seen(),
        Some(first) => pool
            .others_hold(first)
            .or_else(|| pool.nothing_ends(first))
            .or_else(|| pool.no_cpu(first))
            .unwrap_or_else(|| pool.saturated(first)),
    };
    let waiting = pool.tell_waiting();
    let diagnosis = Diagnosis {
        cause: finding.cause,
        detail: finding.detail,
        culprits,
        victims,
        evidence: finding.evidence.map_or_else(|| waiting.clone(), |evidence| format!("{waiting}; {evidence}")),
        advice: Advice { action: finding.action, text: finding.advice },
    };
    (diagnosis, finding.of_holder)
}

impl Finding {
    fn undetermined(detail: &'static str, evidence: Option<String>) -> Self {
        let advice = "Wrap the other users of this pool (files, name lookups, stdin, other blocking calls) to see who \
                      holds its threads";
        Self {
            cause: Cause::Undetermined,
            detail: Some(detail),
            evidence,
            action: Action::None,
            advice: advice.to_owned(),
            of_holder: false,
        }
    }
}

impl Pool {
    /// How long an execution of the op that holds most of the threads takes on average.
    fn usual(&self) -> Option<Duration> {
        self.history.execution_time.checked_div(self.history.ended).map(Duration::from_nanos)
    }

    /// The share of time on a CPU: of what has ended lately, or else of what that op has ever done.
    fn cpu_share(&self) -> Option<f64> {
        let known = |counted: &Counted| counted.cpu_known_execution > 0;
        let counted = Some(self.counted).filter(known).or(Some(self.history).filter(known))?;
        Some(counted.cpu as f64 / counted.cpu_known_execution as f64)
    }

    /// The most threads that watched calls have held at once lately.
    fn threads(&self, first: &Culprit) -> u64 {
        self.crowd.executing.recent().max(first.count)
    }

    fn tell_waiting(&self) -> String {
        match (self.waiting, self.most_waiting) {
            (0, 0) => "calls have waited for a thread for longer than they usually run".to_owned(),
            (0, most) => format!("up to {most} waited for a thread, the longest for {:.1?}", self.longest_wait),
            (waiting, _) => {
                let (calls, verb) = if waiting == 1 { ("call", "waits") } else { ("calls", "wait") };
                // An age of 0 is younger than can be told.
                let age = if self.age.is_zero() { String::new() } else { format!(", the oldest for {:.1?}", self.age) };
                format!("{waiting} {calls} {verb} for a thread{age}")
            }
        }
    }

    fn tell_holder(&self, first: &Culprit) -> String {
        let Culprit { op, count, oldest, .. } = first;
        format!("{count} of {} threads seen are held by `{op}`, for up to {oldest:.1?}", self.threads(first))
    }

    fn tell_progress(&self) -> String {
        match (self.counted.ended, self.usual()) {
            (0, Some(usual)) => format!("{usual:.1?} are usual for it"),
            (0, None) => "none has ended lately".to_owned(),
            (ended, _) => format!("{ended} of its calls ended lately"),
        }
    }

    fn tell_without_cpu(&self) -> String {
        let Share { part, of } = self.without_cpu;
        let percent = (part * 100 / of.max(1)).min(100);
        let of = Duration::from_nanos(of);
        format!("a thread of the pool was ready to run and had no CPU for {percent} % of {of:.1?}")
    }

    fn nobody_seen(&self) -> Finding {
        if self.other_jobs > 0 {
            let evidence = format!("{} jobs of other ops execute", self.other_jobs);
            return Finding::undetermined("jobs of other ops execute, perhaps on the same pool", Some(evidence));
        }
        Finding::undetermined("no watched call holds a thread of this pool", None)
    }

    /// The threads seen are not all that there are.
    fn others_hold(&self, first: &Culprit) -> Option<Finding> {
        let (threads, ever) = (self.threads(first), self.crowd.executing.ever());
        if self.uncovered {
            let detail = "no watched call held a thread of this pool for most of the wait";
            return Some(Finding::undetermined(detail, None));
        }
        if threads < ever {
            let evidence = format!("{}; the pool has run {ever} watched calls at once before", self.tell_holder(first));
            let detail = "other threads of this pool are held by nobody that is watched";
            return Some(Finding::undetermined(detail, Some(evidence)));
        }
        (self.other_jobs > 0).then(|| {
            let evidence = format!("{}; {} jobs of other ops execute, too", self.tell_holder(first), self.other_jobs);
            Finding::undetermined("jobs of other ops execute, perhaps on the same pool", Some(evidence))
        })
    }

    /// Nothing moves, and for longer than usual.
    fn nothing_ends(&self, first: &Culprit) -> Option<Finding> {
        let as_usual = self.usual().is_some_and(|usual| first.oldest <= usual.saturating_mul(AS_USUAL));
        (self.counted.ended == 0 && !as_usual).then(|| Finding {
            evidence: Some(format!("{}; none has ended lately", self.tell_holder(first))),
            advice: format!(
                "If `{}` waits for something outside, give it a timeout; if it is meant to run for ever, a thread of its \
                 own; if it waits for a call of this pool, it waits for ever",
                first.op
            ),
            of_holder: true,
            ..Finding::undetermined("no call of this pool has ended: long calls, a leak or a deadlock", None)
        })
    }

    /// Whether the threads want a CPU and do not get it, though the calls do not show it in CPU time.
    fn is_starved(&self) -> bool {
        self.without_cpu.is_at_least(STARVED) && self.cpu_share().is_none_or(|share| share < COMPUTES)
    }

    /// The threads are not given the CPU, or may not be, by somebody else than each other.
    fn no_cpu(&self, first: &Culprit) -> Option<Finding> {
        let threads = self.threads(first);
        let told = format!("{}; {}", self.tell_holder(first), self.tell_progress());
        let host = |detail, evidence| Finding {
            action: Action::LookAtHost,
            advice: "Look at what else uses this machine's CPUs: more threads would only share them out thinner"
                .to_owned(),
            ..Finding::undetermined(detail, Some(evidence))
        };
        if self.is_starved() && threads <= self.cpus {
            let detail = "the pool's threads do not get the CPU: calls, or the machine";
            return Some(host(detail, format!("{told}; {}", self.tell_without_cpu())));
        }
        // Where nobody tells how long threads wait for a CPU, those of a busy machine may do so.
        let may_be = |share: f64| share < COMPUTES && share * threads as f64 >= BUSY * self.cpus as f64;
        let unknown = self.without_cpu.of == 0 && self.cpu_share().is_some_and(may_be);
        unknown.then(|| host("not known how long the pool's threads waited for a CPU", told))
    }

    /// The threads are all held by calls that come and go. What helps depends on what they do.
    fn saturated(&self, first: &Culprit) -> Finding {
        let (op, share) = (first.op, self.cpu_share());
        let mut evidence = format!("{}; {}", self.tell_holder(first), self.tell_progress());
        if let Some(share) = share {
            evidence += &format!(", {:.0} % of their time on a CPU", share * 100.0);
        }
        // More threads that want a CPU than there are: they take it from each other.
        let among_themselves = self.is_starved();
        if among_themselves {
            evidence += &format!("; {}; there are {} CPUs", self.tell_without_cpu(), self.cpus);
        }
        let (detail, action, advice) = match share {
            _ if among_themselves => (Some("cpu"), Action::BoundCpuPool, computes(op)),
            Some(share) if share >= COMPUTES => (Some("cpu"), Action::BoundCpuPool, computes(op)),
            Some(share) if share <= WAITS => {
                let most = self.crowd.at_once.recent();
                let advice = format!(
                    "`{op}` waits for something else than a CPU: give the pool as many threads as there are calls at \
                     once (seen: {most}), or call an async client"
                );
                (Some("io"), Action::RaisePool, advice)
            }
            Some(_) => {
                let advice = format!(
                    "`{op}` computes and waits in turns: give it a pool of its own, a few threads for each CPU"
                );
                (Some("mixed"), Action::SeparatePool, advice)
            }
            None => (None, Action::SeparatePool, format!("Give `{op}` a pool of its own: others need not wait for it")),
        };
        Finding { cause: Cause::PoolSaturated, detail, evidence: Some(evidence), action, advice, of_holder: true }
    }
}

fn computes(op: &str) -> String {
    format!("`{op}` computes: run it on a pool of as many threads as there are CPUs; more threads help nobody")
}
