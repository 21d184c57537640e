//! Handlers of a program, beside ours.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::stack::machine::take::tests::victim::{Victim, run_in_child};
use crate::stack::{Capturer, Way};
use std::sync::atomic::{AtomicU32, AtomicUsize};

/// How often each handler of the program was called.
static FIRST: AtomicU32 = AtomicU32::new(0);
static SECOND: AtomicU32 = AtomicU32::new(0);
/// What the second one found when it was put in place, if it passes on to that.
static FOUND: AtomicUsize = AtomicUsize::new(0);
/// Whether SIGUSR1 was masked in the first one, and whether SIGURG was.
static MASKS: [AtomicU32; 2] = [const { AtomicU32::new(9) }; 2];

fn counts() -> (u32, u32) {
    (FIRST.load(Ordering::SeqCst), SECOND.load(Ordering::SeqCst))
}

extern "C" fn plain(signal: c_int) {
    assert_eq!(signal, libc::SIGURG);
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: only asks for the mask, which is filled in then.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
        for (seen, signal) in MASKS.iter().zip([libc::SIGUSR1, libc::SIGURG]) {
            seen.store(libc::sigismember(set.as_ptr(), signal).cast_unsigned(), Ordering::SeqCst);
        }
    }
    FIRST.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn detailed(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: what the kernel gave.
    assert_eq!(unsafe { (*info).si_signo }, signal);
    assert!(!context.is_null());
    SECOND.fetch_add(1, Ordering::SeqCst);
    let found = FOUND.load(Ordering::SeqCst);
    if found != 0 {
        // SAFETY: stored below, as what was in place, which takes these.
        let found: Handler = unsafe { std::mem::transmute(found) };
        found(signal, info, context);
    }
}

fn action(function: usize, flags: c_int) -> sigaction {
    // SAFETY: numbers and a set, for which zeros are values.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = function;
    action.sa_flags = flags;
    // SAFETY: a set that is there.
    unsafe { libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1) };
    action
}

fn put_plain(flags: c_int) {
    change(Some(&action(plain as *const () as usize, flags))).unwrap();
}

/// The answer is what was in place.
fn put_detailed(passes_on: bool) -> sigaction {
    let found = change(Some(&action(detailed as *const () as usize, libc::SA_SIGINFO))).unwrap();
    FOUND.store(if passes_on { found.sa_sigaction } else { 0 }, Ordering::SeqCst);
    found
}

/// A signal of the program, to the thread itself: it has been handled when this comes back.
fn raise() {
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::raise(libc::SIGURG) }, 0);
}

fn capture(capturer: &mut Capturer) {
    let victim = Victim::computing();
    victim.check(&victim.capture_with(capturer, Way::Signal));
}

fn in_child(name: &str, f: impl FnOnce()) {
    run_in_child(&format!("{}::{name}", module_path!().split_once("::").unwrap().1), f);
}

#[test]
fn a_handler_that_was_there_before_gets_its_signals() {
    in_child("a_handler_that_was_there_before_gets_its_signals", || {
        put_plain(0);
        let mut capturer = Capturer::new(true);
        let own = change(None).unwrap();
        assert_ne!(own.sa_sigaction, plain as *const () as usize);
        assert_eq!(own.sa_flags & libc::SA_RESTART, 0, "the program wants its calls to end");
        capture(&mut capturer);
        assert_eq!(counts(), (0, 0));
        raise();
        assert_eq!(counts(), (1, 0));
        assert_eq!(MASKS.each_ref().map(|seen| seen.load(Ordering::SeqCst)), [1, 1]);
        capture(&mut capturer);
        raise();
        assert_eq!(counts(), (2, 0));
        drop(capturer);
        raise();
        assert_eq!(counts(), (3, 0));
    });
}

#[test]
fn what_a_handler_asked_for_is_kept() {
    in_child("what_a_handler_asked_for_is_kept", || {
        put_plain(libc::SA_NODEFER | libc::SA_RESETHAND | libc::SA_RESTART);
        let mut capturer = Capturer::new(true);
        let own = change(None).unwrap();
        assert_eq!(own.sa_flags & libc::SA_RESETHAND, 0);
        assert_ne!(own.sa_flags & libc::SA_RESTART, 0);
        capture(&mut capturer);
        raise();
        raise();
        assert_eq!(counts(), (1, 0), "it wanted to be called once");
        assert_eq!(MASKS.each_ref().map(|seen| seen.load(Ordering::SeqCst)), [1, 0]);
        capture(&mut capturer);
    });
}

#[test]
fn a_handler_that_was_put_over_ours_and_passes_nothing_on_gets_its_signals() {
    in_child("a_handler_that_was_put_over_ours_and_passes_nothing_on_gets_its_signals", || {
        put_plain(0);
        let mut capturer = Capturer::new(true);
        put_detailed(false);
        capture(&mut capturer);
        assert_eq!(counts(), (0, 0));
        raise();
        assert_eq!(counts(), (0, 1));
    });
}

#[test]
fn a_handler_that_was_put_over_ours_and_passes_on_makes_no_ring() {
    in_child("a_handler_that_was_put_over_ours_and_passes_on_makes_no_ring", || {
        put_plain(0);
        let mut capturer = Capturer::new(true);
        put_detailed(true);
        raise();
        assert_eq!(counts(), (1, 1));
        for _ in 0..3 {
            capture(&mut capturer);
            assert_eq!(counts(), (1, 1));
        }
        raise();
        assert_eq!(counts(), (2, 2), "each was called once");
    });
}

#[test]
fn a_handler_that_is_taken_away_again_is_called_no_more() {
    in_child("a_handler_that_is_taken_away_again_is_called_no_more", || {
        put_plain(0);
        let mut capturer = Capturer::new(true);
        let found = put_detailed(false);
        capture(&mut capturer);
        change(Some(&found)).unwrap();
        raise();
        assert_eq!(counts(), (1, 0));
        capture(&mut capturer);
        raise();
        assert_eq!(counts(), (2, 0));
    });
}

#[test]
fn a_program_that_ignores_the_signal_or_insists_has_its_way() {
    in_child("a_program_that_ignores_the_signal_or_insists_has_its_way", || {
        let mut capturer = Capturer::new(true);
        raise();
        change(Some(&action(libc::SIG_IGN, 0))).unwrap();
        capture(&mut capturer);
        raise();
        // Two levels are used up.
        for _ in 0..LEVELS - 2 {
            put_detailed(false);
            capture(&mut capturer);
        }
        raise();
        assert_eq!(counts(), (0, 1));
        put_detailed(false);
        let victim = Victim::computing();
        let error = loop {
            match victim.capture(&mut capturer) {
                // It may have no CPU.
                Err(CannotCapture::Restless | CannotCapture::NoAnswer) => {}
                answer => break answer.err(),
            }
        };
        assert_eq!(error, Some(CannotCapture::NotSent));
        let before = counts().1;
        raise();
        assert_eq!(counts().1, before + 1);
    });
}
