//! The word by which an observer and the thread that it has sent a signal agree on who may touch what is copied.
//!
//! # Invariants
//!
//! 1. It goes from idle to armed (observer), to copying (the handler that answers), to done (the same) and to armed again
//!    (observer); or from armed back to idle (observer, when it does not wait any longer). So what is copied is the handler's
//!    from copying to done, and the observer's at all other times.
//! 2. Each request has a number of its own. A handler that was held up between looking and moving finds another one.

use crate::sync::{AtomicU32, Ordering};

const STATE: u32 = 0b11;
const IDLE: u32 = 0;
const ARMED: u32 = 1;
const COPYING: u32 = 2;
const DONE: u32 = 3;
/// What the number counts in.
const ONE: u32 = STATE + 1;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Nobody has begun to answer, and nobody will.
    Cancelled,
    /// Somebody has begun.
    Copying,
}

/// A request as a handler has taken it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Begun(u32);

#[derive(Debug)]
pub(super) struct Word(AtomicU32);

impl Word {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// Asks. `request` stores what is asked for. The answer is the request's number.
    pub(super) fn arm(&self, request: impl FnOnce()) -> u32 {
        // Relaxed: only the observer that has it changes a word that is not armed or copying.
        let word = (self.0.load(Ordering::Relaxed) & !STATE).wrapping_add(ONE) | ARMED;
        request();
        // Release: pairs with the acquire in `begin`: the request is seen with the word.
        self.0.store(word, Ordering::Release);
        word / ONE
    }

    /// What it is, for waiting until it changes, and whether it is done.
    pub(super) fn look(&self) -> (u32, bool) {
        // Acquire: what was copied is seen if it is done.
        let word = self.0.load(Ordering::Acquire);
        (word, word & STATE == DONE)
    }

    /// Whether a handler has it.
    pub(super) fn is_copying(&self) -> bool {
        // Acquire: one that has done with it has done all.
        self.0.load(Ordering::Acquire) & STATE == COPYING
    }

    /// Does not wait any longer.
    pub(super) fn cancel(&self) -> Outcome {
        // Relaxed: nothing but the word is looked at.
        let word = self.0.load(Ordering::Relaxed);
        let armed = word & !STATE | ARMED;
        // Relaxed: nothing was written that a handler could miss. Acquire: what was copied is seen if it is done.
        match self.0.compare_exchange(armed, word & !STATE | IDLE, Ordering::Relaxed, Ordering::Acquire) {
            Ok(_) => Outcome::Cancelled,
            Err(word) if word & STATE == DONE => Outcome::Done,
            Err(word) if word & STATE == COPYING => Outcome::Copying,
            Err(_) => Outcome::Cancelled,
        }
    }

    /// For the handler: takes a request on, if there is one, `is_meant` says so, and nobody else has.
    pub(super) fn begin(&self, is_meant: impl FnOnce() -> bool) -> Option<Begun> {
        // Acquire: pairs with the release in `arm`.
        let armed = self.0.load(Ordering::Acquire);
        // What is asked for may be of a later request by now: then the exchange fails.
        if armed & STATE != ARMED || !is_meant() {
            return None;
        }
        let copying = armed & !STATE | COPYING;
        // Acquire: what the observer read of the last answer is behind it.
        self.0.compare_exchange(armed, copying, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Begun(copying))
    }

    /// For the handler: all is copied.
    pub(super) fn answer(&self, begun: Begun) {
        // Release: pairs with the acquires in `look`, `cancel` and `is_copying`.
        self.0.store(begun.0 & !STATE | DONE, Ordering::Release);
    }

    /// Where it is, for the kernel.
    #[cfg(not(starvation_loom))]
    pub(super) fn plain(&self) -> &AtomicU32 {
        &self.0
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_word_that_was_armed_again_meanwhile_is_not_mistaken() {
        let word = Word::new();
        word.arm(|| ());
        let again = || {
            assert_eq!(word.cancel(), Outcome::Cancelled);
            word.arm(|| ());
            true
        };
        // What a handler does that was held up after it had looked at the first request.
        assert_eq!(word.begin(again), None);
        assert_eq!(word.cancel(), Outcome::Cancelled);
        assert_eq!(word.begin(|| true), None, "nobody asks any more");
    }

    #[test]
    fn a_request_is_answered_once() {
        let word = Word::new();
        let first = word.arm(|| ());
        let begun = word.begin(|| true).unwrap();
        assert_eq!((word.begin(|| true), word.cancel(), word.is_copying()), (None, Outcome::Copying, true));
        word.answer(begun);
        assert!(word.look().1 && word.cancel() == Outcome::Done && word.begin(|| true).is_none());
        assert_eq!(word.arm(|| ()), first + 1);
        assert!(!word.look().1, "the old answer is none to the new request");
    }
}

#[cfg(all(test, starvation_loom))]
mod models {
    #![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, reason = "tests")]

    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32 as Asked;
    use loom::thread;

    /// Two requests one after the other, the first given up if it is not answered yet, and a handler that may come late:
    /// the observer and the handler never touch the copy at once (which `loom` would tell), and what is read answers the
    /// request that is open.
    #[test]
    fn the_copy_is_touched_by_one_and_answers_what_was_asked() {
        loom::model(|| {
            let shared = Arc::new((Word::new(), Asked::new(0), UnsafeCell::new(0_u32)));
            let ask = |number: u32| shared.0.arm(|| shared.1.store(number, Ordering::Relaxed));
            let handler = {
                let shared = shared.clone();
                move || {
                    let (word, asked, copy) = &*shared;
                    if let Some(begun) = word.begin(|| asked.load(Ordering::Relaxed) > 0) {
                        let number = asked.load(Ordering::Relaxed);
                        copy.with_mut(|copy| unsafe { *copy = number });
                        word.answer(begun);
                    }
                }
            };
            ask(1);
            let threads = [thread::spawn(handler.clone()), thread::spawn(handler)];
            let mut open = 1;
            match shared.0.cancel() {
                Outcome::Cancelled => {
                    open = 2;
                    ask(2);
                }
                Outcome::Done => shared.2.with(|copy| assert_eq!(unsafe { *copy }, 1)),
                // It is left to whoever has begun.
                Outcome::Copying => {}
            }
            if shared.0.look().1 {
                shared.2.with(|copy| assert_eq!(unsafe { *copy }, open));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            if shared.0.look().1 {
                shared.2.with(|copy| assert_eq!(unsafe { *copy }, open));
            }
        });
    }
}
