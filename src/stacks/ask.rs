//! Whose stack is to be taken when: soon, then ever more rarely, and never too often.

use super::Place;
use crate::activity::Activity;
use crate::owner::Whom;
use crate::{clock, slot, threads};
use std::collections::{HashMap, VecDeque};

/// A thread that is stuck, or some of which nobody has told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stuck {
    pub(crate) place: Place,
    pub(crate) who: Who,
    pub(crate) since: u64,
}

/// Which thread it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Known(Whom),
    /// So many of the workers that a runtime has, and nobody has told which threads those are.
    Among {
        stuck: u64,
        workers: u64,
    },
    /// All threads of a pool that are in what nobody wrapped; its runtime has so many workers.
    OfPool {
        workers: u64,
    },
}

impl Stuck {
    /// Whether the thread is still in what it was stuck in, as far as that is known.
    pub(crate) fn is_still(&self) -> bool {
        let Who::Known(whom) = self.who else { return true };
        match self.place {
            Place::Poll(op) | Place::Execution(op) => {
                let now = clock::now();
                let is_it = |activity: Activity| activity.op() == op && activity.start(now) == self.since;
                let slot = slot::all().find(|slot| slot.whom() == Some(whom));
                slot.is_some_and(|slot| slot.activities().into_iter().flatten().any(is_it))
            }
            Place::Worker(_) | Place::Pool(_) => {
                let thread = threads::all().find(|thread| thread.whom == Some(whom));
                let is_active = |since: Option<u64>| since.is_some_and(|since| since <= self.since);
                thread.is_some_and(|thread| !thread.hooked || is_active(thread.active_since))
            }
        }
    }
}

/// So many are taken of one stall: at once, after the first gap, then after twice as long each time.
const OF_ONE: u32 = 12;
const FIRST_GAP: u64 = 5_000_000;
const LONGEST_GAP: u64 = 10_000_000_000;
/// So many are asked for at one look, and in any minute.
const AT_ONCE: usize = 16;
pub(crate) const A_MINUTE: usize = 600;
const MINUTE: u64 = 60_000_000_000;

#[derive(Debug, Clone, Copy)]
struct Asked {
    times: u32,
    next: u64,
    /// It is stuck at this look.
    seen: bool,
}

/// What has been asked for so far.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    known: HashMap<(Place, Who, u64), Asked>,
    /// When the last ones were, as many as a minute may have.
    recent: VecDeque<u64>,
    /// How many were left out because of that.
    pub(crate) left_out: u64,
}

impl Asks {
    /// Those of the threads that are stuck now whose stack is to be taken now.
    pub(crate) fn due(&mut self, stuck: impl Iterator<Item = Stuck>, now: u64) -> Vec<Stuck> {
        self.known.values_mut().for_each(|asked| asked.seen = false);
        while self.recent.front().is_some_and(|&at| at.saturating_add(MINUTE) <= now) {
            self.recent.pop_front();
        }
        let mut due = Vec::new();
        for thread in stuck {
            let key = (thread.place, thread.who, thread.since);
            let asked = self.known.entry(key).or_insert(Asked { times: 0, next: now, seen: true });
            asked.seen = true;
            if asked.times >= OF_ONE || asked.next > now || due.len() >= AT_ONCE {
                continue;
            }
            if self.recent.len() >= A_MINUTE {
                self.left_out += 1;
                continue;
            }
            self.recent.push_back(now);
            asked.next = now.saturating_add((FIRST_GAP << asked.times).min(LONGEST_GAP));
            asked.times += 1;
            due.push(thread);
        }
        self.known.retain(|_, asked| asked.seen);
        due
    }
}

#[cfg(all(test, not(any(starvation_loom, starvation_elsewhere))))]
mod tests {
    use super::*;
    use crate::activity::Kind;
    use crate::owner::Owner;

    const MS: u64 = 1_000_000;

    fn stuck(since: u64) -> Option<Stuck> {
        static PLACE: Owner = Owner::new();
        if PLACE.tid().is_none() {
            PLACE.enter();
        }
        Some(Stuck { place: Place::Poll(1), who: Who::Known(PLACE.whom()?), since })
    }

    #[test]
    fn a_thread_is_still_stuck_while_it_is_in_the_very_same_activity() {
        let Some(own) = slot::own() else { panic!("this thread has a place") };
        let began = clock::now();
        let depth = own.enter(Activity::new(Kind::Poll, 77, began));
        let slot = || slot::all().find(|slot| slot.tid() == crate::evidence::thread_id());
        let whom = slot().and_then(slot::Slot::whom).unwrap_or_else(|| panic!("it is listed"));
        let start = slot().and_then(|slot| Some(slot.activities()[depth]?.start(clock::now()))).unwrap_or(0);
        let stuck = Stuck { place: Place::Poll(77), who: Who::Known(whom), since: start };
        assert!(stuck.is_still());
        assert!(!Stuck { place: Place::Poll(78), ..stuck }.is_still());
        own.leave(depth);
        assert!(!stuck.is_still());
        // The same op, later.
        let depth = own.enter(Activity::new(Kind::Poll, 77, began + MS));
        assert!(!stuck.is_still());
        own.leave(depth);
    }

    #[test]
    fn a_stall_is_looked_at_soon_and_then_ever_more_rarely() {
        let mut asks = Asks::default();
        let times: Vec<u64> = (0..20_000).filter(|at| !asks.due(stuck(0).into_iter(), at * MS).is_empty()).collect();
        assert_eq!(times[..5], [0, 5, 15, 35, 75]);
        assert!(times.len() <= OF_ONE as usize, "{times:?}");
    }

    #[test]
    fn of_many_stalls_no_more_are_taken_than_a_minute_may_have() {
        let mut asks = Asks::default();
        let mut taken = 0;
        for look in 0..1_000 {
            let many = (0..100).filter_map(|number| stuck(look * 1_000 + number));
            taken += asks.due(many, look * 10 * MS).len();
        }
        assert_eq!(taken, A_MINUTE);
        assert!(asks.left_out > 0);
        assert_eq!(asks.due(stuck(7).into_iter(), 70_000 * MS).len(), 1, "a minute later there are some again");
        assert!(asks.known.len() <= 100);
    }
}
