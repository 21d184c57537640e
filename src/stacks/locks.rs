//! Who waits for the same lock.
//!
//! The locks of the standard library and of the C library are waited for at the address of the lock itself. Others have their
//! waiters sleep at an address of each one's own: of those nobody is told to share a lock.

use super::{Place, Taken, Told, What};
use std::collections::VecDeque;

/// So many waits are kept, the latest.
const KEPT: usize = 64;

/// A thread that was found waiting for a lock.
#[derive(Debug, Clone)]
struct Wait {
    address: u64,
    at: u64,
    place: Place,
    /// Where in the code it waits.
    told: String,
}

/// Threads that were found waiting for locks lately.
#[derive(Debug, Clone, Default)]
pub(crate) struct Locks {
    waits: VecDeque<Wait>,
}

impl Locks {
    pub(crate) fn see(&mut self, taken: &Taken) {
        let (Some(address), Ok(trace), true) = (taken.futex, &taken.trace, taken.asleep) else { return };
        let Some(told) = Told::by(trace, true).filter(|told| told.what == Some(What::Lock)) else { return };
        let is_it = |wait: &Wait| wait.address == address && wait.place == taken.place && wait.told == told.place;
        self.waits.retain(|wait| !is_it(wait));
        if self.waits.len() == KEPT {
            self.waits.pop_front();
        }
        self.waits.push_back(Wait { address, at: taken.at, place: taken.place, told: told.place });
    }

    /// What was seen before that no longer counts: another lock may have the address by now.
    pub(crate) fn forget(&mut self, before: u64) {
        self.waits.retain(|wait| wait.at >= before);
    }

    /// From where others wait for a lock that threads at `own` places wait for, and what those are busy with.
    pub(crate) fn others(&self, own: impl Fn(Place) -> bool) -> Vec<(Place, &str)> {
        let owns = |of: &Wait| self.waits.iter().any(|wait| wait.address == of.address && own(wait.place));
        let others = self.waits.iter().filter(|wait| !own(wait.place) && owns(wait));
        others.map(|wait| (wait.place, wait.told.as_str())).collect()
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use crate::stacks::told::tests::trace;
    use std::sync::Arc;

    const LOCK: &str = "std::sys::sync::mutex::futex::Mutex::lock_contended";

    fn waits(op: u32, address: u64, functions: &[&str]) -> Taken {
        Taken {
            place: Place::Poll(op),
            tid: op,
            since: 1,
            at: u64::from(op),
            asleep: true,
            futex: Some(address),
            trace: Ok(Arc::new(trace(functions))),
        }
    }

    #[test]
    fn who_waits_at_the_same_address_for_a_lock_shares_it() {
        let mut locks = Locks::default();
        locks.see(&waits(1, 8, &["syscall", LOCK, "app::load"]));
        locks.see(&waits(2, 8, &["syscall", LOCK, "app::store"]));
        locks.see(&waits(2, 8, &["syscall", LOCK, "app::store"]));
        locks.see(&waits(3, 16, &["syscall", LOCK, "app::other"]));
        // To be woken at the address is no lock, and who computes waits for none.
        locks.see(&waits(4, 8, &["syscall", "std::thread::functions::park", "app::parked"]));
        locks.see(&Taken { asleep: false, ..waits(5, 8, &["app::hash"]) });
        let of = |locks: &Locks, op| {
            locks
                .others(|place| place == Place::Poll(op))
                .iter()
                .map(|(_, told)| (*told).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!((of(&locks, 1), of(&locks, 2)), (vec!["app::store".to_owned()], vec!["app::load".to_owned()]));
        assert_eq!((of(&locks, 3).len(), of(&locks, 4).len()), (0, 0));
        locks.forget(2);
        assert!(of(&locks, 2).is_empty());
    }

    #[test]
    fn the_latest_are_kept() {
        let mut locks = Locks::default();
        (0..200).for_each(|op| locks.see(&waits(op, 8, &["syscall", LOCK, "app::load"])));
        assert_eq!(locks.waits.len(), KEPT);
        assert_eq!(locks.others(|place| place == Place::Poll(199)).len(), KEPT - 1);
    }
}
