//! How an observer that sleeps because nothing goes on is woken by the first thing that does.
//!
//! What begins stores itself first (a slot's frame, a queue's age) and then looks whether the observer sleeps. The two are
//! not ordered, so that nobody pays for a fence: a thread may look just before the observer says that it sleeps, and
//! its store may become visible just after. But stores become visible in well under a microsecond, and an observer that
//! has said so looks once more, milliseconds later, before it sleeps deeply.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;

static ASLEEP: AtomicBool = AtomicBool::new(false);
static OBSERVER: Mutex<Option<Thread>> = Mutex::new(None);

/// Something begins that the observer wants to see: a poll, a call, a wait.
#[inline]
pub(crate) fn rouse() {
    // Relaxed: see the module's documentation. The line is written once in a second at most.
    if ASLEEP.load(Ordering::Relaxed) {
        wake();
    }
}

#[cold]
fn wake() {
    // AcqRel: one of those that come at once wakes it, and the observer sees that it was woken.
    if ASLEEP.swap(false, Ordering::AcqRel)
        && let Ok(observer) = OBSERVER.try_lock()
        && let Some(observer) = &*observer
    {
        // Where the lock is taken the observer is just starting or stopping: awake.
        observer.unpark();
    }
}

/// The observer is about to sleep deeply.
pub(crate) fn fall_asleep() {
    ASLEEP.store(true, Ordering::Release);
}

/// Whether nothing has begun since it fell asleep.
pub(crate) fn is_asleep() -> bool {
    ASLEEP.load(Ordering::Acquire)
}

/// The observer starts, or stops.
pub(crate) fn register(observer: Option<Thread>) {
    ASLEEP.store(false, Ordering::Release);
    *OBSERVER.lock().unwrap_or_else(PoisonError::into_inner) = observer;
}
