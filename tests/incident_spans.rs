//! Incidents as tracing sees them: one span from opened to closed, with an event for each change inside it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::thread;

use starvation::{DEFAULT_LONG_POLL, Detector, instrument_future, instrument_wait};
use support::capture::{Captured, Event, Fields, Value, subscriber};
use support::{current_thread, exclusive, multi_thread, until};
use tracing::Level;
use tracing::subscriber::set_default;

fn word(word: &str) -> Value {
    Value::Str(word.to_owned())
}

#[track_caller]
fn number(fields: &Fields, field: &str) -> i64 {
    match fields.get(field) {
        Some(Value::I64(number)) => *number,
        other => panic!("`{field}` is {other:?} in {fields:?}"),
    }
}

/// The events about an op's incidents, in order.
fn events(captured: &Captured, op: &str) -> Vec<Event> {
    let of_op = |event: &Event| event.fields.get("op") == Some(&word(op));
    captured.events().into_iter().filter(of_op).collect()
}

fn states(captured: &Captured, op: &str) -> Vec<Value> {
    events(captured, op).into_iter().filter_map(|event| event.fields.get("state").cloned()).collect()
}

#[test]
fn an_incident_is_a_span_with_its_changes_inside() {
    let _one = exclusive();
    let op = "incident_spans::wait";
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = multi_thread(1, 1);
    let _detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    let request = tracing::info_span!("request");
    let task = request.in_scope(|| runtime.spawn(instrument_wait(op, std::future::pending::<()>())));
    until("an update", || states(&captured, op).contains(&word("updated")));
    let (_, span) = captured.only("incident");
    assert!(span.closed.is_none(), "it goes on");
    task.abort();
    until("the end", || captured.only("incident").1.closed.is_some());

    let (place, span) = captured.only("incident");
    assert_eq!((span.target, span.level, span.parent), ("starvation::incident", Level::WARN, None));
    let told = events(&captured, op);
    let expected: Vec<_> = std::iter::once("opened")
        .chain(std::iter::repeat_n("updated", told.len() - 2))
        .chain(std::iter::once("closed"))
        .map(word)
        .collect();
    assert_eq!(states(&captured, op), expected);
    for (event, state) in told.iter().zip(&expected) {
        let level = if *state == word("closed") { Level::INFO } else { Level::WARN };
        assert_eq!((event.target, event.level, event.span), ("starvation::incident", level, Some(place)));
        let fields = &event.fields;
        assert_eq!((&fields["cause"], &fields["action"]), (&word("downstream_limit"), &word("look_downstream")));
        assert_eq!(number(fields, "incident"), number(&span.fields, "incident"));
        assert!(number(fields, "delay_us") >= 50_000 && number(fields, "duration_us") >= 0);
        assert!(number(fields, "opened_after_us") > 0 && number(fields, "calls") == 1);
        assert!(number(fields, "suppressed") >= 0);
        for text in ["evidence", "advice"] {
            assert!(matches!(&fields[text], Value::Str(text) if text.contains(op)), "{fields:?}");
        }
        let Value::Text(location) = &fields["location"] else { panic!("{fields:?}") };
        assert!(location.starts_with("tests/incident_spans.rs:"), "{location}");
        let Value::Text(message) = &fields["message"] else { panic!("{fields:?}") };
        assert!(message.contains(op), "a person reads the message alone: {message}");
        assert!(!fields.values().any(|value| matches!(value, Value::Wrong(_))), "{fields:?}");
    }
    // The span ends with the totals.
    let last = &told.last().unwrap().fields;
    assert_eq!(
        ["incident", "duration_us", "delay_us", "calls", "suppressed"].map(|field| number(&span.fields, field)),
        ["incident", "duration_us", "delay_us", "calls", "suppressed"].map(|field| number(last, field)),
    );
    assert_eq!((&span.fields["op"], &span.fields["cause"]), (&word(op), &word("downstream_limit")));
    assert!(number(&span.fields, "runtime") > 0);
    assert!(!span.fields.values().any(|value| matches!(value, Value::Wrong(_))), "{span:?}");
}

#[test]
fn with_a_detector_nobody_else_warns() {
    let _one = exclusive();
    let op = "incident_spans::poll";
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    until("the incident", || {
        runtime.block_on(instrument_future(op, async { thread::sleep(2 * DEFAULT_LONG_POLL) }));
        !states(&captured, op).is_empty()
    });
    drop(detector);
    until("all incidents' spans have ended", || {
        let log = captured.log();
        log.spans.iter().filter(|span| span.name == "incident").all(|span| span.closed.is_some())
    });
    let told = events(&captured, op);
    assert!(told.iter().all(|event| event.target == "starvation::incident"), "{told:#?}");
    assert_eq!(states(&captured, op).last(), Some(&word("closed")));
}

#[test]
fn whoever_wants_only_warnings_gets_incidents() {
    let _one = exclusive();
    let op = "incident_spans::warn";
    let (subscriber, captured) = subscriber(Level::WARN);
    let _guard = set_default(subscriber);
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    let task = runtime.spawn(instrument_wait(op, std::future::pending::<()>()));
    until("the opening", || states(&captured, op).contains(&word("opened")));
    task.abort();
    drop(detector);
    until("the end", || captured.only("incident").1.closed.is_some());
    let (place, span) = captured.only("incident");
    assert!(events(&captured, op).iter().all(|event| event.span == Some(place) && event.level == Level::WARN));
    assert_eq!(number(&span.fields, "calls"), 1);
}
