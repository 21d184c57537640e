//! From what was seen of one episode to a diagnosis. Pure: no clock, nothing read.

use crate::cause::{Action, Cause};
use crate::incident::{Advice, Culprit, Diagnosis, Victim};
use crate::peak::Crowd;
use crate::sample::Counted;
use crate::suspect::Share;
use std::time::Duration;

/// From this share of CPU time in their executions on calls count as computing, up to the other as waiting.
const COMPUTES: f64 = 0.7;
const WAITS: f64 = 0.3;
/// From this percentage of time without a CPU on, what is slow about the pool's threads may not be their work.
const STARVED: u64 = 30;
/// An execution of up to so many times its op's average is no sign that it may never end.
const AS_USUAL: u32 = 4;

const NONE_ENDED: &str = "no call of this pool has ended: long calls, a leak or a deadlock";
const OTHER_JOBS: &str = "jobs of other ops execute, perhaps on the same pool";

impl Diagnosis {
    /// Whether it is of who holds the pool's threads, though perhaps not yet why.
    pub(crate) fn names_holder(&self) -> bool {
        self.cause == Cause::PoolSaturated || self.detail == Some(NONE_ENDED)
    }
}

/// Nothing was over a threshold.
pub(crate) fn healthy(window: Duration) -> Diagnosis {
    Diagnosis {
        cause: Cause::Healthy,
        detail: None,
        culprits: Vec::new(),
        victims: Vec::new(),
        evidence: format!("nothing was over a threshold in the last {window:.0?}"),
        advice: Advice { action: Action::None, text: "There is nothing to do".to_owned() },
    }
}

/// Polls that go on for too long, of which `now` do so still.
pub(crate) fn long_poll(culprit: Culprit, calls: u64, now: u64) -> Diagnosis {
    let (op, oldest) = (culprit.op, culprit.oldest);
    let evidence = if now == 0 {
        format!("polls of `{op}` over the threshold: {calls}; none now")
    } else {
        format!("polls of `{op}` going on: {now}, the oldest for {oldest:.1?}; all else on their workers waits")
    };
    Diagnosis {
        cause: Cause::LongPoll,
        detail: Some("unknown"),
        culprits: vec![culprit],
        victims: Vec::new(),
        evidence,
        advice: Advice {
            action: Action::Offload,
            text: format!("Move what `{op}` does between two awaits into a blocking call, or split it"),
        },
    }
}

/// A pool for whose threads calls wait.
#[derive(Debug)]
pub(crate) struct Pool {
    /// How many wait now, and how long the oldest has.
    pub(crate) waiting: u64,
    pub(crate) age: Duration,
    /// The same at its worst.
    pub(crate) most_waiting: u64,
    pub(crate) longest_wait: Duration,
    /// How many calls it has had lately, waiting or executing.
    pub(crate) crowd: Crowd,
    /// Jobs of other ops that have been executing lately, perhaps on the same pool.
    pub(crate) other_jobs: u64,
    /// What has ended lately, of all its ops.
    pub(crate) counted: Counted,
    /// What the op that holds most of the threads has counted since the process started.
    pub(crate) history: Counted,
    /// Of how much time a thread that executes calls had no CPU.
    pub(crate) without_cpu: Share,
    pub(crate) cpus: u64,
    /// Most of the time in which calls waited no watched call held a thread.
    pub(crate) uncovered: bool,
}

impl Pool {
    /// How long an execution of the op that holds most of the threads takes on average.
    fn usual(&self) -> Option<Duration> {
        self.history.execution_time.checked_div(self.history.ended).map(Duration::from_nanos)
    }

    /// The share of time on a CPU: of what has ended in the episode, or else of what that op has ever done.
    fn cpu_share(&self) -> Option<f64> {
        let known = |counted: &Counted| counted.cpu_known_execution > 0;
        let counted = Some(self.counted).filter(known).or(Some(self.history).filter(known))?;
        Some(counted.cpu as f64 / counted.cpu_known_execution as f64)
    }
}

/// Calls that wait for a thread.
pub(crate) fn pool(culprits: Vec<Culprit>, victims: Vec<Victim>, pool: &Pool) -> Diagnosis {
    let waiting = if pool.waiting == 0 && pool.most_waiting == 0 {
        "calls have waited for a thread for longer than they ran".to_owned()
    } else if pool.waiting == 0 {
        format!("up to {} waited for a thread, the longest for {:.1?}", pool.most_waiting, pool.longest_wait)
    } else {
        let (calls, verb) = if pool.waiting == 1 { ("call", "waits") } else { ("calls", "wait") };
        // An age of 0 is younger than can be told.
        let age = if pool.age.is_zero() { String::new() } else { format!(", the oldest for {:.1?}", pool.age) };
        format!("{} {calls} {verb} for a thread{age}", pool.waiting)
    };
    let undetermined = |detail, evidence, action, text: String| Diagnosis {
        cause: Cause::Undetermined,
        detail: Some(detail),
        evidence,
        advice: Advice { action, text },
        culprits: culprits.clone(),
        victims: victims.clone(),
    };
    let others =
        "Wrap the other users of this pool (files, name lookups, stdin, other blocking calls) to see who holds \
                  its threads"
            .to_owned();
    let Some(first) = culprits.first() else {
        return if pool.other_jobs > 0 {
            undetermined(
                OTHER_JOBS,
                format!("{waiting}; {} jobs of other ops execute", pool.other_jobs),
                Action::None,
                others,
            )
        } else {
            undetermined("no watched call holds a thread of this pool", waiting, Action::None, others)
        };
    };
    if pool.uncovered {
        let detail = "no watched call held a thread of this pool for most of the wait";
        return undetermined(detail, waiting, Action::None, others);
    }
    let held = pool.crowd.executing.recent().max(first.count);
    let (op, count, longest) = (first.op, first.count, first.oldest);
    let holders = format!("{count} of {held} threads seen are held by `{op}`, for up to {longest:.1?}");
    let ever = pool.crowd.executing.ever();
    if held < ever {
        let evidence = format!("{waiting}; {holders}; the pool has run {ever} watched calls at once before");
        return undetermined(
            "other threads of this pool are held by nobody that is watched",
            evidence,
            Action::None,
            others,
        );
    }
    if pool.other_jobs > 0 {
        let evidence = format!("{waiting}; {holders}; {} jobs of other ops execute, too", pool.other_jobs);
        return undetermined(OTHER_JOBS, evidence, Action::None, others);
    }
    let progress = match (pool.counted.ended, pool.usual()) {
        (0, Some(usual)) if longest <= usual.saturating_mul(AS_USUAL) => format!("{usual:.1?} are usual for it"),
        (0, _) => {
            let text = format!(
                "If `{op}` waits for something outside, give it a timeout; if it is meant to run for ever, a thread of \
                 its own; if it waits for a call of this pool, it waits for ever"
            );
            let evidence = format!("{waiting}; {holders}; none has ended lately");
            return undetermined(NONE_ENDED, evidence, Action::None, text);
        }
        (ended, _) => format!("{ended} have ended lately"),
    };
    let share = pool.cpu_share();
    let starved = pool.without_cpu.is_at_least(STARVED) && share.is_none_or(|share| share < COMPUTES);
    // More threads that want a CPU than there are CPUs: they take it from each other.
    let among_themselves = starved && held > pool.cpus;
    if starved && !among_themselves {
        let text = "Look at what else uses this machine's CPUs: more threads would only share them out thinner";
        let evidence = format!("{waiting}; {holders}; {progress}; {}", without_cpu(pool.without_cpu));
        let detail = "the pool's threads do not get the CPU: calls, or the machine";
        return undetermined(detail, evidence, Action::LookAtHost, text.to_owned());
    }
    let kind = if among_themselves { Some(1.0) } else { share };
    let (detail, advice) = saturated(op, kind, pool.crowd.at_once.recent());
    let mut cpu = share.map_or_else(String::new, |share| format!(", {:.0} % of their time on a CPU", share * 100.0));
    if among_themselves {
        cpu = format!("{cpu}; {}; {held} threads want {} CPUs", without_cpu(pool.without_cpu), pool.cpus);
    }
    Diagnosis {
        cause: Cause::PoolSaturated,
        detail,
        evidence: format!("{waiting}; {holders}; {progress}{cpu}"),
        advice,
        culprits,
        victims,
    }
}

fn without_cpu(Share { part, of }: Share) -> String {
    let percent = (part * 100 / of.max(1)).min(100);
    format!("a thread of the pool was ready to run and had no CPU for {percent} % of {:.1?}", Duration::from_nanos(of))
}

/// By the share of time on a CPU: what kind of work fills the pool, and what helps.
fn saturated(op: &str, share: Option<f64>, most_at_once: u64) -> (Option<&'static str>, Advice) {
    let (detail, action, text) = match share {
        Some(share) if share >= COMPUTES => (
            Some("cpu"),
            Action::BoundCpuPool,
            format!("`{op}` computes: run it on a pool of as many threads as there are CPUs; more threads help nobody"),
        ),
        Some(share) if share <= WAITS => (
            Some("io"),
            Action::RaisePool,
            format!(
                "`{op}` waits for something else than a CPU: give the pool as many threads as there are calls at once \
                 (seen: {most_at_once}), or call an async client"
            ),
        ),
        Some(_) => (
            Some("mixed"),
            Action::SeparatePool,
            format!("`{op}` computes and waits in turns: give it a pool of its own, of a few threads for each CPU"),
        ),
        None => {
            (None, Action::SeparatePool, format!("Give `{op}` a pool of its own, so that others need not wait for it"))
        }
    };
    (detail, Advice { action, text })
}

/// An `instrument_wait` that stays pending, of which `now` do so still.
pub(crate) fn wait(resource: Culprit, calls: u64, now: u64) -> Diagnosis {
    let (op, oldest) = (resource.op, resource.oldest);
    let evidence = if now == 0 {
        format!("waits for `{op}` over the floor: {calls}; none now")
    } else {
        format!("waiting for `{op}`: {now}, the oldest for {oldest:.1?}")
    };
    Diagnosis {
        cause: Cause::DownstreamLimit,
        detail: None,
        evidence,
        advice: Advice {
            action: Action::LookDownstream,
            text: format!("Look at who holds `{op}` and for how long: the runtime can do nothing about it"),
        },
        culprits: vec![resource],
        victims: Vec::new(),
    }
}
