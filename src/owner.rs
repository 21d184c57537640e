//! The thread that a place in a list belongs to, such that it can be told later whether it is still that one.
//!
//! The system gives a thread's id to another one when the thread has ended. A place is given back before that, so a thread
//! that still has its place still has its id.

use crate::evidence;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The owner of a place.
#[derive(Debug)]
pub(crate) struct Owner {
    /// Its id as the system calls it; 0 where it does not tell, and where nobody owns the place.
    tid: AtomicU32,
    /// How many owners there have been.
    number: AtomicU32,
    /// From where to where its stack lies; 0 where that is not known.
    stack: [AtomicU64; 2],
}

/// A thread that owned a place when it was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whom {
    pub(crate) tid: u32,
    number: u32,
    place: &'static Owner,
}

impl Owner {
    pub(crate) const fn new() -> Self {
        Self { tid: AtomicU32::new(0), number: AtomicU32::new(0), stack: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// The calling thread takes the place, which nobody owns.
    pub(crate) fn enter(&self) {
        // Relaxed: only the owner writes it, before it shows its id.
        self.number.store(self.number.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let stack = evidence::own_stack().unwrap_or(0..0);
        // Relaxed: as the number.
        self.stack[0].store(stack.start, Ordering::Relaxed);
        self.stack[1].store(stack.end, Ordering::Relaxed);
        // Release: who sees the id sees whose it is.
        self.tid.store(evidence::thread_id().unwrap_or(0), Ordering::Release);
    }

    /// The owner leaves, and ends only after that.
    pub(crate) fn leave(&self) {
        // Release: what it did as the owner comes before. That the thread ends, and its id is given on, comes after: the
        // system's calls for both are in order with all that the thread has stored.
        self.tid.store(0, Ordering::Release);
    }

    /// The owner's id as the system calls it.
    pub(crate) fn tid(&self) -> Option<u32> {
        // Relaxed: a figure. Should the owner leave meanwhile, what is asked of its thread is asked of one that is gone.
        Some(self.tid.load(Ordering::Relaxed)).filter(|&tid| tid > 0)
    }

    /// The owner, to be asked after later.
    pub(crate) fn whom(&'static self) -> Option<Whom> {
        // Acquire: pairs with the Release of `enter`, so that the number is not an older owner's.
        let tid = self.tid.load(Ordering::Acquire);
        // Relaxed: ordered by the load before. A newer owner's makes that one's thread out of it, which never was there.
        let number = self.number.load(Ordering::Relaxed);
        (tid > 0).then_some(Whom { tid, number, place: self })
    }
}

impl Whom {
    #[cfg_attr(not(feature = "stacks"), allow(dead_code, reason = "only who takes stacks asks"))]
    /// Whether the thread is still there. If it is, whatever was learnt of its id before was learnt of this thread.
    pub(crate) fn is_there(&self) -> bool {
        self.place.whom().is_some_and(|now| now.tid == self.tid && now.number == self.number)
    }

    /// Where its stack lies, if that is known: true only if the thread is still there afterwards.
    pub(crate) fn stack(&self) -> Option<std::ops::Range<u64>> {
        // Relaxed: ordered by the id, which was read before.
        let [from, to] = [0, 1].map(|end: usize| self.place.stack[end].load(Ordering::Relaxed));
        (from < to).then_some(from..to)
    }
}

impl PartialEq for Whom {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.place, other.place) && self.number == other.number
    }
}

impl Eq for Whom {}

impl std::hash::Hash for Whom {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (std::ptr::from_ref(self.place) as usize, self.number).hash(state);
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_there_until_it_leaves_and_the_next_is_another() {
        static PLACE: Owner = Owner::new();
        assert_eq!(PLACE.whom(), None);
        PLACE.enter();
        let first = PLACE.whom();
        assert_eq!(first.map(|whom| whom.tid), PLACE.tid());
        assert_eq!(
            first.is_some_and(|whom| whom.is_there()),
            cfg!(all(target_os = "linux", not(starvation_elsewhere)))
        );
        PLACE.leave();
        assert!(first.is_none_or(|whom| !whom.is_there()));
        PLACE.enter();
        // The very same thread, and so the same id: another owner all the same.
        assert!(first.is_none_or(|whom| !whom.is_there() && PLACE.whom() != Some(whom)));
    }
}
