//! Threads of which nobody has told whose they are, found by what is on their stacks.
//!
//! A runtime that was not prepared by `hooks` tells how many workers it has, that some of them stand still, or that its pool
//! is full. Which threads those are follows only where nothing else is possible: all threads of the process that are inside
//! Tokio's worker are as many as this runtime has, so there is no other such runtime; and as many of those are in a poll,
//! asleep, as stand still, while the others are parked. Everything else has a reason that says so, and blames nobody.

use super::reader::{Found, take};
use super::told;
use crate::stack::{CannotCapture, Capturer, Way};
use crate::threads::{self, Role};
use crate::{evidence, op, slot};
use std::collections::HashMap;
use std::thread;
use std::time::Duration;
use tokio::runtime;

/// So many threads are looked through, and so many of a pool are told.
const MOST: usize = 1_024;
const OF_POOL: usize = 64;
/// Who sleeps for so long without a break does not merely happen to.
const SLEEPS_ON: Duration = Duration::from_millis(5);
/// Threads of this crate.
const OWN: &str = "starvation";

const TOO_MANY: &str =
    "which thread it is, is not known, and there are too many to look through: prepare the runtime with `hooks`";
const NONE_SEEN: &str = "which thread it is, is not known, and no stack shows it: prepare the runtime with `hooks`";
const NOT_SEEN: &str =
    "which thread it is, is not known, and one that computes could be it: prepare the runtime with `hooks`";
const OTHERS: &str =
    "which thread it is, is not known, as there are workers of other runtimes: prepare the runtime with `hooks`";
const NOT_ASLEEP: &str = "which thread it is, is not known, and it does not sleep: prepare the runtime with `hooks`";
const NOT_HELD: &str = "no thread of the pool was found asleep in what nobody wrapped";

/// What a thread was found to be.
enum Seen {
    /// A worker, in a poll or between two.
    Worker(Option<Found>),
    /// A thread of a blocking pool, with a call or without.
    Pool(Option<Found>),
    Other,
    /// It did not sleep, so nothing can be read of it from outside.
    Awake,
}

/// All threads of the process but the detector's own.
#[derive(Default)]
struct Survey {
    workers: u64,
    /// Those that are in a poll, and those of pools that have a call, in what nobody wrapped.
    in_polls: Vec<(u32, Found)>,
    in_calls: Vec<(u32, Found)>,
    /// By name: how many workers, and how many that did not sleep.
    named: HashMap<String, [u64; 2]>,
}

/// The threads of the `stuck` workers of a runtime that has so many `workers`, each with its stack; or why it is not known which
/// they are. Some 0.2 ms for each thread of the process, 4 ms for each that computes.
pub(super) fn stuck_workers(
    capturer: &mut Capturer,
    stuck: u64,
    workers: u64,
) -> Result<Vec<(u32, Found)>, &'static str> {
    let survey = Survey::of_all(capturer)?;
    if survey.workers == 0 {
        return Err(NONE_SEEN);
    }
    // Of a runtime whose workers all have one name, none has another.
    let one_name = survey.named.values().filter(|[workers, _]| *workers > 0).count() == 1;
    if survey.named.values().any(|[workers, awake]| *awake > 0 && (*workers > 0 || !one_name)) {
        return Err(NOT_SEEN);
    }
    if survey.workers != workers {
        return Err(OTHERS);
    }
    let turns = |tid: u32| evidence::cpu_sums(tid).map(|sums| sums.turns);
    let found = survey.in_polls;
    let before: Vec<_> = found.iter().map(|(tid, _)| turns(*tid)).collect();
    thread::sleep(SLEEPS_ON);
    let sleep_on = found.iter().zip(&before).all(|((tid, _), before)| before.is_some() && turns(*tid) == *before);
    if found.len() as u64 == stuck && sleep_on { Ok(found) } else { Err(NOT_ASLEEP) }
}

/// The threads of a runtime's pool that are in what nobody wrapped, each with its stack. If the runtime was not prepared by
/// `hooks` only those that sleep, and only if all workers of the process can be its own, `workers` of them.
pub(super) fn pool_threads(
    capturer: &mut Capturer,
    runtime: runtime::Id,
    workers: u64,
) -> Result<Vec<(u32, Found)>, &'static str> {
    let known = || op::runtime_number(runtime).into_iter().flat_map(threads::threads).filter(|thread| thread.hooked);
    let mut found = Vec::new();
    if known().next().is_some() {
        let of_pool = known().filter(|thread| thread.role != Role::Worker).filter_map(|thread| thread.whom);
        for whom in of_pool.filter(|whom| !is_wrapped(whom.tid)).take(OF_POOL) {
            let taken = take(capturer, &whom).ok();
            let busy = |found: &Found| told::inside_pool(&found.trace.frames).is_some_and(told::runs_something);
            found.extend(taken.filter(|found| busy(found)).map(|taken| (whom.tid, taken)));
        }
    } else {
        let survey = Survey::of_all(capturer)?;
        let awake: u64 = survey.named.values().filter(|[workers, _]| *workers > 0).map(|[_, awake]| awake).sum();
        if survey.workers != workers && survey.workers + awake != workers {
            return Err(OTHERS);
        }
        found = survey.in_calls;
        found.truncate(OF_POOL);
    }
    if found.is_empty() { Err(NOT_HELD) } else { Ok(found) }
}

impl Survey {
    fn of_all(capturer: &mut Capturer) -> Result<Self, &'static str> {
        let own = evidence::thread_id();
        let threads = evidence::threads().unwrap_or_default();
        if threads.len() > MOST {
            return Err(TOO_MANY);
        }
        let mut survey = Self::default();
        for tid in threads.into_iter().filter(|tid| Some(*tid) != own) {
            let name = evidence::thread_name(tid).unwrap_or_default();
            if name.starts_with(OWN) {
                continue;
            }
            let wrapped = is_wrapped(tid);
            match look(capturer, tid) {
                Ok(Seen::Worker(in_poll)) => {
                    survey.workers += 1;
                    survey.named.entry(name).or_default()[0] += 1;
                    survey.in_polls.extend(in_poll.filter(|_| !wrapped).map(|found| (tid, found)));
                }
                Ok(Seen::Pool(in_call)) => {
                    survey.in_calls.extend(in_call.filter(|_| !wrapped).map(|found| (tid, found)));
                }
                Ok(Seen::Awake) => survey.named.entry(name).or_default()[1] += 1,
                Ok(Seen::Other) | Err(CannotCapture::Gone) => {}
                Err(why) => return Err(why.text()),
            }
        }
        Ok(survey)
    }
}

fn look(capturer: &mut Capturer, tid: u32) -> Result<Seen, CannotCapture> {
    let capture = match capturer.capture_asleep(tid) {
        Ok(capture) => capture,
        Err(CannotCapture::Computing | CannotCapture::Restless | CannotCapture::NoAnswer) => return Ok(Seen::Awake),
        Err(why) => return Err(why),
    };
    let trace = capturer.tell(&capture);
    let worker = told::inside_worker(&trace.frames).map(told::runs_something);
    let pool = told::inside_pool(&trace.frames).map(told::runs_something);
    let found = Found { trace, asleep: capture.way == Way::Asleep, futex: capture.futex };
    Ok(match (worker, pool) {
        (Some(in_poll), _) => Seen::Worker(in_poll.then_some(found)),
        (None, Some(in_call)) => Seen::Pool(in_call.then_some(found)),
        (None, None) => Seen::Other,
    })
}

/// Whether the thread is in something that is watched, which is told of itself.
fn is_wrapped(tid: u32) -> bool {
    slot::all().any(|slot| slot.tid() == Some(tid) && slot.activities().iter().any(Option::is_some))
}
