//! From what was seen of one episode to a diagnosis. Pure: no clock, nothing read.

use crate::cause::{Action, Cause};
use crate::incident::{Advice, Culprit, Diagnosis, Victim};
use crate::sample::Counted;
use std::time::Duration;

/// From this share of CPU time in their executions on calls count as computing, up to the other as waiting.
const COMPUTES: f64 = 0.7;
const WAITS: f64 = 0.3;

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
    /// The most calls that waited or executed at once.
    pub(crate) most_at_once: u64,
    /// What has ended in the episode, of all its ops.
    pub(crate) counted: Counted,
    /// The op that holds most of the threads holds none for much longer than it usually does.
    pub(crate) as_usual: bool,
}

/// Calls that wait for a thread.
pub(crate) fn pool(culprits: Vec<Culprit>, victims: Vec<Victim>, pool: &Pool) -> Diagnosis {
    let waiting = if pool.waiting == 0 {
        format!("up to {} waited for a thread, the longest for {:.1?}", pool.most_waiting, pool.longest_wait)
    } else {
        let (calls, verb) = if pool.waiting == 1 { ("call", "waits") } else { ("calls", "wait") };
        format!("{} {calls} {verb} for a thread, the oldest for {:.1?}", pool.waiting, pool.age)
    };
    let Some(first) = culprits.first() else {
        let text = "Wrap the other users of this pool (files, name lookups, stdin, other blocking calls) to see who \
                    holds its threads";
        return Diagnosis {
            cause: Cause::Undetermined,
            detail: Some("no watched call holds a thread of this pool"),
            culprits,
            victims,
            evidence: waiting,
            advice: Advice { action: Action::None, text: text.to_owned() },
        };
    };
    let held: u64 = culprits.iter().map(|culprit| culprit.count).sum();
    let (op, count, longest) = (first.op, first.count, first.oldest);
    let holders = format!("{count} of {held} threads seen are held by `{op}`, for up to {longest:.1?}");
    let ended = pool.counted.ended;
    if ended == 0 && !pool.as_usual {
        let text = format!(
            "If `{op}` is meant to run for ever it needs a thread of its own; if it waits for a call of this pool it \
             waits for ever"
        );
        return Diagnosis {
            cause: Cause::Undetermined,
            detail: Some("no call of this pool has ended: long calls, a leak or a deadlock"),
            evidence: format!("{waiting}; {holders}; none has ended since"),
            advice: Advice { action: Action::None, text },
            culprits,
            victims,
        };
    }
    let (detail, share, advice) = saturated(op, pool);
    let cpu = share.map_or_else(String::new, |share| format!(", {:.0} % of their time on a CPU", share * 100.0));
    Diagnosis {
        cause: Cause::PoolSaturated,
        detail,
        evidence: format!("{waiting}; {holders}; {ended} have ended since{cpu}"),
        advice,
        culprits,
        victims,
    }
}

/// By the share of CPU time in what has ended: what kind of work fills the pool, and what helps.
fn saturated(op: &str, pool: &Pool) -> (Option<&'static str>, Option<f64>, Advice) {
    let Counted { cpu, cpu_known_execution, .. } = pool.counted;
    let share = (cpu_known_execution > 0).then(|| cpu as f64 / cpu_known_execution as f64);
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
                 (seen: {}), or call an async client",
                pool.most_at_once
            ),
        ),
        Some(_) => (Some("mixed"), Action::SeparatePool, format!("Give `{op}` a pool of its own")),
        None => (None, Action::SeparatePool, format!("Give `{op}` a pool of its own")),
    };
    (detail, share, Advice { action, text })
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
