//! Bytes per call in flight, growth over ten million calls, allocations per poll and per call.
//!
//! A global allocator counts every allocation and every live byte of the process; what the same work costs bare is taken
//! off. A detector runs all the time, so what its own thread allocates counts as well, which is why the allocation counts are
//! means over many.
//!
//! - In flight: a million calls queue behind one occupied thread. Counted are the live bytes while they wait, with the
//!   handle that the caller holds and with Tokio's own queue on both sides.
//! - Growth: ten million calls in batches of a thousand; the live bytes after each million, the median of the last three
//!   over the median of the first three. A few kilobytes are noise of thread-local buffers.
//! - Allocations: one future polled a million times; a hundred thousand calls one by one.
//!
//! ```text
//! cargo bench --bench memory
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use futures_util::future::join_all;
use support::{Budgets, Scale, Yields, median};
use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn_blocking;

const NOISE_BYTES: f64 = 16_384.0;

#[global_allocator]
static COUNTED: Counted = Counted;
static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

fn main() {
    let scale = Scale::from_args();
    let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
    let guard = runtime.enter();
    let detector = starvation::Detector::builder().window(Duration::from_secs(1)).start().unwrap();
    drop(guard);
    let mut budgets = Budgets::default();

    allocations(&mut budgets, scale, &runtime);
    in_flight(&mut budgets, scale, &detector);
    growth(&mut budgets, scale, &runtime);

    drop(detector);
    budgets.print("Memory", scale);
}

fn allocations(budgets: &mut Budgets, scale: Scale, runtime: &Runtime) {
    let polls = scale.pick(1_000_000, 100_000, 1_000);
    let bare = count(|| runtime.block_on(runtime.spawn(Yields(polls))).unwrap());
    let ours = count(|| {
        runtime.block_on(runtime.spawn(starvation::instrument_future("yields", Yields(polls)))).unwrap();
    });
    let per_poll = (ours - bare) / f64::from(polls);
    println!("{polls} polls: {bare} allocations bare, {ours} instrumented");
    budgets.promise("allocations added per poll (to 0.001)", (per_poll * 1e3).round() / 1e3, 0.0, "");

    let calls = scale.pick(100_000, 10_000, 100);
    let bare = async move {
        for _ in 0..calls {
            spawn_blocking(|| ()).await.unwrap();
        }
    };
    let ours = async move {
        for _ in 0..calls {
            starvation::instrument_blocking("call", || ()).await.unwrap();
        }
    };
    let bare = count(|| runtime.block_on(runtime.spawn(bare)).unwrap());
    let ours = count(|| runtime.block_on(runtime.spawn(ours)).unwrap());
    let per_call = (ours - bare) / f64::from(calls);
    println!("{calls} calls: {bare} allocations bare, {ours} instrumented");
    budgets.promise("allocations added per call (to 0.01)", (per_call * 1e2).round() / 1e2, 1.0, "");
}

fn in_flight(budgets: &mut Budgets, scale: Scale, detector: &starvation::Detector) {
    let calls = scale.pick(1_000_000, 100_000, 1_000);
    let bare = queued(detector, calls, || spawn_blocking(|| ()));
    let ours = queued(detector, calls, || starvation::instrument_blocking("queued", || ()));
    println!("{calls} calls queued: {bare:.1} bytes per call bare, {ours:.1} instrumented");
    budgets.promise("added per call in flight, handle included", ours - bare, 128.0, "bytes");
}

/// Live bytes per call while `calls` of them wait behind an occupied thread.
fn queued<H>(detector: &starvation::Detector, calls: u32, call: impl Fn() -> H) -> f64 {
    let runtime = Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    detector.attach(runtime.handle()).unwrap();
    let _guard = runtime.enter();
    let (release, released) = mpsc::channel::<()>();
    let (occupy, occupied) = mpsc::channel::<()>();
    let occupant = spawn_blocking(move || {
        occupy.send(()).unwrap();
        released.recv().unwrap();
    });
    occupied.recv().unwrap();
    drop(call()); // what the first call of a site sets up

    let before = live_bytes();
    let mut handles = Vec::with_capacity(calls as usize);
    handles.extend((0..calls).map(|_| call()));
    let bytes = live_bytes() - before;

    drop(handles);
    release.send(()).unwrap();
    runtime.block_on(occupant).unwrap();
    bytes / f64::from(calls)
}

fn growth(budgets: &mut Budgets, scale: Scale, runtime: &Runtime) {
    let million = scale.pick(1_000_000, 100_000, 1_000); // a tenth of them all
    let live: Vec<_> = (0..10)
        .map(|_| {
            let calls = async move {
                for _ in 0..million / 1_000 {
                    join_all((0..1_000).map(|_| starvation::instrument_blocking("many", || ()))).await;
                }
            };
            runtime.block_on(runtime.spawn(calls)).unwrap();
            std::thread::sleep(Duration::from_millis(scale.pick(200, 50, 0)));
            live_bytes()
        })
        .collect();
    let grown = median(&live[7..]) - median(&live[..3]);
    println!("live bytes after each tenth of {} calls: {live:?}", 10 * million);
    let beyond_noise = if grown.abs() <= NOISE_BYTES { 0.0 } else { grown };
    budgets.note(format!("growth over the last seven tenths of {} calls", 10 * million), grown, "bytes");
    budgets.promise(format!("the same beyond {NOISE_BYTES} bytes of noise"), beyond_noise, 0.0, "bytes");
}

fn count(work: impl FnOnce()) -> f64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    (ALLOCATIONS.load(Ordering::Relaxed) - before) as f64
}

fn live_bytes() -> f64 {
    LIVE_BYTES.load(Ordering::Relaxed) as f64
}

/// The system's allocator, counting.
struct Counted;

// SAFETY: every call goes to `System` unchanged; the counters are atomics and never allocate.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE_BYTES.fetch_add(size, Ordering::Relaxed);
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
