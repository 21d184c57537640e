//! What each thread is doing, since when, for the observing thread to read.
//!
//! Every thread that polls a watched future or runs a watched call owns one slot: a cache line of eight frames, nested
//! activities from the outermost inwards, of more than eight the innermost in the last. Entering an activity is one store
//! to the thread's own line, leaving it another. The observer compares: the same word on two looks is the same activity,
//! still going on.
//!
//! # Invariants
//!
//! 1. A frame is one word that holds the op, the kind and the start, so that a look is never torn.
//! 2. Only the owner writes its frames. A slot changes owners only through `claimed`, when all its frames are 0.
//! 3. Slots are never freed: their number is the largest number of such threads that there ever was at once.

use crate::activity::{Activity, Kind, MAX_OPS, UNIT_SHIFT};
use crate::figures::PollFigures;
use crate::owner::{Owner, Whom};
use crate::sync::{AtomicU64, Ordering};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr};

/// How many nested activities the observer sees: the outermost, and as the last one the innermost.
pub(crate) const DEPTH: usize = 8;
/// So many more are told apart by their thread. Of those that are deeper yet, the last of these is seen.
const COVERED: usize = 56;

/// The cells that the observer reads: a line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Frames([AtomicU64; DEPTH]);

impl Frames {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline]
    fn set(&self, depth: usize, activity: Activity) {
        if let Some(frame) = self.0.get(depth) {
            // Release: who sees the activity also sees the op that its thread had registered before.
            frame.store(activity.0, Ordering::Release);
        }
    }

    #[inline]
    fn clear(&self, depth: usize) {
        if let Some(frame) = self.0.get(depth) {
            // Release: pairs with the Acquire of `read`; what the activity counted is visible once it is seen gone.
            frame.store(0, Ordering::Release);
        }
    }

    /// The activities from the outermost inwards. Between two frames of one look the thread may move on: each word is
    /// true by itself, not all of them of one instant.
    fn read(&self) -> [Option<Activity>; DEPTH] {
        // Acquire: pairs with `set` and `clear`.
        std::array::from_fn(|depth| Activity::from_word(self.0[depth].load(Ordering::Acquire)))
    }
}

type Shards = [AtomicPtr<PollFigures>; SHARDS];
const SHARDS: usize = 64;

/// One thread's slot.
#[derive(Debug)]
pub(crate) struct Slot {
    frames: Frames,
    /// The poll figures of this thread by op, in two steps so that an op that never polls here costs a pointer.
    figures: [AtomicPtr<Shards>; MAX_OPS / SHARDS],
    owner: Owner,
    /// Up to when an activity inside the open ones has been reported, as [`Own::blame`] tells it the observer.
    blamed: AtomicU64,
    /// When something watched was last polled here with another waker than that of the watched future around it.
    by_hand: AtomicU64,
    claimed: AtomicBool,
    next: Option<&'static Slot>,
}

static HEAD: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());

/// All slots, owned or not. Newest first.
pub(crate) fn all() -> impl Iterator<Item = &'static Slot> {
    // Acquire: pairs with the Release of `Slot::claim`, which publishes a slot after it is whole.
    let head = HEAD.load(std::sync::atomic::Ordering::Acquire);
    // SAFETY: HEAD is null or points to a leaked slot, which is never freed.
    std::iter::successors(unsafe { head.as_ref() }, |slot| slot.next)
}

impl Slot {
    /// A slot for the calling thread: one that a dead thread left, or a new one.
    fn claim() -> &'static Self {
        use std::sync::atomic::Ordering;
        // Acquire: pairs with the Release of `release`; the last owner's writes to the figures come before ours.
        let left =
            all().find(|slot| slot.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok());
        let slot = left.unwrap_or_else(|| {
            let mut head = HEAD.load(Ordering::Acquire);
            let slot = Box::leak(Box::new(Self {
                frames: Frames::new(),
                figures: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
                owner: Owner::new(),
                blamed: AtomicU64::new(0),
                by_hand: AtomicU64::new(0),
                claimed: AtomicBool::new(true),
                next: None,
            }));
            let this: *mut Self = slot;
            loop {
                // SAFETY: `this` is our own leaked slot, not yet published, so nobody else reads or writes it; `head` is
                // null or a leaked slot.
                unsafe { (*this).next = head.as_ref() };
                // Release: publishes the slot whole. Acquire: the next turn reads the head it found.
                match HEAD.compare_exchange_weak(head, this, Ordering::Release, Ordering::Acquire) {
                    // SAFETY: leaked, and no longer written through `this` once published.
                    Ok(_) => break unsafe { &*this },
                    Err(actual) => head = actual,
                }
            }
        });
        slot.owner.enter();
        slot
    }

    fn release(&self) {
        use std::sync::atomic::Ordering;
        for depth in 0..DEPTH {
            self.frames.clear(depth);
        }
        self.blamed.store(0, Ordering::Relaxed);
        self.owner.leave();
        // Release: pairs with the Acquire of `claim`.
        self.claimed.store(false, Ordering::Release);
    }

    /// What the owner is doing, from the outermost activity inwards.
    pub(crate) fn activities(&self) -> [Option<Activity>; DEPTH] {
        self.frames.read()
    }

    /// Up to when an activity inside the open ones has been reported: no fault of those around it.
    pub(crate) fn blamed(&self) -> u64 {
        // Relaxed: the Release of the frame's `clear` comes after it.
        self.blamed.load(crate::sync::Ordering::Relaxed)
    }

    /// When something watched was last polled here with another waker than that of the watched future around it: by hand, or
    /// by a combinator that has wakers of its own.
    pub(crate) fn by_hand(&self) -> u64 {
        // Relaxed: a hint that a report reads.
        self.by_hand.load(crate::sync::Ordering::Relaxed)
    }

    /// The owner's thread id as the system calls it.
    pub(crate) fn tid(&self) -> Option<u32> {
        self.owner.tid()
    }

    /// The owner, to be asked after later.
    pub(crate) fn whom(&'static self) -> Option<Whom> {
        self.owner.whom()
    }

    /// The poll figures of an op on this thread, for a reader.
    pub(crate) fn figures(&self, op: u32) -> Option<&PollFigures> {
        use std::sync::atomic::Ordering;
        let op = op as usize;
        // Acquire, twice: pairs with the Release of `figures_or_new`.
        let shards = self.figures.get(op / SHARDS)?.load(Ordering::Acquire);
        // SAFETY: null or leaked by `figures_or_new`, never freed.
        let shards = unsafe { shards.as_ref() }?;
        // SAFETY: likewise.
        unsafe { shards[op % SHARDS].load(Ordering::Acquire).as_ref() }
    }

    /// The same for the owner, made on first use: the only allocation, once per thread and op.
    #[inline]
    fn figures_or_new(&self, op: u32) -> &PollFigures {
        match self.figures(op) {
            Some(figures) => figures,
            None => self.new_figures(op as usize),
        }
    }

    #[cold]
    fn new_figures(&self, op: usize) -> &PollFigures {
        use std::sync::atomic::Ordering;
        let shelf = &self.figures[op / SHARDS];
        // Relaxed: only the owner writes.
        let mut shards = shelf.load(Ordering::Relaxed);
        if shards.is_null() {
            shards = Box::leak(Box::new(std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut()))));
            // Release: publishes the shelf whole.
            shelf.store(shards, Ordering::Release);
        }
        let figures: &'static mut PollFigures = Box::leak(Box::new(PollFigures::new()));
        let figures: *mut PollFigures = figures;
        // SAFETY: the shelf was leaked above or earlier; it is never freed.
        // Release: publishes the figures whole.
        unsafe { (*shards)[op % SHARDS].store(figures, Ordering::Release) };
        // SAFETY: just leaked.
        unsafe { &*figures }
    }
}

/// The calling thread's view of its own slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own {
    slot: &'static Slot,
}

/// What the thread keeps to itself; the observer never sees it.
struct Local {
    slot: Cell<Option<&'static Slot>>,
    depth: Cell<usize>,
    /// The activities, from the eighth on, whose place in the slot a deeper one has taken.
    covered: [Cell<u64>; COVERED],
    /// How much of the outermost activity has been reported already, for activities inside it, and when that last was.
    blamed: Cell<(u64, u64)>,
    /// The op of the last long poll, and from when to when it lasted.
    long_poll: Cell<(u32, u64, u64)>,
    /// Thread-local storage is being torn down: the slot is given back and must not be claimed again.
    closed: Cell<bool>,
}

/// Gives the slot back when the thread ends.
struct Giver;

impl Drop for Giver {
    fn drop(&mut self) {
        LOCAL.with(|local| {
            local.closed.set(true);
            if let Some(slot) = local.slot.take() {
                slot.release();
            }
        });
    }
}

thread_local! {
    // No destructor and a constant start: the hot path reads it like a plain variable.
    static LOCAL: Local = const {
        Local {
            slot: Cell::new(None),
            depth: Cell::new(0),
            covered: [const { Cell::new(0) }; COVERED],
            blamed: Cell::new((0, 0)),
            long_poll: Cell::new((0, 0, 0)),
            closed: Cell::new(false),
        }
    };
    static GIVER: Giver = const { Giver };
}

/// The calling thread's slot; `None` only while the thread's own storage is being torn down, when what it still does
/// is not watched.
#[inline]
pub(crate) fn own() -> Option<Own> {
    LOCAL.with(|local| match local.slot.get() {
        Some(slot) => Some(Own { slot }),
        None => claim(local),
    })
}

#[cold]
fn claim(local: &Local) -> Option<Own> {
    if local.closed.get() || GIVER.try_with(|_| ()).is_err() {
        return None;
    }
    let slot = Slot::claim();
    local.slot.set(Some(slot));
    Some(Own { slot })
}

impl Own {
    /// Whether both are of one thread.
    #[inline]
    pub(crate) fn is(self, other: Self) -> bool {
        std::ptr::eq(self.slot, other.slot)
    }

    /// The thread starts an activity. Returns the depth to leave at.
    #[inline]
    pub(crate) fn enter(self, activity: Activity) -> usize {
        let depth = LOCAL.with(|local| local.depth.replace(local.depth.get() + 1));
        if depth < DEPTH {
            self.slot.frames.set(depth, activity);
        } else {
            self.cover(depth - DEPTH, activity);
        }
        depth
    }

    /// Takes the last place for an activity that is `over` deeper: it is the innermost that is stuck.
    #[cold]
    fn cover(self, over: usize, activity: Activity) {
        let last = &self.slot.frames.0[DEPTH - 1];
        LOCAL.with(|local| {
            if let Some(covered) = local.covered.get(over) {
                // Relaxed: only the owner writes.
                covered.set(last.load(Ordering::Relaxed));
                self.slot.frames.set(DEPTH - 1, activity);
            }
        });
    }

    /// Gives the last place back.
    #[cold]
    fn uncover(self, over: usize) {
        if let Some(covered) = LOCAL.with(|local| Activity::from_word(local.covered.get(over)?.get())) {
            self.slot.frames.set(DEPTH - 1, covered);
        }
    }

    /// The thread leaves the activity that it entered at `depth`.
    #[inline]
    pub(crate) fn leave(self, depth: usize) {
        if depth < DEPTH {
            self.slot.frames.clear(depth);
        } else {
            self.uncover(depth - DEPTH);
        }
        LOCAL.with(|local| local.depth.set(depth));
    }

    /// The poll figures of an op on this thread.
    #[inline]
    pub(crate) fn figures(self, op: u32) -> &'static PollFigures {
        self.slot.figures_or_new(op)
    }

    /// The ops of the blocking calls inside whose executions the activity at `depth` is.
    pub(crate) fn executions_around(self, depth: usize) -> impl Iterator<Item = u32> {
        // The activity at `depth` is entered, so that those before it from the eighth on are covered.
        let seen = self.slot.activities().into_iter().take(depth.min(DEPTH - 1)).flatten();
        let covered = (DEPTH - 1..depth.min(DEPTH - 1 + COVERED)).map(|deep| deep - (DEPTH - 1));
        let covered = covered.filter_map(|at| LOCAL.with(|local| Activity::from_word(local.covered[at].get())));
        seen.chain(covered).filter(|activity| activity.kind() == Kind::Execution).map(Activity::op)
    }

    /// The op of the innermost activity.
    pub(crate) fn innermost(self) -> Option<u32> {
        let depth = LOCAL.with(|local| local.depth.get());
        let last = depth.min(DEPTH).checked_sub(1)?;
        self.slot.activities()[last].map(Activity::op)
    }

    /// How many activities the thread is in.
    pub(crate) fn depth(self) -> usize {
        LOCAL.with(|local| local.depth.get())
    }

    /// Keeps that something was polled by hand, for the observer.
    pub(crate) fn note_by_hand(self, now: u64) {
        self.slot.by_hand.store(now, Ordering::Relaxed);
    }

    /// Keeps the last long poll of this thread, for [`last_long_poll`](Self::last_long_poll).
    pub(crate) fn note_long_poll(self, op: u32, start: u64, end: u64) {
        LOCAL.with(|local| local.long_poll.set((op, start, end)));
    }

    /// The op of this thread's last long poll, and from when to when it lasted.
    pub(crate) fn last_long_poll(self) -> (u32, u64, u64) {
        LOCAL.with(|local| local.long_poll.get())
    }

    /// Of the activity at `depth`, which lasted from `start` to `end`: how much was not yet reported for an activity
    /// inside it. From here on all of it counts as reported. To be called before [`leave`](Self::leave).
    pub(crate) fn blame(self, depth: usize, start: u64, end: u64) -> u64 {
        let root = if depth == 0 {
            start
        } else {
            // Rounded up: what ended before the outermost activity began lies outside it.
            self.slot.activities()[0].map_or(start, |activity| activity.start(end) + (1 << UNIT_SHIFT))
        };
        // Relaxed: published by the Release of `leave`, which follows.
        self.slot.blamed.store(end, Ordering::Relaxed);
        LOCAL.with(|local| {
            let (reported, until) = local.blamed.get();
            let in_root = if until >= root { reported } else { 0 };
            let in_this = if until >= start { in_root } else { 0 };
            let fresh = (end - start).saturating_sub(in_this);
            local.blamed.set((in_root + fresh, end));
            fresh
        })
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    #[test]
    fn a_slot_shows_nested_activities_and_is_handed_on_when_its_thread_ends() {
        let used = std::thread::spawn(|| {
            let Some(own) = own() else { panic!("this thread is not ending") };
            let outer = own.enter(Activity::new(Kind::Poll, 1, 64));
            let inner = own.enter(Activity::new(Kind::Execution, 2, 128));
            let seen: Vec<_> = own.slot.activities().into_iter().flatten().map(Activity::op).collect();
            assert_eq!(seen, [1, 2]);
            own.leave(inner);
            own.leave(outer);
            assert!(own.slot.activities().iter().all(Option::is_none));
            std::ptr::from_ref(own.slot) as usize
        })
        .join();
        let Ok(used) = used else { panic!("the thread panicked") };
        let slot = all().find(|slot| std::ptr::from_ref(*slot) as usize == used);
        assert!(slot.is_some(), "the slot stays in the list");
    }

    #[test]
    fn time_is_reported_once_for_the_innermost_that_is_overdue() {
        let done = std::thread::spawn(|| {
            let Some(own) = own() else { panic!("this thread is not ending") };
            let enter = |start| own.enter(Activity::new(Kind::Poll, 1, start));
            let outer = enter(64_000);
            let inner = enter(128_000);
            assert_eq!(own.blame(inner, 128_000, 500_000), 372_000);
            own.leave(inner);
            let inner = enter(600_000);
            assert_eq!(own.blame(inner, 600_000, 700_000), 100_000);
            own.leave(inner);
            assert_eq!(own.blame(outer, 64_000, 800_000), 736_000 - 472_000);
            own.leave(outer);
            // An inner one reported, the outer one not overdue by its own limit: the next outermost starts afresh.
            let outer = enter(1_000_000);
            let inner = enter(1_000_000);
            assert_eq!(own.blame(inner, 1_000_000, 1_500_000), 500_000);
            own.leave(inner);
            own.leave(outer);
            let outer = enter(2_000_000);
            assert_eq!(own.blame(outer, 2_000_000, 2_400_000), 400_000);
            own.leave(outer);
        })
        .join();
        assert!(done.is_ok());
    }

    #[test]
    fn of_activities_deeper_than_the_slot_the_innermost_is_seen_and_the_outer_ones_stay() {
        const DEEPEST: u32 = (DEPTH + COVERED) as u32 - 1;
        let done = std::thread::spawn(|| {
            let Some(own) = own() else { panic!("this thread is not ending") };
            let seen = || own.slot.activities().into_iter().flatten().map(Activity::op).collect::<Vec<_>>();
            let kind = |op| if op % 2 == 0 { Kind::Poll } else { Kind::Execution };
            let around = |depth| own.executions_around(depth).collect::<Vec<_>>();
            let mut depths = Vec::new();
            for op in 0..DEEPEST + 4 {
                depths.push(own.enter(Activity::new(kind(op), op, 64)));
                let innermost = op.min(DEEPEST);
                let shown: Vec<u32> = (0..op.min(DEPTH as u32 - 1)).chain([innermost]).collect();
                assert_eq!((seen(), own.innermost()), (shown, Some(innermost)));
                assert_eq!(around(op as usize), (0..innermost).filter(|op| op % 2 == 1).collect::<Vec<_>>());
            }
            for depth in depths.into_iter().rev() {
                own.leave(depth);
                let innermost = (depth as u32).checked_sub(1).map(|op| op.min(DEEPEST));
                assert_eq!(seen().last().copied(), innermost);
            }
            own.slot.activities().iter().all(Option::is_none)
        })
        .join();
        assert!(matches!(done, Ok(true)));
    }
}

#[cfg(all(test, starvation_loom))]
mod models {
    use super::*;
    use loom::{sync::Arc, thread};

    /// Whatever the reader sees is an activity that the owner really had at that depth, never a mix of two.
    #[test]
    fn a_look_is_never_torn() {
        loom::model(|| {
            let frames = Arc::new(Frames::new());
            let [first, second, inner] = [
                Activity::new(Kind::Poll, 1, 64),
                Activity::new(Kind::Execution, 2, 6_400),
                Activity::new(Kind::Poll, 3, 9_600),
            ];
            let owner = {
                let frames = frames.clone();
                thread::spawn(move || {
                    frames.set(0, first);
                    frames.clear(0);
                    frames.set(0, second);
                    frames.set(1, inner);
                    frames.clear(1);
                })
            };
            let seen = frames.read();
            assert!(seen[0].is_none_or(|a| a == first || a == second));
            assert!(seen[1].is_none_or(|a| a == inner));
            owner.join().unwrap();
            assert_eq!(frames.read()[0], Some(second));
        });
    }
}
