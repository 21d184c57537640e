//! What an OpenTelemetry backend gets: every span goes through `tracing-opentelemetry` and OTLP over HTTP to a receiver
//! that knows nothing of this crate, and is judged by what arrived there.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use support::{Attributes, Event, Span};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tracing::Instrument;

const MS: Duration = Duration::from_millis(1);

/// A phase is read from a monotonic clock, its span from the system's, a few instructions apart; between the two
/// the thread may lose its processor for a scheduler's slice or two. The phases below last several times longer.
const TOLERANCE: Duration = Duration::from_millis(25);

/// One worker and one blocking thread: whoever holds one of them makes the others wait.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).max_blocking_threads(1).enable_time().build().unwrap()
}

#[track_caller]
fn assert_close(exported: Duration, measured: Duration) {
    let apart = exported.abs_diff(measured);
    assert!(apart < TOLERANCE, "{exported:?} exported, {measured:?} measured: {apart:?} apart");
}

fn micros(duration: Duration) -> i64 {
    duration.as_micros().try_into().unwrap()
}

#[track_caller]
fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name() == name).unwrap()
}

/// The only span with that name under that parent.
#[track_caller]
fn child<'a>(spans: &'a [Span], parent: &Span, name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name() == name && span.is_child_of(parent)).collect();
    assert_eq!(found.len(), 1, "`{name}` under {parent:?}, among {spans:?}");
    found[0]
}

#[test]
fn the_phases_of_a_call_arrive_as_its_children() {
    let Some(mut pipeline) = support::pipeline() else { return };
    let runtime = runtime();

    // The pool's thread is taken for 150 ms; then the closure runs for 100 ms, the last of them with the worker held,
    // and the worker is let go 150 ms later.
    let (occupied, is_occupied) = mpsc::channel();
    runtime.spawn_blocking(move || {
        occupied.send(()).unwrap();
        thread::sleep(150 * MS);
    });
    is_occupied.recv().unwrap();
    let (hold, is_asked) = oneshot::channel();
    let (held, is_held) = mpsc::channel();
    let (finish, is_finished) = mpsc::channel();
    runtime.spawn(async move {
        is_asked.await.unwrap();
        held.send(()).unwrap();
        is_finished.recv().unwrap();
        thread::sleep(150 * MS);
    });
    let work = move || {
        tracing::info_span!("inside").in_scope(|| thread::sleep(100 * MS));
        hold.send(()).unwrap();
        is_held.recv().unwrap();
        finish.send(()).unwrap();
    };
    let caller = tracing::info_span!("caller");
    let call = async { starvation::instrument_blocking("resize", work).timed().await };
    let (result, timing) = runtime.block_on(runtime.spawn(call.instrument(caller))).unwrap();
    result.unwrap();
    assert!(
        timing.queue_wait > 4 * TOLERANCE && timing.execution > 3 * TOLERANCE && timing.resume_delay > 4 * TOLERANCE,
        "{timing:?}"
    );

    let spans = pipeline.received(|span| span.name() == "caller");
    let call = child(spans, named(spans, "caller"), "blocking_call");
    let queue_wait = child(spans, call, "queue_wait");
    let execution = child(spans, call, "execution");
    let resume_delay = child(spans, call, "resume_delay");
    child(spans, execution, "inside");

    assert_close(queue_wait.duration(), timing.queue_wait);
    assert_close(execution.duration(), timing.execution);
    assert_close(resume_delay.duration(), timing.resume_delay);
    // Bars end to end, and together the call.
    assert_close(execution.start(), queue_wait.end());
    assert_close(resume_delay.start(), execution.end());
    assert_close(call.duration(), timing.total());

    assert_eq!(call.text("op"), "resize");
    assert!(call.text("location").contains(file!()), "{call:?}");
    assert_eq!(call.text("outcome"), "returned");
    assert_eq!(call.int("queue_wait_us"), micros(timing.queue_wait));
    assert_eq!(call.int("execution_us"), micros(timing.execution));
    assert_eq!(call.int("resume_delay_us"), micros(timing.resume_delay));
    if let Some(cpu) = timing.cpu {
        assert_eq!(call.int("cpu_us"), micros(cpu));
    }
}

#[test]
fn a_futures_account_arrives_as_numbers() {
    let Some(mut pipeline) = support::pipeline() else { return };
    let runtime = runtime();

    // The result lies ready before anybody asks for it: unclaimed, and no delay of the executor's.
    let work = async {
        let call = starvation::instrument_blocking("checksum", || thread::sleep(20 * MS));
        tokio::time::sleep(150 * MS).await;
        call.timed().await
    };
    let future = tracing::info_span!("handler").in_scope(|| starvation::instrument_future("request", work).timed());
    let ((result, timing), ledger) = runtime.block_on(runtime.spawn(future)).unwrap();
    result.unwrap();
    assert!(timing.unclaimed > 2 * TOLERANCE, "{timing:?}");

    let spans = pipeline.received(|span| span.name() == "handler");
    let future = child(spans, named(spans, "handler"), "future");
    assert_eq!(future.text("op"), "request");
    assert!(future.text("location").contains(file!()), "{future:?}");
    for (field, duration) in [
        ("polling_us", ledger.polling),
        ("scheduled_us", ledger.scheduled),
        ("blocking_queue_us", ledger.blocking_queue),
        ("blocking_execution_us", ledger.blocking_execution),
        ("waiting_us", ledger.waiting),
        ("other_us", ledger.other),
        ("total_us", ledger.total),
        ("longest_poll_us", ledger.longest_poll),
    ] {
        assert_eq!(future.int(field), micros(duration), "{field}");
    }
    assert_eq!(future.int("polls"), i64::try_from(ledger.polls).unwrap());
    assert_close(future.duration(), ledger.total);

    let call = child(spans, future, "blocking_call");
    assert_eq!(call.int("unclaimed_us"), micros(timing.unclaimed));
    assert!(!spans.iter().any(|span| span.name() == "resume_delay" && span.is_child_of(call)));
    assert_close(call.duration(), timing.total());
}

/// How long a worker or a thread is held: twenty times the detector's thresholds, an incident for most of that time.
const HELD: Duration = Duration::from_secs(1);

fn detector(runtime: &Runtime) -> starvation::Detector {
    let _runtime = runtime.enter();
    starvation::Detector::builder().long_poll(50 * MS).queue_wait(50 * MS).tick(5 * MS).start().unwrap()
}

fn is_incident_of(op: &str) -> impl Fn(&Span) -> bool {
    move |span| span.name() == "incident" && span.text("op") == op
}

/// The incident's first and last event: opened while `victim` went on, closed when it was over.
#[track_caller]
fn opened_and_closed<'a>(incident: &'a Span, victim: &Span) -> (Event<'a>, Event<'a>) {
    let events: Vec<_> = incident.events().collect();
    for event in &events {
        assert!(event.name().starts_with(event.text("state")), "what a person reads first: {event:?}");
        assert!((incident.start()..=incident.end()).contains(&event.time()), "outside of its span: {event:?}");
        assert_eq!(event.int("incident"), incident.int("incident"));
        assert!(event.int("calls") > 0 && event.int("delay_us") > 0 && event.int("opened_after_us") > 0, "{event:?}");
        assert_numbers(event);
    }
    assert_numbers(incident);
    assert!(incident.text("thread.name").starts_with("starvation"), "from a thread that may be stuck: {incident:?}");

    let [opened, .., closed] = events[..] else { panic!("too few events: {incident:?}") };
    assert_eq!((opened.text("state"), closed.text("state")), ("opened", "closed"));
    assert_eq!((opened.text("level"), closed.text("level")), ("WARN", "INFO"));
    assert!(opened.time() < victim.end(), "reported only afterwards: {opened:?}, {victim:?}");
    assert!(closed.time() + TOLERANCE > victim.end(), "closed before it was over: {closed:?}, {victim:?}");
    for of_both in ["cause", "detail", "op", "location"] {
        assert_eq!(incident.text(of_both), closed.text(of_both), "the span says what came out in the end");
    }
    (opened, closed)
}

/// Whatever is called a number of microseconds is one, and no attribute comes twice: OTLP forbids that, and backends
/// then keep either.
#[track_caller]
fn assert_numbers(of: &impl Attributes) {
    let mut keys: Vec<_> = of.attributes().map(|(key, _)| key).collect();
    keys.iter().filter(|key| key.ends_with("_us")).for_each(|key| assert!(of.int(key) >= 0, "{key}"));
    keys.sort_unstable();
    let unique = keys.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(unique, "an attribute comes twice: {}", of.json());
}

#[test]
fn a_poll_that_holds_its_worker_arrives_as_an_incident() {
    let Some(mut pipeline) = support::pipeline() else { return };
    let runtime = runtime();
    let detector = detector(&runtime);

    let hog = starvation::instrument_future("hog", async { thread::sleep(HELD) }).timed();
    let ((), ledger) = runtime.block_on(runtime.spawn(hog)).unwrap();

    let is_hog = |span: &Span| span.name() == "future" && span.text("op") == "hog";
    pipeline.received(is_hog);
    let spans = pipeline.received(is_incident_of("hog"));
    drop(detector);
    let hog = spans.iter().find(|span| is_hog(span)).unwrap();
    let incident = spans.iter().find(|span| is_incident_of("hog")(span)).unwrap();
    let (opened, closed) = opened_and_closed(incident, hog);
    assert_eq!(opened.text("cause"), "long_poll");
    assert_eq!(opened.text("location"), hog.text("location"));
    assert_eq!(closed.int("calls"), 1);
    assert_eq!(closed.int("delay_us"), micros(ledger.longest_poll));
}

#[test]
fn a_call_that_queues_too_long_arrives_as_an_incident() {
    let Some(mut pipeline) = support::pipeline() else { return };
    let runtime = runtime();
    let detector = detector(&runtime);

    let timing = runtime.block_on(async {
        let occupant = starvation::instrument_blocking("occupant", || thread::sleep(HELD));
        let (result, timing) = starvation::instrument_blocking("victim", || ()).timed().await;
        result.and(occupant.await).unwrap();
        timing
    });

    let is_victim = |span: &Span| span.name() == "blocking_call" && span.text("op") == "victim";
    pipeline.received(is_victim);
    let spans = pipeline.received(is_incident_of("occupant"));
    drop(detector);
    let queue_wait = child(spans, spans.iter().find(|span| is_victim(span)).unwrap(), "queue_wait");
    let incident = spans.iter().find(|span| is_incident_of("occupant")(span)).unwrap();
    let (_, closed) = opened_and_closed(incident, queue_wait);
    // How it opened is not judged here: while no call of the pool has ended, a deadlock would look the same.
    assert_eq!(closed.text("cause"), "pool_saturated");
    assert_eq!(closed.int("calls"), 1);
    assert_eq!(closed.int("delay_us"), micros(timing.queue_wait));
}
