//! Polls that are about to be overdue, and how much of their time they were ready to run and had no CPU.
//!
//! A poll that is preempted for a while looks like one that blocks its worker. The kernel tells the difference, but only
//! as a sum since the thread's start: so a reading is kept from when a poll has used a quarter of its limit, and what has
//! come on top of it since is not counted into its age, nor as much of the time before.

use crate::evidence::{self, CpuTime};
use crate::slot::Activity;
use std::collections::HashMap;

/// How many suspects are asked after in one look. The others stand as they stood.
const ASKED: usize = 128;

/// One is asked after again when it has gone on for this part of its age since.
const ASKED_AGAIN: u64 = 8;

/// The polls under suspicion. One look goes: [`begin`](Self::begin), [`waited`](Self::waited) for each,
/// [`ended`](Self::ended).
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// By the thread's slot and what it does there.
    known: HashMap<(usize, Activity), Suspect>,
    look: u64,
    asked: usize,
}

#[derive(Debug)]
struct Suspect {
    tid: Option<u32>,
    /// What the kernel said when it was first asked for this poll, and when that was.
    first: Option<(CpuTime, u64)>,
    waited: u64,
    asked_at: u64,
    /// The last look that saw it.
    look: u64,
}

impl Suspects {
    pub(crate) fn begin(&mut self) {
        self.look += 1;
        self.asked = 0;
    }

    /// How long the poll has been without a CPU; `None` where the kernel does not tell. It is suspected from here on.
    pub(crate) fn waited(&mut self, slot: usize, activity: Activity, tid: Option<u32>, now: u64) -> Option<u64> {
        let look = self.look;
        let suspect =
            self.known.entry((slot, activity)).or_insert(Suspect { tid, first: None, waited: 0, asked_at: 0, look });
        suspect.look = look;
        let start = activity.start(now);
        // The longer it goes on without wanting a CPU, the more rarely: a hundred that hang for ever cost next to nothing.
        let due = suspect.waited > 0
            || now.saturating_sub(suspect.asked_at) >= suspect.asked_at.saturating_sub(start) / ASKED_AGAIN;
        if due && self.asked < ASKED {
            self.asked += 1;
            suspect.ask(start, now, true);
        }
        suspect.first.map(|_| suspect.waited)
    }

    /// Forgets those that this look has not seen; hands each one's op and how long it had been without a CPU to `f`.
    pub(crate) fn ended(&mut self, now: u64, mut f: impl FnMut(u32, u64)) {
        self.known.retain(|(_, activity), suspect| {
            let goes_on = suspect.look == self.look;
            if !goes_on {
                // Once more: what it waited for between the last look and its end is not known yet.
                if suspect.first.is_some() && self.asked < 2 * ASKED {
                    self.asked += 1;
                    suspect.ask(activity.start(now), now, false);
                }
                if suspect.waited > 0 {
                    f(activity.op(), suspect.waited);
                }
            }
            goes_on
        });
    }
}

impl Suspect {
    /// Asks the kernel how the poll that began at `start` has fared.
    fn ask(&mut self, start: u64, now: u64, goes_on: bool) {
        self.asked_at = now;
        let Some(mut time) = self.tid.and_then(evidence::cpu_time) else { return };
        // What the thread wants now is not what a poll that is over wanted.
        time.runnable &= goes_on;
        let Some((first, at)) = self.first else {
            self.first = Some((time, now));
            // Of a thread that wants the CPU one reading says nothing: it gets one more look.
            self.waited = if time.runnable { now.saturating_sub(start) } else { 0 };
            return;
        };
        let seen = now.saturating_sub(at);
        let waited = time.without_cpu_since(&first, seen).min(seen);
        // Before it was suspected it fared as it has since.
        let before = u128::from(at.saturating_sub(start)) * u128::from(waited) / u128::from(seen.max(1));
        self.waited = waited + before as u64;
    }
}

/// A part of a stretch of time, both in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) part: u64,
    pub(crate) of: u64,
}

impl Share {
    pub(crate) fn plus(self, more: Self) -> Self {
        Self { part: self.part + more.part, of: self.of + more.of }
    }

    /// Whether the part is at least `percent` of it; not where nothing is known.
    pub(crate) fn is_at_least(self, percent: u64) -> bool {
        self.of > 0 && self.part.saturating_mul(100) >= self.of.saturating_mul(percent)
    }
}

/// One of the threads that execute calls, for all of them: does it get the CPU when it wants to?
#[derive(Debug, Default)]
pub(crate) struct PoolThread {
    /// Its id, what the kernel said, and when that was.
    last: Option<(u32, CpuTime, u64)>,
}

impl PoolThread {
    /// Of how much time since the last look the thread had no CPU; nothing where it is another one than then. A wait that
    /// has been over several looks is told when it is over, so the part can be more than the whole of one.
    pub(crate) fn look(&mut self, tid: Option<u32>, now: u64) -> Share {
        let last = self.last.take();
        let Some((tid, time)) = tid.and_then(|tid| Some((tid, evidence::cpu_time(tid)?))) else {
            return Share::default();
        };
        self.last = Some((tid, time, now));
        match last {
            Some((same, before, at)) if same == tid => {
                Share { part: time.waited.saturating_sub(before.waited), of: now.saturating_sub(at) }
            }
            _ => Share::default(),
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(starvation_elsewhere, starvation_loom))))]
mod tests {
    use super::*;
    use crate::slot::Kind;

    #[test]
    fn one_that_wants_the_cpu_gets_one_more_look_and_is_forgotten_when_unseen() {
        let mut suspects = Suspects::default();
        let activity = Activity::new(Kind::Poll, 3, 64_000_000);
        // The thread that asks is running.
        let tid = evidence::thread_id();
        suspects.begin();
        assert_eq!(suspects.waited(1, activity, tid, 94_000_000), Some(30_000_000));
        suspects.begin();
        assert!(suspects.waited(1, activity, tid, 99_000_000).is_some_and(|waited| waited <= 35_000_000));
        assert!(suspects.waited(1, activity, None, 99_000_000).is_some(), "what is known stays known");
        suspects.begin();
        suspects.ended(99_000_000, |op, _| assert_eq!(op, 3));
        assert!(suspects.known.is_empty());
        assert_eq!(suspects.waited(1, activity, None, 99_000_000), None);
    }

    #[test]
    fn one_that_goes_on_for_long_is_asked_after_rarely() {
        let (mut suspects, mut asked) = (Suspects::default(), 0);
        // One of which the kernel tells nothing has not waited, for all that is known.
        let activity = Activity::new(Kind::Poll, 3, 64_000_000);
        for look in 1..=2_000 {
            suspects.begin();
            suspects.waited(1, activity, None, 64_000_000 + look * 5_000_000);
            asked += suspects.asked;
        }
        // Every look for 40 ms, then as its age grows by an eighth, up to 10 s.
        assert!((10..80).contains(&asked), "{asked}");
    }

    #[test]
    fn one_that_sleeps_gets_none() {
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
        let mut suspects = Suspects::default();
        suspects.begin();
        assert_eq!(suspects.waited(1, Activity::new(Kind::Poll, 3, 64_000_000), tid, 94_000_000), Some(0));
        drop(stop);
        assert!(sleeper.join().is_ok());
    }

    #[test]
    fn a_share_is_of_one_thread_between_two_looks() {
        let (mut thread, tid) = (PoolThread::default(), evidence::thread_id());
        assert_eq!(thread.look(tid, 1_000), Share::default());
        assert_eq!(thread.look(tid, 5_000).of, 4_000);
        assert_eq!(thread.look(None, 6_000), Share::default());
        assert_eq!(thread.look(tid, 7_000), Share::default());
        assert!(Share { part: 30, of: 100 }.is_at_least(30) && !Share { part: 29, of: 100 }.is_at_least(30));
        assert!(!Share::default().is_at_least(0));
    }

    #[test]
    fn what_a_look_asks_after_is_bounded() {
        let mut suspects = Suspects::default();
        suspects.begin();
        for op in 0..1_000 {
            suspects.waited(1, Activity::new(Kind::Poll, op, 64), evidence::thread_id(), 0);
        }
        assert_eq!((suspects.asked, suspects.known.len()), (ASKED, 1_000));
    }
}
