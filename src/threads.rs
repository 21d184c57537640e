//! Which threads belong to which runtime, and as what: told by the runtime's own callbacks where `hooks` has set them,
//! otherwise learnt from whatever of this crate happens to run on a thread.
//!
//! # Invariants
//!
//! 1. Only a place's owner writes it. A place changes owners only through `claimed`.
//! 2. `turn` is odd while an owner fills its place in or leaves it, so that the observer takes no figures of two threads
//!    for those of one.
//! 3. Places are never freed: their number is the largest number of such threads that there ever was at once.

use crate::owner::{Owner, Whom};
use crate::{clock, op, sync};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use tokio::runtime::{Handle, RuntimeFlavor};

/// What a thread is to its runtime. A thread can change: one that takes over a worker's work while that is inside
/// `block_in_place` is a worker from then on, and the other goes on as a thread of the pool, which shows when it runs a
/// canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It has started, and not parked so far: only workers do.
    Unknown,
    Worker,
    /// A thread of the blocking pool.
    Pool,
}

impl Role {
    fn from_number(number: u8) -> Self {
        [Self::Unknown, Self::Worker, Self::Pool].get(usize::from(number)).copied().unwrap_or(Self::Unknown)
    }
}

/// What was set on a builder before `hooks` was called for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// How many threads the blocking pool may have.
    pub(crate) max_blocking_threads: Option<usize>,
    /// How many workers were asked for; none where that was left to Tokio.
    pub(crate) worker_threads: Option<usize>,
}

/// A thread of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) whom: Option<Whom>,
    pub(crate) role: Role,
    /// The runtime's callbacks tell when it parks.
    pub(crate) hooked: bool,
    /// Since when it has not been parked; `None` while it is, and where nothing tells.
    pub(crate) active_since: Option<u64>,
    /// The number that the standard library gives it.
    #[cfg(tokio_unstable)]
    pub(crate) number: Option<u64>,
    /// How many polls of tasks it has begun, where the runtime's callbacks tell.
    pub(crate) polls: Option<u64>,
}

impl Thread {
    /// Its id as the system calls it.
    pub(crate) fn tid(&self) -> Option<u32> {
        self.whom.map(|whom| whom.tid)
    }
}

/// Lets a reader that waits for nobody tell whether what it has read belongs together.
#[derive(Debug)]
struct Turn(sync::AtomicU64);

impl Turn {
    fn new() -> Self {
        Self(sync::AtomicU64::new(0))
    }

    /// The owner changes several figures. There is one owner.
    fn write(&self, change: impl FnOnce()) {
        use sync::Ordering;
        // Relaxed: only the owner writes it.
        let turn = self.0.load(Ordering::Relaxed);
        self.0.store(turn.wrapping_add(1), Ordering::Relaxed);
        // Release: who sees one of the changes sees the odd turn, too.
        sync::fence(Ordering::Release);
        change();
        // Release: who sees the new turn sees the changes.
        self.0.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// Reads several figures; `None` where they were being changed.
    fn read<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        use sync::Ordering;
        // Acquire: pairs with the last store of `write`.
        let before = self.0.load(Ordering::Acquire);
        let seen = read();
        // Acquire: pairs with the fence of `write`.
        sync::fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.0.load(Ordering::Relaxed) == before).then_some(seen)
    }
}

/// One thread's place in the list. Its figures are Relaxed throughout: what belongs together goes by turns.
#[derive(Debug)]
#[repr(align(64))]
struct Place {
    claimed: AtomicBool,
    hooked: AtomicBool,
    role: AtomicU8,
    owner: Owner,
    turn: Turn,
    /// The runtime's number; 0 for none.
    runtime: AtomicU64,
    active_since: AtomicU64,
    /// One more than what is set; 0 where nothing is.
    max_blocking_threads: AtomicU64,
    worker_threads: AtomicU64,
    number: AtomicU64,
    polls: AtomicU64,
    next: AtomicPtr<Place>,
}

static FIRST: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());

fn places() -> impl Iterator<Item = &'static Place> {
    // Acquire: pairs with the Release in `claim`, which publishes a place after it is whole.
    let first = FIRST.load(Ordering::Acquire);
    // SAFETY: null, or a leaked place, which is never freed.
    let at = |place: *mut Place| unsafe { place.as_ref() };
    // Relaxed: written before the place was published.
    std::iter::successors(at(first), move |place: &&'static Place| at(place.next.load(Ordering::Relaxed)))
}

impl Place {
    fn claim() -> &'static Self {
        // Acquire: pairs with the Release of `release`: the last owner's writes come before ours.
        let free = |place: &&Self| place.claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        let place = places().find(|place| free(place).is_ok()).unwrap_or_else(|| {
            let [runtime, active_since, max_blocking_threads, worker_threads, number, polls] =
                [const { AtomicU64::new(0) }; 6];
            let place = Box::into_raw(Box::new(Self {
                claimed: AtomicBool::new(true),
                hooked: AtomicBool::new(false),
                role: AtomicU8::new(0),
                owner: Owner::new(),
                turn: Turn::new(),
                runtime,
                active_since,
                max_blocking_threads,
                worker_threads,
                number,
                polls,
                next: AtomicPtr::new(std::ptr::null_mut()),
            }));
            // SAFETY: just made, never freed.
            let place = unsafe { &*place };
            // Release: publishes the place whole, at each try with the head that it then has.
            let _ = FIRST.fetch_update(Ordering::Release, Ordering::Acquire, |first| {
                place.next.store(first, Ordering::Relaxed);
                Some(std::ptr::from_ref(place).cast_mut())
            });
            place
        });
        place.turn.write(|| {
            place.owner.enter();
            place.number.store(own_number(), Ordering::Relaxed);
        });
        place
    }

    fn release(&self) {
        self.turn.write(|| {
            self.forget();
            self.number.store(0, Ordering::Relaxed);
            self.owner.leave();
        });
        // Release: pairs with the Acquire of `claim`.
        self.claimed.store(false, Ordering::Release);
    }

    /// Forgets all that the thread was to a runtime. To be called in a turn.
    fn forget(&self) {
        for figure in [&self.runtime, &self.active_since, &self.max_blocking_threads, &self.worker_threads] {
            figure.store(0, Ordering::Relaxed);
        }
        self.hooked.store(false, Ordering::Relaxed);
        self.role.store(Role::Unknown as u8, Ordering::Relaxed);
    }

    fn thread(&'static self) -> Thread {
        let nonzero = |figure: &AtomicU64| Some(figure.load(Ordering::Relaxed)).filter(|&figure| figure > 0);
        Thread {
            whom: self.owner.whom(),
            role: Role::from_number(self.role.load(Ordering::Relaxed)),
            hooked: self.hooked.load(Ordering::Relaxed),
            active_since: nonzero(&self.active_since),
            #[cfg(tokio_unstable)]
            number: nonzero(&self.number),
            polls: nonzero(&self.polls),
        }
    }

    fn settings(&self) -> Settings {
        let set = |figure: &AtomicU64| figure.load(Ordering::Relaxed).checked_sub(1).map(|figure| figure as usize);
        Settings { max_blocking_threads: set(&self.max_blocking_threads), worker_threads: set(&self.worker_threads) }
    }
}

/// The standard library's number of the calling thread, which it shows only as text; 0 where nobody asks for it.
fn own_number() -> u64 {
    if cfg!(tokio_unstable) { number_of(std::thread::current().id()).unwrap_or(0) } else { 0 }
}

/// The number of a thread, which the standard library shows only as text.
pub(crate) fn number_of(id: std::thread::ThreadId) -> Option<u64> {
    let text = format!("{id:?}");
    text.trim_start_matches(|c: char| !c.is_ascii_digit()).trim_end_matches(')').parse().ok()
}

struct Local {
    place: Cell<Option<&'static Place>>,
    /// The builder whose callbacks have marked this thread as a worker of its runtime; 0 for none.
    marked_by: Cell<u64>,
    /// The thread is ending: its place is given back.
    closed: Cell<bool>,
}

/// Gives the place back when the thread ends. So `on_thread_stop` stays the user's.
struct Giver;

impl Drop for Giver {
    fn drop(&mut self) {
        LOCAL.with(|local| {
            local.closed.set(true);
            if let Some(place) = local.place.take() {
                place.release();
            }
        });
    }
}

thread_local! {
    static LOCAL: Local =
        const { Local { place: Cell::new(None), marked_by: Cell::new(0), closed: Cell::new(false) } };
    static GIVER: Giver = const { Giver };
}

/// The calling thread's place; `None` only while the thread's own storage is being torn down.
fn own(local: &Local) -> Option<&'static Place> {
    if let Some(place) = local.place.get() {
        return Some(place);
    }
    if local.closed.get() || GIVER.try_with(|_| ()).is_err() {
        return None;
    }
    local.place.set(Some(Place::claim()));
    local.place.get()
}

/// The calling thread is running something of a runtime's, in this role. Returns its id as the system calls it.
pub(crate) fn learn(runtime: Option<u64>, role: Role) -> Option<u32> {
    let runtime = runtime.unwrap_or(0);
    LOCAL.with(own).and_then(|place| {
        let known = place.thread();
        if known.role != role || place.runtime.load(Ordering::Relaxed) != runtime {
            place.turn.write(|| {
                if place.runtime.load(Ordering::Relaxed) != runtime {
                    place.forget();
                    place.runtime.store(runtime, Ordering::Relaxed);
                }
                place.role.store(role as u8, Ordering::Relaxed);
            });
        }
        known.tid()
    })
}

/// All threads that are known.
#[cfg(feature = "stacks")]
pub(crate) fn all() -> impl Iterator<Item = Thread> {
    places().filter_map(|place| place.turn.read(|| place.thread()))
}

/// The threads of a runtime that are known.
pub(crate) fn threads(runtime: u64) -> impl Iterator<Item = Thread> {
    places().filter_map(move |place| {
        place.turn.read(|| (place.runtime.load(Ordering::Relaxed) == runtime).then(|| place.thread())).flatten()
    })
}

/// How a runtime was set up, where its threads have told.
pub(crate) fn settings(runtime: u64) -> Option<Settings> {
    places().find_map(|place| {
        place
            .turn
            .read(|| (place.runtime.load(Ordering::Relaxed) == runtime).then(|| place.settings()))
            .flatten()
            .filter(|settings| *settings != Settings::default())
    })
}

/// The builder whose callbacks tell of the calling thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Teller {
    /// Tells builders apart; never 0.
    pub(crate) number: u64,
    pub(crate) settings: Settings,
}

impl Teller {
    /// The calling thread has started.
    pub(crate) fn started(self) {
        LOCAL.with(|local| {
            if let Some(place) = own(local) {
                self.tell(place, Role::Unknown);
                place.active_since.store(clock::now(), Ordering::Relaxed);
            }
        });
    }

    /// The calling thread parks, so it is a worker.
    #[inline]
    pub(crate) fn parked(self) {
        LOCAL.with(|local| {
            self.marked(local).inspect(|place| {
                // Each is true by itself. The role again: the pool may have had the thread in between.
                place.active_since.store(0, Ordering::Relaxed);
                place.role.store(Role::Worker as u8, Ordering::Relaxed);
            })
        });
    }

    /// The calling thread begins to poll a task: a thread-local, a load and a store of its own cache line.
    #[cfg(tokio_unstable)]
    #[inline]
    pub(crate) fn polls(self) {
        LOCAL.with(|local| {
            if let Some(place) = local.place.get() {
                // Relaxed: only the owner writes it, and the observer asks only whether it has changed.
                place.polls.store(place.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            }
        });
    }

    #[inline]
    pub(crate) fn unparked(self) {
        LOCAL.with(|local| {
            self.marked(local).inspect(|place| place.active_since.store(clock::now(), Ordering::Relaxed))
        });
    }

    /// The calling worker's place.
    #[inline]
    fn marked(self, local: &Local) -> Option<&'static Place> {
        if local.marked_by.get() == self.number { local.place.get() } else { self.mark(local) }
    }

    #[cold]
    fn mark(self, local: &Local) -> Option<&'static Place> {
        let place = own(local)?;
        // A thread that drives a current-thread runtime may drive another one next: it is never marked for good.
        if self.tell(place, Role::Worker) == Some(RuntimeFlavor::MultiThread) {
            local.marked_by.set(self.number);
        }
        Some(place)
    }

    /// Fills in the place of the calling thread, by the runtime that it is in.
    fn tell(self, place: &Place, role: Role) -> Option<RuntimeFlavor> {
        let handle = Handle::try_current().ok()?;
        let runtime = op::runtime_number(handle.id()).unwrap_or(0);
        place.turn.write(|| {
            let set = |figure: &AtomicU64, setting: Option<usize>| {
                figure.store(setting.map_or(0, |setting| setting as u64 + 1), Ordering::Relaxed);
            };
            place.runtime.store(runtime, Ordering::Relaxed);
            place.role.store(role as u8, Ordering::Relaxed);
            place.hooked.store(true, Ordering::Relaxed);
            set(&place.max_blocking_threads, self.settings.max_blocking_threads);
            set(&place.worker_threads, self.settings.worker_threads);
        });
        Some(handle.runtime_flavor())
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;

#[cfg(all(test, starvation_loom))]
mod models {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::Turn;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::thread;

    #[test]
    fn what_is_read_in_one_turn_belongs_together() {
        loom::model(|| {
            let place = Arc::new((Turn::new(), AtomicU64::new(0), AtomicU64::new(0)));
            let owner = {
                let place = place.clone();
                thread::spawn(move || {
                    for value in [1, 2] {
                        place.0.write(|| {
                            place.1.store(value, Ordering::Relaxed);
                            place.2.store(value, Ordering::Relaxed);
                        });
                    }
                })
            };
            let read = || (place.1.load(Ordering::Relaxed), place.2.load(Ordering::Relaxed));
            if let Some((first, second)) = place.0.read(read) {
                assert_eq!(first, second);
            }
            owner.join().unwrap();
            assert_eq!(place.0.read(read), Some((2, 2)));
        });
    }
}
