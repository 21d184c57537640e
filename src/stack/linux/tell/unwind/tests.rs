#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::stack::capture::Registers;
use crate::stack::machine::tell::taken::{self, POINTERS, Victim};
use std::time::Duration;

/// The list of return addresses that the unwinder of exceptions found, and the one found in a capture, from where both have
/// the same frame: the one in which the victim told its own.
fn compare(name: &str, victim: &Victim) -> Unwound {
    let capture = taken::asleep(victim.tid);
    let unwound = Unwinder::new().unwind(&capture, usize::MAX);
    let found: Vec<u64> = unwound.places.iter().map(|place| place.next).collect();
    // The last address but for a zero at the root; the frames inside of the one that told differ, and where in that it is.
    let expected: Vec<u64> = victim.expected.iter().copied().filter(|&next| next != 0).collect();
    let same = found.iter().rev().zip(expected.iter().rev()).take_while(|(a, b)| a == b).count();
    // `backtrace`, `here`, and the one that called it.
    let last = |all: &[u64]| all[all.len().saturating_sub(30)..].to_vec();
    assert_eq!(unwound.end, End::Root, "{name}: {:x?} of {:x?}", last(&found), last(&expected));
    assert!(same + 3 >= expected.len() && same >= 3, "{name}: {:x?} of {:x?}", last(&found), last(&expected));
    unwound
}

#[test]
fn sleepers_are_unwound_as_by_the_unwinder_of_exceptions() {
    let sleep = Victim::start(|told| {
        told.here();
        while told.released.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    compare("sleep", &sleep);
    let channel = Victim::start(|told| {
        told.here();
        let _ = told.released.recv();
    });
    compare("channel", &channel);
    let timeout = Victim::start(|told| {
        told.here();
        let _ = told.released.recv_timeout(Duration::from_secs(100));
    });
    compare("channel with a timeout", &timeout);
    let lock = std::sync::Arc::new(std::sync::Mutex::new(()));
    let held = lock.lock().unwrap();
    let other = std::sync::Arc::clone(&lock);
    let mutex = Victim::start(move |told| {
        told.here();
        drop(other.lock());
    });
    compare("mutex", &mutex);
    drop(held);
}

#[inline(never)]
fn recurse(depth: usize, last: &mut dyn FnMut()) -> usize {
    if depth == 0 {
        last();
        return 0;
    }
    1 + std::hint::black_box(recurse(std::hint::black_box(depth - 1), last))
}

#[test]
fn deep_recursion_is_followed_as_far_as_is_wanted() {
    let victim = Victim::start(|told| {
        let mut last = || {
            told.here();
            let _ = told.released.recv();
        };
        recurse(2000, &mut last);
    });
    let unwound = compare("recursion", &victim);
    assert!(unwound.places.len() > 2000);
    let capture = taken::asleep(victim.tid);
    let cut = Unwinder::new().unwind(&capture, MOST);
    assert_eq!((cut.places.len(), cut.end), (MOST, End::Enough));
}

#[test]
fn a_panic_that_is_being_unwound_is_crossed() {
    struct Stuck(taken::Told);
    impl Drop for Stuck {
        fn drop(&mut self) {
            self.0.here();
            let _ = self.0.released.recv();
        }
    }
    let victim = Victim::start(|told| {
        let stuck = Stuck(told);
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _stuck = stuck;
            std::panic::resume_unwind(Box::new(()));
        }));
    });
    compare("panic", &victim);
}

/// A handler that waits, so that the thread sleeps inside of it.
mod handler {
    use super::*;
    use std::cell::RefCell;

    thread_local!(pub(super) static TOLD: RefCell<Option<taken::Told>> = const { RefCell::new(None) });

    pub(super) extern "C" fn wait(_: i32) {
        TOLD.with_borrow(|told| {
            let told = told.as_ref().unwrap();
            told.here();
            let _ = told.released.recv();
        });
    }
}

#[test]
fn a_signal_handler_is_crossed_to_what_it_interrupted() {
    let victim = Victim::start(|told| {
        handler::TOLD.set(Some(told));
        // SAFETY: the handler is for this signal, which only this thread sends itself.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler::wait as extern "C" fn(i32) as usize;
            libc::sigaction(libc::SIGWINCH, &raw const action, std::ptr::null_mut());
            libc::pthread_kill(libc::pthread_self(), libc::SIGWINCH);
        }
    });
    compare("signal", &victim);
}

fn damaged(change: impl FnOnce(&mut Capture)) -> Unwound {
    let victim = Victim::start(|told| {
        told.here();
        let _ = told.released.recv();
    });
    let mut capture = taken::asleep(victim.tid);
    change(&mut capture);
    Unwinder::new().unwind(&capture, MOST)
}

#[test]
fn the_end_of_a_walk_tells_why() {
    let cut = damaged(|capture| capture.stack.truncate(128));
    assert_eq!(cut.end, End::OutsideCopy);
    assert!(!cut.places.is_empty());
    let nowhere = damaged(|capture| capture.registers.0[POINTERS.1] = Some(0x1000));
    assert_eq!((nowhere.end, nowhere.places.len()), (End::NoModule, 1));
    let without = damaged(|capture| capture.registers.0[POINTERS.0] = None);
    assert_eq!(without.end, End::RegisterNotKnown(POINTERS.0));
    let nothing = damaged(|capture| capture.registers = Registers([None; REGISTERS]));
    assert_eq!((nothing.end, nothing.places.len()), (End::RegisterNotKnown(POINTERS.1), 0));
    let zeroed = damaged(|capture| capture.stack.fill(0));
    assert_eq!(zeroed.end, if cfg!(target_arch = "x86_64") { End::Root } else { zeroed.end });
    let below = damaged(|capture| {
        let top = capture.registers.0[POINTERS.0].unwrap();
        capture.registers.0[POINTERS.0] = Some(top - (1 << 40));
    });
    assert_eq!(below.end, End::OutsideCopy);
}

/// What an expression of these bytes comes to, where each word of memory has an address.
fn evaluated(code: &[u8]) -> Result<u64, End> {
    use crate::stack::machine::tell::modules::Tables;
    use crate::stack::machine::tell::pages::{Bytes, Pages};
    let pages = Arc::new(Pages::copied(code.to_vec()).unwrap());
    let all = Bytes::new(&pages, 0, code.len() as u64);
    let tables = Tables {
        index_at: 0,
        index: all.clone(),
        frames_at: 0,
        frames: gimli::EhFrame::from(all),
        bases: gimli::BaseAddresses::default(),
    };
    let expression = UnwindExpression { offset: 0, length: code.len() };
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 1 };
    let registers = [Some(8); REGISTERS];
    rules::evaluate(&expression, &tables, encoding, Some(8), &registers, &|address, _| Some(address))
}

#[test]
fn expressions_that_go_in_circles_come_to_an_end() {
    const LITERAL: u8 = 0x30;
    const DUPLICATE: u8 = 0x12;
    const DROP: u8 = 0x13;
    const READ: u8 = 0x06;
    const REGISTER: u8 = 0x70;
    // To the beginning, by so many bytes and the three of the jump itself.
    let jump = |back: i16| [0x2f, (-3 - back).to_le_bytes()[0], (-3 - back).to_le_bytes()[1]];
    assert_eq!(evaluated(&[LITERAL + 7]), Ok(7));
    assert_eq!(evaluated(&[REGISTER, 2, READ]), Ok(10));
    let in_circles: [&[u8]; 4] = [&[], &[DUPLICATE], &[DUPLICATE, DROP], &[REGISTER, 0, READ, DROP]];
    for steps in in_circles {
        let code = [steps, &jump(steps.len() as i16)].concat();
        assert_eq!(evaluated(&code), Err(End::Damaged), "{code:x?}");
    }
    // Out of itself, and half of one.
    assert_eq!(evaluated(&[0x2f, 0xff, 0x7f]), Err(End::Damaged));
    assert_eq!(evaluated(&[0x2f, 0, 0x80]), Err(End::Damaged));
    assert_eq!(evaluated(&[0x2f, 0]), Err(End::Damaged));
    assert_eq!(evaluated(&[]), Ok(8), "what was given");
}
