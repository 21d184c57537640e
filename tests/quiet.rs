//! What is well is not reported: long work where it belongs, tiny work, slowness on purpose, the first moments.
//!
//! The limits here are wide, so that a busy machine does not make a real fault of what should be none.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use starvation::{
    Builder, Cause, DEFAULT_QUEUE_WAIT, Detector, instrument_blocking, instrument_blocking_on, instrument_future,
    instrument_job, instrument_wait,
};
use support::{
    Gate, MS, burn, current_thread, eventually, exclusive, incidents_of, leak, multi_thread, occupy, until,
    until_started,
};
use tokio::runtime::Runtime;
use tokio::time::sleep;

const LIMIT: Duration = Duration::from_millis(300);

fn patient(runtime: &Runtime) -> Builder {
    Detector::builder().long_poll(LIMIT).queue_wait(LIMIT).attach(runtime.handle())
}

/// The observer has looked a few more times: what it would report it has reported.
#[track_caller]
fn looked(detector: &Detector) {
    let before = detector.snapshot().observer.ticks;
    until("the observer looks", || {
        // Where nothing begins it sleeps.
        drop(instrument_job("quiet::begins", || ()));
        detector.snapshot().observer.ticks >= before + 2
    });
}

#[track_caller]
fn assert_quiet(detector: &Detector, ops: &[&str]) {
    looked(detector);
    for op in ops {
        assert!(incidents_of(detector, op).is_empty(), "{:#?}", incidents_of(detector, op));
    }
}

#[test]
fn one_long_call_that_nobody_waits_behind() {
    let _one = exclusive();
    let runtime = multi_thread(1, 2);
    let detector = patient(&runtime).start().unwrap();
    let call = || instrument_blocking("quiet::long_call", || thread::sleep(3 * LIMIT));
    runtime.block_on(instrument_future("quiet::asks_for_it", async { call().await.unwrap() }));
    assert_quiet(&detector, &["quiet::long_call", "quiet::asks_for_it"]);
    assert_eq!(detector.diagnose().cause, Cause::Healthy);
}

#[test]
fn thousands_of_calls_that_are_shorter_than_their_waits() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = patient(&runtime).start().unwrap();
    runtime.block_on(async {
        for _ in 0..200 {
            join_all((0..10).map(|_| instrument_blocking("quiet::tiny", || ()))).await;
        }
    });
    assert_quiet(&detector, &["quiet::tiny"]);
    let snapshot = detector.snapshot();
    let tiny = snapshot.op("quiet::tiny").next().unwrap();
    assert!(tiny.queue_wait.sum > tiny.execution.sum, "by the ratio alone they would be starved: {tiny:?}");
}

#[test]
fn a_healthy_mixed_load() {
    let _one = exclusive();
    let runtime = multi_thread(2, 4);
    let detector = patient(&runtime).start().unwrap();
    runtime.block_on(async {
        let permits = tokio::sync::Semaphore::new(2);
        let request = |number: u64| {
            let permits = &permits;
            instrument_future("quiet::request", async move {
                sleep(Duration::from_millis(number % 7)).await;
                burn(Duration::from_micros(200));
                let permit = instrument_wait("quiet::permit", permits.acquire()).await.unwrap();
                instrument_blocking("quiet::io", || thread::sleep(MS)).await.unwrap();
                drop(permit);
                instrument_blocking("quiet::cpu", || burn(Duration::from_micros(100))).await.unwrap();
            })
        };
        for _ in 0..20 {
            join_all((0..10).map(request)).await;
        }
    });
    assert_quiet(&detector, &["quiet::request", "quiet::permit", "quiet::io", "quiet::cpu"]);
}

#[test]
fn a_call_that_waited_long_and_ran_longer() {
    let _one = exclusive();
    let runtime = current_thread(1);
    let detector = Detector::builder().tick(1_000 * MS).attach(runtime.handle()).start().unwrap();
    let ticks = || detector.snapshot().observer.ticks;
    until("the observer has begun", || ticks() > 0);
    let call = |op| instrument_blocking_on(runtime.handle(), op, || thread::sleep(6 * DEFAULT_QUEUE_WAIT));
    // Judged by itself where it is the first of its op, and else by what the earlier ones took.
    let ops = [0, 1].map(|earlier_ones| {
        // What still waits for too long is an incident, rightly. So it must be over before the observer looks again.
        let as_planned = (0..20).find_map(|attempt| {
            let op = leak(format!("quiet::ran_longer_{earlier_ones}_{attempt}"));
            for earlier in (0..earlier_ones).map(|_| call(op)) {
                runtime.block_on(earlier).unwrap();
            }
            let before = ticks();
            let gate = Gate::default();
            occupy(runtime.handle(), &gate);
            let waits = call(op);
            thread::sleep(2 * DEFAULT_QUEUE_WAIT);
            gate.open();
            let (_, timing) = runtime.block_on(waits.timed());
            let as_planned = timing.execution > timing.queue_wait && ticks() == before;
            until("the observer looks", || ticks() > before);
            as_planned.then_some(op)
        });
        as_planned.expect("the observer always came in between")
    });
    assert_quiet(&detector, &ops);
}

#[test]
fn a_poll_on_a_thread_of_the_pool_holds_up_no_worker() {
    let _one = exclusive();
    let runtime = multi_thread(1, 2);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    let handle = runtime.handle().clone();
    let call = instrument_blocking_on(runtime.handle(), "quiet::blocks_on", move || {
        handle.block_on(instrument_future("quiet::blocked_on", async { thread::sleep(100 * MS) }));
    });
    runtime.block_on(call).unwrap();
    assert_quiet(&detector, &["quiet::blocked_on", "quiet::blocks_on"]);
    let snapshot = detector.snapshot();
    let polls = snapshot.op("quiet::blocked_on").next().unwrap();
    assert!(polls.long_polls == 0 && polls.poll_duration.max.unwrap() >= 95 * MS, "{polls:?}");
}

#[test]
fn a_poll_that_may_be_slow_is_not_told_as_what_nobody_wrapped() {
    let _one = exclusive();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = starvation::hooks(builder.worker_threads(2).enable_all()).build().unwrap();
    until_started(&runtime);
    let may = Detector::builder().long_poll_of("quiet::may_be_slow", Duration::MAX);
    let detector = may.attach(runtime.handle()).start().unwrap();
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.spawn(instrument_future("quiet::may_be_slow", async move { keeper.wait() }));
    // The same by what nobody wrapped, on the other worker, is told, and of that alone.
    let keeper = gate.keeper();
    runtime.spawn(async move { keeper.wait() });
    let unwrapped = || {
        // Where threads are short of CPUs it is not said that it was a poll.
        let is_it = |cause| matches!(cause, Cause::LongPoll | Cause::Undetermined);
        detector.incidents().into_iter().find(|incident| incident.op.is_none() && is_it(incident.cause))
    };
    let incident = eventually("what nobody wrapped", unwrapped);
    thread::sleep(300 * MS);
    let told = unwrapped().unwrap_or(incident);
    gate.open();
    assert_eq!(told.calls, 1, "{told}");
    assert_quiet(&detector, &["quiet::may_be_slow"]);
}

#[test]
fn ops_that_may_be_slow_on_purpose() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder()
        .long_poll_of("quiet::slow_poll", Duration::MAX)
        .queue_wait_of("quiet::slow_wait", Duration::MAX)
        .queue_wait_of("quiet::slow_queue", Duration::MAX)
        .attach(runtime.handle())
        .start()
        .unwrap();
    let gate = Gate::default();
    let keeper = gate.keeper();
    let held = instrument_blocking_on(runtime.handle(), "quiet::slow_holder", move || keeper.wait());
    let queued = instrument_blocking_on(runtime.handle(), "quiet::slow_queue", || ());
    let waits = runtime.spawn(instrument_wait("quiet::slow_wait", std::future::pending::<()>()));
    // Others of the same kinds, which may not: once they are seen, these were looked at as well.
    let fast_wait = runtime.spawn(instrument_wait("quiet::fast_wait", std::future::pending::<()>()));
    let seen = |op| eventually(op, || incidents_of(&detector, op).pop());
    // Before the worker is blocked: whether a wait is over nobody knows of a runtime that is stuck.
    seen("quiet::fast_wait");
    let keeper = gate.keeper();
    runtime.spawn(instrument_future("quiet::slow_poll", async { thread::sleep(100 * MS) }));
    runtime.spawn(instrument_future("quiet::fast_poll", async move { keeper.wait() }));
    seen("quiet::fast_poll");
    gate.open();
    waits.abort();
    fast_wait.abort();
    runtime.block_on(async {
        held.await.unwrap();
        queued.await.unwrap();
    });
    assert_quiet(&detector, &["quiet::slow_poll", "quiet::slow_wait", "quiet::slow_queue"]);
    let snapshot = detector.snapshot();
    assert_eq!(snapshot.op("quiet::slow_poll").next().unwrap().long_polls, 0);
}

#[test]
fn limits_of_one_detector_are_not_those_of_the_next() {
    let _one = exclusive();
    let op = "quiet::once_slow";
    let runtime = multi_thread(1, 1);
    let start = |builder: Builder| builder.attach(runtime.handle()).start().unwrap();
    let block = || runtime.block_on(instrument_future(op, async { thread::sleep(60 * MS) }));

    let detector = start(Detector::builder().long_poll_of(op, Duration::MAX));
    block();
    assert_quiet(&detector, &[op]);
    drop(detector);

    let detector = start(Detector::builder());
    // What ends before its first look is not its business.
    eventually("an incident", || {
        block();
        incidents_of(&detector, op).pop()
    });
}

#[test]
fn the_first_moments_of_a_process_that_warms_up() {
    let _one = exclusive();
    let op = "quiet::warm_up";
    let warm_up = 400 * MS;
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().warm_up(warm_up).attach(runtime.handle()).start().unwrap();
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.spawn(instrument_future(op, async move { keeper.wait() }));
    let incident = eventually("an incident after the warm-up", || incidents_of(&detector, op).pop());
    assert!(incident.opened_after >= warm_up, "{incident:?}");
}

#[test]
fn what_happened_before_the_detector_came() {
    let _one = exclusive();
    let op = "quiet::before";
    let runtime = current_thread(1);
    runtime.block_on(instrument_future(op, async { thread::sleep(60 * MS) }));
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    assert_quiet(&detector, &[op]);
    assert_eq!(detector.snapshot().op(op).next().unwrap().long_polls, 1, "but it is in the figures");
}
