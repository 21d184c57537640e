//! From what was seen of one episode to a diagnosis, but for pools: see [`pool`](crate::pool). Pure: no clock, nothing
//! read.

use crate::cause::{Action, Cause};
use crate::incident::{Advice, Culprit, Diagnosis};
use std::time::Duration;

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
