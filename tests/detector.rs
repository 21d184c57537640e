//! The detector as a part of a program: how it starts and stops, what it refuses, what its figures tell.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use starvation::{
    AttachError, Cause, Detector, IncidentChange, StartError, State, instrument_blocking, instrument_blocking_on,
    instrument_future, instrument_wait,
};
use support::{DEADLINE, Gate, MS, current_thread, eventually, exclusive, incidents_of, multi_thread, until};
use tokio::runtime::Runtime;

fn number(runtime: &Runtime) -> Option<u64> {
    runtime.handle().id().to_string().parse().ok()
}

/// Drops the detector on another thread, and fails if that takes for ever.
#[track_caller]
fn drop_promptly(detector: Detector) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        drop(detector);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(DEADLINE).expect("the drop hangs");
}

#[test]
fn it_attaches_to_the_runtime_that_it_is_started_in() {
    let _one = exclusive();
    let runtime = multi_thread(2, 1);
    let detector = runtime.block_on(async { Detector::start().unwrap() });
    let snapshot = detector.snapshot();
    assert_eq!(snapshot.runtimes.len(), 1);
    assert_eq!((snapshot.runtimes[0].runtime, snapshot.runtimes[0].workers), (number(&runtime), 2));
}

#[test]
fn without_a_runtime_it_says_what_to_do() {
    let _one = exclusive();
    let error = Detector::start().unwrap_err();
    assert!(matches!(error, StartError::NoRuntime));
    assert!(error.to_string().contains("Builder::attach"), "{error}");
    // And takes no place from one that can start.
    let runtime = current_thread(1);
    Detector::builder().attach(runtime.handle()).start().unwrap();
}

#[test]
fn there_is_one_at_a_time() {
    let _one = exclusive();
    let runtime = current_thread(1);
    let start = || Detector::builder().attach(runtime.handle()).start();
    let first = start().unwrap();
    let error = start().unwrap_err();
    assert!(matches!(error, StartError::AlreadyRunning));
    assert!(error.to_string().contains("attach"), "{error}");
    drop(first);
    drop(start().unwrap());
    drop(start().unwrap());
}

#[test]
fn zero_is_refused_by_the_name_of_the_setting() {
    let _one = exclusive();
    let runtime = current_thread(1);
    let builder = || Detector::builder().attach(runtime.handle());
    for (name, builder) in [
        ("long_poll", builder().long_poll(Duration::ZERO)),
        ("queue_wait", builder().queue_wait(Duration::ZERO)),
        ("tick", builder().tick(Duration::ZERO)),
        ("window", builder().window(Duration::ZERO)),
        ("long_poll_of", builder().long_poll_of("detector::zero", Duration::ZERO)),
        ("queue_wait_of", builder().queue_wait_of("detector::zero", Duration::ZERO)),
    ] {
        let error = builder.start().map(drop).expect_err(name);
        assert!(matches!(error, StartError::Zero(what) if what == name), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    builder().warm_up(Duration::ZERO).start().unwrap();
}

#[test]
fn for_ever_is_a_duration_like_any_other() {
    let _one = exclusive();
    let runtime = current_thread(1);
    for round in 0..6 {
        let mut builder = Detector::builder().attach(runtime.handle());
        builder = match round {
            0 => builder.long_poll(Duration::MAX).queue_wait(Duration::MAX),
            1 => builder.tick(Duration::MAX),
            2 => builder.warm_up(Duration::MAX),
            3 => builder.window(Duration::MAX),
            4 => builder.long_poll_of("detector::for_ever", Duration::MAX).long_poll(Duration::MAX),
            _ => builder.tick(Duration::from_nanos(1)).long_poll(Duration::from_nanos(1)),
        };
        let detector = builder.start().unwrap();
        runtime.block_on(instrument_future("detector::for_ever", async {
            instrument_blocking("detector::for_ever_call", || thread::sleep(MS)).await.unwrap();
            thread::sleep(60 * MS);
        }));
        if round == 3 {
            let incident = eventually("an incident that has closed", || {
                runtime.block_on(instrument_future("detector::for_ever", async { thread::sleep(60 * MS) }));
                thread::sleep(150 * MS);
                incidents_of(&detector, "detector::for_ever").into_iter().find(|i| i.state == State::Closed)
            });
            assert_eq!(detector.diagnose().cause, incident.cause, "a window without end holds all that ever was");
        }
        let _ = (detector.diagnose(), detector.snapshot());
        drop_promptly(detector);
    }
}

#[test]
fn it_attaches_to_more_runtimes_and_to_each_once() {
    let _one = exclusive();
    let (first, second) = (current_thread(1), multi_thread(1, 1));
    let detector = Detector::builder().attach(first.handle()).start().unwrap();
    assert_eq!(detector.attach(first.handle()), Err(AttachError::AlreadyAttached));
    assert_eq!(detector.attach(second.handle()), Ok(()));
    let error = detector.attach(second.handle()).unwrap_err();
    assert!(error.to_string().contains("already"), "{error}");
    let told: Vec<_> = detector.snapshot().runtimes.iter().map(|runtime| runtime.runtime).collect();
    assert_eq!(told, [number(&first), number(&second)]);
    assert!(detector.detach(first.handle()) && !detector.detach(first.handle()));
    assert_eq!(detector.snapshot().runtimes.len(), 1);
    assert_eq!(detector.attach(first.handle()), Ok(()));
    drop(detector);

    let detector = Detector::builder().attach(first.handle()).attach(first.handle()).start().unwrap();
    assert_eq!(detector.snapshot().runtimes.len(), 1, "attached twice before the start is attached once");
}

#[test]
fn a_fault_in_one_runtime_is_not_the_others() {
    fn call(runtime: &Runtime, gate: Option<&Gate>) -> starvation::BlockingCall<()> {
        let keeper = gate.map(Gate::keeper);
        instrument_blocking_on(runtime.handle(), "detector::apart", move || {
            if let Some(keeper) = keeper {
                keeper.wait();
            }
        })
    }

    let _one = exclusive();
    let (sick, well) = (current_thread(1), current_thread(1));
    let detector = Detector::builder().attach(sick.handle()).attach(well.handle()).start().unwrap();
    let gate = Gate::default();
    let _held = call(&sick, Some(&gate));
    let _queued = call(&sick, None);
    well.block_on(call(&well, None)).unwrap();
    let incident = eventually("an incident", || incidents_of(&detector, "detector::apart").pop());
    assert_eq!(incident.runtime, number(&sick));
    let snapshot = detector.snapshot();
    let of = |runtime| snapshot.op("detector::apart").find(|entry| entry.runtime == number(runtime)).unwrap();
    assert_eq!((of(&sick).queued, of(&sick).executing, of(&sick).outcomes.returned), (1, 1, 0));
    assert_eq!((of(&well).queued, of(&well).executing, of(&well).outcomes.returned), (0, 0, 1));
    assert!(of(&sick).oldest_queued.is_some() && of(&well).oldest_queued.is_none());
}

#[test]
fn a_runtime_may_shut_down_under_it() {
    let _one = exclusive();
    let (gone, stays) = (multi_thread(1, 1), multi_thread(1, 1));
    let detector = Detector::builder().attach(gone.handle()).attach(stays.handle()).start().unwrap();
    let watched = || instrument_wait("detector::shut_down", std::future::pending::<()>());
    gone.spawn(watched());
    let of_gone = eventually("an incident", || incidents_of(&detector, "detector::shut_down").pop());
    drop(gone);
    eventually("it ends with its runtime", || {
        incidents_of(&detector, "detector::shut_down")
            .into_iter()
            .find(|i| i.id == of_gone.id && i.state == State::Closed)
    });
    until("what has shut down is let go of", || detector.snapshot().runtimes.len() == 1);
    stays.spawn(watched());
    eventually("the other is still watched", || {
        incidents_of(&detector, "detector::shut_down").into_iter().find(|i| i.runtime == number(&stays))
    });
}

#[test]
fn dropping_it_closes_what_is_open_and_waits_for_no_sink() {
    let _one = exclusive();
    let op = "detector::dropped";
    let runtime = multi_thread(1, 1);
    let gate = Gate::default();
    let hangs = gate.keeper();
    let detector =
        Detector::builder().sink(move |_: &IncidentChange| hangs.wait()).attach(runtime.handle()).start().unwrap();
    let mut changes = detector.subscribe();
    let task = runtime.spawn(instrument_wait(op, std::future::pending::<()>()));
    let opened = changes.recv_timeout(DEADLINE).unwrap();
    assert_eq!((opened.incident().op, opened.incident().state), (Some(op), State::Open));
    drop_promptly(detector);
    assert!(!task.is_finished(), "it is open until then");
    let rest: Vec<_> = std::iter::from_fn(|| changes.recv_timeout(DEADLINE)).collect();
    let Some(IncidentChange::Closed(closed)) = rest.last() else { panic!("{rest:#?}") };
    assert_eq!((closed.id, closed.state), (opened.incident().id, State::Closed));
    // Its place is free again at once.
    Detector::builder().attach(runtime.handle()).start().unwrap();
}

#[test]
fn a_subscription_gets_all_from_then_on_and_ends_with_the_detector() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    let (mut first, mut second) = (detector.subscribe(), detector.subscribe());
    drop(detector.subscribe());
    assert!(first.try_recv().is_none());
    assert!(first.recv_timeout(10 * MS).is_none());
    let task = runtime.spawn(instrument_wait("detector::subscribed", std::future::pending::<()>()));
    let told = runtime.block_on(first.recv()).unwrap();
    assert_eq!(told.incident().op, Some("detector::subscribed"));
    assert_eq!(second.recv_timeout(DEADLINE).unwrap().incident().id, told.incident().id);
    task.abort();
    eventually("the closing", || first.try_recv().filter(|change| matches!(change, IncidentChange::Closed(_))));
    drop(detector);
    assert!(runtime.block_on(first.recv()).is_none());
}

#[test]
fn two_snapshots_tell_what_was_in_between() {
    fn call(runtime: &Runtime) {
        runtime.block_on(async {
            instrument_blocking("detector::since", || thread::sleep(2 * MS)).await.unwrap();
        });
    }

    let _one = exclusive();
    let runtime = current_thread(1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    (0..3).for_each(|_| call(&runtime));
    let earlier = detector.snapshot();
    (0..2).for_each(|_| call(&runtime));
    let later = detector.snapshot();
    let between = later.since(&earlier);
    let of = |snapshot: &starvation::Snapshot| snapshot.op("detector::since").next().unwrap().clone();
    let told = of(&between);
    assert_eq!((told.outcomes.returned, told.execution.count, told.queue_wait.count), (2, 2, 2));
    assert_eq!(told.execution.sum, of(&later).execution.sum - of(&earlier).execution.sum);
    assert!(told.execution.max.unwrap() >= 2 * MS && told.execution.p50.unwrap() <= told.execution.max.unwrap());
    assert!(later.elapsed_since(&earlier) >= 4 * MS);
    let reversed = earlier.since(&later);
    assert_eq!((of(&reversed).outcomes.returned, of(&reversed).execution.count), (0, 0));
    assert_eq!(earlier.elapsed_since(&later), Duration::ZERO);
}

#[test]
fn it_tells_what_it_costs() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    runtime.spawn(instrument_wait("detector::cost", std::future::pending::<()>()));
    let earlier = detector.snapshot().observer;
    until("it looks", || detector.snapshot().observer.ticks >= earlier.ticks + 5);
    let later = detector.snapshot().observer;
    if cfg!(unix) {
        assert!(later.cpu.unwrap() > earlier.cpu.unwrap_or_default());
    }
    assert!(later.lateness >= later.longest_lateness && later.late_ticks <= later.ticks, "{later:?}");
    assert_eq!((later.dropped_reports, later.failed_reports, later.overflowed_ops), (0, 0, 0));
}

#[test]
fn an_op_without_a_name_is_shown_as_one() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    runtime.spawn(instrument_wait("", std::future::pending::<()>()));
    eventually("an incident", || incidents_of(&detector, "(unnamed)").pop());
    assert!(detector.snapshot().op("(unnamed)").any(|entry| entry.pending_waits == 1));
}

#[test]
fn what_was_wrong_is_told_for_a_window() {
    let _one = exclusive();
    let runtime = current_thread(1);
    let detector = Detector::builder().window(500 * MS).attach(runtime.handle()).start().unwrap();
    assert_eq!(detector.diagnose().cause, Cause::Healthy);
    let block = || runtime.block_on(instrument_future("detector::window", async { thread::sleep(60 * MS) }));
    eventually("a diagnosis", || {
        block();
        (detector.diagnose().cause == Cause::LongPoll).then_some(())
    });
    until("it is healthy again", || detector.diagnose().cause == Cause::Healthy);
    assert!(!incidents_of(&detector, "detector::window").is_empty(), "which is not forgotten");
}

#[test]
fn threads_can_be_prepared_before_their_first_poll() {
    let _one = exclusive();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    starvation::hooks(builder.worker_threads(1).enable_all());
    let runtime = builder.build().unwrap();
    let sum = runtime.block_on(async {
        let call = async { instrument_blocking("detector::hooked", || 6 * 7).await.unwrap() };
        tokio::spawn(instrument_future("detector::hooked_future", call)).await.unwrap()
    });
    assert_eq!(sum, 42);
}
