//! Signals that come late, twice, from elsewhere or not at all.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::evidence::own_stack;
use crate::stack::machine::take::tests::victim::{Victim, run_in_child};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Builder;

fn in_child(name: &str, f: impl FnOnce()) {
    run_in_child(&format!("{}::{name}", module_path!().split_once("::").unwrap().1), f);
}

fn mask(how: libc::c_int) {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call fills in what the others read.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGURG);
        assert_eq!(libc::pthread_sigmask(how, set.as_ptr(), std::ptr::null_mut()), 0);
    }
}

fn await_true(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

static OF_PROGRAM: AtomicU32 = AtomicU32::new(0);
extern "C" fn count(_: libc::c_int) {
    OF_PROGRAM.fetch_add(1, Ordering::SeqCst);
}

/// A thread that masks the signal at the worst moment: after it was looked at, and before it was sent.
fn masking(unmask: &'static AtomicBool, unmasked: &'static AtomicBool) -> Victim {
    Victim::start(Builder::new(), move |victim| {
        mask(libc::SIG_BLOCK);
        victim.with_sentinel(|| {
            while !unmask.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            mask(libc::SIG_UNBLOCK);
            unmasked.store(true, Ordering::SeqCst);
            victim.spin();
        });
    })
}

#[test]
fn a_signal_that_comes_late_does_nothing_and_is_nobody_elses() {
    static UNMASK: AtomicBool = AtomicBool::new(false);
    static UNMASKED: AtomicBool = AtomicBool::new(false);
    in_child("a_signal_that_comes_late_does_nothing_and_is_nobody_elses", || {
        // SAFETY: a function that takes a signal's number.
        unsafe { libc::signal(libc::SIGURG, count as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let signals = Signals::new();
        let victim = masking(&UNMASK, &UNMASKED);
        let task = Task::open(victim.tid).unwrap();
        let subject = Subject { tid: victim.tid, bounds: victim.bounds.clone(), is_same: &|| true };
        let cell = signals.cell.unwrap();
        for _ in 0..3 {
            let outcome = loop {
                if let Some(outcome) = ask(cell, &task, &subject, -1).unwrap() {
                    break outcome;
                }
            };
            assert_eq!(outcome, Outcome::Cancelled);
        }
        UNMASK.store(true, Ordering::SeqCst);
        await_true(&UNMASKED);
        assert!(cell.copied().is_none());
        // The kernel keeps one signal of a kind.
        assert_eq!(handler::LATE.load(Ordering::SeqCst), 1);
        assert_eq!(OF_PROGRAM.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn an_older_signal_answers_a_newer_request() {
    static UNMASK: AtomicBool = AtomicBool::new(false);
    static UNMASKED: AtomicBool = AtomicBool::new(false);
    in_child("an_older_signal_answers_a_newer_request", || {
        let signals = Signals::new();
        let victim = masking(&UNMASK, &UNMASKED);
        let cell = signals.cell.unwrap();
        let bounds = victim.bounds.clone().unwrap();
        let sequence = cell.arm(victim.tid, (0, 0), NOT_AT_ALL);
        send(victim.tid, sequence).unwrap();
        assert_eq!(cell.cancel(), Outcome::Cancelled);
        let sequence = cell.arm(victim.tid, (bounds.start, bounds.end), -1);
        // Forgotten by the kernel, as the first has not been taken yet.
        send(victim.tid, sequence).unwrap();
        UNMASK.store(true, Ordering::SeqCst);
        await_true(&UNMASKED);
        let capture = read(cell).unwrap();
        victim.check(&capture);
        assert_eq!(handler::LATE.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_thread_that_has_ended_is_sent_nothing() {
    in_child("a_thread_that_has_ended_is_sent_nothing", || {
        let _signals = Signals::new();
        assert_eq!(send(i32::MAX as u32, 1), Err(CannotCapture::Gone));
        let tid = std::thread::spawn(|| crate::evidence::thread_id().unwrap()).join().unwrap();
        // To be joined is not yet to be gone.
        while send(tid, 1).is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(send(tid, 1), Err(CannotCapture::Gone));
    });
}

#[test]
fn the_handler_leaves_the_error_number_alone() {
    in_child("the_handler_leaves_the_error_number_alone", || {
        let signals = Signals::new();
        let cell = signals.cell.unwrap();
        let tid = crate::evidence::thread_id().unwrap();
        let bounds = own_stack().unwrap();
        for file in [NOT_AT_ALL, -1, i32::MAX] {
            let sequence = cell.arm(tid, (bounds.start, bounds.end), file);
            // SAFETY: the place of this thread's error number.
            let errno = unsafe { libc::__errno_location() };
            // It is delivered before the call comes back.
            send(tid, sequence).unwrap();
            // SAFETY: as above.
            unsafe { *errno = 4_711 };
            let sequence = cell.arm(tid, (bounds.start, bounds.end), file);
            send(tid, sequence).unwrap();
            // SAFETY: as above.
            assert_eq!(unsafe { *errno }, 4_711);
            let (copied, stack) = cell.copied().unwrap();
            assert_eq!(stack.is_empty(), file != -1, "what cannot be read leaves registers");
            assert!(bounds.contains(&copied.registers[crate::stack::machine::take::asleep::STACK]));
        }
    });
}

#[test]
fn a_forged_signal_is_passed_on_and_answers_nobody() {
    in_child("a_forged_signal_is_passed_on_and_answers_nobody", || {
        // SAFETY: a function that takes a signal's number.
        unsafe { libc::signal(libc::SIGURG, count as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let signals = Signals::new();
        let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(12) };
        // SAFETY: plain numbers. No other thread has it unmasked but this one and the one that waits for the test.
        assert_eq!(unsafe { libc::sigqueue(libc::getpid(), libc::SIGURG, value) }, 0);
        while OF_PROGRAM.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(signals.cell.unwrap().copied().is_none());
    });
}
