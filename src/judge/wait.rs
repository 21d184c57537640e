//! Waits for something that is handed out: who has it, and whether a branch ever gets its turn.

use super::{LIKELY, SURE, Verdict, so_many};
use crate::cause::{Action, Cause};
use crate::incident::{Culprit, Victim};
use std::time::Duration;

/// Waits of one op that stay pending for too long.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) resource: Culprit,
    /// Who was last given it, and is therefore likely to have it.
    pub(crate) holder: Option<Culprit>,
    pub(crate) waiter: Option<Victim>,
    pub(crate) calls: u64,
    /// How many are pending now.
    pub(crate) now: u64,
}

pub(crate) fn judge(waits: Waits) -> Verdict {
    let Waits { resource, holder, waiter, calls, now } = waits;
    let (op, oldest) = (resource.op, resource.oldest);
    let waiting = if now == 0 {
        format!("{} for `{op}` over the floor, none now", so_many(calls, "wait", "waits"))
    } else {
        format!("{} for `{op}`, the oldest for {oldest:.1?}", so_many(now, "wait", "waits"))
    };
    let (had, look) = match &holder {
        Some(holder) => (format!("; `{}` was given it last", holder.op), format!("how long `{}` keeps it", holder.op)),
        None => (String::new(), "who keeps it, and for how long".to_owned()),
    };
    let mut verdict = Verdict::new(Cause::DownstreamLimit, SURE, waiting + &had).advise(
        Action::LookDownstream,
        format!(
            "The runtime can do nothing about it: look at {look}, hand out more of `{op}`, and wait for it outside of \
             whatever others wait behind, such as the only consumer of a channel"
        ),
    );
    verdict.culprits.push(resource);
    verdict.culprits.extend(holder);
    verdict.victims.extend(waiter);
    verdict
}

/// A branch that never gets its turn: it was woken so long ago and not polled since, or offered and dropped so many times.
pub(crate) fn never_asked(branch: Culprit, woken: Option<Duration>, times: u64, since: Duration) -> Verdict {
    let op = branch.op;
    let evidence = match woken {
        Some(woken) => format!(
            "`{op}` has been ready for {woken:.1?} and nobody polls it, while its runtime does all else in good time"
        ),
        None => format!("`{op}` was dropped {times} times in {since:.1?} without having been polled once"),
    };
    let advice = format!(
        "Other branches are always asked first and always ready, or whoever should ask `{op}` is busy with one of them: let \
         `select!` choose at random (without `biased`), put the rare branch first, and do long work in tasks of its own"
    );
    let mut verdict = Verdict::new(Cause::Unfair, LIKELY, evidence).advise(Action::None, advice);
    verdict.culprits.push(branch);
    verdict
}
