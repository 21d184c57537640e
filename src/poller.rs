//! Polls that are about to be overdue, and what their threads do meanwhile.
//!
//! A poll that is preempted for a while looks like one that blocks its worker, and one that computes like one that
//! sleeps. The kernel tells the difference, but only as sums since the thread's start: so a reading is kept from when a
//! poll has used a quarter of its limit. The time it was ready to run and had no CPU since is not counted into its age,
//! nor as much of the time before.

use crate::activity::Activity;
use crate::conduct::{Asleep, Conduct};
use crate::evidence::{self, CpuTime, Inside, RunState, Shape, Shapes, TIMER_TICK};
use crate::lately::Plus;
use crate::pause::Pauses;
use crate::starved::Starved;
use std::collections::HashMap;
use std::sync::OnceLock;

/// How many are asked after in one look. The others stand as they stood.
const ASKED: usize = 128;

/// Who wanted the CPU at each of so many looks did not sleep in between.
const ASKED_OFTEN: u64 = 3;

/// A thread that is short of CPUs gets its turn within so long: who waits for one for longer waits for something else, too.
const TURN: u64 = 250_000_000;

/// One is asked after again when it has gone on for this part of its age since.
const ASKED_AGAIN: u64 = 8;

/// The polls that are looked at closely. One look goes: [`begin`](Self::begin), [`waited`](Self::waited) for each,
/// [`ended`](Self::ended).
#[derive(Debug, Default)]
pub(crate) struct Pollers {
    /// By the thread's slot and what it does there.
    known: HashMap<(usize, Activity), Poller>,
    pub(crate) sleeps: Sleeps,
    starved: Starved,
    look: u64,
    asked: usize,
}

#[derive(Debug)]
struct Poller {
    tid: Option<u32>,
    /// What the kernel said when it was first asked for this poll and when it was last, and when that was.
    first: Option<(CpuTime, u64)>,
    last: Option<(CpuTime, u64)>,
    waited: u64,
    /// How long it waited for memory; and for another thread, while some of those had no CPU, and when that was last seen.
    faulted: u64,
    behind: u64,
    /// As much of that as falls before the first reading.
    before: u64,
    others_at: u64,
    /// Where it was last seen to wait for another thread.
    address: u64,
    /// What the thread slept in, as far as it has not been taken.
    slept: Conduct,
    /// How much time since the first reading, how much of it on a CPU and how much without one has been taken.
    taken: [u64; 3],
    asked_at: u64,
    /// How often it was asked after, and whether its thread wanted the CPU each time.
    times: u64,
    awake: bool,
    /// Since when its thread has been seen in one and the same sleep, if it is.
    sleeps_since: Option<u64>,
    /// The last look that saw it.
    look: u64,
}

/// One that has ended.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) op: u32,
    pub(crate) start: u64,
    /// How long it was ready to run and had no CPU, or another thread was for which it waited; and the latter alone.
    pub(crate) waited: u64,
    pub(crate) behind: u64,
    pub(crate) conduct: Conduct,
}

impl Pollers {
    pub(crate) fn begin(&mut self) {
        self.look += 1;
        self.asked = 0;
    }

    /// How long the poll has been without a CPU, beside the time in which the process was stopped, which is in `stops`;
    /// `None` where the kernel does not tell. It is looked at from here on.
    pub(crate) fn waited(
        &mut self,
        slot: usize,
        activity: Activity,
        tid: Option<u32>,
        now: u64,
        stops: &Pauses,
    ) -> Option<u64> {
        let look = self.look;
        let poller = self.known.entry((slot, activity)).or_insert(Poller {
            tid,
            first: None,
            last: None,
            waited: 0,
            faulted: 0,
            behind: 0,
            before: 0,
            others_at: 0,
            address: 0,
            slept: Conduct::default(),
            taken: [0; 3],
            asked_at: 0,
            times: 0,
            awake: true,
            sleeps_since: None,
            look,
        });
        poller.look = look;
        let start = activity.start(now);
        // The longer it goes on without wanting a CPU, the more rarely: a hundred that hang for ever cost next to nothing.
        let due = poller.waited > 0
            || now.saturating_sub(poller.asked_at) >= poller.asked_at.saturating_sub(start) / ASKED_AGAIN;
        if due && self.asked < ASKED {
            self.asked += 1;
            poller.ask(start, now, stops, Some(&self.sleeps));
            poller.ask_after_others(start, now, &mut self.starved);
        }
        poller.first.map(|_| poller.waited.saturating_add(stops.since(start)))
    }

    /// What the thread of a poll has done that has not been taken yet.
    pub(crate) fn take_conduct(&mut self, slot: usize, activity: Activity) -> Conduct {
        self.known.get_mut(&(slot, activity)).map(Poller::take_conduct).unwrap_or_default()
    }

    /// Since when the thread of a poll has been seen to sleep without a break, if it does: who sleeps once is in one poll.
    pub(crate) fn sleeps_since(&self, slot: usize, activity: Activity) -> Option<u64> {
        self.known.get(&(slot, activity)).and_then(|poller| poller.sleeps_since)
    }

    /// Where the thread of a poll was last seen to wait for another thread; 0 where it was not, or it is not known.
    pub(crate) fn address(&self, slot: usize, activity: Activity) -> u64 {
        self.known.get(&(slot, activity)).map_or(0, |poller| poller.address)
    }

    /// Forgets those that this look has not seen; hands each one to `f`.
    pub(crate) fn ended(&mut self, now: u64, stops: &Pauses, mut f: impl FnMut(Over)) {
        self.known.retain(|(_, activity), poller| {
            let goes_on = poller.look == self.look;
            if !goes_on {
                let start = activity.start(now);
                // Once more: what it waited for between the last look and its end is not known yet.
                if poller.first.is_some() && self.asked < 2 * ASKED {
                    self.asked += 1;
                    poller.ask(start, now, stops, None);
                }
                let waited = poller.waited.saturating_add(stops.since(start));
                let behind = poller.behind();
                f(Over { op: activity.op(), start, waited, behind, conduct: poller.take_conduct() });
            }
            goes_on
        });
    }
}

impl Poller {
    /// Asks the kernel how the poll that began at `start` has fared. Without `sleeps` it is over.
    fn ask(&mut self, start: u64, now: u64, stops: &Pauses, sleeps: Option<&Sleeps>) {
        self.asked_at = now;
        let Some(mut time) = self.tid.and_then(evidence::cpu_time) else { return };
        // What the thread wants or does now is not what a poll that is over did.
        if sleeps.is_some() {
            (self.times, self.awake) = (self.times + 1, self.awake && time.runnable);
            // One that has had no CPU since it last slept sleeps still. A kernel that does not count says 0.
            let goes_on = time.turns > 0 && self.last.is_some_and(|(last, _)| last.turns == time.turns);
            self.sleeps_since = self.sleeps_since.filter(|_| goes_on).or(Some(now)).filter(|_| !time.runnable);
        }
        time.runnable &= sleeps.is_some();
        let Some((first, at)) = self.first else {
            self.first = Some((time, now));
            self.last = self.first;
            // One reading says nothing of the time before, not even of a thread that sleeps now: it may have come by its CPU
            // at last, and have ended the poll in this very moment.
            self.waited = now.saturating_sub(start);
            return;
        };
        let seen = now.saturating_sub(at).saturating_sub(stops.since(at));
        let mut waited = time.without_cpu_since(&first, seen).min(seen);
        if self.awake && self.times >= ASKED_OFTEN {
            // Who never slept was on a CPU or wanted one, and not all of such waits are told: those for a quota are not.
            let on_cpu = time.on_cpu.saturating_sub(first.on_cpu);
            waited = waited.max(seen.saturating_sub(on_cpu.saturating_add(TIMER_TICK)));
        }
        // Before it was looked at it fared as it has since. But where that was longer, because the observer had no CPU
        // either, of a thread that wants one nobody knows.
        let unseen = at.saturating_sub(start);
        let before = if self.awake && seen < unseen {
            unseen
        } else {
            (u128::from(unseen) * u128::from(waited) / u128::from(seen.max(1))) as u64
        };
        // What its thread did after the end, if this is the end, is another's.
        if let Some(sleeps) = sleeps
            && let Some((last, at)) = self.last.replace((time, now))
        {
            let asleep = self.tid.filter(|_| !time.runnable).and_then(|tid| sleeps.of(tid));
            let conduct = conduct_since(&last, at, &time, now, asleep);
            self.address = conduct.address;
            if conduct.call == Some(PAGE_FAULT) {
                self.faulted += conduct.called;
            }
            self.slept = self.slept.plus(conduct);
        }
        self.before = (u128::from(unseen) * u128::from(self.behind) / u128::from(seen.max(1))) as u64;
        self.waited = waited + before + self.faulted + self.behind();
    }

    /// How long it waited for another thread while some of those had no CPU.
    fn behind(&self) -> u64 {
        self.behind.saturating_add(self.before).min(TURN)
    }

    /// Whether others had a CPU while the poll waited for another thread: not for the fault of either if they had not.
    fn ask_after_others(&mut self, start: u64, now: u64, starved: &mut Starved) {
        let rarely = now.saturating_sub(self.others_at) < self.others_at.saturating_sub(start) / ASKED_AGAIN;
        if self.address == 0 || rarely {
            return;
        }
        let since = now.saturating_sub(self.others_at.max(start));
        if starved.look(now) {
            let more = since.min(TURN.saturating_sub(self.behind));
            self.behind += more;
            self.waited += more;
        }
        self.others_at = now;
    }

    /// What its thread has done since this was last taken. How much it computed and waited is known only over a longer
    /// time: the kernel tells both late.
    fn take_conduct(&mut self) -> Conduct {
        let mut conduct = std::mem::take(&mut self.slept);
        let (Some((first, from)), Some((last, to))) = (self.first, self.last) else { return Conduct::default() };
        let all = conduct_since(&first, from, &last, to, None);
        let sums = [all.of, all.on_cpu, all.waited];
        let [of, on_cpu, waited] = std::array::from_fn(|sum| sums[sum].saturating_sub(self.taken[sum]));
        (conduct.of, conduct.on_cpu, conduct.waited) = (of, on_cpu.min(of), waited.min(of));
        self.taken = sums;
        conduct
    }
}

/// What a thread did between two readings.
pub(crate) fn conduct_since(before: &CpuTime, at: u64, time: &CpuTime, now: u64, asleep: Option<Asleep>) -> Conduct {
    let of = now.saturating_sub(at);
    let waited = time.without_cpu_since(before, of);
    let told = time.on_cpu.saturating_sub(before.on_cpu);
    // The kernel brings the sum of a thread that runs up to date once in its timer's tick.
    let on_cpu = if time.runnable { told.saturating_add(TIMER_TICK).min(of.saturating_sub(waited)) } else { told };
    Conduct::new(of, on_cpu, waited, asleep)
}

/// What a thread waits for in the kernel outside of any system call: memory, which is nobody's fault who only touches it.
const PAGE_FAULT: &str = "a page fault";

/// Tells what threads sleep in.
#[derive(Debug, Default)]
pub(crate) struct Sleeps;

/// Learnt once in a process.
static SHAPES: OnceLock<Shapes> = OnceLock::new();

impl Sleeps {
    /// Learns how different waits look, which takes some milliseconds: not to be done in the middle of an incident.
    pub(crate) fn learn() {
        // Not by `get_or_init`: a fork in the middle of that would leave its child waiting for it for ever.
        if SHAPES.get().is_none() {
            let _ = SHAPES.set(Shapes::learn());
        }
    }

    /// What the thread sleeps in; none where it does not, or nobody tells.
    pub(crate) fn of(&self, tid: u32) -> Option<Asleep> {
        let doing = evidence::doing(tid)?;
        let Inside::Call(call) = doing.inside else {
            let in_kernel = doing.state == RunState::Blocked && doing.inside == Inside::NoCall;
            return in_kernel.then_some(Asleep::Call(PAGE_FAULT));
        };
        let Some(futex) = call.futex() else {
            return Some(match call.name {
                // Who runs an event loop inside a poll waits for a future.
                Some("epoll_wait" | "epoll_pwait" | "epoll_pwait2") => Asleep::Park(0),
                Some(name) => Asleep::Call(name),
                None => Asleep::Call("a system call"),
            });
        };
        Some(match SHAPES.get().map_or(Shape::Unknown, |shapes| shapes.of(tid, &call)) {
            Shape::Lock | Shape::Once => Asleep::Lock(futex.address),
            Shape::Park => Asleep::Park(futex.address),
            Shape::Join(_) => Asleep::Call("join"),
            // That others wait at the same one makes no lock of it.
            Shape::Condvar => Asleep::Park(0),
            Shape::Unknown => Asleep::Unknown(futex.address),
        })
    }
}

#[cfg(all(test, target_os = "linux", not(any(starvation_elsewhere, starvation_loom))))]
mod tests {
    use super::*;
    use crate::activity::Kind;

    #[test]
    fn one_gets_a_second_look_and_is_forgotten_when_unseen() {
        let mut pollers = Pollers::default();
        let activity = Activity::new(Kind::Poll, 3, 64_000_000);
        // The thread that asks is running.
        let tid = evidence::thread_id();
        pollers.begin();
        assert_eq!(pollers.waited(1, activity, tid, 94_000_000, &Pauses::default()), Some(30_000_000));
        pollers.begin();
        assert!(
            pollers.waited(1, activity, tid, 99_000_000, &Pauses::default()).is_some_and(|waited| waited <= 35_000_000)
        );
        assert!(
            pollers.waited(1, activity, None, 99_000_000, &Pauses::default()).is_some(),
            "what is known stays known"
        );
        pollers.begin();
        pollers.ended(99_000_000, &Pauses::default(), |over| assert_eq!((over.op, over.start), (3, 64_000_000)));
        assert!(pollers.known.is_empty());
        assert_eq!(pollers.waited(1, activity, None, 99_000_000, &Pauses::default()), None);
    }

    #[test]
    fn one_that_goes_on_for_long_is_asked_after_rarely() {
        let (mut pollers, mut asked) = (Pollers::default(), 0);
        // One of which the kernel tells nothing has not waited, for all that is known.
        let activity = Activity::new(Kind::Poll, 3, 64_000_000);
        for look in 1..=2_000 {
            pollers.begin();
            pollers.waited(1, activity, None, 64_000_000 + look * 5_000_000, &Pauses::default());
            asked += pollers.asked;
        }
        // Every look for 40 ms, then as its age grows by an eighth, up to 10 s.
        assert!((10..80).contains(&asked), "{asked}");
    }

    #[test]
    fn one_that_sleeps_gets_no_third() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            let _ = sender.send(evidence::thread_id());
            let _ = stopped.recv();
        });
        let Ok(tid) = receiver.recv() else { panic!("the thread tells its id") };
        // It has told its id before it sleeps.
        while tid.and_then(evidence::cpu_time).is_some_and(|time| time.runnable) {
            std::thread::yield_now();
        }
        let mut pollers = Pollers::default();
        let mut waited = |now| {
            pollers.begin();
            pollers.waited(1, Activity::new(Kind::Poll, 3, 64_000_000), tid, now, &Pauses::default())
        };
        assert_eq!([waited(94_000_000), waited(99_000_000)], [Some(30_000_000), Some(0)]);
        drop(stop);
        assert!(sleeper.join().is_ok());
    }

    #[test]
    fn who_sleeps_on_is_told_from_who_sleeps_again_and_again() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (poke, poked) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            let _ = sender.send(evidence::thread_id());
            while poked.recv().is_ok() {}
        });
        let Ok(Some(tid)) = receiver.recv() else { panic!("the thread tells its id") };
        let asleep = || {
            while evidence::cpu_time(tid).is_none_or(|time| time.runnable) {
                std::thread::yield_now();
            }
        };
        let mut pollers = Pollers::default();
        let activity = Activity::new(Kind::Poll, 3, 64_000_000);
        let mut look = |now: u64| {
            pollers.begin();
            pollers.waited(1, activity, Some(tid), now * 1_000_000, &Pauses::default());
            pollers.sleeps_since(1, activity).map(|since| since / 1_000_000)
        };
        asleep();
        assert_eq!([look(94), look(150), look(200)], [Some(94); 3]);
        let turns = || evidence::cpu_time(tid).map_or(0, |time| time.turns);
        let before = turns();
        assert!(poke.send(()).is_ok());
        while turns() == before {
            std::thread::yield_now();
        }
        asleep();
        assert_eq!([look(300), look(350)], [Some(300); 2]);
        drop(poke);
        assert!(sleeper.join().is_ok());
    }

    #[test]
    fn what_a_thread_did_is_taken_once() {
        let mut pollers = Pollers::default();
        let activity = Activity::new(Kind::Poll, 3, 64_000_000);
        // Seconds, so that what the thread really waits for a CPU is nothing.
        for now in [94_000_000, 50_094_000_000, 100_094_000_000] {
            pollers.begin();
            pollers.waited(1, activity, evidence::thread_id(), now, &Pauses::default());
        }
        let conduct = pollers.take_conduct(1, activity);
        assert_eq!((conduct.of, conduct.manner()), (100_000_000_000, Some(crate::conduct::Manner::Computing)));
        assert_eq!(pollers.take_conduct(1, activity).of, 0);
    }

    #[test]
    fn what_a_look_asks_after_is_bounded() {
        let mut pollers = Pollers::default();
        pollers.begin();
        for op in 0..1_000 {
            pollers.waited(1, Activity::new(Kind::Poll, op, 64), evidence::thread_id(), 0, &Pauses::default());
        }
        assert_eq!((pollers.asked, pollers.known.len()), (ASKED, 1_000));
    }
}
