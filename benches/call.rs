//! What `instrument_blocking` adds to one call, next to a bare `tokio::task::spawn_blocking` round trip.
//!
//! A round makes one empty call by either wrapper and awaits it. A round trip takes a few microseconds or, when a core has
//! to be woken up for it, many more, and which of the two is the rule depends on the machine and its mood. The budget
//! is held against the quick ones: of the rounds in which neither call took more than three times what the quickest bare
//! ones take, the median of the difference over the median of the bare round trip. The share of the means of all rounds
//! is printed beside it. The pool thread stays alive between calls, so what is paid is the hand-over there and back, not
//! a thread's birth. The same once more with 64 calls in flight at a time. No budget is held against those two.
//!
//! Measured without a subscriber, without and with a detector, and then with a subscriber that keeps every span in a
//! registry and counts them.
//!
//! ```text
//! cargo bench --bench call
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use futures_util::future::join_all;
use support::{Budgets, Scale, added, interleave, median, nanos_each, quantile, spread, start_detector};
use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn_blocking;
use tracing::{Id, Subscriber, span::Attributes};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

const BARE: usize = 0;

fn main() {
    let scale = Scale::from_args();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut budgets = Budgets::default();

    compare(&mut budgets, scale, &runtime, "no subscriber, no detector", Some(5.0));

    let detector = start_detector(&runtime);
    compare(&mut budgets, scale, &runtime, "no subscriber, detector running", Some(5.0));
    drop(detector);

    let spans = Arc::new(AtomicU64::new(0));
    let subscriber = tracing_subscriber::registry().with(CountSpans(spans.clone()));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    compare(&mut budgets, scale, &runtime, "with a subscriber", None);
    println!("  the subscriber saw {} spans", spans.load(Ordering::Relaxed));

    budgets.print("Added per call, in per cent of a bare spawn_blocking", scale);
}

fn compare(budgets: &mut Budgets, scale: Scale, runtime: &Runtime, name: &str, at_most: Option<f64>) {
    println!("{name}: per call, median (95 % sure)");

    let measure = |variant| runtime.block_on(runtime.spawn(single(variant))).unwrap();
    interleave::<2>(scale.pick(1_000, 100, 1), measure);
    let [bare, ours] = interleave::<2>(scale.pick(60_000, 5_000, 2), measure);
    let (quick_bare, quick_more) = quick_rounds(&bare, &ours);
    println!("  one by one:    bare {}, added {}", spread(&quick_bare, "ns"), spread(&quick_more, "ns"));
    println!("                 quick were {:.0} % of the rounds", 100.0 * quick_bare.len() as f64 / bare.len() as f64);
    let share = 100.0 * median(&quick_more) / median(&quick_bare);
    match at_most {
        Some(at_most) => budgets.promise(format!("one by one, {name}"), share, at_most, "%"),
        None => budgets.note(format!("one by one, {name}"), share, "%"),
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    budgets.note(format!("all rounds, {name}, means"), 100.0 * mean(&added(&ours, &bare)) / mean(&bare), "%");

    let measure = |variant| runtime.block_on(runtime.spawn(at_once(variant, 64))).unwrap();
    interleave::<2>(scale.pick(100, 20, 1), measure);
    let [bare, ours] = interleave::<2>(scale.pick(5_000, 200, 2), measure);
    let more = added(&ours, &bare);
    println!("  64 at a time:  bare {}, added {}", spread(&bare, "ns"), spread(&more, "ns"));
    budgets.note(format!("64 at a time, {name}"), 100.0 * median(&more) / median(&bare), "%");
}

/// Of the rounds in which no core had to be woken up: the bare call, and what ours took more.
fn quick_rounds(bare: &[f64], ours: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let quick = 3.0 * quantile(bare, 0.05);
    let rounds = bare.iter().zip(ours).filter(|&(&bare, &ours)| bare <= quick && ours <= quick);
    rounds.map(|(bare, ours)| (*bare, ours - bare)).unzip()
}

async fn single(variant: usize) -> f64 {
    let start = Instant::now();
    match variant {
        BARE => spawn_blocking(|| ()).await.unwrap(),
        _ => starvation::instrument_blocking("call", || ()).await.unwrap(),
    }
    nanos_each(start.elapsed(), 1)
}

async fn at_once(variant: usize, calls: u32) -> f64 {
    let start = Instant::now();
    match variant {
        BARE => drop(join_all((0..calls).map(|_| spawn_blocking(|| ()))).await),
        _ => drop(join_all((0..calls).map(|_| starvation::instrument_blocking("flood", || ()))).await),
    }
    nanos_each(start.elapsed(), calls)
}

struct CountSpans(Arc<AtomicU64>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for CountSpans {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
