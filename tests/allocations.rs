//! What the wrappers allocate: nothing in a poll, one record for a call.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use starvation::{Detector, instrument_blocking, instrument_future, instrument_wait};
use support::{current_thread, exclusive, multi_thread};

/// The system's allocator, counting.
struct Counting;

static ALL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // Without a destructor and with a constant start: it can be used inside of an allocation.
    static HERE: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALL.fetch_add(1, Ordering::Relaxed);
    HERE.with(|here| here.set(here.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const POLLS: u64 = 10_000;

/// Wakes itself until it was polled so often; tells how often this thread has allocated since the `from`th poll.
async fn allocations_from(from: u64) -> u64 {
    let (mut polls, mut start) = (0, 0);
    poll_fn(|context| {
        polls += 1;
        let now = HERE.with(Cell::get);
        if polls == from {
            start = now;
        }
        if polls == from + POLLS {
            return Poll::Ready(now - start);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[test]
fn a_poll_allocates_nothing_after_a_threads_first_of_that_op() {
    let _one = exclusive();
    for observed in [false, true] {
        let runtime = multi_thread(1, 1);
        let detector = observed.then(|| Detector::builder().attach(runtime.handle()).start().unwrap());
        // Tokio itself grows its queues in the first polls.
        let watched = || instrument_future("allocations::poll", allocations_from(100));
        let spawned = runtime.block_on(async { tokio::spawn(watched()).await.unwrap() });
        let nested = runtime.block_on(instrument_future("allocations::outer", watched()));
        let waited = runtime.block_on(instrument_wait("allocations::wait", allocations_from(100)));
        assert_eq!((spawned, nested, waited), (0, 0, 0), "with a detector: {observed}");
        drop(detector);
    }
}

const CALLS: u64 = 2_000;

/// How many allocations of all threads a run of calls takes.
fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALL.load(Ordering::Relaxed);
    run();
    ALL.load(Ordering::Relaxed) - before
}

#[test]
fn a_call_allocates_one_record() {
    let _one = exclusive();
    let runtime = current_thread(1);
    let bare = || {
        runtime.block_on(async {
            for _ in 0..CALLS {
                tokio::task::spawn_blocking(|| ()).await.unwrap();
            }
        });
    };
    let wrapped = |calls| async move {
        for _ in 0..calls {
            instrument_blocking("allocations::call", || ()).await.unwrap();
        }
    };
    // Threads and ops are met here.
    bare();
    runtime.block_on(wrapped(CALLS));
    let watched = instrument_future("allocations::around", wrapped(CALLS));

    let bare = allocations(bare);
    let alone = allocations(|| runtime.block_on(wrapped(CALLS)));
    let inside = allocations(|| runtime.block_on(watched));
    for (what, with) in [("alone", alone), ("inside a watched future", inside)] {
        let added = (with as f64 - bare as f64) / CALLS as f64;
        // The test harness has threads of its own: a hundredth of an allocation a call is not the call's.
        assert!((added - 1.0).abs() < 0.01, "{what}: {added} allocations a call");
    }
}
