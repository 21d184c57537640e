//! Whether a runtime has timers, and whether they go by real time. Tokio answers neither question.

use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Whether a runtime has timers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    Running,
    /// A test has paused the clock, or had.
    Paused,
    /// It was built without.
    Absent,
    /// There was no way to find out.
    Unknown,
}

/// A timer that is never reached.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Asks a runtime for a timer. For the thread that attaches to it; never for the observer, since it takes locks.
pub(crate) fn of(handle: &Handle) -> Timer {
    let _context = handle.enter();
    // The clock can be asked without a timer.
    if !clock_is_real() {
        return Timer::Paused;
    }
    // Not only made but polled as well: whether it is the one or the other that panics is not documented.
    let ask = || {
        let mut sleep = std::pin::pin!(tokio::time::sleep(FAR));
        let _ = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    };
    match silently(ask) {
        Some(true) => Timer::Running,
        Some(false) => Timer::Absent,
        None => Timer::Unknown,
    }
}

/// Whether the clock of the current runtime goes with the system's. A test can pause it (`tokio::time::pause`): it then
/// stands still, and leaps to the next timer whenever the runtime has nothing to do. After that it never again agrees
/// with the system's.
pub(crate) fn clock_is_real() -> bool {
    let before = Instant::now();
    let clock = tokio::time::Instant::now().into_std();
    before <= clock && clock <= Instant::now()
}

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

/// Two that attach at once must not put each other's hooks back.
static ASKING: Mutex<()> = Mutex::new(());

/// Runs `f` and tells whether it went without panicking. Whatever panics on this thread meanwhile is not reported; what
/// panics on others is. `None` where that cannot be had: it was not run.
///
/// There is no other way to ask whether a timer can be made: it panics where not, and a panic prints before it can be
/// caught. The process's panic hook is exchanged for these microseconds and put back as it was.
fn silently(f: impl FnOnce()) -> Option<bool> {
    if cfg!(panic = "abort") || thread::panicking() {
        return None;
    }
    let _alone = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
    Some(exchanged(f))
}

/// The same, while nobody else does it.
fn exchanged(f: impl FnOnce()) -> bool {
    let silenced = thread::current().id();
    let previous: Arc<Hook> = Arc::new(panic::take_hook());
    let handed_on = Arc::clone(&previous);
    let ours: Hook = Box::new(move |info| {
        if thread::current().id() != silenced {
            handed_on(info);
        }
    });
    let address = address_of(&ours);
    panic::set_hook(ours);
    let went_well = panic::catch_unwind(AssertUnwindSafe(f)).is_ok();
    let found = panic::take_hook();
    // Somebody may have set another hook in between. The count tells whether ours still lives, so that its address is
    // not that of another one made since.
    if address_of(&found) == address && Arc::strong_count(&previous) > 1 {
        // No panic is in it any more: taking it waited for those. With it goes the last other holder.
        drop(found);
        if let Some(previous) = Arc::into_inner(previous) {
            panic::set_hook(previous);
        }
    } else {
        panic::set_hook(found);
    }
    went_well
}

fn address_of(hook: &Hook) -> *const () {
    std::ptr::from_ref(&**hook).cast()
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::runtime::Builder;

    #[test]
    fn a_runtime_is_asked_for_its_timer() {
        for builder in [Builder::new_current_thread, Builder::new_multi_thread] {
            let without = builder().worker_threads(1).build().unwrap();
            assert_eq!(of(without.handle()), Timer::Absent);
            let with = builder().worker_threads(1).enable_time().build().unwrap();
            assert_eq!(of(with.handle()), Timer::Running);
        }
    }

    #[test]
    #[cfg(starvation_paused_clock)]
    fn a_clock_that_is_or_was_paused_is_found_out() {
        let paused = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        assert_eq!(of(paused.handle()), Timer::Paused);
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::time::resume();
        });
        assert_eq!(of(runtime.handle()), Timer::Paused, "it goes on, but not with the system's");
    }

    #[test]
    fn the_question_is_heard_by_nobody_and_the_hook_is_the_same_as_before() {
        // Those who ask in other tests wait.
        let _turn = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        static HEARD: AtomicUsize = AtomicUsize::new(0);
        let original = panic::take_hook();
        let counted = "counted".to_owned();
        let hook: Hook = Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() == Some(&counted.as_str()) {
                HEARD.fetch_add(1, Ordering::Relaxed);
            }
        });
        let address = address_of(&hook) as usize;
        panic::set_hook(hook);

        let asked = exchanged(|| {
            // Somebody else's panic meanwhile is theirs.
            let other = thread::spawn(|| panic::panic_any("counted"));
            assert!(other.join().is_err());
            panic::panic_any("counted");
        });
        let heard_while_asking = HEARD.load(Ordering::Relaxed);
        assert!(panic::catch_unwind(|| panic::panic_any("counted")).is_err());
        let found = panic::take_hook();
        panic::set_hook(original);

        assert!(!asked);
        assert_eq!(heard_while_asking, 1);
        assert_eq!(HEARD.load(Ordering::Relaxed), 2);
        assert_eq!(address_of(&found) as usize, address, "not wrapped in anything");
    }

    #[test]
    fn a_hook_that_is_set_meanwhile_stays_and_still_reaches_the_one_before() {
        // Those who ask in other tests wait.
        let _turn = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        static OUTER: AtomicUsize = AtomicUsize::new(0);
        static INNER: AtomicUsize = AtomicUsize::new(0);
        let original = panic::take_hook();
        panic::set_hook(Box::new(|info| {
            if info.payload().downcast_ref::<&str>() == Some(&"through") {
                INNER.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let asked = exchanged(|| {
            let ours = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if info.payload().downcast_ref::<&str>() == Some(&"through") {
                    OUTER.fetch_add(1, Ordering::Relaxed);
                }
                ours(info);
            }));
        });
        let other = thread::spawn(|| panic::panic_any("through"));
        assert!(other.join().is_err());
        panic::set_hook(original);
        assert!(asked);
        assert_eq!((OUTER.load(Ordering::Relaxed), INNER.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn a_thread_that_unwinds_is_not_asked() {
        struct Asks(Arc<Mutex<Option<Timer>>>, Handle);
        impl Drop for Asks {
            fn drop(&mut self) {
                *self.0.lock().unwrap() = Some(of(&self.1));
            }
        }
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let answer = Arc::new(Mutex::new(None));
        let asks = Asks(Arc::clone(&answer), runtime.handle().clone());
        let unwound = thread::spawn(move || {
            let _asks = asks;
            panic::resume_unwind(Box::new("quietly"));
        });
        assert!(unwound.join().is_err());
        assert_eq!(*answer.lock().unwrap(), Some(Timer::Unknown));
    }
}
