//! What the stacks of stuck threads cost: with nothing stuck, by thread, and to compile.
//!
//! - Nothing stuck: the CPU time of the whole process for each poll of a busy runtime, with a detector that would take stacks
//!   divided by that with one that would not, in rounds next to each other; and that of the thread that takes them.
//! - A thread dump of many sleeping threads, and of threads that compute, divided by their number; the first one, which reads
//!   the program's tables of names, apart. A stack is taken, unwound and named in that time.
//! - Compiling: CPU seconds of a clean build of the library and its dependencies, with the feature less without it.
//!
//! ```text
//! cargo bench --features stacks --bench stacks
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use starvation::{Detector, Stacks, instrument_blocking_on};
use support::{Budgets, Scale, Yields, cpu_time, cpu_time_of, interleave, median, spread};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// As many as sleep, and as many as compute.
const ASLEEP: usize = 64;
const COMPUTING: usize = 2;
/// The system knows the first 15 bytes of a thread's name.
const THREAD: &str = "starvation-dump";

fn main() {
    let scale = Scale::from_args();
    let mut budgets = Budgets::default();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (rounds, each) = (scale.pick(15, 5, 1) as usize, Duration::from_millis(scale.pick(1_000, 500, 10)));
    beside_none(&mut budgets, &runtime, rounds, each);
    let detector = Detector::builder().stacks(Stacks::WithSignals).attach(runtime.handle()).start().unwrap();
    nothing_stuck(&mut budgets, &runtime, Duration::from_millis(scale.pick(5_000, 1_000, 50)));

    let start = Instant::now();
    let first = detector.stacks().unwrap();
    println!("the first dump tells {} groups of threads", first.groups.len());
    budgets.note("the first dump, of a few threads", start.elapsed().as_secs_f64() * 1e3, "ms");
    let rounds = scale.pick(50, 10, 1) as usize;
    let asleep = held(&runtime, ASLEEP, false, || dump(&detector, "asleep", ASLEEP, rounds));
    budgets.note("a sleeping thread", asleep.as_secs_f64() * 1e6, "us");
    let computing = held(&runtime, COMPUTING, true, || dump(&detector, "computing", COMPUTING, rounds));
    budgets.note("a computing thread", computing.as_secs_f64() * 1e6, "us");
    drop(detector);

    if scale.pick(true, true, false) {
        let (without, with) = (compiled(&[]), compiled(&["--features", "stacks"]));
        budgets.note("compiling without the feature", without.as_secs_f64(), "CPU s");
        budgets.promise("compiling, added by the feature", with.as_secs_f64() - without.as_secs_f64(), 8.0, "CPU s");
    }
    budgets.print("Stacks of stuck threads", scale);
}

/// Tasks that poll all the time, and of which none is stuck.
struct Busy {
    over: Arc<AtomicBool>,
    polls: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
}

impl Busy {
    fn start(runtime: &Runtime) -> Self {
        const AT_ONCE: u32 = 1_000;
        let (over, polls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tasks = (0..64)
            .map(|_| {
                let (over, polls) = (Arc::clone(&over), Arc::clone(&polls));
                runtime.spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        starvation::instrument_future("busy", Yields(AT_ONCE)).await;
                        polls.fetch_add(u64::from(AT_ONCE), Ordering::Relaxed);
                    }
                })
            })
            .collect();
        Self { over, polls, tasks }
    }

    fn stop(self, runtime: &Runtime) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            runtime.block_on(task).unwrap();
        }
    }
}

/// The CPU time that each poll costs, with stacks that would be taken and without.
fn beside_none(budgets: &mut Budgets, runtime: &Runtime, rounds: usize, each: Duration) {
    let [without, with] = interleave(rounds, |variant| {
        let builder = Detector::builder().attach(runtime.handle());
        let builder = if variant == 1 { builder.stacks(Stacks::WithSignals) } else { builder };
        let detector = builder.start().unwrap();
        let busy = Busy::start(runtime);
        // What a start costs is another thing.
        std::thread::sleep(each);
        let now = || (cpu_time(), busy.polls.load(Ordering::Relaxed));
        let (before, polled_before) = now();
        std::thread::sleep(each);
        let (after, polled) = now();
        busy.stop(runtime);
        drop(detector);
        match (before, after) {
            (Some(before), Some(after)) => (after - before).as_secs_f64() / (polled - polled_before).max(1) as f64,
            _ => f64::NAN,
        }
    });
    let ratios: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with / without).collect();
    let more: Vec<f64> = ratios.iter().map(|ratio| 100.0 * (ratio - 1.0)).collect();
    println!("nothing stuck, CPU time of a poll more than without: {}", spread(&more, "%"));
    budgets.note("nothing stuck, a poll without", median(&without) * 1e9, "CPU ns");
    budgets.promise("nothing stuck, a poll with, beside that", median(&ratios), 1.03, "x");
}

/// The thread that takes stacks, beside a runtime that is busy and in which nothing is stuck.
fn nothing_stuck(budgets: &mut Budgets, runtime: &Runtime, watched_for: Duration) {
    let busy = Busy::start(runtime);
    std::thread::sleep(watched_for / 10);
    let before = cpu_time_of(THREAD);
    std::thread::sleep(watched_for);
    let used = before.zip(cpu_time_of(THREAD)).map(|(before, after)| after.saturating_sub(before));
    busy.stop(runtime);
    let share = used.map_or(f64::NAN, |used| 100.0 * used.as_secs_f64() / watched_for.as_secs_f64());
    budgets.promise("nothing stuck, the thread that takes them", share, 0.0, "% of a core");
}

/// Holds threads of the pool, all of them asleep or computing, while `f` runs.
fn held<T>(runtime: &Runtime, threads: usize, computing: bool, f: impl FnOnce() -> T) -> T {
    let over = Arc::new(AtomicBool::new(false));
    let (release, released): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel::<()>()).unzip();
    let calls: Vec<_> = released
        .into_iter()
        .map(|released| {
            let over = Arc::clone(&over);
            let op = if computing { "computing" } else { "asleep" };
            instrument_blocking_on(runtime.handle(), op, move || {
                if computing {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                } else {
                    let _ = released.recv();
                }
            })
        })
        .collect();
    let answer = f();
    over.store(true, Ordering::Relaxed);
    drop(release);
    runtime.block_on(async {
        for call in calls {
            call.await.unwrap();
        }
    });
    answer
}

/// The time of a dump for each of the threads in question: of all that is taken nearly all are those.
fn dump(detector: &Detector, op: &str, threads: usize, rounds: usize) -> Duration {
    let of_op = |dump: &starvation::ThreadDump| {
        let groups = dump.groups.iter().filter(|group| group.op == Some(op));
        groups.map(|group| group.threads.len()).sum::<usize>()
    };
    // Until all have begun.
    while of_op(&detector.stacks().unwrap()) < threads {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            let dump = detector.stacks().unwrap();
            assert!(of_op(&dump) > 0, "{dump}");
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2] / threads as u32
}

/// The CPU time of a clean build of the library.
fn compiled(features: &[&str]) -> Duration {
    let target = std::env::temp_dir().join(format!("starvation-compiled-{}", std::process::id()));
    let before = children();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--lib", "--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    let built = build.args(features).arg("--target-dir").arg(&target).env("CARGO_INCREMENTAL", "0").status().unwrap();
    std::fs::remove_dir_all(&target).unwrap();
    assert!(built.success(), "the library does not build with {features:?}");
    children() - before
}

/// The CPU time of all children that have ended.
fn children() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for what the call fills in.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    assert_eq!(answer, 0, "the system tells of its children");
    // SAFETY: filled in, and zeroed before.
    let usage = unsafe { usage.assume_init() };
    let time = |of: libc::timeval| Duration::new(of.tv_sec as u64, of.tv_usec as u32 * 1_000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
