//! What a sleeping future waits for, told by those who work for it.
//!
//! Between two polls a future is in the class of what it waits for, and that changes on other threads: a pool thread
//! starts one of its calls, finishes another.
//!
//! # Invariants
//!
//! 1. `word` is 0 while the future is polled, or waits for nothing that reports: disarmed. Otherwise it holds the class
//!    that the future is in and since when.
//! 2. Whoever moves `word` on, by compare-and-swap, owns the stretch of time between its old and its new instant, and
//!    adds it to `spent` under the old class. So the stretches of a gap join without overlap or hole.
//! 3. The swap and the addition are two steps: the future's tally carries what is swapped and not yet added.

use crate::sync::{AtomicI32, AtomicU64, Ordering, fence};

/// The classes that a gap can be in, as they stand in its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Class {
    Execution = 1,
    Queue = 2,
    Waiting = 3,
    Other = 4,
    Scheduled = 5,
}

pub(crate) const CLASSES: usize = 6;
const CLASS_BITS: u32 = 3;

fn pack(since: u64, class: Class) -> u64 {
    since << CLASS_BITS | class as u64
}

fn unpack(word: u64) -> Option<(u64, Class)> {
    let class = match word & ((1 << CLASS_BITS) - 1) {
        1 => Class::Execution,
        2 => Class::Queue,
        3 => Class::Waiting,
        4 => Class::Other,
        5 => Class::Scheduled,
        _ => return None,
    };
    Some((word >> CLASS_BITS, class))
}

/// Instead of the time of a waking: the future is being polled, and was not woken in that poll; or was.
const POLLED: u64 = 1;
const WOKEN_IN_POLL: u64 = 2;

/// What a future waits for, as those report who work for it. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Gap {
    word: AtomicU64,
    /// When the future was woken since its last poll; 0 while it was not. In a poll, one of the two constants above: any
    /// time before the poll's end means that it is woken from its end on.
    woken: AtomicU64,
    /// How many report in all: the sum of the three that follow, so that a poll that ends looks at one.
    under_way: AtomicI32,
    executing: AtomicI32,
    queued: AtomicI32,
    waits: AtomicI32,
    pub(crate) spent: [AtomicU64; CLASSES],
}

/// A change of what a future waits for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Change {
    pub(crate) executing: i32,
    pub(crate) queued: i32,
    pub(crate) waits: i32,
}

impl Gap {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            woken: AtomicU64::new(0),
            under_way: AtomicI32::new(0),
            executing: AtomicI32::new(0),
            queued: AtomicI32::new(0),
            waits: AtomicI32::new(0),
            spent: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Something that works for the future has changed.
    pub(crate) fn change(&self, change: Change, now: u64) {
        // AcqRel on all three: whoever moves the word next must count this change, or this thread will move it.
        // Executing first: a call that starts must not look like none for an instant.
        let under_way = change.executing + change.queued + change.waits;
        for (count, by) in [
            (&self.executing, change.executing),
            (&self.queued, change.queued),
            (&self.waits, change.waits),
            (&self.under_way, under_way),
        ] {
            if by != 0 {
                count.fetch_add(by, Ordering::AcqRel);
            }
        }
        // Pairs with the fence in `arm`: either that one sees the new counts or this thread sees the armed word.
        fence(Ordering::SeqCst);
        self.settle(now, None);
    }

    /// The future was woken. `now` is asked only where the time matters: inside its own poll it does not.
    #[inline]
    pub(crate) fn wake(&self, now: impl FnOnce() -> u64) {
        // Relaxed, throughout: the waking itself orders this before the poll that it causes. Of two at once either will
        // do; one that meets the end of a poll may leave no time, and then counts from the next one on.
        match self.woken.load(Ordering::Relaxed) {
            POLLED => self.woken.store(WOKEN_IN_POLL, Ordering::Relaxed),
            0 => {
                let now = now();
                self.woken.store(now, Ordering::Relaxed);
                if self.word.load(Ordering::Relaxed) != 0 {
                    self.settle(now, Some(Class::Scheduled));
                }
            }
            _ => {}
        }
    }

    /// A poll begins. Takes the waking since the last one; 0 where there was none.
    #[inline]
    pub(crate) fn take_woken(&self) -> u64 {
        let woken = self.woken.load(Ordering::Relaxed);
        self.woken.store(POLLED, Ordering::Relaxed);
        woken
    }

    /// The poll ends. Returns whether the future was woken in it.
    #[inline]
    pub(crate) fn end_poll(&self) -> bool {
        let woken = self.woken.load(Ordering::Relaxed) != POLLED;
        if !woken {
            self.woken.store(0, Ordering::Relaxed);
        }
        woken
    }

    /// Whether anything that reports is under way.
    #[inline]
    pub(crate) fn busy(&self) -> bool {
        // Relaxed: what the future itself started in its poll it sees; what others end in between costs a look.
        self.under_way.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn class(&self) -> Class {
        // Acquire: pairs with the AcqRel of `change`.
        if self.executing.load(Ordering::Acquire) > 0 {
            Class::Execution
        } else if self.queued.load(Ordering::Acquire) > 0 {
            Class::Queue
        } else if self.waits.load(Ordering::Acquire) > 0 {
            Class::Waiting
        } else {
            Class::Other
        }
    }

    /// Moves an armed word on to the class that applies from `now`.
    fn settle(&self, now: u64, to: Option<Class>) {
        // Acquire: who sees a word sees the counts that its writer saw.
        let mut word = self.word.load(Ordering::Acquire);
        while let Some((since, class)) = unpack(word) {
            let next = to.unwrap_or_else(|| self.class());
            if class == next || class == Class::Scheduled {
                return;
            }
            let at = now.max(since);
            match self.word.compare_exchange(word, pack(at, next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // Release: pairs with the Acquire of `Tally::begin`, which books it.
                    self.spent[class as usize].fetch_add(at - since, Ordering::Release);
                    return;
                }
                Err(actual) => word = actual,
            }
        }
    }

    /// The future has been polled until `now`, and waits; or it was `woken` in that very poll.
    pub(crate) fn arm(&self, now: u64, woken: bool) {
        // AcqRel: publishes the instant; nothing else writes a disarmed word.
        self.word.swap(pack(now, self.class()), Ordering::AcqRel);
        // Pairs with the fence in `change`.
        fence(Ordering::SeqCst);
        // One that comes from here on finds the word armed, and moves it itself.
        self.settle(now, woken.then_some(Class::Scheduled));
    }

    /// The future is about to be polled. Returns the class that it was in, and since when.
    pub(crate) fn disarm(&self) -> Option<(u64, Class)> {
        // AcqRel: no stretch begins before this and ends after it.
        unpack(self.word.swap(0, Ordering::AcqRel))
    }
}

#[cfg(all(test, starvation_loom))]
mod models {
    use super::*;
    use loom::{sync::Arc, thread};

    /// A call starts while its future goes to sleep: whoever comes second sees the other, and the gap is in the class
    /// that the counts tell.
    #[test]
    fn a_start_meets_a_future_going_to_sleep() {
        loom::model(|| {
            let gap = Arc::new(Gap::new());
            gap.change(Change { queued: 1, ..Change::default() }, 2);
            let pool = {
                let gap = gap.clone();
                thread::spawn(move || gap.change(Change { queued: -1, executing: 1, waits: 0 }, 10))
            };
            gap.arm(5, false);
            pool.join().unwrap();
            assert_eq!(unpack(gap.word.load(Ordering::Relaxed)).map(|(_, class)| class), Some(Class::Execution));
        });
    }
}
