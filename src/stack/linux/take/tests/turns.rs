//! Threads that sleep and compute in turns, and what comes of it that they are looked at all the time.

use super::victim::Victim;
use crate::stack::Capturer;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

#[derive(Default)]
struct Disturbed {
    calls: AtomicU64,
    interrupted: AtomicU64,
    short: AtomicU64,
}

impl Disturbed {
    fn count(&self, was_interrupted: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.interrupted.fetch_add(u64::from(was_interrupted), Ordering::Relaxed);
    }
}

/// Sleeps in four ways, and computes for a while in between. `spins` is how long, of each turn.
fn turn(counts: &Disturbed, pair: &(UnixStream, UnixStream), spins: Duration) {
    use std::io::{Read, Write};
    let compute = || {
        let begin = Instant::now();
        while begin.elapsed() < spins {
            std::hint::spin_loop();
        }
    };
    let last_failed = || std::io::Error::last_os_error().kind() == ErrorKind::Interrupted;
    compute();
    let mut event = libc::pollfd { fd: pair.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one of these is there.
    let ready = unsafe { libc::poll(&mut event, 1, 1) };
    counts.count(ready < 0 && last_failed());
    compute();
    let time = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
    // SAFETY: the pointer is valid, and what is left is not asked for.
    counts.count(unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } != 0);
    compute();
    // Ends by its timeout.
    let read = (&pair.0).read(&mut [0; 8]);
    counts.count(read.is_err_and(|error| error.kind() == ErrorKind::Interrupted));
    compute();
    (&pair.1).write_all(&[1; 8]).unwrap();
    let read = (&pair.0).read(&mut [0; 8]);
    counts.count(read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted));
    counts.short.fetch_add(u64::from(read.is_ok_and(|read| read != 8)), Ordering::Relaxed);
}

/// A thread that takes such turns until it is dropped.
fn victim(spins: Duration, counts: &Arc<Disturbed>) -> Victim {
    let own = Arc::clone(counts);
    Victim::start(Builder::new(), move |victim| {
        let pair = UnixStream::pair().unwrap();
        pair.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        victim.with_sentinel(|| {
            while !victim.is_over.load(Ordering::Relaxed) {
                turn(&own, &pair, spins);
            }
        });
    })
}

fn look_at(spins: Duration, requests: u64) -> (Arc<Disturbed>, Capturer) {
    let counts = Arc::new(Disturbed::default());
    let victim = victim(spins, &counts);
    let mut capturer = Capturer::new(true);
    for number in 0..requests {
        // At another moment of its turn each time.
        std::thread::sleep(Duration::from_micros(number * 137 % 1_900));
        if let Ok(capture) = victim.capture(&mut capturer) {
            victim.check(&capture);
        }
    }
    assert_eq!(capturer.counts().requests(), requests);
    (counts, capturer)
}

#[allow(clippy::print_stdout, reason = "the figures are of interest")]
fn print(what: &str, counts: &Disturbed, capturer: &Capturer) {
    println!(
        "{what}: {} calls, {} interrupted, {} short; {:?}",
        counts.calls.load(Ordering::Relaxed),
        counts.interrupted.load(Ordering::Relaxed),
        counts.short.load(Ordering::Relaxed),
        capturer.counts()
    );
}

#[test]
fn a_thread_that_only_sleeps_is_never_disturbed() {
    let (counts, capturer) = look_at(Duration::ZERO, 400);
    print("sleeping", &counts, &capturer);
    assert_eq!(counts.interrupted.load(Ordering::Relaxed), 0);
    assert_eq!(counts.short.load(Ordering::Relaxed), 0);
}

#[test]
fn a_thread_that_sleeps_and_computes_in_turns_goes_on() {
    for spins in [300, 3_000, 9_000] {
        let (counts, capturer) = look_at(Duration::from_micros(spins), 60);
        print(&format!("computing for {spins} us in between"), &counts, &capturer);
        assert!(counts.calls.load(Ordering::Relaxed) > 0);
        assert_eq!(counts.short.load(Ordering::Relaxed), 0);
        // An answer that came is one of a signal to a thread that computed; some may have slept by then.
        assert!(
            counts.interrupted.load(Ordering::Relaxed) <= capturer.counts().signalled + capturer.counts().no_answer
        );
    }
}

/// Many at once are watched for a million of their calls:
/// `cargo test --release --features stacks --lib a_million_calls -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn a_million_calls() {
    const CALLS: u64 = 1_000_000;
    for (threads, spins) in [(64, 0), (16, 20), (4, 3_000)] {
        let counts = Arc::new(Disturbed::default());
        let victims: Vec<Victim> = (0..threads).map(|_| victim(Duration::from_micros(spins), &counts)).collect();
        let mut capturer = Capturer::new(true);
        let (begin, mut requests) = (Instant::now(), 0);
        // Those that compute for long make few calls: they are watched for minutes.
        while counts.calls.load(Ordering::Relaxed) < CALLS && begin.elapsed() < Duration::from_secs(120) {
            for victim in &victims {
                requests += 1;
                if let Ok(capture) = victim.capture(&mut capturer) {
                    victim.check(&capture);
                }
            }
        }
        print(&format!("{threads} threads, computing for {spins} us in between"), &counts, &capturer);
        assert_eq!((capturer.counts().requests(), counts.short.load(Ordering::Relaxed)), (requests, 0));
        if spins == 0 {
            assert_eq!(counts.interrupted.load(Ordering::Relaxed), 0);
        }
    }
}
