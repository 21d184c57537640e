//! What the handle of a blocking call does: like Tokio's, and it tells who waited for whom.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use futures_util::future::join;
use futures_util::poll;
use starvation::{Outcome, instrument_blocking, instrument_blocking_on, instrument_job};
use support::{DEADLINE, Gate, MS, assert_phases, current_thread, eventually, figures, multi_thread, until};

#[test]
fn a_result_that_lies_ready_before_anyone_asks_is_unclaimed() {
    let runtime = current_thread(1);
    let call = instrument_blocking_on(runtime.handle(), "handles::late", || 1);
    until("the call ends", || call.is_finished());
    thread::sleep(30 * MS);
    let (result, timing) = runtime.block_on(call.timed());
    assert_eq!(result.unwrap(), 1);
    assert_phases(&timing);
    assert!(timing.unclaimed >= 29 * MS, "{timing:?}");
    assert_eq!(timing.resume_delay, Duration::ZERO);
    assert_eq!(figures("handles::late").resume_delay.count, 0, "nobody was kept waiting");
}

#[test]
fn a_task_that_waits_and_is_not_polled_is_delayed_by_its_executor() {
    let runtime = current_thread(1);
    let gate = Gate::default();
    let keeper = gate.keeper();
    let timing = runtime.block_on(async {
        let call = instrument_blocking("handles::in_time", move || keeper.wait());
        let ended = call.abort_handle();
        // Polled in this order: the call is waited for, then ends, then the thread does something else.
        let (timed, ()) = join(call.timed(), async {
            gate.open();
            until("the call ends", || ended.is_finished());
            thread::sleep(30 * MS);
        })
        .await;
        timed.0.unwrap();
        timed.1
    });
    assert_phases(&timing);
    assert!(timing.resume_delay >= 29 * MS, "{timing:?}");
    assert_eq!(timing.unclaimed, Duration::ZERO);
    let told = figures("handles::in_time").resume_delay;
    assert_eq!((told.count, told.sum), (1, timing.resume_delay));
}

#[test]
fn a_call_that_loses_a_select_while_it_runs_is_abandoned() {
    let op = "handles::select";
    let runtime = multi_thread(1, 1);
    let gate = Gate::default();
    let (keeper, (starts, has_started)) = (gate.keeper(), tokio::sync::oneshot::channel());
    runtime.block_on(async {
        let call = instrument_blocking(op, move || {
            starts.send(()).unwrap();
            keeper.wait();
        });
        tokio::select! {
            biased;
            _ = call => panic!("the gate is closed"),
            started = has_started => started.unwrap(),
        }
    });
    assert_eq!(figures(op).outcomes.abandoned, 1);
    gate.open();
    drop(runtime);
    let outcomes = figures(op).outcomes;
    assert_eq!((outcomes.returned, outcomes.abandoned), (1, 1));
    assert_eq!(figures(op).executing, 0);
}

#[test]
fn a_call_polled_by_one_task_can_be_awaited_by_another() {
    let runtime = multi_thread(2, 1);
    let gate = Gate::default();
    let keeper = gate.keeper();
    let (result, timing) = runtime.block_on(async {
        let mut call = instrument_blocking("handles::moved", move || keeper.wait());
        let first = tokio::spawn(async move {
            assert!(poll!(&mut call).is_pending());
            Some(call)
        });
        let second = tokio::spawn(first.await.unwrap().unwrap().timed());
        gate.open();
        second.await.unwrap()
    });
    result.unwrap();
    assert_phases(&timing);
    assert_eq!((timing.outcome, timing.unclaimed), (Outcome::Returned, Duration::ZERO));
}

#[test]
fn a_timed_call_can_be_dropped_half_way_too() {
    let op = "handles::timed_dropped";
    let runtime = current_thread(1);
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.block_on(async {
        let mut timed = Box::pin(instrument_blocking(op, move || keeper.wait()).timed());
        assert!(poll!(&mut timed).is_pending());
    });
    gate.open();
    drop(runtime);
    let outcomes = figures(op).outcomes;
    assert_eq!((outcomes.returned, outcomes.abandoned), (1, 1));
}

#[test]
fn the_handle_tells_what_tokios_tells() {
    let runtime = current_thread(1);
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.block_on(async {
        let call = instrument_blocking("handles::like_tokios", move || {
            keeper.wait();
            tokio::task::id()
        });
        let (id, abort) = (call.id(), call.abort_handle());
        assert_eq!(abort.id(), id);
        assert!(!call.is_finished() && !abort.is_finished());
        assert_ne!(id, tokio::task::spawn_blocking(|| ()).id());
        gate.open();
        until("the call ends", || call.is_finished());
        assert!(abort.is_finished());
        assert_eq!(call.await.unwrap(), id, "the closure runs as the task of that id");
    });
}

#[test]
fn a_call_is_made_even_if_nobody_polls_it() {
    let runtime = current_thread(1);
    let (ran, has_run) = mpsc::channel();
    let call = instrument_blocking_on(runtime.handle(), "handles::eager", move || ran.send(()).unwrap());
    has_run.recv_timeout(DEADLINE).unwrap();
    drop(call);
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs what comes through a channel, as programs with a pool of their own have it.
fn worker() -> (mpsc::Sender<Job>, thread::JoinHandle<()>) {
    let (jobs, queue) = mpsc::channel::<Job>();
    let thread = thread::spawn(move || {
        for job in queue {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    });
    (jobs, thread)
}

#[test]
fn jobs_of_a_thread_return_or_panic_and_their_waits_are_counted() {
    let gate = Gate::default();
    let (jobs, thread) = worker();
    let keeper = gate.keeper();
    jobs.send(Box::new(move || keeper.wait())).unwrap();
    jobs.send(Box::new(instrument_job("handles::job", || ()))).unwrap();
    jobs.send(Box::new(instrument_job("handles::job_panics", || panic!("on purpose")))).unwrap();
    assert_eq!((figures("handles::job").queued, figures("handles::job_panics").queued), (1, 1));
    thread::sleep(30 * MS);
    gate.open();
    drop(jobs);
    thread.join().unwrap();
    let job = figures("handles::job");
    assert_eq!((job.outcomes.returned, job.queued, job.executing, job.runtime), (1, 0, 0, None));
    assert!(job.queue_wait.sum >= 29 * MS, "{job:?}");
    let job = figures("handles::job_panics");
    assert_eq!((job.outcomes.panicked, job.queued, job.executing), (1, 0, 0));
}

#[test]
fn a_job_whose_pool_drops_it_is_cancelled() {
    let (jobs, queue) = mpsc::channel::<Job>();
    jobs.send(Box::new(instrument_job("handles::job_dropped", || ()))).unwrap();
    drop(queue);
    let job = figures("handles::job_dropped");
    assert_eq!((job.outcomes.cancelled, job.outcomes.returned, job.queued), (1, 0, 0));
}

#[test]
fn jobs_run_on_rayon() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let (sender, receiver) = mpsc::channel();
    pool.spawn(instrument_job("handles::rayon", move || sender.send(6 * 7).unwrap()));
    assert_eq!(receiver.recv_timeout(DEADLINE), Ok(42));
    assert_eq!(pool.install(instrument_job("handles::rayon_value", || 7)), 7);
    // The result is sent from inside the job, so it may come before the end.
    eventually("the job ends", || (figures("handles::rayon").outcomes.returned == 1).then_some(()));
    assert_eq!(figures("handles::rayon").executing, 0);
}
