//! Where an observer and the thread that it has sent a signal meet.
//!
//! Who may touch what is in a cell goes by its [`Word`].
//!
//! Cells are never freed, since a handler may look at them at any time, and there are no more than [`CELLS`] of them.

use super::LONGEST;
use super::length_within;
use super::memory;
use super::word::{Begun, Word};
use crate::stack::capture::REGISTERS;
use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// As many observers can wait for signals at a time, and buffers be with threads that came to no end. One is 256 KiB, of
/// which the system gives what has been written to.
const CELLS: usize = 16;
static TABLE: [AtomicPtr<Cell>; CELLS] = [const { AtomicPtr::new(ptr::null_mut()) }; CELLS];

/// What lies below the buffer that a signal's frame does not touch.
pub(super) const RED_ZONE: u64 = super::RED_ZONE;

pub(super) use super::word::Outcome;

/// One request at a time.
pub(super) struct Cell {
    word: Word,
    /// Some observer has it.
    taken: AtomicBool,
    tid: AtomicU32,
    bounds: (AtomicU64, AtomicU64),
    /// What to read memory with, as [`memory::read`] takes it, or [`NOT_AT_ALL`].
    file: AtomicI32,
    copied: UnsafeCell<Copied>,
    buffer: *mut u8,
}

/// No stack, but registers.
pub(super) const NOT_AT_ALL: RawFd = -2;

/// What a thread copies of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    pub(super) registers: [u64; REGISTERS],
    pub(super) base: u64,
    length: usize,
}

// SAFETY: `copied` and what `buffer` points to are touched by whoever made the word copying, until it is done, and then by
// the observer that the cell is taken by; all else is atomic, and `buffer` itself never changes.
unsafe impl Sync for Cell {}
// SAFETY: nothing in it is bound to a thread.
unsafe impl Send for Cell {}

impl Cell {
    fn new() -> Self {
        let buffer = Box::leak(vec![0_u8; LONGEST].into_boxed_slice());
        Self {
            word: Word::new(),
            taken: AtomicBool::new(true),
            tid: AtomicU32::new(0),
            bounds: (AtomicU64::new(0), AtomicU64::new(0)),
            file: AtomicI32::new(NOT_AT_ALL),
            copied: UnsafeCell::new(Copied { registers: [0; REGISTERS], base: 0, length: 0 }),
            buffer: buffer.as_mut_ptr(),
        }
    }

    /// A cell that nobody has; `None` if there is none left.
    pub(super) fn claim() -> Option<&'static Self> {
        for slot in &TABLE {
            // Acquire: pairs with the release by which it was put there.
            let there = slot.load(Ordering::Acquire);
            if there.is_null() {
                let own = Box::into_raw(Box::new(Self::new()));
                // AcqRel: a handler that finds it sees it whole. Acquire: so does this, of one that came first.
                match slot.compare_exchange(ptr::null_mut(), own, Ordering::AcqRel, Ordering::Acquire) {
                    // SAFETY: never freed from here on.
                    Ok(_) => return Some(unsafe { &*own }),
                    Err(_) => {
                        // SAFETY: made above, and seen by nobody.
                        let own = unsafe { Box::from_raw(own) };
                        // SAFETY: so was its buffer, from a box of this length.
                        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(own.buffer, LONGEST)) });
                    }
                }
            }
            // SAFETY: what is in the table is never freed. Acquire: another one was faster to fill it.
            let cell = unsafe { &*slot.load(Ordering::Acquire) };
            // Acquire: whoever gave it back has done with it.
            if cell.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
                continue;
            }
            // A thread that was given up may be writing to it still.
            if !cell.word.is_copying() {
                return Some(cell);
            }
            cell.give_back();
        }
        None
    }

    /// Lets others have it: once a thread has come to an end with it that is copying still.
    pub(super) fn give_back(&self) {
        // Release: pairs with the acquire in `claim`.
        self.taken.store(false, Ordering::Release);
    }

    /// Asks a thread. The answer is a sequence number.
    pub(super) fn arm(&self, tid: u32, bounds: (u64, u64), file: RawFd) -> u32 {
        self.word.arm(|| {
            // Relaxed: the word, which is armed after this, makes these seen.
            self.tid.store(tid, Ordering::Relaxed);
            self.bounds.0.store(bounds.0, Ordering::Relaxed);
            self.bounds.1.store(bounds.1, Ordering::Relaxed);
            self.file.store(file, Ordering::Relaxed);
        })
    }

    /// The word, for waiting until it changes, what it is, and whether it is done.
    pub(super) fn look(&self) -> (&AtomicU32, u32, bool) {
        let (word, is_done) = self.word.look();
        (self.word.plain(), word, is_done)
    }

    /// Does not wait any longer.
    pub(super) fn cancel(&self) -> Outcome {
        self.word.cancel()
    }

    /// What was copied, once it is done.
    pub(super) fn copied(&self) -> Option<(Copied, &[u8])> {
        if !self.word.look().1 {
            return None;
        }
        // SAFETY: it is done, so nobody writes until the observer, which this is, arms it again.
        let copied = unsafe { *self.copied.get() };
        // SAFETY: as above, and no more than the buffer's length has been written.
        Some((copied, unsafe { std::slice::from_raw_parts(self.buffer, copied.length) }))
    }

    /// For the handler: whether this is a request to this thread, and nobody else has begun to answer it. Then the cell is the
    /// caller's until it says that it is done.
    fn begin(&self, tid: u32) -> Option<Begun> {
        // Relaxed: written before the word was armed.
        self.word.begin(|| self.tid.load(Ordering::Relaxed) == tid)
    }

    /// For the handler: copies. Only system calls and plain stores.
    fn fill(&self, registers: [u64; REGISTERS], stack: u64) {
        // Relaxed: seen since the word was, and not changed before it is done.
        let bounds = (self.bounds.0.load(Ordering::Relaxed), self.bounds.1.load(Ordering::Relaxed));
        let file = self.file.load(Ordering::Relaxed);
        let mut base = stack.wrapping_sub(RED_ZONE);
        let mut length = 0;
        if file != NOT_AT_ALL {
            let wanted = length_within(bounds, stack);
            // SAFETY: the buffer is longer than any length that is asked for, and this thread's while it is copying.
            length = unsafe { memory::read(file, base, self.buffer, (wanted + RED_ZONE as usize).min(LONGEST)) };
            // Below the stack pointer there may be no memory, and then nothing is used of it.
            if RED_ZONE > 0 && length <= RED_ZONE as usize {
                base = stack;
                // SAFETY: as above.
                length = unsafe { memory::read(file, base, self.buffer, wanted.min(LONGEST)) };
            }
        }
        // SAFETY: this thread's while it is copying.
        unsafe { *self.copied.get() = Copied { registers, base, length } };
    }
}

/// For the handler: answers all requests to this thread, and has `wake` wake who asked. No lock, allocation or panic.
pub(super) fn answer_all(tid: u32, registers: &[u64; REGISTERS], stack: u64, wake: impl Fn(&AtomicU32)) {
    for slot in &TABLE {
        // Acquire: pairs with the release by which it was put there.
        let cell = slot.load(Ordering::Acquire);
        // They are put in in this order.
        if cell.is_null() {
            break;
        }
        // SAFETY: what is in the table is never freed.
        let cell = unsafe { &*cell };
        if let Some(begun) = cell.begin(tid) {
            cell.fill(*registers, stack);
            cell.word.answer(begun);
            wake(cell.word.plain());
        }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn registers() -> [u64; REGISTERS] {
        std::array::from_fn(|at| at as u64)
    }

    #[test]
    fn a_request_is_answered_once_and_by_whom_it_was_put_to() {
        let cell = Cell::claim().unwrap();
        let words = [1_u64, 2, 3];
        let at = words.as_ptr().addr() as u64;
        // Ids of no thread.
        let (tid, other) = (u32::MAX - 1, u32::MAX - 2);
        let sequence = cell.arm(tid, (at, at + 24), -1);
        answer_all(other, &registers(), at, |_| panic!("nobody was asked"));
        assert!(cell.copied().is_none());
        let woken = std::cell::Cell::new(0);
        answer_all(tid, &registers(), at, |_| woken.set(woken.get() + 1));
        answer_all(tid, &registers(), at, |_| woken.set(woken.get() + 1));
        assert_eq!(woken.get(), 1);
        let (copied, bytes) = cell.copied().unwrap();
        assert_eq!(copied.registers, registers());
        assert_eq!(copied.base, at - RED_ZONE);
        let stack = &bytes[RED_ZONE as usize..];
        assert_eq!(stack.len(), 24);
        assert_eq!(stack[8..16], 2_u64.to_ne_bytes());
        assert_eq!(cell.cancel(), Outcome::Done);
        assert_eq!(cell.arm(tid, (0, 0), NOT_AT_ALL), sequence + 1);
        assert!(cell.copied().is_none(), "the old answer is none to the new request");
        assert_eq!(cell.cancel(), Outcome::Cancelled);
        answer_all(tid, &registers(), at, |_| panic!("late"));
        cell.give_back();
    }

    #[test]
    fn what_was_given_up_is_not_given_out_before_its_thread_is_done_with_it() {
        let cell = Cell::claim().unwrap();
        let tid = u32::MAX - 3;
        cell.arm(tid, (0, 0), NOT_AT_ALL);
        let begun = cell.begin(tid).unwrap();
        assert!(cell.begin(tid).is_none());
        assert_eq!(cell.cancel(), Outcome::Copying);
        cell.give_back();
        let others: Vec<_> = std::iter::from_fn(Cell::claim).collect();
        assert!(others.iter().all(|other| !ptr::eq(*other, cell)));
        cell.fill(registers(), 0);
        cell.word.answer(begun);
        others.iter().for_each(|other| other.give_back());
        let all: Vec<_> = std::iter::from_fn(Cell::claim).collect();
        assert!(all.iter().any(|other| ptr::eq(*other, cell)));
        all.iter().for_each(|other| other.give_back());
    }
}
