//! Workers of which nobody has told which threads they are, found by what is on their stacks.
//!
//! A runtime that was not prepared by `hooks` tells how many workers it has, and that some of them stand still. Which threads
//! those are follows only where nothing else is possible: all threads of the process that are inside Tokio's worker are as
//! many as this runtime has, so there is no other such runtime; and as many of those are in a poll, asleep, as stand still,
//! while the others are parked. Everything else has a reason that says so, and blames nobody.

use super::reader::Found;
use super::told;
use crate::stack::{CannotCapture, Capturer, Way};
use crate::{evidence, slot};
use std::collections::HashSet;
use std::thread;
use std::time::Duration;

/// So many threads are looked through.
const MOST: usize = 1_024;
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

/// What a thread was found to be.
enum Seen {
    /// A worker, in a poll or between two.
    Worker {
        in_poll: Option<Found>,
    },
    Other,
    /// It did not sleep, so nothing can be read of it from outside.
    Awake,
}

/// The threads of the `stuck` workers of a runtime that has so many `workers`, each with its stack; or why it is not known which
/// they are. Some 0.2 ms for each thread of the process, 4 ms for each that computes.
pub(super) fn stuck_workers(
    capturer: &mut Capturer,
    stuck: u64,
    workers: u64,
) -> Result<Vec<(u32, Found)>, &'static str> {
    let own = evidence::thread_id();
    let threads = evidence::threads().unwrap_or_default();
    if threads.len() > MOST {
        return Err(TOO_MANY);
    }
    let (mut all, mut named, mut awake, mut in_polls) = (0, HashSet::new(), HashSet::new(), Vec::new());
    for tid in threads.into_iter().filter(|tid| Some(*tid) != own) {
        let name = evidence::thread_name(tid).unwrap_or_default();
        if name.starts_with(OWN) {
            continue;
        }
        match look(capturer, tid) {
            Ok(Seen::Worker { in_poll }) => {
                all += 1;
                named.insert(name);
                in_polls.extend(in_poll.map(|found| (tid, found)));
            }
            Ok(Seen::Awake) => {
                awake.insert(name);
            }
            Ok(Seen::Other) | Err(CannotCapture::Gone) => {}
            Err(why) => return Err(why.text()),
        }
    }
    if named.is_empty() {
        return Err(NONE_SEEN);
    }
    // Of a runtime whose workers all have one name, none has another.
    if named.len() > 1 && !awake.is_empty() || !named.is_disjoint(&awake) {
        return Err(NOT_SEEN);
    }
    if all != workers {
        return Err(OTHERS);
    }
    in_polls.retain(|(tid, _)| !is_wrapped(*tid));
    let turns = |tid: u32| evidence::cpu_sums(tid).map(|sums| sums.turns);
    let before: Vec<_> = in_polls.iter().map(|(tid, _)| turns(*tid)).collect();
    thread::sleep(SLEEPS_ON);
    let sleep_on = in_polls.iter().zip(&before).all(|((tid, _), before)| before.is_some() && turns(*tid) == *before);
    if in_polls.len() as u64 == stuck && sleep_on { Ok(in_polls) } else { Err(NOT_ASLEEP) }
}

fn look(capturer: &mut Capturer, tid: u32) -> Result<Seen, CannotCapture> {
    let capture = match capturer.capture_asleep(tid) {
        Ok(capture) => capture,
        Err(CannotCapture::Computing | CannotCapture::Restless | CannotCapture::NoAnswer) => return Ok(Seen::Awake),
        Err(why) => return Err(why),
    };
    let trace = capturer.tell(&capture);
    let Some(inside) = told::inside_worker(&trace.frames) else { return Ok(Seen::Other) };
    let in_poll = told::runs_something(inside);
    let found = Found { trace, asleep: capture.way == Way::Asleep, futex: capture.futex };
    Ok(Seen::Worker { in_poll: in_poll.then_some(found) })
}

/// Whether the thread is in something that is watched, which is told of itself.
fn is_wrapped(tid: u32) -> bool {
    slot::all().any(|slot| slot.tid() == Some(tid) && slot.activities().iter().any(Option::is_some))
}
