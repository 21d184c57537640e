//! The crate holds up nobody: neither the program nor the observer waits for whoever takes the reports.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::{env, process, thread};

use starvation::{Detector, IncidentChange, SINK_CAPACITY, instrument_blocking_on, instrument_future, instrument_wait};
use support::{DEADLINE, Gate, Keeper, MS, eventually, exclusive, incidents_of, leak, multi_thread, until};
use tokio::runtime::Runtime;
use tracing_subscriber::prelude::*;

/// The observer goes on: its figures move, what is newly stuck becomes an incident, and the subscribers are told.
#[track_caller]
fn assert_goes_on(detector: &Detector, runtime: &Runtime, names: [&'static str; 2]) {
    let mut changes = detector.subscribe();
    for op in names {
        let before = detector.snapshot().observer.ticks;
        let task = runtime.spawn(instrument_wait(op, std::future::pending::<()>()));
        eventually(op, || incidents_of(detector, op).pop());
        eventually(op, || changes.try_recv().filter(|change| change.incident().op == Some(op)));
        until("the observer looks", || detector.snapshot().observer.ticks > before + 5);
        task.abort();
    }
    // And the runtime is at nobody's mercy either.
    let (result, timing) =
        runtime.block_on(instrument_blocking_on(runtime.handle(), "harmless::call", || 6 * 7).timed());
    assert_eq!(result.unwrap(), 42);
    support::assert_phases(&timing);
}

/// Makes more reports than a sink or a subscription holds, of as many kinds, since of one kind few are reported.
#[track_caller]
fn flood(detector: &Detector, runtime: &Runtime, test: &str) {
    let waits: Vec<_> = (0..SINK_CAPACITY)
        .map(|kind| {
            let op = leak(format!("harmless::{test}_{kind}"));
            runtime.spawn(instrument_wait(op, std::future::pending::<()>()))
        })
        .collect();
    until("reports are dropped", || detector.snapshot().observer.dropped_reports > 0);
    let observer = detector.snapshot().observer;
    assert!(observer.unopened_incidents > 0, "not all can be open at once: {observer:?}");
    waits.iter().for_each(|wait| wait.abort());
}

#[test]
fn a_sink_that_hangs_holds_up_nobody() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let gate = Gate::default();
    let keeper = gate.keeper();
    let (told, reports) = std::sync::mpsc::channel();
    let detector = Detector::builder()
        .sink(move |_: &IncidentChange| {
            told.send(()).unwrap();
            keeper.wait();
        })
        .attach(runtime.handle())
        .start()
        .unwrap();
    assert_goes_on(&detector, &runtime, ["harmless::sink_first", "harmless::sink_second"]);
    reports.recv_timeout(DEADLINE).expect("it hangs in its first report");
    flood(&detector, &runtime, "sink");
    assert_goes_on(&detector, &runtime, ["harmless::sink_third", "harmless::sink_fourth"]);
    assert!(reports.try_recv().is_err(), "it has not been given another");
}

#[test]
fn a_sink_that_panics_gets_the_next_report_all_the_same() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let detector = Detector::builder()
        .sink(move |_: &IncidentChange| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new(()));
        })
        .attach(runtime.handle())
        .start()
        .unwrap();
    assert_goes_on(&detector, &runtime, ["harmless::panic_first", "harmless::panic_second"]);
    until("two reports", || calls.load(Ordering::Relaxed) >= 2);
    until("they are counted", || detector.snapshot().observer.failed_reports >= 2);
}

#[test]
fn a_subscription_that_nobody_reads_loses_reports_and_counts_them() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    let mut unread = detector.subscribe();
    flood(&detector, &runtime, "unread");
    assert_goes_on(&detector, &runtime, ["harmless::unread_first", "harmless::unread_second"]);
    // The first ones are there still. What comes while they are taken has room again.
    let kept: Vec<_> = std::iter::from_fn(|| unread.try_recv()).collect();
    assert!(kept.len() >= SINK_CAPACITY, "{} are left", kept.len());
    assert!(matches!(&kept[0], IncidentChange::Opened(first) if first.id == 1), "{:?}", kept[0]);
}

/// A layer that hangs in every event of an incident.
struct Hangs(Keeper);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Hangs {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        if event.metadata().target() == "starvation::incident" {
            self.0.wait();
        }
    }
}

#[test]
fn a_tracing_subscriber_that_hangs_holds_up_nobody() {
    let _one = exclusive();
    let runtime = multi_thread(1, 1);
    let gate = Gate::default();
    let hangs = tracing_subscriber::registry().with(Hangs(gate.keeper()));
    let detector =
        tracing::subscriber::with_default(hangs, || Detector::builder().attach(runtime.handle()).start().unwrap());
    assert_goes_on(&detector, &runtime, ["harmless::layer_first", "harmless::layer_second"]);
    flood(&detector, &runtime, "layer");
    assert_goes_on(&detector, &runtime, ["harmless::layer_third", "harmless::layer_fourth"]);
}

/// Set in a process that one of the tests below has started of itself.
const CHILD: &str = "STARVATION_TEST_CHILD";

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs one test of this binary as a process of its own.
fn start(test: &str, stdout: Stdio) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Its end, and what it had to say.
fn finish(mut child: Child) -> (Option<ExitStatus>, String) {
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if start.elapsed() < 2 * DEADLINE => thread::sleep(5 * MS),
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
        }
    };
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status, said)
}

/// A child that comes this far has passed; what it leaves behind must not keep it.
const PASSED: i32 = 42;

#[track_caller]
fn assert_passed(child: Child) {
    let (status, said) = finish(child);
    let status = status.unwrap_or_else(|| panic!("the child hangs; it said: {said}"));
    assert_eq!(status.code(), Some(PASSED), "the child said: {said}");
}

#[test]
fn a_full_pipe_at_stdout_holds_up_nobody() {
    if !is_child() {
        // The pipe is held and never read.
        let mut child = start("a_full_pipe_at_stdout_holds_up_nobody", Stdio::piped());
        let pipe = child.stdout.take();
        assert_passed(child);
        drop(pipe);
        return;
    }
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer().with_writer(std::io::stdout)).init();
    // Some other thread logs until the pipe is full, and then holds the lock of stdout for ever.
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    thread::spawn(move || {
        let mut stdout = std::io::stdout().lock();
        loop {
            stdout.write_all(&[b'.'; 1024]).unwrap();
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    eventually("the pipe is full", || {
        let before = written.load(Ordering::Relaxed);
        thread::sleep(200 * MS);
        (before > 0 && before == written.load(Ordering::Relaxed)).then_some(())
    });
    let runtime = multi_thread(1, 1);
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    assert_goes_on(&detector, &runtime, ["harmless::pipe_first", "harmless::pipe_second"]);
    drop(detector);
    process::exit(PASSED);
}

/// A detector with open incidents, a call that never ends and one that never starts.
fn leave_in_flight() -> (Detector, Runtime) {
    let runtime = multi_thread(1, 1);
    let detector =
        Detector::builder().sink(|_: &IncidentChange| thread::park()).attach(runtime.handle()).start().unwrap();
    for op in ["harmless::never_ends", "harmless::never_starts"] {
        drop(instrument_blocking_on(runtime.handle(), op, || thread::sleep(100 * DEADLINE)));
    }
    runtime.spawn(instrument_future("harmless::stuck", async { thread::sleep(100 * DEADLINE) }));
    for op in ["harmless::never_starts", "harmless::stuck"] {
        eventually(op, || incidents_of(&detector, op).pop());
    }
    (detector, runtime)
}

#[test]
fn a_process_exits_with_calls_in_flight_and_a_live_detector() {
    if !is_child() {
        assert_passed(start("a_process_exits_with_calls_in_flight_and_a_live_detector", Stdio::null()));
        return;
    }
    let _alive = leave_in_flight();
    process::exit(PASSED);
}

#[test]
fn a_process_returns_from_main_with_calls_in_flight() {
    if !is_child() {
        let (status, said) = finish(start("a_process_returns_from_main_with_calls_in_flight", Stdio::null()));
        assert!(status.expect("the child hangs").success(), "the child said: {said}");
        return;
    }
    // The harness returns from its own `main` after this.
    let (detector, runtime) = leave_in_flight();
    runtime.shutdown_background();
    drop(detector);
}
