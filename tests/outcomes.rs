//! However a blocking call ends: its phases sum to its total, its outcome is told, and it is counted once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::panic::panic_any;
use std::sync::mpsc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use starvation::{Outcome, instrument_blocking, instrument_blocking_on};
use support::{DEADLINE, Gate, MS, assert_phases, burn, current_thread, figures, multi_thread, occupy, until};
use tokio::task::JoinError;

/// Returned, panicked, cancelled, rejected, abandoned.
type Counts = [u64; 5];

fn counts(op: &str) -> Counts {
    let outcomes = figures(op).outcomes;
    [outcomes.returned, outcomes.panicked, outcomes.cancelled, outcomes.rejected, outcomes.abandoned]
}

/// The calls of `op` have ended so and no other way, and none is left in a gauge.
#[track_caller]
fn assert_ended(op: &str, expected: Counts) {
    assert_eq!(counts(op), expected, "returned, panicked, cancelled, rejected, abandoned of `{op}`");
    let figures = figures(op);
    assert_eq!((figures.queued, figures.executing, figures.oldest_queued), (0, 0, None), "gauges of `{op}`");
}

/// Tells on which thread it was dropped.
struct Dropped(mpsc::Sender<ThreadId>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

#[test]
fn a_call_that_returns() {
    let op = "outcomes::returned";
    let runtime = multi_thread(1, 1);
    let (result, timing) = runtime.block_on(async { instrument_blocking(op, || burn(20 * MS)).timed().await });
    result.unwrap();
    assert_phases(&timing);
    assert_eq!(timing.outcome, Outcome::Returned);
    assert!(timing.execution >= 19 * MS, "{timing:?}");
    if cfg!(unix) {
        assert!(timing.cpu.unwrap() >= 20 * MS, "{timing:?}");
    }
    assert_ended(op, [1, 0, 0, 0, 0]);
}

#[test]
fn a_call_that_panics_hands_on_the_payload_as_tokio_does() {
    let op = "outcomes::panicked";
    let runtime = current_thread(1);
    let fails = || panic_any(7_u32);
    let (bare, (wrapped, timing)) = runtime
        .block_on(async { (tokio::task::spawn_blocking(fails).await, instrument_blocking(op, fails).timed().await) });
    let payload = |error: JoinError| *error.into_panic().downcast::<u32>().unwrap();
    assert_eq!((payload(wrapped.unwrap_err()), payload(bare.unwrap_err())), (7, 7));
    assert_phases(&timing);
    assert_eq!(timing.outcome, Outcome::Panicked);
    assert_ended(op, [0, 1, 0, 0, 0]);
}

#[test]
fn a_call_aborted_while_queued_is_dropped_unrun_when_its_turn_comes() {
    let op = "outcomes::aborted_queued";
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    let (dropped, was_dropped) = mpsc::channel();
    let dropped = Dropped(dropped);
    let call = instrument_blocking_on(runtime.handle(), op, move || drop(dropped));
    call.abort();
    assert!(!call.is_finished(), "it stays in the queue until then");
    thread::sleep(30 * MS);
    gate.open();
    let (result, timing) = runtime.block_on(call.timed());
    assert!(result.unwrap_err().is_cancelled());
    assert!(was_dropped.recv_timeout(DEADLINE).is_ok());
    assert_phases(&timing);
    assert_eq!((timing.outcome, timing.execution, timing.cpu), (Outcome::Cancelled, Duration::ZERO, None));
    assert!(timing.queue_wait >= 29 * MS, "{timing:?}");
    assert_ended(op, [0, 0, 1, 0, 0]);
}

#[test]
fn a_call_aborted_while_it_runs_returns_all_the_same() {
    let op = "outcomes::aborted_running";
    let runtime = multi_thread(1, 1);
    let gate = Gate::default();
    let (keeper, (starts, has_started)) = (gate.keeper(), mpsc::channel());
    let call = instrument_blocking_on(runtime.handle(), op, move || {
        starts.send(()).unwrap();
        keeper.wait();
        42
    });
    has_started.recv_timeout(DEADLINE).unwrap();
    call.abort_handle().abort();
    gate.open();
    let (result, timing) = runtime.block_on(call.timed());
    assert_eq!(result.unwrap(), 42);
    assert_phases(&timing);
    assert_eq!(timing.outcome, Outcome::Returned);
    assert_ended(op, [1, 0, 0, 0, 0]);
}

#[test]
fn a_call_whose_handle_is_dropped_while_queued_runs_on_for_nobody() {
    let op = "outcomes::dropped_queued";
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    let (ran, has_run) = mpsc::channel();
    drop(instrument_blocking_on(runtime.handle(), op, move || ran.send(()).unwrap()));
    assert_eq!((counts(op), figures(op).queued), ([0; 5], 1), "queued still, not yet abandoned");
    gate.open();
    has_run.recv_timeout(DEADLINE).unwrap();
    drop(runtime);
    assert_ended(op, [1, 0, 0, 0, 1]);
}

#[test]
fn a_call_whose_handle_is_dropped_while_it_runs_runs_on_for_nobody() {
    let op = "outcomes::dropped_running";
    let runtime = current_thread(1);
    let gate = Gate::default();
    let (keeper, (starts, has_started)) = (gate.keeper(), mpsc::channel());
    let call = instrument_blocking_on(runtime.handle(), op, move || {
        starts.send(()).unwrap();
        keeper.wait();
    });
    has_started.recv_timeout(DEADLINE).unwrap();
    drop(call);
    assert_eq!((counts(op), figures(op).executing), ([0, 0, 0, 0, 1], 1), "abandoned, and running still");
    gate.open();
    drop(runtime);
    assert_ended(op, [1, 0, 0, 0, 1]);
}

#[test]
fn a_call_given_up_and_then_aborted_in_the_queue_never_ran_for_nobody() {
    let op = "outcomes::dropped_aborted";
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    let call = instrument_blocking_on(runtime.handle(), op, || ());
    let abort = call.abort_handle();
    drop(call);
    abort.abort();
    gate.open();
    drop(runtime);
    assert_ended(op, [0, 0, 1, 0, 0]);
}

#[test]
fn a_call_dropped_unrun_at_shutdown_is_cancelled() {
    const THREADS: usize = 8;
    let op = "outcomes::shutdown";
    let outside = current_thread(1);
    let start = Instant::now();
    let (mut returned, mut cancelled) = (0, 0);
    while cancelled == 0 {
        assert!(start.elapsed() < DEADLINE, "{returned} calls were all run");
        // A pool drops its queue only where an idle thread learns of the shutdown before it has taken a call. So some are
        // made idle, and then given calls and the shutdown at once, until that happens.
        let runtime = current_thread(THREADS);
        let gate = Gate::default();
        (0..THREADS).for_each(|_| occupy(runtime.handle(), &gate));
        gate.open();
        thread::sleep(MS);
        let calls: Vec<_> =
            (0..THREADS).map(|_| instrument_blocking_on(runtime.handle(), op, || thread::sleep(MS))).collect();
        runtime.shutdown_background();
        for call in calls {
            let (result, timing) = outside.block_on(call.timed());
            assert_phases(&timing);
            match result {
                Ok(()) => {
                    assert_eq!(timing.outcome, Outcome::Returned);
                    returned += 1;
                }
                Err(error) => {
                    assert!(error.is_cancelled());
                    assert_eq!(
                        (timing.outcome, timing.execution, timing.cpu),
                        (Outcome::Cancelled, Duration::ZERO, None)
                    );
                    cancelled += 1;
                }
            }
        }
    }
    // Each attempt had a runtime of its own.
    let snapshot = support::detector().snapshot();
    let ended: Vec<_> = snapshot.op(op).map(|entry| entry.outcomes).collect();
    assert_eq!(ended.iter().map(|outcomes| outcomes.returned).sum::<u64>(), returned);
    assert_eq!(ended.iter().map(|outcomes| outcomes.cancelled).sum::<u64>(), cancelled);
    assert!(snapshot.op(op).all(|entry| entry.queued == 0 && entry.executing == 0));
}

#[test]
fn a_call_made_after_the_shutdown_is_rejected_on_the_spot() {
    let op = "outcomes::rejected";
    let outside = current_thread(1);
    let runtime = multi_thread(1, 1);
    let handle = runtime.handle().clone();
    drop(runtime);
    let (dropped, was_dropped) = mpsc::channel();
    let dropped = Dropped(dropped);
    let call = instrument_blocking_on(&handle, op, move || drop(dropped));
    assert_eq!(was_dropped.try_recv(), Ok(thread::current().id()), "dropped at once, by the caller");
    assert!(call.is_finished());
    let (result, timing) = outside.block_on(call.timed());
    assert!(result.unwrap_err().is_cancelled());
    assert_phases(&timing);
    assert_eq!((timing.outcome, timing.execution, timing.cpu), (Outcome::Rejected, Duration::ZERO, None));
    assert_ended(op, [0, 0, 0, 1, 0]);
}

#[test]
fn a_call_that_is_never_awaited_is_abandoned_by_nobody_if_it_has_ended() {
    let op = "outcomes::never_awaited";
    let runtime = current_thread(1);
    let call = instrument_blocking_on(runtime.handle(), op, || ());
    until("the call ends", || call.is_finished());
    drop(call);
    assert_ended(op, [1, 0, 0, 0, 0]);
}
