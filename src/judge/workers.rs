//! A runtime whose workers have more to do than they can.

use super::{LIKELY, Verdict, nanos};
use crate::cause::{Action, Cause};
use crate::facts::RuntimeFacts;
use crate::incident::Victim;

/// Tasks that are ready wait, and no single poll is long.
pub(crate) fn overloaded(runtime: Option<&RuntimeFacts>, victims: Vec<Victim>, late: u64, worst: u64) -> Verdict {
    let mut told = match victims.first() {
        Some(victim) => {
            format!("{late} polls came up to {:.1?} late, those of `{}` first of all", nanos(worst), victim.op)
        }
        None => format!("a task that is ready waits for {:.1?}", nanos(worst)),
    };
    if let Some(runtime) = runtime {
        told += &format!(
            "; no worker was parked in {} % of the looks, up to {} tasks were queued for all {} workers, and no poll was long",
            runtime.full.recent().percent().unwrap_or(0),
            runtime.depth.recent(),
            runtime.last.workers,
        );
    }
    let advice = "There is more to do than the workers can: admit less at once (a semaphore, a bounded channel), move what \
                  computes to threads of its own, or give the process more CPUs";
    let mut verdict = Verdict::new(Cause::Overloaded, LIKELY, told).advise(Action::None, advice.to_owned());
    verdict.victims = victims;
    verdict
}
