//! Who waits for the same lock.
//!
//! The locks of the standard library and of the C library are waited for at the address of the lock itself, or next to it.
//! Others have their waiters sleep at an address of each one's own: of those nobody is told to share a lock.

use super::{Place, Taken, Told, What};
use std::collections::VecDeque;

/// So many waits are kept, the latest.
const KEPT: usize = 64;

/// A thread that was found waiting for a lock.
#[derive(Debug, Clone)]
struct Wait {
    address: u64,
    /// The stall that it is.
    tid: u32,
    since: u64,
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
        let (Some(address), Some(told)) = (lock_of(taken), taken.trace.as_ref().ok().and_then(|it| Told::by(it, true)))
        else {
            return;
        };
        self.waits.retain(|wait| (wait.tid, wait.since) != (taken.tid, taken.since));
        if self.waits.len() == KEPT {
            self.waits.pop_front();
        }
        let Taken { tid, since, place, .. } = *taken;
        self.waits.push_back(Wait { address, tid, since, place, told: told.place });
    }

    /// Only stalls that go on count, by their thread and when they began: another lock may have the address later.
    pub(crate) fn keep(&mut self, goes_on: impl Fn(u32, u64) -> bool) {
        self.waits.retain(|wait| goes_on(wait.tid, wait.since));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// From where others than those at `own` places wait for the lock at an address, and what they are busy with.
    pub(crate) fn others(&self, address: u64, own: impl Fn(Place) -> bool) -> Vec<(Place, &str)> {
        let others = self.waits.iter().filter(|wait| wait.address == address && !own(wait.place));
        others.map(|wait| (wait.place, wait.told.as_str())).collect()
    }
}

/// The address of the lock that a thread was found waiting for; none where it waited for none.
pub(super) fn lock_of(taken: &Taken) -> Option<u64> {
    let trace = taken.trace.as_ref().ok().filter(|_| taken.asleep)?;
    let told = Told::by(trace, true).filter(|told| told.what == Some(What::Lock))?;
    let futex = taken.futex?;
    // Who wants to write waits at the word that comes after that of who wants to read.
    let writes = |name: &str| name.contains("rwlock") && name.contains("write");
    let is_writer = told
        .inside
        .is_some_and(|_| trace.frames[..told.at].iter().filter_map(|frame| frame.function.as_deref()).any(writes));
    Some(if is_writer { futex.saturating_sub(4) } else { futex })
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
        let of = |locks: &Locks, op, address| {
            let others = locks.others(address, |place| place == Place::Poll(op));
            others.iter().map(|(_, told)| (*told).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of(&locks, 1, 8), ["app::store"]);
        assert_eq!(of(&locks, 2, 8), ["app::load"]);
        assert!(of(&locks, 3, 16).is_empty());
        // One that reads and one that writes are at the two words of one lock.
        let rwlock = |end: &str| format!("std::sys::sync::rwlock::futex::RwLock::{end}");
        locks.see(&waits(6, 32, &["syscall", &rwlock("read_contended"), "app::reader"]));
        locks.see(&waits(7, 36, &["syscall", &rwlock("write_contended"), "app::writer"]));
        assert_eq!(of(&locks, 6, 32), ["app::writer"]);
        // What is over counts no more, though another lock may lie there now.
        locks.keep(|tid, _| tid != 1);
        assert!(of(&locks, 2, 8).is_empty() && !locks.is_empty());
    }

    #[test]
    fn the_latest_are_kept() {
        let mut locks = Locks::default();
        (0..200).for_each(|op| locks.see(&waits(op, 8, &["syscall", LOCK, "app::load"])));
        assert_eq!(locks.waits.len(), KEPT);
        assert_eq!(locks.others(8, |place| place == Place::Poll(199)).len(), KEPT - 1);
    }
}
