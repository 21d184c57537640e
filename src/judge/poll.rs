//! A poll that holds its worker for too long: what it does there, and to whom.

use super::{LIKELY, OPEN, SURE, Verdict, nanos, so_many};
use crate::cause::{Action, Cause, Effect};
use crate::conduct::{Conduct, Manner};
use crate::incident::{Culprit, Victim};
use crate::stacks::{Told, What};

/// Polls of one op, or of a worker of which nobody knows what it polls, that go on for too long.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    pub(crate) culprits: Vec<Culprit>,
    pub(crate) victims: Vec<Victim>,
    pub(crate) calls: u64,
    /// How many go on now, and for how long the oldest.
    pub(crate) now: u64,
    pub(crate) age: u64,
    /// The longest lately.
    pub(crate) longest: u64,
    /// How long the oldest goes on with the time in which somebody had no CPU, which `age` leaves out.
    pub(crate) wall: u64,
    /// What their threads did lately.
    pub(crate) conduct: Conduct,
    /// How long one of them goes on, or did on average.
    pub(crate) length: u64,
    /// Watched futures inside these polls came and went: it is many small steps.
    pub(crate) steps: bool,
    /// How long one may go on.
    pub(crate) limit: u64,
    pub(crate) around: Around,
    pub(crate) stack: Stack,
}

/// What the stacks of their threads say, where some were taken.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    /// Of those that sleep, and of those that compute.
    pub(crate) asleep: Option<Told>,
    pub(crate) computing: Option<Told>,
    /// From so many places in the code they sleep.
    pub(crate) places: Vec<String>,
    /// What others wait for the same lock, and where.
    pub(crate) sharers: Vec<String>,
}

/// What else was seen while they went on.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Around {
    /// Workers of the runtime; 0 where it is not watched. Most that were parked at a look.
    pub(crate) workers: u64,
    pub(crate) parked: u64,
    /// How late its timers were.
    pub(crate) beat_late: u64,
    /// Polls that were overdue at once on it, of whichever op.
    pub(crate) stuck: u64,
    /// Tasks in the queue that all workers share.
    pub(crate) depth: u64,
    /// Its worker is the thread that calls `block_on`.
    pub(crate) current_thread: bool,
    /// Polls that were seen waiting for a lock, beside one of theirs; how many at the same address.
    pub(crate) others_locked: u64,
    pub(crate) same_address: u64,
    /// Watched calls were executing, or polls of others overdue, who could hold a lock.
    pub(crate) others: bool,
    /// Something watched was polled inside these polls with a waker that is not theirs.
    pub(crate) by_hand: bool,
    /// They are of no task: the root of a `block_on`, which holds up no worker.
    pub(crate) root: bool,
    /// At every look some worker was parked, so there was one for all that there was to do.
    pub(crate) spared: bool,
    /// Threads of the process have been short of CPUs lately.
    pub(crate) short: bool,
    /// Others of the op have given their worker away (`block_in_place`). For want of a CPU, the thread that is given it may
    /// not have taken it yet.
    pub(crate) gives_away: bool,
    /// Each of them may have done so: a thread that may have been to take the worker had no CPU for as long.
    pub(crate) untaken: bool,
    /// All calls of the runtime's pool were held, so that `block_in_place` found no thread.
    pub(crate) pool_full: bool,
}

/// More likely than not.
const UNSURE: f64 = 0.6;
/// A worker that is missing for so long is missed.
const SERIOUS: u64 = 1_000_000_000;
/// By so much timers must be late to be an effect, and by such a part of the longest poll.
const LATE: u64 = 25_000_000;
const HELD_PART: u32 = 4;

pub(crate) fn judge(polls: Polls) -> Verdict {
    let Polls { culprits, victims, calls, now, age, longest, wall, conduct, length, steps, limit, around, stack } =
        polls;
    // What a thread did in a small part of the time says nothing of the rest.
    let conduct = if conduct.of.saturating_mul(4) < length { Conduct::default() } else { conduct };
    let name = culprits.first().map_or("code that nobody wrapped".to_owned(), |culprit| format!("`{}`", culprit.op));
    let name = name.as_str();
    let (detail, told, confidence) = manner(&conduct, &around);
    let (detail, told, confidence) = stack.confirm(&conduct, detail, told, confidence);
    // Who was seen to compute for less than a poll may go on may have gone on for so long for want of a CPU. Who sleeps for
    // so long is missed, whatever it waits for.
    let computed = conduct.on_cpu / calls.max(1) >= limit;
    let sleeps = matches!(conduct.manner(), Some(Manner::Parked | Manner::Asleep)) && longest.max(age) >= SERIOUS;
    let unknown = detail == "unknown" && !sleeps || detail == "computing" && !computed;
    let guess = around.untaken || around.short && (unknown || around.gives_away);
    let going_on = match now {
        0 => format!("{} of {name} over the threshold, none now", so_many(calls, "poll", "polls")),
        _ => {
            format!("{} of {name} going on, the oldest for {:.1?}", so_many(now, "poll", "polls"), nanos(wall.max(age)))
        }
    };
    let (action, advice) = advice(detail, name, steps || !victims.is_empty(), &around, &conduct);
    let multi = around.workers > 1 && !around.current_thread;
    let longest = nanos(longest.max(age));
    // A poll that keeps the timers from running makes them late by most of what it takes.
    let late = nanos(around.beat_late) >= nanos(LATE).max(longest / HELD_PART);
    let mut verdict = Verdict::new(Cause::LongPoll, confidence, going_on + &told).detail(detail).advise(action, advice);
    if late {
        verdict.evidence += &format!("; its runtime's timers were {:.1?} late", nanos(around.beat_late));
        if multi && around.parked > 0 {
            verdict.evidence += &format!(", with {} of {} workers idle", around.parked, around.workers);
        }
    }
    if let Some(victim) = victims.first() {
        verdict.evidence += &format!("; `{}` waited behind it", victim.op);
    }
    verdict.culprits = culprits;
    if guess {
        return verdict.unless_starved(victims, around.untaken);
    }
    verdict = verdict
        .effect(Effect::DriverHeld, late && multi && around.parked > 0)
        .effect(Effect::LifoVictim, !victims.is_empty() && multi && around.parked > 0)
        .effect(Effect::HandOffLost, around.pool_full && detail != "computing" && !around.current_thread)
        .effect(
            Effect::WorkersBlocked,
            around.workers > 0 && (around.stuck.max(now) >= around.workers || around.depth > 0),
        );
    verdict.victims = victims;
    if around.root {
        verdict.confidence = verdict.confidence.min(OPEN);
        verdict.evidence += "; it is the root of a `block_on` and holds up no worker";
    }
    verdict.harmless = around.root && verdict.victims.is_empty()
        || around.spared && verdict.victims.is_empty() && !late && longest < nanos(SERIOUS);
    verdict
}

/// What its thread did, the number that says so, and how sure that is.
fn manner(conduct: &Conduct, around: &Around) -> (&'static str, String, f64) {
    let cpu = conduct.cpu_percent().unwrap_or(0);
    let on_cpu = format!("its thread was on a CPU for {cpu} % of the time");
    match conduct.manner() {
        Some(Manner::Computing) => ("computing", format!("; {on_cpu}"), SURE),
        Some(Manner::Locked) => ("locked", format!("; {on_cpu} and slept waiting for a lock"), SURE),
        Some(Manner::Blocked | Manner::Asleep) if around.others_locked > 0 && conduct.call.is_none_or(is_output) => {
            let others = so_many(around.others_locked, "other poll waits", "other polls wait");
            let told = match conduct.call {
                Some(call) => format!("; {on_cpu} and slept in `{call}`, while {others} for a lock"),
                None => format!("; {on_cpu} and slept, while {others} for a lock"),
            };
            ("locked", told + ": a common lock or sink is suspected", LIKELY)
        }
        Some(Manner::Asleep) if around.same_address > 1 => {
            let told = format!("; {on_cpu}; {} threads wait at the same address", around.same_address);
            ("locked", told, LIKELY)
        }
        Some(Manner::Blocked) => {
            let call = conduct.call.unwrap_or("a system call");
            ("blocked", format!("; {on_cpu} and slept in `{call}`"), SURE)
        }
        Some(Manner::Parked | Manner::Asleep) if around.by_hand => {
            let told = "and slept, until another thread wakes it; inside the poll a future was run by hand";
            // Combinators with wakers of their own look the same.
            ("block_on", format!("; {on_cpu} {told}"), UNSURE)
        }
        Some(Manner::Parked) => {
            ("unknown", format!("; {on_cpu} and slept, parked until another thread wakes it"), OPEN)
        }
        Some(Manner::Asleep) => {
            ("unknown", format!("; {on_cpu} and slept: a lock, or a future that is run by hand inside the poll"), OPEN)
        }
        None => ("unknown", "; what its thread did is not known".to_owned(), OPEN),
    }
}

impl Verdict {
    /// Nobody knows what the polls' threads did, or whether they still were their workers', and this machine is one on which
    /// threads may have had no CPU.
    fn unless_starved(self, victims: Vec<Victim>, untaken: bool) -> Self {
        let advice = "Look at it again where CPUs are free: then what the thread does is known";
        let missing = match untaken {
            true => "a long poll may have given its worker away, and a thread that may have been to take it had no CPU",
            false => "what a long poll did is not known, and threads are short of CPUs",
        };
        Self { victims, ..Self::undetermined(missing, self.evidence, advice.to_owned()) }
    }
}

impl Stack {
    /// What the stacks add to what is known without them: where it is, and what a thread waits for that sleeps.
    fn confirm(
        &self,
        conduct: &Conduct,
        detail: &'static str,
        told: String,
        confidence: f64,
    ) -> (&'static str, String, f64) {
        // Where it is not known what the thread mostly did, what it did when it was looked at has to do.
        let computes = match conduct.manner() {
            Some(manner) => manner == Manner::Computing,
            None => self.asleep.is_none(),
        };
        let Some(at) = (if computes { &self.computing } else { &self.asleep }) else {
            return (detail, told, confidence);
        };
        let inside = at.inside.as_ref().map_or(String::new(), |inside| format!(", in `{inside}`"));
        let caller = at.caller.as_ref().map_or(String::new(), |caller| format!(", called by {caller}"));
        let mut told = format!("{told}; it is at {}{caller}{inside}", at.place);
        if self.places.len() > 1 && !computes {
            told += &format!(", one of {} places", self.places.len());
        }
        if at.what == Some(What::Lock) && !self.sharers.is_empty() {
            let wait = if self.sharers.len() == 1 { "waits" } else { "wait" };
            told += &format!("; {} {wait} for the same lock", self.sharers.join(", "));
        }
        let known = conduct.manner().is_some();
        let sure = if known { SURE } else { LIKELY };
        match at.what {
            None if known => (detail, told, confidence),
            // What the kernel tells of the call is all there is.
            Some(What::Nameless) => (detail, told, confidence),
            None => ("computing", told, LIKELY),
            // That others wait for a lock meanwhile is not on this one's stack.
            Some(What::Call | What::Park) if detail == "locked" => (detail, told, confidence),
            // Nor by whom a future is run, if by a function of one's own.
            Some(What::Park) if detail == "block_on" => (detail, told, confidence),
            Some(What::Call | What::Park) => ("blocked", told, sure),
            Some(What::Lock) => ("locked", told, sure),
            Some(What::BlockOn) => ("block_on", told, sure),
        }
    }
}

/// Whether a call hands something over, and so may be made with a lock in hand that others wait for.
fn is_output(call: &str) -> bool {
    const OUTPUT: [&str; 12] = [
        "write",
        "writev",
        "pwrite64",
        "pwritev",
        "sendto",
        "sendmsg",
        "sendmmsg",
        "sendfile",
        "splice",
        "fsync",
        "fdatasync",
        "ioctl",
    ];
    OUTPUT.contains(&call)
}

fn advice(detail: &str, name: &str, steps: bool, around: &Around, conduct: &Conduct) -> (Action, String) {
    match detail {
        "computing" if steps => (
            Action::Yield,
            format!(
                "Let the worker go between the steps of {name} (`yield_now` every so many items, and after waking \
                 others), spawn a task for each, or move the computation into a blocking call"
            ),
        ),
        "computing" => (
            Action::Offload,
            format!(
                "Move what {name} computes between two awaits into a blocking call, or split it and yield in between; \
                 more workers will not help"
            ),
        ),
        "locked" => {
            let alone = if !around.others && around.workers <= 1 {
                ". Nothing else of this runtime runs that could let it go: probably the lock is held by a task that \
                 awaits, on this very thread"
            } else {
                ""
            };
            let call = conduct.call.filter(|_| around.others_locked > 0);
            let sink = call.map_or(String::new(), |call| {
                format!(
                    ". One that holds it may sleep in `{call}`: write through a queue that drops instead of blocking"
                )
            });
            (
                Action::ShortenLock,
                format!(
                    "Hold the lock for which {name} waits for a shorter time, copy out what is needed before an await, \
                     or use an asynchronous lock{alone}{sink}"
                ),
            )
        }
        "block_on" => (
            Action::GoAsync,
            format!(
                "{name} runs a future by hand inside a poll, where it can wait for ever: await it, or move the whole \
                 wrapper into a blocking call"
            ),
        ),
        "blocked" => (
            Action::Offload,
            format!(
                "Move the blocking {}call of {name} into a blocking call of the pool, or use its asynchronous form; \
                 more workers will not help",
                conduct.call.map_or(String::new(), |call| format!("`{call}` ")),
            ),
        ),
        _ => (Action::Offload, format!("Move what {name} does between two awaits into a blocking call, or split it")),
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use crate::conduct::Asleep;

    const MS: u64 = 1_000_000;

    fn told(conduct: Conduct, around: Around) -> Verdict {
        judge(Polls { calls: 1, now: 1, age: 100 * MS, conduct, around, ..Polls::default() })
    }

    fn asleep(asleep: Asleep) -> Conduct {
        Conduct::new(100 * MS, MS, 0, Some(asleep))
    }

    #[test]
    fn what_the_thread_does_is_the_detail() {
        let alone = Around::default();
        let detail = |conduct, around| told(conduct, around).detail.unwrap_or("none");
        assert_eq!(detail(Conduct::new(100 * MS, 99 * MS, 0, None), alone), "computing");
        assert_eq!(detail(asleep(Asleep::Call("read")), alone), "blocked");
        assert_eq!(detail(asleep(Asleep::Lock(64)), alone), "locked");
        assert_eq!(detail(asleep(Asleep::Park(0)), alone), "unknown");
        assert_eq!(detail(asleep(Asleep::Park(0)), Around { by_hand: true, ..alone }), "block_on");
        assert_eq!(detail(asleep(Asleep::Unknown(64)), alone), "unknown");
        assert_eq!(detail(Conduct::default(), alone), "unknown");
        assert_eq!(detail(asleep(Asleep::Unknown(64)), Around { same_address: 2, ..alone }), "locked");
        // Who writes to a full pipe with a lock in hand is part of the same story.
        assert_eq!(detail(asleep(Asleep::Call("write")), Around { others_locked: 3, ..alone }), "locked");
    }

    #[test]
    fn the_stack_says_what_a_sleeper_waits_for_and_where() {
        let at = |what| Told {
            what,
            at: 0,
            inside: Some("std::x".to_owned()),
            place: "app::load".to_owned(),
            caller: Some("app::main".to_owned()),
        };
        let judged = |conduct, what: Option<What>| {
            let stack = match what {
                Some(_) => Stack { asleep: Some(at(what)), ..Stack::default() },
                None => Stack { computing: Some(at(None)), ..Stack::default() },
            };
            judge(Polls { calls: 1, now: 1, age: 100 * MS, conduct, stack, ..Polls::default() })
        };
        let detail = |conduct, what| judged(conduct, what).detail.unwrap_or("none");
        let unknown = asleep(Asleep::Unknown(64));
        assert_eq!(detail(unknown, Some(What::Lock)), "locked");
        assert_eq!(detail(unknown, Some(What::BlockOn)), "block_on");
        assert_eq!(detail(unknown, Some(What::Call)), "blocked");
        assert_eq!(detail(unknown, Some(What::Park)), "blocked");
        let by_hand = Around { by_hand: true, ..Around::default() };
        let in_own_function = |what| {
            let stack = Stack { asleep: Some(at(Some(what))), ..Stack::default() };
            let (conduct, around) = (asleep(Asleep::Park(0)), by_hand);
            judge(Polls { calls: 1, now: 1, age: 100 * MS, conduct, stack, around, ..Polls::default() }).detail
        };
        assert_eq!(in_own_function(What::Park), Some("block_on"));
        assert_eq!(in_own_function(What::Call), Some("blocked"));
        assert_eq!(detail(asleep(Asleep::Call("read")), Some(What::Lock)), "locked");
        // Who computes most of the time is not what it was once found asleep in.
        let computing = Conduct::new(100 * MS, 99 * MS, 0, None);
        assert_eq!(detail(computing, Some(What::Lock)), "computing");
        assert!(!judged(computing, Some(What::Lock)).evidence.contains("app::load"));
        let told = judged(computing, None).evidence;
        assert!(told.contains("it is at app::load, called by app::main, in `std::x`"), "{told}");
        // Where the system tells nothing of the thread, the stack does.
        assert_eq!(detail(Conduct::default(), Some(What::Lock)), "locked");
        assert_eq!(detail(Conduct::default(), None), "computing");
        assert!(judged(Conduct::default(), None).confidence < SURE);
    }

    #[test]
    fn who_is_not_known_to_have_done_anything_is_not_accused_where_cpus_are_short() {
        let short = Around { short: true, ..Around::default() };
        let culprit = |conduct| {
            let location = std::panic::Location::caller();
            let culprit =
                Culprit { op: "op", location, role: "poller", count: 1, oldest: nanos(MS), share: None, stack: None };
            let culprits = vec![culprit];
            let polls =
                Polls { culprits, calls: 1, now: 1, age: 100 * MS, limit: 25 * MS, conduct, ..Polls::default() };
            move |around| {
                let verdict = judge(Polls { around, ..polls });
                (verdict.cause, verdict.culprits.len())
            }
        };
        assert_eq!(culprit(Conduct::default())(Around::default()), (Cause::LongPoll, 1));
        assert_eq!(culprit(Conduct::default())(short), (Cause::Undetermined, 0));
        assert_eq!(culprit(asleep(Asleep::Unknown(64)))(short), (Cause::Undetermined, 0));
        assert_eq!(culprit(asleep(Asleep::Call("read")))(short), (Cause::LongPoll, 1));
        assert_eq!(culprit(Conduct::new(100 * MS, 99 * MS, 0, None))(short), (Cause::LongPoll, 1));
        let gives_away = Around { gives_away: true, ..short };
        assert_eq!(culprit(Conduct::new(100 * MS, 99 * MS, 0, None))(gives_away), (Cause::Undetermined, 0));
        let has_cpus = Around { short: false, ..gives_away };
        assert_eq!(culprit(Conduct::new(100 * MS, 99 * MS, 0, None))(has_cpus), (Cause::LongPoll, 1));
        let untaken = Around { untaken: true, ..Around::default() };
        assert_eq!(culprit(Conduct::new(100 * MS, 99 * MS, 0, None))(untaken), (Cause::Undetermined, 0));
        // Two thirds of what it took nobody has seen.
        assert_eq!(culprit(Conduct::new(30 * MS, 20 * MS, 0, None))(short), (Cause::Undetermined, 0));
        assert_eq!(culprit(Conduct::new(30 * MS, 20 * MS, 0, None))(Around::default()), (Cause::LongPoll, 1));
        // Whatever it is that one sleeps in for a second, it is too long for a poll.
        let sleeps_for = |age: u64| {
            let conduct = Conduct::new(age, MS, 0, Some(Asleep::Park(64)));
            judge(Polls { calls: 1, now: 1, age, limit: 25 * MS, conduct, around: short, ..Polls::default() }).cause
        };
        assert_eq!([990, 1_000].map(|age| sleeps_for(age * MS)), [Cause::Undetermined, Cause::LongPoll]);
    }

    #[test]
    fn timers_that_are_late_while_workers_idle_are_the_drivers() {
        let around = Around { workers: 4, parked: 3, beat_late: 390 * MS, ..Around::default() };
        let computing = Conduct::new(400 * MS, 399 * MS, 0, None);
        assert_eq!(told(computing, around).effects, [Effect::DriverHeld]);
        let one = Around { workers: 1, parked: 0, current_thread: true, ..around };
        assert_eq!(told(computing, one).effects, [Effect::WorkersBlocked]);
        let on_time = Around { beat_late: MS, ..around };
        assert_eq!(told(computing, on_time).effects, []);
    }
}
