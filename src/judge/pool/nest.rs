//! What can be said of a pool for which nothing waits yet: calls that wait for calls of their own pool, and threads that
//! are not given back.

use crate::cause::{Action, Cause};
use crate::incident::{Culprit, Victim};
use crate::judge::{OPEN, Verdict, so_many};
use std::panic::Location;

/// It can come to it: a warning.
const NOT_YET: f64 = 0.3;

/// Calls that a thread of their own pool waits for.
#[derive(Debug, Clone)]
pub(crate) struct Nest {
    /// Who waits, and for what.
    pub(crate) outer: Culprit,
    pub(crate) inner: &'static str,
    pub(crate) inner_location: &'static Location<'static>,
    /// They were made on that thread, too; otherwise by somebody else.
    pub(crate) made_inside: bool,
}

impl Nest {
    pub(super) fn detail(&self) -> &'static str {
        if self.made_inside { "nested" } else { "circular" }
    }

    pub(super) fn advice(&self) -> String {
        let (outer, inner) = (self.outer.op, self.inner);
        format!(
            "`{outer}` waits on a thread of the pool for another call of the same pool: make it async and await `{inner}`, \
             run one of the two on a pool of its own, or let no more of it run at once than the pool has threads, less one"
        )
    }

    /// It can come to a deadlock, and has not yet.
    pub(crate) fn warn(self, victims: Vec<Victim>, times: u64, cap: Option<u64>) -> Verdict {
        let (outer, inner) = (self.outer.op, self.inner);
        let when = match cap {
            Some(cap) => format!("when {cap} of them do so at once"),
            None => "when as many do so at once as the pool has threads".to_owned(),
        };
        let times = so_many(times, "time", "times");
        let evidence = format!(
            "`{outer}` has waited for `{inner}` on a thread of the pool that `{inner}` itself needs, {times} (depth 2); it has \
             not hung yet, and will {when}"
        );
        let mut verdict = Verdict::new(Cause::PoolDeadlock, NOT_YET, evidence).detail(self.detail());
        verdict = verdict.advise(Action::AvoidNested, self.advice());
        verdict.culprits.push(self.outer);
        verdict.victims = victims;
        verdict
    }
}

/// Threads are held by calls that never end, and others still get theirs.
pub(crate) fn leaking(holder: Culprit, cap: Option<u64>) -> Verdict {
    let Culprit { op, count, oldest, .. } = holder;
    let of = cap.map_or(String::new(), |cap| format!(" of the pool's {cap}"));
    let evidence = format!(
        "{}{of} held by `{op}` for {oldest:.1?}, and not one of its calls has ever ended",
        so_many(count, "thread", "threads")
    );
    let advice = format!(
        "Give `{op}` a thread of its own (`std::thread`) if it is meant to run for ever, or a timeout if it waits for \
         something outside: what it holds the pool has lost"
    );
    // Nobody waits yet, and the first call of an op may be a long one.
    let mut verdict = Verdict::new(Cause::PoolLeak, OPEN, evidence).advise(Action::DedicatedThread, advice);
    verdict.culprits.push(holder);
    verdict
}
