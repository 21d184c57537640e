//! Threads that are made to wait in each way that is to be recognised.
//!
//! Each waits for something that nobody else knows of, and is let go whatever has been seen of it.

use super::thread;
use crate::evidence::{Doing, Inside, RunState, Shape, SystemCall};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Condvar, Mutex, Once, OnceLock, PoisonError, RwLock, mpsc};
use std::thread::{Builder, Scope, ScopedJoinHandle, park, park_timeout};
use std::time::{Duration, Instant};

const BETWEEN_TRIES: Duration = Duration::from_micros(50);
/// For waits with a timeout: longer than any trial.
const LONG: Duration = Duration::from_secs(1_000);
/// The threads do next to nothing.
const STACK: usize = 64 << 10;

/// A thread that waits, or is about to.
pub(super) struct Trial {
    pub(super) tid: u32,
    pub(super) wait: Wait,
}

/// What it waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) shape: Shape,
    /// It is not called through the C library's `syscall`.
    pub(super) instruction_suffices: bool,
    /// The bytes that what it waits for consists of; without that it waits to be unparked.
    pub(super) place: Option<(u64, u64)>,
}

impl Wait {
    const PARKED: Self = Self { shape: Shape::Park, instruction_suffices: false, place: None };

    pub(super) fn at<T>(shape: Shape, object: &T) -> Self {
        let place = (std::ptr::from_ref(object).addr() as u64, size_of::<T>() as u64);
        Self { shape, instruction_suffices: false, place: Some(place) }
    }
}

impl Trial {
    /// Asks `f` about the call that the thread sleeps in once it sleeps where it should. Gives up in the end.
    pub(super) fn until_asleep<R>(&self, patience: Duration, mut f: impl FnMut(&SystemCall) -> Option<R>) -> Option<R> {
        let begin = Instant::now();
        while begin.elapsed() < patience {
            let doing = thread::doing(self.tid);
            if let Some(Doing { state: RunState::Asleep, inside: Inside::Call(call) }) = &doing
                && self.is_there(call)
                && let Some(answer) = f(call)
            {
                return Some(answer);
            }
            std::thread::sleep(BETWEEN_TRIES);
        }
        None
    }

    fn is_there(&self, call: &SystemCall) -> bool {
        call.futex().is_some_and(|futex| match self.wait.place {
            Some((at, size)) => (at..at + size).contains(&futex.address),
            None => futex.value == u32::MAX,
        })
    }
}

/// What is to be seen of a trial's thread while it waits.
pub(super) type See<'a> = &'a mut dyn FnMut(&Trial) -> Option<()>;

/// Starts a thread that waits, and looks at it.
pub(super) fn watch<'scope>(
    scope: &'scope Scope<'scope, '_>,
    wait: Wait,
    see: See<'_>,
    f: impl FnOnce() + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, ()>> {
    let (sender, receiver) = mpsc::channel();
    let body = move || {
        let _ = sender.send(thread::thread_id());
        f();
    };
    let handle = Builder::new().name("starvation-learn".into()).stack_size(STACK).spawn_scoped(scope, body).ok()?;
    if let Ok(Some(tid)) = receiver.recv() {
        see(&Trial { tid, wait });
    }
    Some(handle)
}

/// Has each wait seen.
pub(super) fn run(see: See<'_>) {
    locks(see);
    condvars(see);
    parks(see);
    once(see);
    #[cfg(target_env = "gnu")]
    super::pthread::lock(see);
}

fn locks(see: See<'_>) {
    let (lock, rw) = (Mutex::new(()), RwLock::new(()));
    std::thread::scope(|scope| {
        let held = lock.lock();
        watch(scope, Wait::at(Shape::Lock, &lock), see, || drop(lock.lock()));
        drop(held);
        let held = rw.write();
        watch(scope, Wait::at(Shape::Lock, &rw), see, || drop(rw.read()));
        watch(scope, Wait::at(Shape::Lock, &rw), see, || drop(rw.write()));
        drop(held);
    });
}

fn condvars(see: See<'_>) {
    let (done, condvar, barrier) = (Mutex::new(false), Condvar::new(), Barrier::new(2));
    let lock = || done.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        watch(scope, Wait::at(Shape::Condvar, &condvar), see, || drop(condvar.wait_while(lock(), |done| !*done)));
        watch(scope, Wait::at(Shape::Condvar, &condvar), see, || {
            drop(condvar.wait_timeout_while(lock(), LONG, |done| !*done));
        });
        *lock() = true;
        condvar.notify_all();
        let waits = watch(scope, Wait::at(Shape::Condvar, &barrier), see, || {
            barrier.wait();
        });
        if waits.is_some() {
            barrier.wait();
        }
    });
}

fn parks(see: See<'_>) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Relaxed: an unpark that follows the store makes it visible to whom it unparks.
        let parked = watch(scope, Wait::PARKED, see, || {
            while !done.load(Ordering::Relaxed) {
                park();
            }
        });
        let for_a_while = watch(scope, Wait::PARKED, see, || {
            while !done.load(Ordering::Relaxed) {
                park_timeout(LONG);
            }
        });
        done.store(true, Ordering::Relaxed);
        [parked, for_a_while].iter().flatten().for_each(|handle| handle.thread().unpark());
        // Channels park as well, and some of them from a place of their own.
        let (sender, receiver) = mpsc::channel::<()>();
        watch(scope, Wait::PARKED, see, move || receiver.recv().unwrap_or_default());
        drop(sender);
        let (sender, receiver) = mpsc::channel::<()>();
        watch(scope, Wait::PARKED, see, move || receiver.recv_timeout(LONG).unwrap_or_default());
        drop(sender);
    });
}

/// Whether what has panicked before is tried again is compiled into places of their own.
fn once(see: See<'_>) {
    let (once, cell) = (Once::new(), OnceLock::new());
    std::thread::scope(|scope| {
        once.call_once(|| {
            watch(scope, Wait::at(Shape::Once, &once), see, || once.call_once(|| {}));
            watch(scope, Wait::at(Shape::Once, &once), see, || once.call_once_force(|_| {}));
            watch(scope, Wait::at(Shape::Once, &once), see, || once.wait());
        });
        cell.get_or_init(|| {
            watch(scope, Wait::at(Shape::Once, &cell), see, || {
                cell.get_or_init(|| ());
            });
        });
    });
}
