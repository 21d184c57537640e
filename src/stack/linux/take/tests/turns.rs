//! Threads that sleep and compute in turns, and what comes of it that they are looked at all the time.

use super::victim::Victim;
use crate::stack::Capturer;
use std::io::{ErrorKind, Read, Write};
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

/// How long is computed before a call: one time of so many for long.
#[derive(Clone, Copy)]
struct Spins {
    usual: Duration,
    long: Duration,
}

impl Spins {
    const LONG_ONE_IN: u64 = 16;

    fn always(time: Duration) -> Self {
        Self { usual: time, long: time }
    }

    fn before(self, call: u64) {
        // Neither always the same of the calls of a turn, nor one after the other.
        let is_long = (call * 7 + call / 11).is_multiple_of(Self::LONG_ONE_IN);
        let (begin, time) = (Instant::now(), if is_long { self.long } else { self.usual });
        while begin.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

/// What a victim reads from: where nothing comes before its timeout, and where each byte is answered in two pieces.
struct Sockets {
    silent: (UnixStream, UnixStream),
    answering: UnixStream,
}

const PIECE: usize = 8;

impl Sockets {
    fn new() -> Self {
        let silent = UnixStream::pair().unwrap();
        silent.0.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let (answering, mut other) = UnixStream::pair().unwrap();
        // Ends when the victim does.
        std::thread::spawn(move || {
            while other.read(&mut [0]).is_ok_and(|read| read == 1) {
                let first = other.write_all(&[1; PIECE]);
                std::thread::sleep(Duration::from_micros(200));
                if first.and_then(|()| other.write_all(&[2; PIECE])).is_err() {
                    break;
                }
            }
        });
        Self { silent, answering }
    }
}

/// Sleeps in five ways, and computes for a while before each.
fn turn(counts: &Disturbed, sockets: &Sockets, spins: Spins, number: u64) {
    let mut call = number * 5;
    let mut compute = || {
        spins.before(call);
        call += 1;
    };
    let last_failed = || std::io::Error::last_os_error().kind() == ErrorKind::Interrupted;
    let silent = &sockets.silent;
    compute();
    let mut event = libc::pollfd { fd: silent.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one of these is there.
    let ready = unsafe { libc::poll(&mut event, 1, 1) };
    counts.count(ready < 0 && last_failed());
    compute();
    let time = libc::timespec { tv_sec: 0, tv_nsec: 500_000 };
    // SAFETY: the pointer is valid, and what is left is not asked for.
    counts.count(unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } != 0);
    compute();
    // Ends by its timeout.
    let read = (&silent.0).read(&mut [0; 8]);
    counts.count(read.is_err_and(|error| error.kind() == ErrorKind::Interrupted));
    compute();
    (&silent.1).write_all(&[1; 8]).unwrap();
    let read = (&silent.0).read(&mut [0; 8]);
    counts.count(read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted));
    counts.short.fetch_add(u64::from(read.is_ok_and(|read| read != 8)), Ordering::Relaxed);
    compute();
    // Wants all of an answer, and sleeps when it has the first piece: were it disturbed then, it would come back with that.
    (&sockets.answering).write_all(&[0]).unwrap();
    let mut answer = [0_u8; 2 * PIECE];
    let (socket, into) = (sockets.answering.as_raw_fd(), answer.as_mut_ptr().cast());
    // SAFETY: the pointer is valid for as much as is asked for.
    let read = unsafe { libc::recv(socket, into, answer.len(), libc::MSG_WAITALL) };
    counts.count(read < 0 && last_failed());
    let read = usize::try_from(read).unwrap_or(0);
    counts.short.fetch_add(u64::from(read > 0 && read < answer.len()), Ordering::Relaxed);
    // Whatever came of it, the next answer begins with its own first piece.
    if let Some(rest) = answer.get_mut(read..) {
        (&sockets.answering).read_exact(rest).unwrap();
    }
}

/// A thread that takes such turns until it is dropped.
fn victim(spins: Spins, counts: &Arc<Disturbed>) -> Victim {
    let own = Arc::clone(counts);
    Victim::start(Builder::new(), move |victim| {
        let sockets = Sockets::new();
        victim.with_sentinel(|| {
            for number in 0.. {
                if victim.is_over.load(Ordering::Relaxed) {
                    break;
                }
                turn(&own, &sockets, spins, number);
            }
        });
    })
}

fn look_at(spins: Duration, requests: u64) -> (Arc<Disturbed>, Capturer) {
    let counts = Arc::new(Disturbed::default());
    let victim = victim(Spins::always(spins), &counts);
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
        // An answer that came is one of a signal to a thread that computed; some may have slept by then.
        let disturbed = counts.interrupted.load(Ordering::Relaxed) + counts.short.load(Ordering::Relaxed);
        assert!(disturbed <= capturer.counts().signalled + capturer.counts().no_answer);
    }
}

/// Many at once are watched all the time, for a million of their calls: some that only sleep, and some that compute in
/// between, now and then for so long that they are sent signals.
/// `cargo test --release --features stacks --lib a_million_calls -- --ignored --nocapture`: some ten minutes on two cores.
#[test]
#[ignore = "takes minutes"]
fn a_million_calls() {
    const CALLS: u64 = 1_000_000;
    let computing = Spins { usual: Duration::from_micros(20), long: Duration::from_millis(4) };
    for (threads, spins) in [(64, Spins::always(Duration::ZERO)), (16, computing)] {
        let counts = Arc::new(Disturbed::default());
        let victims: Vec<Victim> = (0..threads).map(|_| victim(spins, &counts)).collect();
        let mut capturer = Capturer::new(true);
        let mut requests = 0;
        while counts.calls.load(Ordering::Relaxed) < CALLS {
            for victim in &victims {
                requests += 1;
                if let Ok(capture) = victim.capture(&mut capturer) {
                    victim.check(&capture);
                }
            }
        }
        print(&format!("{threads} threads, computing for {:?} or {:?}", spins.usual, spins.long), &counts, &capturer);
        assert_eq!(capturer.counts().requests(), requests);
        let disturbed = counts.interrupted.load(Ordering::Relaxed) + counts.short.load(Ordering::Relaxed);
        let (signalled, late) = (capturer.counts().signalled, capturer.counts().no_answer);
        if spins.long.is_zero() {
            assert_eq!(disturbed, 0);
        } else {
            assert!(signalled > 0, "nobody was sent anything that could disturb");
            assert!(disturbed <= signalled + late);
        }
    }
}
