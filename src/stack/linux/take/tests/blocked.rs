//! Threads that sleep in a system call.

use super::victim::Victim;
use crate::stack::{Capture, Capturer, Way};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(1_000);

/// Takes the stack of a thread that sleeps in `wait` until `free`, and checks it. `wait` answers whether it was left alone.
fn taken(wait: impl FnOnce() -> bool + Send + 'static, free: impl FnOnce()) -> Capture {
    let mut capturer = Capturer::new(true);
    let victim = Victim::start(Builder::new(), |victim| {
        victim.with_sentinel(|| assert!(wait(), "disturbed"));
    });
    let mut capture = victim.capture_with(&mut capturer, Way::Asleep);
    for _ in 0..20 {
        // Whatever it does on its way to sleep is over now.
        std::thread::yield_now();
        capture = victim.capture_with(&mut capturer, Way::Asleep);
        victim.check(&capture);
    }
    let bounds = victim.bounds.clone().unwrap();
    assert!(bounds.contains(&super::stack_pointer(&capture)));
    assert_eq!(capturer.counts().signalled, 0);
    free();
    capture
}

/// As a test needs a thread that sleeps, with a stack of some size.
pub(super) fn parked(builder: Builder, capturer: &mut Capturer) -> (Capture, u32) {
    let (own, other) = UnixStream::pair().unwrap();
    let victim = Victim::start(builder, move |victim| {
        victim.with_sentinel(|| assert_eq!((&other).read(&mut [0]).unwrap(), 0));
    });
    let capture = victim.capture_with(capturer, Way::Asleep);
    victim.check(&capture);
    drop(own);
    (capture, victim.tid)
}

/// How long each of many captures of a sleeping thread took.
pub(super) fn many(capturer: &mut Capturer, rounds: usize) -> Vec<Duration> {
    let (own, other) = UnixStream::pair().unwrap();
    let victim = Victim::start(Builder::new(), move |victim| {
        victim.with_sentinel(|| assert_eq!((&other).read(&mut [0]).unwrap(), 0));
    });
    victim.capture_with(capturer, Way::Asleep);
    let times = (0..rounds).map(|_| {
        let begin = Instant::now();
        assert!(victim.capture(capturer).is_ok());
        begin.elapsed()
    });
    let times = times.collect();
    drop(own);
    times
}

#[test]
fn in_nanosleep() {
    let mut capturer = Capturer::new(true);
    let victim = Victim::start(Builder::new(), |victim| {
        victim.with_sentinel(|| {
            while !victim.is_over.load(Ordering::Relaxed) {
                let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                // SAFETY: the pointer is valid, and what is left is not asked for.
                assert_eq!(unsafe { libc::nanosleep(&time, std::ptr::null_mut()) }, 0);
            }
        });
    });
    for _ in 0..20 {
        victim.check(&victim.capture_with(&mut capturer, Way::Asleep));
    }
    assert_eq!(capturer.counts().signalled, 0);
}

#[test]
fn at_a_mutex() {
    let lock = Arc::new(Mutex::new(()));
    let other = Arc::clone(&lock);
    let held = lock.lock().unwrap();
    taken(move || other.lock().is_ok(), || drop(held));
}

#[test]
fn at_a_condition_variable_with_a_timeout() {
    let own = Arc::new((Mutex::new(false), Condvar::new()));
    let other = Arc::clone(&own);
    let wait = move || {
        let (done, condvar) = &*other;
        !condvar.wait_timeout_while(done.lock().unwrap(), LONG, |done| !*done).unwrap().1.timed_out()
    };
    taken(wait, || {
        *own.0.lock().unwrap() = true;
        own.1.notify_all();
    });
}

#[test]
fn at_a_pipe() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    taken(move || reader.read(&mut [0]).unwrap() == 0, || drop(writer));
}

#[test]
fn at_a_socket_with_a_timeout() {
    let (mut own, mut other) = UnixStream::pair().unwrap();
    other.set_read_timeout(Some(LONG)).unwrap();
    taken(move || other.read(&mut [0]).is_ok_and(|read| read == 1), || own.write_all(b"x").unwrap());
}

#[test]
fn at_epoll_and_poll() {
    let (own, other) = UnixStream::pair().unwrap();
    let descriptor = other.as_raw_fd();
    let wait = move || {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the pointers are valid for what the calls read and write.
        unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, descriptor, &mut event);
            let ready = libc::epoll_wait(epoll, &mut event, 1, 1_000_000);
            libc::close(epoll);
            ready == 1
        }
    };
    taken(wait, || (&own).write_all(b"x").unwrap());
    (&other).read_exact(&mut [0]).unwrap();
    let wait = move || {
        let mut event = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one of these is there.
        unsafe { libc::poll(&mut event, 1, 1_000_000) == 1 }
    };
    taken(wait, || (&own).write_all(b"x").unwrap());
}

#[test]
fn with_the_signal_masked() {
    let (own, mut other) = UnixStream::pair().unwrap();
    let wait = move || {
        super::hostile::mask(libc::SIG_BLOCK);
        other.read(&mut [0]).unwrap() == 0
    };
    taken(wait, || drop(own));
}
