//! A program with more runtimes and more names than there are records: nothing is lost, only told apart less.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::future::{Future, pending, ready};

use starvation::{Detector, InstrumentedWait, OpSnapshot, instrument_blocking_on, instrument_wait};
use support::{assert_phases, current_thread, eventually, exclusive, incidents_of, leak, multi_thread};
use tokio::runtime::Builder;

/// More than half of the records, and more than all.
const RUNTIMES: u64 = 2_500;
const NAMES: u64 = 4_500;

/// What is counted under when there are no records left.
const OVERFLOW: &str = "(more ops than can be told apart)";

/// One site, on whichever runtime.
fn wait<F: Future>(future: F) -> InstrumentedWait<F> {
    instrument_wait("many_ops::runtimes", future)
}

#[test]
fn what_finds_no_record_of_its_own_is_counted_all_the_same() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    for _ in 0..RUNTIMES {
        Builder::new_current_thread().build().unwrap().block_on(wait(ready(())));
    }
    let snapshot = detector.snapshot();
    let entries: Vec<&OpSnapshot> = snapshot.op("many_ops::runtimes").collect();
    assert_eq!(entries.iter().map(|entry| entry.wait.count).sum::<u64>(), RUNTIMES);
    assert!(entries.len() > 1_000 && entries.len() < 2_500, "{} entries", entries.len());
    let shared: Vec<_> = entries.iter().filter(|entry| entry.runtime.is_none()).collect();
    assert_eq!(shared.len(), 1, "the later runtimes share a record that has none");
    assert!(shared[0].wait.count > 1);
    assert_eq!(snapshot.observer.overflowed_ops, 0);

    runtime.block_on(async {
        for name in 0..NAMES {
            instrument_wait(leak(format!("many_ops::name_{name}")), ready(())).await;
        }
    });
    let snapshot = detector.snapshot();
    let named = snapshot.ops.iter().filter(|entry| entry.op.starts_with("many_ops::name_")).count() as u64;
    let rest: u64 = snapshot.op(OVERFLOW).map(|entry| entry.wait.count).sum();
    assert!(rest > 0 && named + rest == NAMES, "{named} with a record of their own, {rest} without");
    assert_eq!(snapshot.observer.overflowed_ops, rest);

    // Those without a record are timed as exactly, and whoever is stuck among them is seen.
    let pool = current_thread(1);
    let call = instrument_blocking_on(pool.handle(), "many_ops::call", || 6 * 7);
    let (result, timing) = pool.block_on(call.timed());
    assert_eq!(result.unwrap(), 42);
    assert_phases(&timing);
    let stuck = runtime.spawn(instrument_wait("many_ops::stuck", pending::<()>()));
    eventually("an incident", || incidents_of(&detector, OVERFLOW).pop());
    stuck.abort();
}
