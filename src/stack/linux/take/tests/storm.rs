//! Threads that do all that is delicate, start and end, while they are looked at all the time.

use super::victim::{Sentinel, run_in_child, sentinels, words_at};
use crate::evidence::own_stack;
use crate::evidence::thread_id;
use crate::stack::Capturer;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const THREADS: usize = 6;

struct Known {
    tid: u32,
    bounds: Range<u64>,
    sentinel: u64,
}

#[derive(Default)]
struct Registry(Mutex<BTreeMap<u64, Known>>);

impl Registry {
    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<u64, Known>) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a thread does in one round.
fn work(round: u64) {
    match round % 7 {
        0 => drop(black_box((0..40).map(|n| vec![1_u8; 1 << (n % 18)]).collect::<Vec<_>>())),
        1 => {
            // Unwinds without a word.
            let caught = std::panic::catch_unwind(|| deep(30, &|| std::panic::resume_unwind(Box::new(7))));
            assert!(caught.is_err());
        }
        2 => {
            for name in [c"libm.so.6", c"libz.so.1", c"libresolv.so.2"] {
                // SAFETY: libraries whose initialisers do nothing; what is not there is not opened.
                unsafe {
                    let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
                    if !library.is_null() {
                        libc::dlclose(library);
                    }
                }
            }
        }
        3 => {
            use std::io::Write;
            let mut sink = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
            for n in 0..50 {
                writeln!(sink, "{n} {:?}", Some(round)).unwrap();
            }
        }
        4 => std::thread::sleep(Duration::from_micros(round % 1_000)),
        5 => drop(black_box((0..20_000_u64).fold(round, |sum, n| sum.rotate_left(3) ^ n))),
        _ => {
            std::thread::spawn(|| black_box(vec![0_u8; 4_096])).join().unwrap();
            std::thread::yield_now();
        }
    }
}

#[inline(never)]
fn deep(depth: u32, f: &dyn Fn()) {
    let room = black_box([depth; 64]);
    if depth == 0 {
        f()
    } else {
        deep(depth - 1, f)
    }
    black_box(&room);
}

/// A thread's life: it makes itself known, works and makes itself unknown before it ends.
fn live(registry: &Registry, number: u64) {
    let mut sentinel = Sentinel::empty();
    let (at, own) = sentinel.fill();
    let known = Known { tid: thread_id().unwrap(), bounds: own_stack().unwrap(), sentinel: at };
    registry.with(|all| all.insert(own, known));
    if number.is_multiple_of(4) {
        // Long enough in the midst of one thing to be sent a signal there.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(10) {
            work([0, 1, 2, 3, 5][(number / 4 % 5) as usize]);
        }
    } else {
        for round in 0..number % 40 + 5 {
            work(number.wrapping_mul(31).wrapping_add(round * 5));
        }
    }
    registry.with(|all| all.remove(&own));
    sentinel.wipe();
}

/// Ends the storm however the looking ends.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The answer is how often a thread copied its own stack.
#[allow(clippy::print_stdout, reason = "the figures are of interest")]
fn storm(requests: u64) -> u64 {
    let registry = Registry::default();
    let (is_over, started) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut capturer = Capturer::new(true);
    let (mut asked, mut taken) = (0, 0);
    std::thread::scope(|scope| {
        let _end = End(&is_over);
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let number = started.fetch_add(1, Ordering::Relaxed);
                    std::thread::scope(|scope| {
                        std::thread::Builder::new().spawn_scoped(scope, || live(&registry, number)).unwrap();
                    });
                }
            });
        }
        let mut last = 0;
        while capturer.counts().requests() < requests {
            // Each in turn.
            let next = registry.with(|all| {
                let (own, known) = all.range(last + 1..).next().or_else(|| all.iter().next())?;
                Some((*own, known.tid, known.bounds.clone(), known.sentinel))
            });
            let Some((own, tid, bounds, at)) = next else {
                std::thread::yield_now();
                continue;
            };
            last = own;
            let is_same = || registry.with(|all| all.contains_key(&own));
            asked += 1;
            if let Ok(capture) = capturer.capture(tid, Some(bounds.clone()), &is_same) {
                taken += 1;
                assert!(bounds.contains(&super::stack_pointer(&capture)));
                assert_eq!(words_at(&capture, at).map(|words| words[1]), Some(own));
                assert_eq!(sentinels(&capture), [own]);
            }
        }
    });
    let counts = capturer.counts();
    println!("{} threads; {counts:?}", started.load(Ordering::Relaxed));
    assert_eq!(counts.requests(), asked);
    assert_eq!(counts.asleep + counts.signalled, taken);
    assert_eq!(counts.refused(), asked - taken);
    assert!(counts.asleep > 0);
    assert_eq!(counts.not_supported + counts.not_visible + counts.not_readable + counts.not_sent, 0);
    counts.signalled
}

#[test]
fn a_storm_is_survived_and_nobody_is_mistaken() {
    run_in_child(&format!("{}::a_storm_is_survived_and_nobody_is_mistaken", path()), || {
        storm(2_000);
    });
}

/// `cargo test --release --features stacks --lib a_long_storm -- --ignored --nocapture`: some minutes.
#[test]
#[ignore = "takes minutes"]
fn a_long_storm_is_survived_and_nobody_is_mistaken() {
    assert!(storm(100_000) > 1_000);
}

fn path() -> &'static str {
    module_path!().split_once("::").map_or("", |(_, path)| path)
}
