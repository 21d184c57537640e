//! Which watched futures the calling thread is polling, so that what is made inside a poll reports to them by itself.
//!
//! Polls nest on a thread's stack, so the scopes do: each poll puts one on its own stack frame and links it to the one
//! outside. Nothing is counted or allocated until a call or a wait is made inside.

use crate::gap::{Change, Gap};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::task::{Wake, Waker};

/// What a watched future shares with those who work for it and with those who wake it: one allocation per future.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) gap: Gap,
    /// Who polled the future first; it does not change, so waking needs no lock.
    waker: Waker,
}

impl Watch {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { gap: Gap::new(), waker })
    }

    /// Whether waking through this wakes the same task as `waker`.
    #[inline]
    pub(crate) fn will_wake(&self, waker: &Waker) -> bool {
        self.waker.will_wake(waker)
    }
}

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.gap.wake(crate::clock::now);
        self.waker.wake_by_ref();
    }
}

/// Wakes a future that has moved to another task than the one that polled it first.
#[derive(Debug)]
pub(crate) struct Moved {
    watch: Arc<Watch>,
    waker: Waker,
}

impl Moved {
    pub(crate) fn waker(watch: &Arc<Watch>, waker: Waker) -> Waker {
        Waker::from(Arc::new(Self { watch: Arc::clone(watch), waker }))
    }
}

impl Wake for Moved {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.watch.gap.wake(crate::clock::now);
        self.waker.wake_by_ref();
    }
}

/// One poll of a watched future, on the stack of the thread that makes it.
struct Scope<'a> {
    watch: &'a Arc<Watch>,
    outer: *const Scope<'static>,
}

thread_local! {
    static INNERMOST: Cell<*const Scope<'static>> = const { Cell::new(ptr::null()) };
}

/// Runs `f` as a poll of the future that `watch` belongs to.
#[inline]
pub(crate) fn within<R>(watch: &Arc<Watch>, f: impl FnOnce() -> R) -> R {
    /// Puts the outer scope back, also when `f` panics.
    struct Restore(*const Scope<'static>);

    impl Drop for Restore {
        #[inline]
        fn drop(&mut self) {
            INNERMOST.with(|innermost| innermost.set(self.0));
        }
    }

    let outer = INNERMOST.with(Cell::get);
    let scope = Scope { watch, outer };
    // The lifetime is erased, not extended: the pointer is taken back by `restore` before `scope` goes.
    let _restore = Restore(outer);
    INNERMOST.with(|innermost| innermost.set(ptr::from_ref(&scope).cast()));
    f()
}

/// Whether the calling thread polls something watched with another waker than that of the innermost watched future around
/// it: then somebody runs it by hand, or by a combinator that has wakers of its own.
pub(crate) fn is_by_hand(waker: &Waker) -> bool {
    // SAFETY: as in `Scopes::next`.
    let Some(scope) = (unsafe { INNERMOST.with(Cell::get).as_ref() }) else { return false };
    // The waker that a poll is given is made of its watch, or of one that stands for it where the future has moved.
    !std::ptr::eq(waker.data(), Arc::as_ptr(scope.watch).cast())
}

/// The watched futures around a call or a wait, innermost first, to report to.
#[derive(Debug, Default)]
pub(crate) struct Enclosing {
    nearest: Option<Arc<Watch>>,
    /// Those further out. Most calls have none, and pay nothing.
    outer: Option<Box<[Arc<Watch>]>>,
}

impl Enclosing {
    /// Those that the calling thread is polling now.
    pub(crate) fn current() -> Self {
        let mut watches = Scopes(INNERMOST.with(Cell::get));
        let nearest = watches.next();
        let outer: Box<[_]> = watches.collect();
        Self { nearest, outer: (!outer.is_empty()).then_some(outer) }
    }

    pub(crate) fn change(&self, change: Change, now: u64) {
        for watch in self.nearest.iter().chain(self.outer.iter().flat_map(|outer| outer.iter())) {
            watch.gap.change(change, now);
        }
    }
}

/// Walks from a scope outwards.
struct Scopes(*const Scope<'static>);

impl Iterator for Scopes {
    type Item = Arc<Watch>;

    fn next(&mut self) -> Option<Arc<Watch>> {
        // SAFETY: a non-null pointer here is INNERMOST's or one that a scope reached from it holds. `within` sets and
        // unsets them around the life of the scope on this very thread's stack, so every scope on the chain is alive
        // while code inside it runs, which is the only code that can get here.
        let scope = unsafe { self.0.as_ref() }?;
        self.0 = scope.outer;
        Some(Arc::clone(scope.watch))
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    fn depth() -> usize {
        Scopes(INNERMOST.with(Cell::get)).count()
    }

    #[test]
    fn scopes_nest_and_end_with_their_polls_even_by_a_panic() {
        let (outer, inner) = (Watch::new(Waker::noop().clone()), Watch::new(Waker::noop().clone()));
        assert_eq!(depth(), 0);
        within(&outer, || {
            assert_eq!(depth(), 1);
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                within(&inner, || {
                    assert_eq!(depth(), 2);
                    let enclosing = Enclosing::current();
                    assert!(enclosing.nearest.is_some_and(|nearest| Arc::ptr_eq(&nearest, &inner)));
                    panic!("inside");
                });
            }));
            assert!(caught.is_err());
            assert_eq!(depth(), 1);
        });
        assert_eq!(depth(), 0);
    }
}
