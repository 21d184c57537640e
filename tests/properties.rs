//! Random schedules of calls and futures on real runtimes: whatever happens to them, no nanosecond and no call is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::future::{join, join_all};
use proptest::prelude::*;
use starvation::{CallTiming, Ledger, Outcome, instrument_blocking, instrument_future, instrument_wait};
use support::{assert_classes, assert_phases, current_thread, leak, multi_thread};
use tokio::task::LocalSet;
use tokio::time::sleep;

/// What becomes of a call.
#[derive(Debug, Clone, Copy)]
enum End {
    Returns,
    Panics,
    AbortedAfter(Duration),
    DroppedAfter(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Call {
    runs: Duration,
    end: End,
}

/// A future that makes calls, all at once or one after the other, watched so many times over.
#[derive(Debug, Clone)]
struct Request {
    calls: Vec<Call>,
    at_once: bool,
    watched: usize,
    waits: bool,
}

#[derive(Debug, Clone, Copy)]
enum Threads {
    Workers(usize),
    Current,
    Local,
}

#[derive(Debug, Clone)]
struct Schedule {
    threads: Threads,
    pool: usize,
    requests: Vec<Request>,
}

fn millis(below: u64) -> impl Strategy<Value = Duration> {
    (0..below).prop_map(Duration::from_millis)
}

fn call() -> impl Strategy<Value = Call> {
    let end = prop_oneof![
        3 => Just(End::Returns),
        1 => Just(End::Panics),
        1 => millis(5).prop_map(End::AbortedAfter),
        1 => millis(5).prop_map(End::DroppedAfter),
    ];
    ((0_u64..3_000).prop_map(Duration::from_micros), end).prop_map(|(runs, end)| Call { runs, end })
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let threads = prop_oneof![(1_usize..4).prop_map(Threads::Workers), Just(Threads::Current), Just(Threads::Local)];
    let request = (proptest::collection::vec(call(), 1..4), any::<bool>(), 0_usize..4, any::<bool>())
        .prop_map(|(calls, at_once, watched, waits)| Request { calls, at_once, watched, waits });
    (threads, 1_usize..5, proptest::collection::vec(request, 1..11)).prop_map(|(threads, pool, requests)| Schedule {
        threads,
        pool,
        requests,
    })
}

/// Makes a call and sees it to its end; no timing where its handle was dropped.
async fn make(op: &'static str, call: Call) -> Option<CallTiming> {
    let made = instrument_blocking(op, move || {
        thread::sleep(call.runs);
        if matches!(call.end, End::Panics) {
            // Without the message of a panic, which is not what is tested here.
            resume_unwind(Box::new(()));
        }
    });
    let (result, timing) = match call.end {
        End::Returns | End::Panics => made.timed().await,
        End::AbortedAfter(time) => {
            let abort = made.abort_handle();
            join(made.timed(), async {
                sleep(time).await;
                abort.abort();
            })
            .await
            .0
        }
        End::DroppedAfter(time) => tokio::select! {
            timed = made.timed() => timed,
            () = sleep(time) => return None,
        },
    };
    match timing.outcome {
        Outcome::Returned => assert!(result.is_ok()),
        Outcome::Panicked => assert!(result.unwrap_err().is_panic()),
        _ => assert!(result.unwrap_err().is_cancelled()),
    }
    assert_phases(&timing);
    assert!(timing.execution >= call.runs || timing.outcome == Outcome::Cancelled, "{timing:?} of {call:?}");
    Some(timing)
}

async fn make_all(op: &'static str, request: Request) -> Vec<Option<CallTiming>> {
    if request.waits {
        instrument_wait(op, sleep(Duration::from_millis(1))).await;
    }
    let calls = request.calls.into_iter().map(|call| make(op, call));
    if request.at_once {
        return join_all(calls).await;
    }
    let mut timings = Vec::new();
    for call in calls {
        timings.push(call.await);
    }
    timings
}

type Timings = (Vec<Option<CallTiming>>, Vec<Ledger>);

/// A request inside so many watched futures, with their ledgers from the innermost outwards.
fn watch(op: &'static str, times: usize, request: Request) -> Pin<Box<dyn Future<Output = Timings> + Send>> {
    if times == 0 {
        return Box::pin(async move { (make_all(op, request).await, Vec::new()) });
    }
    Box::pin(async move {
        let ((timings, mut ledgers), ledger) = instrument_future(op, watch(op, times - 1, request)).timed().await;
        ledgers.push(ledger);
        (timings, ledgers)
    })
}

async fn run_all(op: &'static str, requests: Vec<Request>, local: bool) -> Vec<Timings> {
    let tasks = requests.into_iter().map(|request| {
        let watched = watch(op, request.watched, request);
        if local { tokio::task::spawn_local(watched) } else { tokio::spawn(watched) }
    });
    join_all(tasks.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_nanosecond_and_no_call_is_lost(schedule in schedule()) {
        static CASES: AtomicU64 = AtomicU64::new(0);
        let op = leak(format!("properties::{}", CASES.fetch_add(1, Ordering::Relaxed)));
        let Schedule { threads, pool, requests } = schedule;
        let made: usize = requests.iter().map(|request| request.calls.len()).sum();
        let detector = support::detector();
        let runtime = match threads {
            Threads::Workers(workers) => multi_thread(workers, pool),
            Threads::Current | Threads::Local => current_thread(pool),
        };
        let done = match threads {
            Threads::Local => LocalSet::new().block_on(&runtime, run_all(op, requests, true)),
            _ => runtime.block_on(run_all(op, requests, false)),
        };
        // Waits for the pool's threads: then the calls without a handle have ended, too.
        drop(runtime);

        for (_, ledgers) in &done {
            ledgers.iter().for_each(assert_classes);
            prop_assert!(ledgers.is_sorted_by_key(|ledger| ledger.total), "{:?}", ledgers);
        }
        let timings: Vec<CallTiming> = done.iter().flat_map(|(timings, _)| timings).flatten().copied().collect();
        let told = |outcome| timings.iter().filter(|timing| timing.outcome == outcome).count() as u64;
        let entries: Vec<_> = detector.snapshot().op(op).cloned().collect();
        let sum = |of: fn(&starvation::OpSnapshot) -> u64| entries.iter().map(of).sum::<u64>();

        let counts = [
            sum(|entry| entry.outcomes.returned),
            sum(|entry| entry.outcomes.panicked),
            sum(|entry| entry.outcomes.cancelled),
            sum(|entry| entry.outcomes.rejected),
        ];
        prop_assert_eq!(counts.iter().sum::<u64>(), made as u64);
        for (count, outcome) in counts.into_iter().zip([Outcome::Returned, Outcome::Panicked, Outcome::Cancelled]) {
            prop_assert!(count >= told(outcome));
        }
        let given_up = (made - timings.len()) as u64;
        prop_assert!(sum(|entry| entry.outcomes.abandoned) <= given_up);
        // All that ran is in the distributions, and what the callers were told is what was counted.
        let started = counts[0] + counts[1];
        prop_assert_eq!(sum(|entry| entry.queue_wait.count), started);
        prop_assert_eq!(sum(|entry| entry.execution.count), started);
        let execution: Duration = entries.iter().map(|entry| entry.execution.sum).sum();
        let told: Duration = timings.iter().map(|timing| timing.execution).sum();
        let agree = if given_up == 0 { execution == told } else { execution >= told };
        prop_assert!(agree, "counted {:?}, told {:?}, {} given up", execution, told, given_up);
        prop_assert_eq!(sum(|entry| entry.queued + entry.executing + entry.pending_waits), 0);
        prop_assert!(entries.iter().all(|entry| entry.oldest_queued.is_none() && entry.oldest_wait.is_none()));
    }
}
