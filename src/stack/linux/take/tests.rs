//! Threads that sleep and compute in every way, and what is taken of them.

#![allow(clippy::unwrap_used, reason = "tests")]

mod blocked;
mod hostile;
mod storm;
mod turns;
pub(super) mod victim;

use super::asleep::{INSTRUCTION, STACK};
use crate::evidence::own_stack;
use crate::stack::{CannotCapture, Capture, Capturer, Way};
use std::thread::Builder;
use victim::{Victim, in_child};

#[test]
fn a_computing_thread_copies_its_own_stack() {
    let victim = Victim::computing();
    let mut capturer = Capturer::new(true);
    let capture = victim.capture_with(&mut capturer, Way::Signal);
    victim.check(&capture);
    assert!(capture.registers.0.iter().all(Option::is_some));
    let bounds = victim.bounds.clone().unwrap();
    assert!(bounds.contains(&capture.registers.0[STACK].unwrap()));
    assert_eq!(capturer.counts().signalled, 1);
    assert_eq!(capturer.counts().abandoned, 0);
}

#[test]
fn without_signals_a_computing_thread_is_left_alone() {
    let victim = Victim::computing();
    let mut capturer = Capturer::new(false);
    assert_eq!(victim.refusal(&mut capturer), Some(CannotCapture::Computing));
    assert_eq!(capturer.counts().computing, 1);
    assert_eq!(capturer.counts().requests(), capturer.counts().restless + 1);
}

#[test]
fn a_thread_that_is_not_known_any_more_is_gone() {
    let victim = Victim::computing();
    let mut capturer = Capturer::new(true);
    assert_eq!(capturer.capture(victim.tid, None, &|| false).err(), Some(CannotCapture::Gone));
    // It becomes unknown after it was asked for the first time.
    let asked = std::cell::Cell::new(0);
    let once = || asked.replace(asked.get() + 1) == 0;
    assert_eq!(capturer.capture(victim.tid, None, &once).err(), Some(CannotCapture::Gone));
    assert_eq!(asked.get(), 2);
    let tid = victim.tid;
    drop(victim);
    let error = loop {
        // To be joined is not yet to be gone.
        match capturer.capture(tid, None, &|| true) {
            Err(error @ CannotCapture::Gone) => break error,
            _ => std::thread::yield_now(),
        }
    };
    assert_eq!(error, CannotCapture::Gone);
}

#[test]
fn the_registers_of_a_computing_thread_are_its_own() {
    let victim = Victim::computing();
    let capture = victim.capture_with(&mut Capturer::new(true), Way::Signal);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let instruction = capture.registers.0[INSTRUCTION].unwrap();
    let of_code = maps.lines().filter(|line| line.contains(" r-xp ")).any(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        (address(start)..address(end)).contains(&instruction)
    });
    assert!(of_code, "{instruction:#x}");
}

#[test]
fn tiny_stacks_suffice() {
    let mut capturer = Capturer::new(true);
    // The standard library makes it as large as it has to be.
    let victim = Victim::start(Builder::new().stack_size(1), |victim| victim.compute());
    victim.check(&victim.capture_with(&mut capturer, Way::Signal));
    let (capture, _) = blocked::parked(Builder::new().stack_size(1), &mut capturer);
    assert!(capture.stack.len() < 64 << 10);
}

#[test]
fn a_thread_without_a_stack_for_signals_has_one_taken_all_the_same() {
    let victim = Victim::start(Builder::new().stack_size(64 << 10), |victim| {
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: takes away what the standard library has given, and the thread does not overflow.
        assert_eq!(unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) }, 0);
        victim.compute();
    });
    victim.check(&victim.capture_with(&mut Capturer::new(true), Way::Signal));
}

#[test]
fn own_stack_hold_what_is_on_the_stack() {
    let bounds = std::thread::spawn(|| {
        let local = std::hint::black_box(1_u8);
        let bounds = own_stack().unwrap();
        assert!(bounds.contains(&(std::ptr::from_ref(&local).addr() as u64)));
        bounds
    });
    let bounds = bounds.join().unwrap();
    assert!(bounds.end - bounds.start >= 16 << 10);
}

#[test]
fn captures_leave_no_file_open() {
    in_child("captures_leave_no_file_open", || {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let victim = Victim::computing();
        let mut capturer = Capturer::new(true);
        let before = open();
        for _ in 0..20 {
            let _ = victim.capture(&mut capturer);
            let _ = capturer.capture(u32::MAX, None, &|| true);
            let _ = capturer.capture(victim.tid, None, &|| false);
        }
        assert_eq!(open(), before);
    });
}

/// What one costs: `cargo test --release --features stacks --lib cost_of_a_capture -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures, asserts little"]
#[allow(clippy::print_stdout, reason = "the figures are what it is run for")]
fn cost_of_a_capture() {
    let mut capturer = Capturer::new(true);
    let rounds = 2_000;
    let mut times: Vec<_> = blocked::many(&mut capturer, rounds);
    times.sort_unstable();
    println!("asleep: median {:?}, 99 % {:?}", times[rounds / 2], times[rounds * 99 / 100]);
    let victim = Victim::computing();
    let mut times = Vec::new();
    for _ in 0..200 {
        let begin = std::time::Instant::now();
        if victim.capture(&mut capturer).is_ok() {
            times.push(begin.elapsed());
        }
    }
    times.sort_unstable();
    assert!(!times.is_empty());
    println!("computing: median {:?}, {} of 200 answered", times[times.len() / 2], times.len());
    println!("{:?}", capturer.counts());
}

fn stack_pointer(capture: &Capture) -> u64 {
    capture.registers.0[STACK].unwrap()
}
