//! The observing thread's share of a core, with nothing in flight and busy.
//!
//! The thread's own CPU time, as the detector's snapshot reports it, over the wall time of a few seconds; on Linux checked
//! against what the kernel's scheduler says about the thread of that name. Beside it runs a thread that only wakes up as
//! often and does nothing: what that costs is the machine's price for a tick, not the observer's work. Three loads:
//!
//! - nothing in flight: a runtime that does nothing;
//! - busy: two workers that poll 64 instrumented tasks over 16 ops all the time, while eight of the tasks make blocking calls;
//! - a long queue: a hundred thousand calls wait behind one occupied thread of another runtime for the whole time.
//!
//! ```text
//! cargo bench --bench observer
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use starvation::Detector;
use support::{Budgets, Scale, Yields, cpu_time_of, start_detector};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, spawn_blocking};

const OPS: [&str; 16] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];

fn main() {
    let scale = Scale::from_args();
    let watched_for = Duration::from_millis(scale.pick(5_000, 1_000, 50));
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let small_pool = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).build().unwrap();
    let detector = start_detector(&runtime);
    detector.attach(small_pool.handle()).unwrap();
    let mut budgets = Budgets::default();

    // What a start costs is not what idleness does.
    std::thread::sleep(Duration::from_millis(scale.pick(2_000, 2_000, 50)));
    share(&mut budgets, &detector, watched_for, "nothing in flight", 0.1);

    let load = Load::start(&runtime);
    share(&mut budgets, &detector, watched_for, "busy", 1.0);
    load.stop(&runtime);

    let queue = LongQueue::start(&small_pool, scale.pick(100_000, 100_000, 100));
    share(&mut budgets, &detector, watched_for, "100,000 calls queued", 1.0);
    queue.stop(&small_pool);

    drop(detector);
    budgets.print("The observing thread, in per cent of a core", scale);
}

fn share(budgets: &mut Budgets, detector: &Detector, watched_for: Duration, load: &str, at_most: f64) {
    let looks = || detector.snapshot().observer.ticks;
    let (before, start) = (looks(), Instant::now());
    std::thread::sleep(watched_for / 8);
    let period = start.elapsed().div_f64((looks() - before).max(1) as f64);

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleeper = || {
            while !over.load(Ordering::Relaxed) {
                std::thread::park_timeout(period);
            }
        };
        std::thread::Builder::new().name("sleeper".into()).spawn_scoped(scope, sleeper).unwrap();
        std::thread::sleep(period);

        let (before, start) = (Usage::now(detector), Instant::now());
        std::thread::sleep(watched_for);
        let (after, wall) = (Usage::now(detector), start.elapsed());
        over.store(true, Ordering::Relaxed);

        let percent = |before: Option<Duration>, after: Option<Duration>| match (before, after) {
            (Some(before), Some(after)) => 100.0 * after.saturating_sub(before).as_secs_f64() / wall.as_secs_f64(),
            _ => f64::NAN,
        };
        println!("{load}: {:.0} ticks a second", (after.ticks - before.ticks) as f64 / wall.as_secs_f64());
        budgets.promise(load, percent(before.told, after.told), at_most, "%");
        budgets.note(format!("{load}, by the kernel"), percent(before.kernel, after.kernel), "%");
        budgets.note(format!("{load}, a thread that only wakes up"), percent(before.sleeper, after.sleeper), "%");
    });
}

/// What has been used up to now.
struct Usage {
    told: Option<Duration>,
    kernel: Option<Duration>,
    sleeper: Option<Duration>,
    ticks: u64,
}

impl Usage {
    fn now(detector: &Detector) -> Self {
        let observer = detector.snapshot().observer;
        Self {
            told: observer.cpu,
            kernel: cpu_time_of("starvation"),
            sleeper: cpu_time_of("sleeper"),
            ticks: observer.ticks,
        }
    }
}

struct Load {
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(runtime: &Runtime) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let tasks = (0..64)
            .map(|n| {
                let (op, over) = (OPS[n % OPS.len()], over.clone());
                runtime.spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        starvation::instrument_future(op, Yields(1_000)).await;
                        if n % 8 == 0 {
                            starvation::instrument_blocking(op, || ()).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        Self { over, tasks }
    }

    fn stop(self, runtime: &Runtime) {
        self.over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            runtime.block_on(task).unwrap();
        }
    }
}

struct LongQueue {
    release: mpsc::Sender<()>,
    occupant: JoinHandle<()>,
    _calls: Vec<starvation::BlockingCall<()>>,
}

impl LongQueue {
    fn start(runtime: &Runtime, calls: usize) -> Self {
        let _guard = runtime.enter();
        let (release, released) = mpsc::channel::<()>();
        let occupant = spawn_blocking(move || released.recv().unwrap());
        let calls = (0..calls).map(|_| starvation::instrument_blocking("queued", || ())).collect();
        Self { release, occupant, _calls: calls }
    }

    fn stop(self, runtime: &Runtime) {
        self.release.send(()).unwrap();
        runtime.block_on(self.occupant).unwrap();
    }
}
