//! Ops: the named sites that calls, futures and waits belong to, one record per site and runtime.
//!
//! A site is met on every call, so looking it up takes no lock: a fixed table of chains that only grow. Records are
//! never freed, so a program that makes runtimes without end must not use them up: once half of them are, the sites of
//! further runtimes share one record each, which has no runtime. There are at most [`MAX_OPS`], and what comes after that
//! is counted under one record whose name says so. (A name is `&'static str`: only a program that leaks names gets there.)

use crate::activity::MAX_OPS;
use crate::age::Ages;
use crate::figures::{CallFigures, Durations};
use crate::waits::Waits;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use tokio::runtime;

/// What an empty name is shown as.
const UNNAMED: &str = "(unnamed)";
/// The name of the record for what found no place.
const OVERFLOW: &str = "(more ops than can be told apart)";

/// One site, on one runtime.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) location: &'static Location<'static>,
    /// The runtime that its work runs on; none for work outside any runtime.
    pub(crate) runtime: Option<runtime::Id>,
    /// Its place in [`get`]'s table.
    pub(crate) index: u32,
    /// What waits for a thread, by age.
    pub(crate) queued: Ages,
    /// What waits inside `instrument_wait`, by age. Made on the first wait.
    waits: OnceLock<Box<Waits>>,
    /// Made on the first call, so that a site of futures does not pay for them.
    calls: OnceLock<Box<CallFigures>>,
    /// Polls that were over the threshold, and what they took.
    pub(crate) long_polls: AtomicU64,
    pub(crate) long_poll_time: AtomicU64,
    /// Polls that came later than the long-poll threshold after their waking, how late they were together, and the op (its
    /// place and one) whose long poll the last of them waited behind.
    pub(crate) late_polls: AtomicU64,
    pub(crate) late_poll_time: AtomicU64,
    pub(crate) late_behind: AtomicU32,
    /// Futures that ended, whether completed or dropped.
    pub(crate) futures_completed: AtomicU64,
    pub(crate) futures_dropped: AtomicU64,
    /// The limits of this op alone, in nanoseconds; 0 where it has none of its own.
    long_poll: AtomicU64,
    queue_wait: AtomicU64,
    /// For the reports of a process without a detector: when the next may come, and how many did not.
    next_warning: AtomicU64,
    suppressed: AtomicU64,
    next: AtomicPtr<Op>,
}

impl Op {
    pub(crate) fn calls(&self) -> &CallFigures {
        self.calls.get_or_init(|| Box::new(CallFigures::new()))
    }

    /// The figures of its calls, if there ever was one.
    pub(crate) fn known_calls(&self) -> Option<&CallFigures> {
        self.calls.get().map(|calls| &**calls)
    }

    pub(crate) fn waits(&self) -> &Waits {
        self.waits.get_or_init(|| {
            let [long, long_time, dropped, unpolled] = [const { AtomicU64::new(0) }; 4];
            let [waiter, holder] = [const { AtomicU32::new(0) }; 2];
            let (pending, woken, duration) = (Ages::new(), Ages::new(), Durations::new());
            Box::new(Waits { pending, woken, duration, long, long_time, dropped, unpolled, waiter, holder })
        })
    }

    /// Its waits, if there ever was one.
    pub(crate) fn known_waits(&self) -> Option<&Waits> {
        self.waits.get().map(|waits| &**waits)
    }

    /// How long a poll of it may take, in nanoseconds.
    #[inline]
    pub(crate) fn long_poll_limit(&self) -> u64 {
        // Relaxed, here and below: a limit is a figure that nothing is read through.
        match self.long_poll.load(Ordering::Relaxed) {
            0 => LIMITS.long_poll.load(Ordering::Relaxed),
            own => own,
        }
    }

    /// How long a call of it may wait in the queue, in nanoseconds.
    pub(crate) fn queue_wait_limit(&self) -> u64 {
        match self.queue_wait.load(Ordering::Relaxed) {
            0 => LIMITS.queue_wait.load(Ordering::Relaxed),
            own => own,
        }
    }

    /// Whether a report may be made now where no detector makes them: at most one per op and `interval`. Tells how many
    /// were suppressed since the last; counts this one where it may not.
    pub(crate) fn may_warn(&self, now: u64, interval: u64) -> Option<u64> {
        let next = self.next_warning.load(Ordering::Relaxed);
        // Relaxed: whoever wins the exchange reports; the count that comes along is a figure.
        let may = now >= next
            && self
                .next_warning
                .compare_exchange(next, now.saturating_add(interval), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if may {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

/// Whether a detector runs, which then does all the reporting.
static OBSERVED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_observed() -> bool {
    // Relaxed, as in `observe`: a report more or less around a detector's start and stop.
    OBSERVED.load(Ordering::Relaxed)
}

/// A detector starts, unless one runs already; tells whether it may.
pub(crate) fn observe() -> bool {
    !OBSERVED.swap(true, Ordering::AcqRel)
}

/// The detector has stopped.
pub(crate) fn unobserve() {
    OBSERVED.store(false, Ordering::Release);
}

/// The limits of the process, in nanoseconds.
struct Limits {
    long_poll: AtomicU64,
    queue_wait: AtomicU64,
}

static LIMITS: Limits = Limits {
    long_poll: AtomicU64::new(crate::defaults::LONG_POLL_NANOS),
    queue_wait: AtomicU64::new(crate::defaults::QUEUE_WAIT_NANOS),
};

/// The limits of one op by name, kept for sites not met yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnLimits {
    pub(crate) name: &'static str,
    pub(crate) long_poll: u64,
    pub(crate) queue_wait: u64,
}

/// Written when a detector starts or stops, read when a site is first met. Never touched by the observer.
static OWN_LIMITS: std::sync::RwLock<Vec<OwnLimits>> = std::sync::RwLock::new(Vec::new());

/// Sets the limits of the process and of single ops, known ones and those to come.
pub(crate) fn set_limits(long_poll: u64, queue_wait: u64, own: Vec<OwnLimits>) {
    LIMITS.long_poll.store(long_poll, Ordering::Relaxed);
    LIMITS.queue_wait.store(queue_wait, Ordering::Relaxed);
    let mut limits = OWN_LIMITS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    *limits = own;
    // Under the lock: a site met just now either reads the new limits or is in the table already.
    for op in all() {
        apply(op, &limits);
    }
}

fn apply(op: &Op, limits: &[OwnLimits]) {
    let own = limits.iter().rev().find(|limits| limits.name == op.name);
    op.long_poll.store(own.map_or(0, |own| own.long_poll), Ordering::Relaxed);
    op.queue_wait.store(own.map_or(0, |own| own.queue_wait), Ordering::Relaxed);
}

/// Up to so many places sites are told apart by runtime.
const OWN_RUNTIMES: u32 = MAX_OPS as u32 / 2;

const CHAINS: usize = 1024;
static CHAINS_BY_SITE: [AtomicPtr<Op>; CHAINS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CHAINS];
static BY_INDEX: [AtomicPtr<Op>; MAX_OPS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_OPS];
/// The next free place in `BY_INDEX`. Place 0 is for what finds none.
static PLACES: AtomicU32 = AtomicU32::new(1);
static OVERFLOWED: AtomicU64 = AtomicU64::new(0);

/// All ops met so far.
pub(crate) fn all() -> impl Iterator<Item = &'static Op> {
    let places = (PLACES.load(Ordering::Acquire) as usize).min(MAX_OPS);
    (0..places as u32).filter_map(get)
}

/// The op at a place.
pub(crate) fn get(index: u32) -> Option<&'static Op> {
    // Acquire: pairs with the Release in `publish`.
    let op = BY_INDEX.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: null, or leaked by `publish` and never freed.
    unsafe { op.as_ref() }
}

/// The op whose place and one is kept at `at`; none where it is 0.
pub(crate) fn noted(at: &AtomicU32) -> Option<u32> {
    // Relaxed: a hint that a report reads.
    at.load(Ordering::Relaxed).checked_sub(1)
}

/// Keeps the place of an op, for [`noted`].
pub(crate) fn note(at: &AtomicU32, index: u32) {
    at.store(index + 1, Ordering::Relaxed);
}

/// Keeps that it is none.
pub(crate) fn forget(at: &AtomicU32) {
    at.store(0, Ordering::Relaxed);
}

/// Tokio's number of a runtime, which it shows only as text.
pub(crate) fn runtime_number(id: runtime::Id) -> Option<u64> {
    id.to_string().parse().ok()
}

/// How many look-ups found no place.
pub(crate) fn overflowed() -> u64 {
    OVERFLOWED.load(Ordering::Relaxed)
}

/// A name as it is shown.
pub(crate) fn shown(name: &'static str) -> &'static str {
    if name.is_empty() { UNNAMED } else { name }
}

/// The op of a site and runtime, made when it is first met.
pub(crate) fn intern(
    name: &'static str,
    location: &'static Location<'static>,
    runtime: Option<runtime::Id>,
) -> &'static Op {
    let name = shown(name);
    let chain = &CHAINS_BY_SITE[chain_of(name, location, runtime)];
    // Acquire: pairs with the Release of `publish`.
    let head = chain.load(Ordering::Acquire);
    match find(head, std::ptr::null_mut(), name, location, runtime) {
        Some(op) => op,
        // Relaxed: a few more or less do not matter.
        None if runtime.is_some() && PLACES.load(Ordering::Relaxed) >= OWN_RUNTIMES => intern(name, location, None),
        None => publish(chain, head, name, location, runtime),
    }
}

/// Looks through a chain from `head` up to, not including, `end`.
fn find(
    head: *mut Op,
    end: *mut Op,
    name: &str,
    location: &'static Location<'static>,
    runtime: Option<runtime::Id>,
) -> Option<&'static Op> {
    let mut at = head;
    while !at.is_null() && at != end {
        // SAFETY: chains hold leaked ops, which are never freed.
        let op: &'static Op = unsafe { &*at };
        // The same place can have several `Location`s, one per instance of a generic function.
        let same_place = std::ptr::eq(op.location, location) || op.location == location;
        if same_place && op.runtime == runtime && op.name == name {
            return Some(op);
        }
        at = op.next.load(Ordering::Acquire);
    }
    None
}

#[cold]
fn publish(
    chain: &AtomicPtr<Op>,
    mut head: *mut Op,
    name: &'static str,
    location: &'static Location<'static>,
    runtime: Option<runtime::Id>,
) -> &'static Op {
    // Held over the publishing, so that `set_limits` meets every op: here, or in the table.
    let limits = OWN_LIMITS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    // A race can look up the same site twice: only the one that gets into the chain keeps its place.
    let index = PLACES
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| ((next as usize) < MAX_OPS).then_some(next + 1));
    let Ok(index) = index else {
        drop(limits);
        OVERFLOWED.fetch_add(1, Ordering::Relaxed);
        return overflow(location);
    };
    let op = Box::into_raw(Box::new(new(name, location, runtime, index)));
    // SAFETY: our own, not yet shared.
    apply(unsafe { &*op }, &limits);
    loop {
        // SAFETY: as above; readers of a chain see it only after the exchange.
        unsafe { &*op }.next.store(head, Ordering::Relaxed);
        // Release: publishes the op whole. Acquire: the next turn reads what got in first.
        match chain.compare_exchange(head, op, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(newer) => {
                if let Some(first) = find(newer, head, name, location, runtime) {
                    // SAFETY: never shared, made above by `Box::into_raw`.
                    drop(unsafe { Box::from_raw(op) });
                    return first;
                }
                head = newer;
            }
        }
    }
    // Release: pairs with the Acquire of `get`.
    BY_INDEX[index as usize].store(op, Ordering::Release);
    // SAFETY: in the chain now, hence never freed.
    unsafe { &*op }
}

#[cold]
fn overflow(location: &'static Location<'static>) -> &'static Op {
    static OP: OnceLock<&'static Op> = OnceLock::new();
    OP.get_or_init(|| {
        let op: &'static Op = Box::leak(Box::new(new(OVERFLOW, location, None, 0)));
        BY_INDEX[0].store(std::ptr::from_ref(op).cast_mut(), Ordering::Release);
        op
    })
}

fn new(name: &'static str, location: &'static Location<'static>, runtime: Option<runtime::Id>, index: u32) -> Op {
    Op {
        name,
        location,
        runtime,
        index,
        queued: Ages::new(),
        waits: OnceLock::new(),
        calls: OnceLock::new(),
        long_polls: AtomicU64::new(0),
        long_poll_time: AtomicU64::new(0),
        late_polls: AtomicU64::new(0),
        late_poll_time: AtomicU64::new(0),
        late_behind: AtomicU32::new(0),
        futures_completed: AtomicU64::new(0),
        futures_dropped: AtomicU64::new(0),
        long_poll: AtomicU64::new(0),
        queue_wait: AtomicU64::new(0),
        next_warning: AtomicU64::new(0),
        suppressed: AtomicU64::new(0),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }
}

fn chain_of(name: &str, location: &Location<'_>, runtime: Option<runtime::Id>) -> usize {
    let mut hasher = Mixer(0);
    // Not the whole text: two names that differ only in the middle share a chain, which compares them in full.
    let name = name.as_bytes();
    let (first, last) = (name.first_chunk::<4>(), name.last_chunk::<4>());
    hasher.write_u64(u64::from(u32::from_le_bytes(*first.unwrap_or(&[0; 4]))));
    hasher.write_u64(u64::from(u32::from_le_bytes(*last.unwrap_or(&[0; 4]))));
    hasher.write_u64(u64::from(location.line()) << 32 | u64::from(location.column()) << 16 | name.len() as u64);
    runtime.hash(&mut hasher);
    hasher.0 as usize >> 8 & (CHAINS - 1)
}

/// A multiplicative hash: a handful of instructions on the way into every call.
struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_one_record_and_different_sites_different_ones() {
        let here = Location::caller();
        let first = intern("op::a", here, None);
        assert!(std::ptr::eq(first, intern("op::a", here, None)));
        assert!(!std::ptr::eq(first, intern("op::b", here, None)));
        assert!(!std::ptr::eq(first, intern("op::a", Location::caller(), None)));
        assert!(get(first.index).is_some_and(|op| std::ptr::eq(op, first)));
    }

    #[test]
    fn many_threads_that_meet_a_site_at_once_get_the_same_record() {
        let here = Location::caller();
        let start = std::sync::Barrier::new(8);
        let met: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        std::ptr::from_ref(intern("op::race", here, None)) as usize
                    })
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        assert_eq!(met.len(), 8);
        assert!(met.iter().all(|&op| op == met[0]));
    }

    #[test]
    fn an_empty_name_is_shown_as_one() {
        assert_eq!(intern("", Location::caller(), None).name, UNNAMED);
    }

    #[test]
    fn warnings_are_one_per_interval_and_the_rest_is_counted() {
        let op = intern("op::warned", Location::caller(), None);
        assert_eq!(op.may_warn(1_000, 100), Some(0));
        assert_eq!(op.may_warn(1_050, 100), None);
        assert_eq!(op.may_warn(1_099, 100), None);
        assert_eq!(op.may_warn(1_100, 100), Some(2));
    }
}
