//! What `instrument_future` adds to a poll, next to what `tokio_metrics::TaskMonitor::instrument` adds and to what two
//! `Instant::now()` cost; and what `hooks` adds, which has a part in polls only under `--cfg tokio_unstable`.
//!
//! A round runs eight tasks bare, instrumented by this crate, by tokio-metrics, with two clock reads around each poll, and
//! bare on a runtime that `hooks` has prepared, one after the other in one process; what is compared is the median over the rounds of each round's difference to the
//! bare run, so that a drift of the machine cancels. All tasks share one op and one monitor, and on the runtime of two
//! workers both write to it. Measured without a detector first, then with one that runs and watches both runtimes.
//!
//! Two kinds of tasks, because being woken costs something, too: "yields" wakes itself in its poll and is pending, 2000
//! times; "relay" is two tasks that wake each other in turn, as those do that talk over a channel.
//!
//! Two workers: nanoseconds are wall time times two workers over polls. Both must have a core: how many cores the
//! process had is printed, and where they were fewer the figure says so, for then nothing is ever written by two at once.
//!
//! ```text
//! cargo bench --bench poll
//! RUSTFLAGS="--cfg tokio_unstable" cargo bench --bench poll
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::task::AtomicWaker;
use support::{Budgets, Scale, Yields, added, cpu_time, interleave, median, nanos_each, spread, start_detector};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_metrics::TaskMonitor;

const TASKS: u32 = 8;
const BARE: usize = 0;
const OURS: usize = 1;
const TOKIO_METRICS: usize = 2;
const TWO_INSTANTS: usize = 3;
const HOOKS: usize = 4;

#[derive(Clone, Copy)]
enum Kind {
    Yields,
    Relay,
}

fn main() {
    let scale = Scale::from_args();
    let builders: [fn() -> Builder; 2] = [Builder::new_current_thread, || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2);
        builder
    }];
    let runtimes = [("one worker", 1, builders[0]), ("two workers", 2, builders[1])].map(|(name, workers, builder)| {
        let bare = builder().enable_all().build().unwrap();
        let hooked = starvation::hooks(builder().enable_all()).build().unwrap();
        (name, workers, [bare, hooked])
    });
    let mut budgets = Budgets::default();
    let mut compare_all = |observed: &str| {
        for (workers, count, pair) in &runtimes {
            for (kind_name, kind) in [("yields", Kind::Yields), ("relay", Kind::Relay)] {
                compare(&mut budgets, scale, &format!("{workers}, {observed}, {kind_name}"), *count, pair, kind);
            }
        }
    };

    compare_all("no detector");
    let [(_, _, [first, _]), _] = &runtimes;
    let detector = start_detector(first);
    for runtime in runtimes.iter().flat_map(|(_, _, runtimes)| runtimes).skip(1) {
        detector.attach(runtime.handle()).unwrap();
    }
    compare_all("detector running");
    drop(detector);

    budgets.print("Added per poll, as a multiple of what tokio-metrics adds", scale);
}

fn compare(budgets: &mut Budgets, scale: Scale, name: &str, workers: u32, runtimes: &[Runtime; 2], kind: Kind) {
    let polls = scale.pick(2000, 2000, 20);
    let monitor = TaskMonitor::new();
    let measure =
        |variant| f64::from(workers) * round(&runtimes[usize::from(variant == HOOKS)], kind, variant, polls, &monitor);

    interleave::<5>(scale.pick(20, 5, 1), measure);
    let (cpu_before, start) = (cpu_time(), Instant::now());
    let columns = interleave::<5>(scale.pick(250, 30, 2), measure);
    let cores = cpu_time()
        .zip(cpu_before)
        .map(|(after, before)| after.saturating_sub(before).as_secs_f64() / start.elapsed().as_secs_f64());

    let [ours, tokio_metrics, two_instants, hooks] =
        [OURS, TOKIO_METRICS, TWO_INSTANTS, HOOKS].map(|variant| added(&columns[variant], &columns[BARE]));
    println!("{name}: nanoseconds per poll, median (95 % sure)");
    println!("  bare future              {}", spread(&columns[BARE], "ns"));
    println!("  instrument_future adds   {}", spread(&ours, "ns"));
    println!("  tokio-metrics adds       {}", spread(&tokio_metrics, "ns"));
    println!("  two Instant::now() add   {}", spread(&two_instants, "ns"));
    println!("  hooks add                {}", spread(&hooks, "ns"));

    let mut name = name.to_owned();
    if let Some(cores) = cores {
        println!("  cores in use             {cores:.2}");
        if cores < 0.8 * f64::from(workers) {
            name += &format!(" (on {cores:.1} cores only)");
        }
    }
    budgets.promise(format!("{name}: instrument_future"), median(&ours) / median(&tokio_metrics), 0.30, "x");
    budgets.note(format!("{name}: two Instant::now()"), median(&two_instants) / median(&tokio_metrics), "x");
    // A park and an unpark of a worker cost something without the flag, too: what is promised is of polls.
    let hooks = median(&hooks) / median(&tokio_metrics);
    if cfg!(tokio_unstable) {
        budgets.promise(format!("{name}: hooks"), hooks, 0.05, "x");
    } else {
        budgets.note(format!("{name}: hooks"), hooks, "x");
    }
}

/// Nanoseconds of wall time per poll.
fn round(runtime: &Runtime, kind: Kind, variant: usize, polls: u32, monitor: &TaskMonitor) -> f64 {
    let start = Instant::now();
    runtime.block_on(async {
        let tasks: Vec<_> = match kind {
            Kind::Yields => (0..TASKS).map(|_| spawn(variant, monitor, Yields(polls))).collect(),
            Kind::Relay => {
                (0..TASKS / 2).flat_map(|_| Relay::pair(polls)).map(|relay| spawn(variant, monitor, relay)).collect()
            }
        };
        for task in tasks {
            task.await.unwrap();
        }
    });
    nanos_each(start.elapsed(), TASKS * (polls + 1))
}

fn spawn(
    variant: usize,
    monitor: &TaskMonitor,
    task: impl Future<Output = ()> + Unpin + Send + 'static,
) -> JoinHandle<()> {
    match variant {
        BARE | HOOKS => tokio::spawn(task),
        OURS => tokio::spawn(starvation::instrument_future("poll", task)),
        TOKIO_METRICS => tokio::spawn(monitor.instrument(task)),
        _ => tokio::spawn(TwoInstants(task)),
    }
}

struct TwoInstants<F>(F);

impl<F: Future + Unpin> Future for TwoInstants<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        black_box(Instant::now());
        let poll = Pin::new(&mut self.0).poll(cx);
        black_box(Instant::now());
        poll
    }
}

/// One of two tasks that take turns: whose turn it is passes it on and wakes the other.
struct Relay {
    track: Arc<Track>,
    me: usize,
    turns_left: u32,
}

#[derive(Default)]
struct Track {
    turn: AtomicUsize,
    waiting: [AtomicWaker; 2],
}

impl Relay {
    fn pair(turns: u32) -> [Self; 2] {
        let track = Arc::<Track>::default();
        [0, 1].map(|me| Self { track: track.clone(), me, turns_left: turns })
    }
}

impl Future for Relay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (me, other) = (self.me, 1 - self.me);
        self.track.waiting[me].register(cx.waker());
        if self.track.turn.load(Ordering::Acquire) != me {
            return Poll::Pending;
        }
        self.track.turn.store(other, Ordering::Release);
        self.track.waiting[other].wake();
        if self.turns_left == 0 {
            return Poll::Ready(());
        }
        self.turns_left -= 1;
        Poll::Pending
    }
}
