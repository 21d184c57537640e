//! A process without a detector: whoever was slow is named once it is over, in one warning per op and interval.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use starvation::{DEFAULT_WARNING_INTERVAL, instrument_blocking_on, instrument_future, instrument_wait};
use support::capture::{Captured, Event, Value, subscriber};
use support::{DEADLINE, Gate, MS, current_thread};
use tracing::subscriber::set_default;
use tracing::{Level, Subscriber};

const OVER: Duration = Duration::from_millis(60);

fn watch() -> (impl Subscriber + Send + Sync, Captured) {
    subscriber(Level::INFO)
}

/// The warnings about one op.
fn warnings(captured: &Captured, op: &str) -> Vec<Event> {
    let events = captured.events();
    events.into_iter().filter(|event| event.fields.get("op") == Some(&Value::Str(op.to_owned()))).collect()
}

#[track_caller]
fn number(event: &Event, field: &str) -> i64 {
    match event.fields.get(field) {
        Some(Value::I64(number)) => *number,
        other => panic!("`{field}` is {other:?}"),
    }
}

#[track_caller]
fn text(event: &Event, field: &str) -> String {
    match event.fields.get(field) {
        Some(Value::Text(text)) => text.clone(),
        other => panic!("`{field}` is {other:?}"),
    }
}

/// Polls a future of one site that blocks its thread for a while.
async fn poll_for(op: &'static str, time: Duration) {
    instrument_future(op, async { thread::sleep(time) }).await;
}

#[test]
fn long_polls_of_an_op_are_one_warning_per_interval() {
    let op = "warnings::long_poll";
    let (subscriber, captured) = watch();
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    runtime.block_on(async {
        for _ in 0..4 {
            poll_for(op, OVER).await;
        }
    });
    let told = warnings(&captured, op);
    assert_eq!(told.len(), 1, "{told:#?}");
    let first = &told[0];
    assert_eq!((first.target, first.level), ("starvation", Level::WARN));
    assert!(number(first, "poll_duration_us") >= 59_000);
    assert_eq!(number(first, "suppressed"), 0);
    assert!(text(first, "location").starts_with("tests/warnings.rs:"));
    assert!(text(first, "message").contains(op), "{first:?}");

    // A little longer: the interval counts from the first one's end.
    thread::sleep(DEFAULT_WARNING_INTERVAL + 100 * MS);
    runtime.block_on(poll_for(op, OVER));
    let told = warnings(&captured, op);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert_eq!(number(&told[1], "suppressed"), 3, "those in between are counted");
}

#[test]
fn ops_do_not_suppress_each_other() {
    let (subscriber, captured) = watch();
    let _guard = set_default(subscriber);
    current_thread(1).block_on(async {
        poll_for("warnings::one", OVER).await;
        poll_for("warnings::other", OVER).await;
    });
    assert_eq!(warnings(&captured, "warnings::one").len(), 1);
    assert_eq!(warnings(&captured, "warnings::other").len(), 1);
}

#[test]
fn of_nested_futures_the_innermost_that_was_slow_is_named() {
    let (subscriber, captured) = watch();
    let _guard = set_default(subscriber);
    current_thread(1).block_on(instrument_future("warnings::outer", poll_for("warnings::inner", OVER)));
    assert_eq!(warnings(&captured, "warnings::inner").len(), 1);
    assert_eq!(warnings(&captured, "warnings::outer").len(), 0, "its time is the inner one's");
}

#[test]
fn calls_that_waited_longer_than_they_ran_are_one_warning() {
    let op = "warnings::queued";
    let (subscriber, captured) = watch();
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let gate = Gate::default();
    support::occupy(runtime.handle(), &gate);
    let calls: Vec<_> = (0..3).map(|_| instrument_blocking_on(runtime.handle(), op, || ())).collect();
    thread::sleep(OVER);
    gate.open();
    for call in calls {
        runtime.block_on(call).unwrap();
    }
    let told = warnings(&captured, op);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!((told[0].target, told[0].level), ("starvation", Level::WARN));
    assert!(number(&told[0], "queue_wait_us") >= 59_000);
    assert!(number(&told[0], "execution_us") < number(&told[0], "queue_wait_us"));
    assert!(text(&told[0], "message").contains(op));
}

#[test]
fn a_call_that_ran_longer_than_it_waited_is_no_warning() {
    let op = "warnings::ran_longer";
    let (subscriber, captured) = watch();
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let gate = Gate::default();
    support::occupy(runtime.handle(), &gate);
    let (started, has_started) = mpsc::channel();
    let runs = Gate::default();
    let keeper = runs.keeper();
    let call = instrument_blocking_on(runtime.handle(), op, move || {
        started.send(()).unwrap();
        keeper.wait();
    });
    let made = std::time::Instant::now();
    thread::sleep(OVER);
    gate.open();
    has_started.recv_timeout(DEADLINE).unwrap();
    // It waited no longer than this; it runs for longer.
    let waited = made.elapsed();
    thread::sleep(waited + 5 * MS);
    runs.open();
    let (_, timing) = runtime.block_on(call.timed());
    assert!(timing.queue_wait >= OVER - MS && timing.execution > timing.queue_wait, "{timing:?}");
    assert_eq!(warnings(&captured, op).len(), 0);
}

#[test]
fn a_wait_for_a_resource_is_no_warning() {
    let op = "warnings::wait";
    let (subscriber, captured) = watch();
    let _guard = set_default(subscriber);
    current_thread(1).block_on(async { instrument_wait(op, tokio::time::sleep(OVER)).await });
    assert_eq!(warnings(&captured, op).len(), 0);
}
