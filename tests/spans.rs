//! The spans of calls and futures, as a subscriber sees them that is set on the calling thread alone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::thread;
use std::time::Duration;

use futures_util::poll;
use starvation::{CallTiming, Outcome, instrument_blocking, instrument_blocking_on, instrument_future, instrument_job};
use support::capture::{Captured, Fields, Span, Value, subscriber};
use support::{Gate, MS, current_thread, multi_thread, occupy, until};
use tracing::subscriber::set_default;
use tracing::{Instrument, Level};

fn us(duration: Duration) -> Value {
    Value::I64(duration.as_micros().try_into().unwrap())
}

fn word(word: &str) -> Value {
    Value::Str(word.to_owned())
}

#[track_caller]
fn assert_site(fields: &Fields, op: &str) {
    assert_eq!(fields["op"], word(op));
    let Value::Text(location) = &fields["location"] else { panic!("{fields:?}") };
    assert!(location.starts_with("tests/spans.rs:"), "{location}");
}

/// The span of the only call, with exactly the fields that `timing` has reached.
#[track_caller]
fn assert_call(captured: &Captured, op: &str, timing: &CallTiming, awaited: bool) -> (usize, Span) {
    let (place, call) = captured.only("blocking_call");
    assert_eq!((call.target, call.level), ("starvation", Level::INFO));
    assert_eq!(
        call.declared,
        ["op", "location", "queue_wait_us", "execution_us", "cpu_us", "resume_delay_us", "unclaimed_us", "outcome"]
    );
    assert!(call.entered.is_empty(), "entered, so its end would be its last exit: {call:?}");
    assert!(call.closed.is_some(), "still open: {call:?}");
    assert_site(&call.fields, op);
    let mut expected = call.fields.clone();
    expected.retain(|field, _| ["op", "location"].contains(field));
    expected.insert("queue_wait_us", us(timing.queue_wait));
    expected.insert("outcome", word(timing.outcome.name()));
    if matches!(timing.outcome, Outcome::Returned | Outcome::Panicked) {
        expected.insert("execution_us", us(timing.execution));
    }
    if let Some(cpu) = timing.cpu {
        expected.insert("cpu_us", us(cpu));
    }
    if awaited {
        expected.insert("resume_delay_us", us(timing.resume_delay));
    } else {
        expected.insert("unclaimed_us", us(timing.unclaimed));
    }
    assert_eq!(call.fields, expected);
    (place, call)
}

/// The only span of a phase: a DEBUG child of the call without fields, ended before the call is.
#[track_caller]
fn assert_phase(captured: &Captured, name: &str, call: &(usize, Span)) -> (usize, Span) {
    let (place, phase) = captured.only(name);
    assert_eq!((phase.target, phase.level, phase.parent), ("starvation", Level::DEBUG, Some(call.0)));
    assert!(phase.declared.is_empty());
    assert!(phase.closed.unwrap() < call.1.closed.unwrap());
    (place, phase)
}

#[test]
fn a_call_is_a_span_with_a_child_for_each_phase() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    let request = tracing::info_span!("request");
    let (timing, thread) = runtime.block_on(
        async {
            let call = instrument_blocking("spans::phases", || {
                tracing::info!("inside");
                tracing::info_span!("inner").in_scope(|| thread::sleep(2 * MS));
                thread::current().id()
            });
            let mut timed = Box::pin(call.timed());
            assert!(poll!(&mut timed).is_pending());
            gate.open();
            let (result, timing) = timed.await;
            (timing, result.unwrap())
        }
        .instrument(request),
    );
    let (requests, _) = captured.only("request");
    let call = assert_call(&captured, "spans::phases", &timing, true);
    assert_eq!(call.1.parent, Some(requests));

    let (_, queue_wait) = assert_phase(&captured, "queue_wait", &call);
    let (executions, execution) = assert_phase(&captured, "execution", &call);
    let (_, resume_delay) = assert_phase(&captured, "resume_delay", &call);
    assert!(queue_wait.entered.is_empty() && resume_delay.entered.is_empty());
    assert!(queue_wait.made < queue_wait.closed.unwrap() && queue_wait.closed.unwrap() < execution.made);
    assert_eq!(execution.entered, [thread], "on the pool's thread, once");
    assert_ne!(thread, thread::current().id());
    assert!(execution.made < resume_delay.made && resume_delay.made < resume_delay.closed.unwrap());

    let events = captured.events();
    assert_eq!((events.len(), events[0].span), (1, Some(executions)), "{events:?}");
    let (_, inner) = captured.only("inner");
    assert_eq!((inner.parent, inner.entered), (Some(executions), vec![thread]));
}

#[test]
fn a_result_that_lay_ready_has_no_resume_delay() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let call = instrument_blocking_on(runtime.handle(), "spans::unclaimed", || ());
    until("the call ends", || call.is_finished());
    let (_, timing) = runtime.block_on(call.timed());
    assert_call(&captured, "spans::unclaimed", &timing, false);
    assert!(captured.all("resume_delay").is_empty());
}

#[test]
fn a_panic_is_an_outcome_like_any_other() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let gate = Gate::default();
    let keeper = gate.keeper();
    let timing = runtime.block_on(async {
        let fails = move || {
            keeper.wait();
            std::panic::resume_unwind(Box::new(()));
        };
        let mut timed = Box::pin(instrument_blocking("spans::panics", fails).timed());
        assert!(poll!(&mut timed).is_pending());
        gate.open();
        timed.await.1
    });
    let call = assert_call(&captured, "spans::panics", &timing, true);
    assert_phase(&captured, "execution", &call);
}

#[test]
fn a_call_dropped_unrun_has_a_queue_wait_and_no_execution() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    let timing = runtime.block_on(async {
        let call = instrument_blocking("spans::cancelled", || ());
        call.abort();
        let mut timed = Box::pin(call.timed());
        assert!(poll!(&mut timed).is_pending());
        gate.open();
        timed.await.1
    });
    let call = assert_call(&captured, "spans::cancelled", &timing, true);
    assert_phase(&captured, "queue_wait", &call);
    assert_phase(&captured, "resume_delay", &call);
    assert!(captured.all("execution").is_empty());
}

#[test]
fn a_call_that_runs_for_nobody_ends_its_spans_when_it_ends() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let gate = Gate::default();
    let keeper = gate.keeper();
    drop(instrument_blocking_on(runtime.handle(), "spans::abandoned", move || keeper.wait()));
    assert!(captured.only("blocking_call").1.closed.is_none());
    gate.open();
    drop(runtime);
    let (_, call) = captured.only("blocking_call");
    assert!(call.closed.is_some());
    assert_eq!(call.fields["outcome"], word("returned"));
    assert!(!call.fields.contains_key("resume_delay_us") && !call.fields.contains_key("unclaimed_us"));
}

#[test]
fn a_job_has_the_spans_of_a_call_on_whichever_thread() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let job = instrument_job("spans::job", || tracing::info!("inside"));
    thread::spawn(job).join().unwrap();
    let (place, call) = captured.only("blocking_call");
    assert_site(&call.fields, "spans::job");
    assert_eq!(call.fields["outcome"], word("returned"));
    let (executions, _) = assert_phase(&captured, "execution", &(place, call));
    assert_eq!(captured.events()[0].span, Some(executions));
}

#[test]
fn whoever_wants_only_info_gets_no_children_and_still_the_closures_events() {
    let (subscriber, captured) = subscriber(Level::INFO);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let call = instrument_blocking_on(runtime.handle(), "spans::info", || tracing::info!("inside"));
    runtime.block_on(call).unwrap();
    let names: Vec<_> = captured.log().spans.iter().map(|span| span.name).collect();
    assert_eq!((names, captured.events().len()), (vec!["blocking_call"], 1));
}

#[test]
fn whoever_wants_only_warnings_gets_nothing_of_what_is_well() {
    let (subscriber, captured) = subscriber(Level::WARN);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    runtime.block_on(instrument_future("spans::quiet", async {
        instrument_blocking("spans::quiet_call", || ()).await.unwrap();
    }));
    drop(runtime);
    let log = captured.log();
    assert!(log.spans.is_empty() && log.events.is_empty(), "{log:?}");
}

#[test]
fn without_a_subscriber_there_is_no_span_to_be_in() {
    let runtime = current_thread(1);
    let inside = || tracing::Span::current().is_none();
    runtime.block_on(instrument_future("spans::nobody", async move {
        assert!(inside() && instrument_blocking("spans::nobody_call", inside).await.unwrap());
    }));
}

#[test]
fn a_future_is_a_span_with_its_account_entered_in_each_poll() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    let request = tracing::info_span!("request");
    let watched = request.in_scope(|| {
        instrument_future("spans::future", async {
            tracing::info!("inside");
            instrument_blocking("spans::of_future", || thread::sleep(5 * MS)).await.unwrap();
        })
        .timed()
    });
    let ((), ledger) = runtime.block_on(watched);
    let (place, span) = captured.only("future");
    assert_eq!((span.target, span.level, span.parent), ("starvation", Level::INFO, Some(captured.only("request").0)));
    assert!(span.closed.is_some());
    // Once for each poll; the last one drops what is left.
    assert_eq!(span.entered, vec![thread::current().id(); usize::try_from(ledger.polls).unwrap()]);
    assert_site(&span.fields, "spans::future");
    let mut told = span.fields.clone();
    told.retain(|field, _| !["op", "location"].contains(field));
    let expected = Fields::from([
        ("polling_us", us(ledger.polling)),
        ("scheduled_us", us(ledger.scheduled)),
        ("blocking_queue_us", us(ledger.blocking_queue)),
        ("blocking_execution_us", us(ledger.blocking_execution)),
        ("waiting_us", us(ledger.waiting)),
        ("other_us", us(ledger.other)),
        ("total_us", us(ledger.total)),
        ("longest_poll_us", us(ledger.longest_poll)),
        ("polls", Value::I64(ledger.polls.try_into().unwrap())),
    ]);
    assert_eq!(told, expected);
    assert_eq!(captured.only("blocking_call").1.parent, Some(place));
    assert_eq!(captured.events()[0].span, Some(place));
}

#[test]
fn spans_end_on_threads_that_have_no_subscriber() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = multi_thread(1, 1);
    runtime.block_on(async {
        let request = tracing::info_span!("request");
        let call = request.in_scope(|| instrument_blocking("spans::elsewhere", || ()));
        let watched = request.in_scope(|| instrument_future("spans::elsewhere_future", async { call.await.unwrap() }));
        tokio::spawn(watched).await.unwrap();
    });
    drop(runtime);
    let open: Vec<_> = captured.log().spans.iter().filter(|span| span.closed.is_none()).map(|span| span.name).collect();
    assert!(open.is_empty(), "{open:?} are still open");
}

#[test]
fn an_op_without_a_name_is_shown_as_one_everywhere() {
    let (subscriber, captured) = subscriber(Level::TRACE);
    let _guard = set_default(subscriber);
    let runtime = current_thread(1);
    runtime.block_on(instrument_future("", async { instrument_blocking("", || ()).await.unwrap() }));
    assert_eq!(captured.only("blocking_call").1.fields["op"], word("(unnamed)"));
    assert_eq!(captured.only("future").1.fields["op"], word("(unnamed)"));
}
