//! Where a watched future's time went: every class gets its own, and the six sum to the whole to the nanosecond.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use starvation::{Ledger, instrument_blocking, instrument_future, instrument_job, instrument_wait};
use support::{Gate, MS, assert_classes, assert_phases, current_thread, multi_thread, occupy};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

/// The crate's clock and the system's may be apart by as much over one test; see `clock`.
const SKEW: Duration = MS;

/// Watches a future to its end, and checks that its account covers all of the time in between, and no more.
async fn account<F: Future>(op: &'static str, future: F) -> (F::Output, Ledger) {
    let before = Instant::now();
    let watched = instrument_future(op, future).timed();
    let created = Instant::now();
    let mut watched = Box::pin(watched);
    let mut last_poll = created;
    let (output, ledger) = poll_fn(|context| {
        last_poll = Instant::now();
        watched.as_mut().poll(context)
    })
    .await;
    assert!(ledger.total <= before.elapsed() + SKEW, "{ledger:?}");
    assert!(ledger.total + SKEW >= last_poll - created, "{ledger:?}");
    assert_classes(&ledger);
    (output, ledger)
}

/// For so long the future was in this class, but for the moments in which it was polled or about to be.
#[track_caller]
fn assert_spent(ledger: &Ledger, class: Duration, time: Duration) {
    assert!(class + ledger.polling + ledger.scheduled + SKEW >= time, "{class:?} of {time:?} in {ledger:?}");
    assert!(class >= time / 2, "moments only, however busy the machine: {class:?} of {time:?} in {ledger:?}");
}

/// Holds the only thread of a runtime for a while.
async fn hold_thread(time: Duration) {
    thread::sleep(time);
}

#[test]
fn a_call_shows_how_long_it_queued_and_how_long_it_executed() {
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    runtime.block_on(async {
        let call = async { instrument_blocking("ledgers::call", || thread::sleep(40 * MS)).timed().await.1 };
        let watched = tokio::spawn(account("ledgers::queued", call));
        // Polled second, so the call is made and the future asleep when the pool's thread becomes free.
        tokio::spawn(async move {
            thread::sleep(40 * MS);
            gate.open();
        });
        let (timing, ledger) = watched.await.unwrap();
        assert_phases(&timing);
        assert_eq!(ledger.blocking_execution, timing.execution, "the same two instants");
        assert!(timing.queue_wait >= ledger.blocking_queue && ledger.blocking_queue >= 39 * MS, "{ledger:?}");
        assert!(ledger.polls == 2 && ledger.waiting == Duration::ZERO, "{ledger:?}");
    });
}

#[test]
fn of_two_calls_at_once_the_one_that_executes_counts() {
    let runtime = current_thread(1);
    runtime.block_on(async {
        let call = |op| instrument_blocking(op, || thread::sleep(40 * MS)).timed();
        let both = async { tokio::join!(call("ledgers::join_a"), call("ledgers::join_b")) };
        let (((_, first), (_, second)), ledger) = account("ledgers::join", both).await;
        let waited = first.queue_wait.max(second.queue_wait);
        assert!(waited >= 39 * MS, "one pool thread: {first:?}, {second:?}");
        assert_spent(&ledger, ledger.blocking_execution + ledger.blocking_queue, 80 * MS);
        assert!(ledger.blocking_queue < waited, "while one was queued the other executed: {ledger:?}");
    });
}

#[test]
fn a_call_that_lost_a_select_is_nobodys_any_more() {
    let runtime = multi_thread(1, 1);
    let gate = Gate::default();
    let (keeper, (starts, has_started)) = (gate.keeper(), oneshot::channel());
    let ((), ledger) = runtime.block_on(account("ledgers::select", async {
        let call = instrument_blocking("ledgers::loser", move || {
            starts.send(()).unwrap();
            keeper.wait();
        });
        let winner = async {
            has_started.await.unwrap();
            sleep(60 * MS).await;
        };
        tokio::select! {
            _ = call => panic!("the gate is closed"),
            () = winner => {}
        }
        sleep(80 * MS).await;
    }));
    assert_spent(&ledger, ledger.blocking_execution, 60 * MS);
    // It executes still, and the future waits for a timer alone.
    assert_spent(&ledger, ledger.other, 80 * MS);
}

#[test]
fn many_calls_in_one_future_are_accounted_for() {
    let runtime = multi_thread(2, 2);
    let (count, ledger) = runtime.block_on(account("ledgers::unordered", async {
        let calls: FuturesUnordered<_> =
            (0..12).map(|_| instrument_blocking("ledgers::one_of_many", || thread::sleep(5 * MS))).collect();
        calls.map(Result::unwrap).count().await
    }));
    assert_eq!(count, 12);
    assert!(ledger.blocking_execution >= 5 * MS && ledger.waiting == Duration::ZERO, "{ledger:?}");
}

#[test]
fn nested_futures_both_account_for_the_inner_ones_call() {
    let runtime = current_thread(1);
    let call = async { instrument_blocking("ledgers::nested_call", || thread::sleep(60 * MS)).await.unwrap() };
    let ((((), inner), ()), outer) = runtime.block_on(account("ledgers::outer", async {
        tokio::join!(account("ledgers::inner", call), std::future::ready(()))
    }));
    for ledger in [&inner, &outer] {
        assert_spent(ledger, ledger.blocking_execution, 60 * MS);
    }
    assert!(inner.total <= outer.total && inner.polls <= outer.polls, "{inner:?} in {outer:?}");
}

#[test]
fn waiting_for_a_permit_is_waiting_and_what_comes_after_is_not() {
    let runtime = current_thread(1);
    let permits = Semaphore::new(0);
    let ((), ledger) = runtime.block_on(account("ledgers::waits", async {
        let (permit, ()) = tokio::join!(instrument_wait("ledgers::permit", permits.acquire()), async {
            sleep(60 * MS).await;
            permits.add_permits(1);
        });
        drop(permit);
        sleep(60 * MS).await;
    }));
    assert_spent(&ledger, ledger.waiting, 60 * MS);
    assert_spent(&ledger, ledger.other, 60 * MS);
}

#[test]
fn a_wait_given_up_by_a_timeout_has_ended() {
    let runtime = current_thread(1);
    let ((), ledger) = runtime.block_on(account("ledgers::gives_up", async {
        let never = instrument_wait("ledgers::never", std::future::pending::<()>());
        assert!(timeout(60 * MS, never).await.is_err());
        sleep(60 * MS).await;
    }));
    assert_spent(&ledger, ledger.waiting, 60 * MS);
    assert_spent(&ledger, ledger.other, 60 * MS);
}

#[test]
fn a_job_on_another_pool_is_a_call_until_it_ends() {
    let runtime = current_thread(1);
    let ((), ledger) = runtime.block_on(account("ledgers::has_job", async {
        let (sender, receiver) = oneshot::channel();
        let job = instrument_job("ledgers::job", move || {
            thread::sleep(60 * MS);
            sender.send(()).unwrap();
        });
        thread::spawn(job);
        receiver.await.unwrap();
    }));
    assert_spent(&ledger, ledger.blocking_execution, 60 * MS);
}

#[test]
fn a_spawned_future_that_waits_for_its_first_poll_is_scheduled() {
    for local in [false, true] {
        let ledger = LocalSet::new().block_on(&current_thread(1), async move {
            let watched = instrument_future("ledgers::spawned", async {}).timed();
            let task = if local { tokio::task::spawn_local(watched) } else { tokio::spawn(watched) };
            hold_thread(30 * MS).await;
            task.await.unwrap().1
        });
        assert_classes(&ledger);
        assert!(ledger.scheduled >= 29 * MS, "{ledger:?}");
    }
}

#[test]
fn a_future_that_its_maker_polls_late_had_not_been_asked_for() {
    let ledger = current_thread(1).block_on(async {
        let watched = instrument_future("ledgers::lazy", async {}).timed();
        thread::sleep(30 * MS);
        watched.await.1
    });
    assert_classes(&ledger);
    assert!(ledger.other >= 29 * MS && ledger.scheduled == Duration::ZERO, "{ledger:?}");
}

#[test]
fn a_future_that_is_woken_while_its_thread_is_held_is_scheduled() {
    let runtime = current_thread(1);
    runtime.block_on(async {
        let (wakes, woken) = oneshot::channel();
        let task = tokio::spawn(account("ledgers::woken", woken));
        tokio::task::yield_now().await;
        wakes.send(()).unwrap();
        thread::sleep(30 * MS);
        let (_, ledger) = task.await.unwrap();
        assert!(ledger.scheduled >= 29 * MS, "{ledger:?}");
    });
}

#[test]
fn work_after_waking_oneself_in_the_same_poll_is_polling() {
    let mut worked = Duration::ZERO;
    let mut polled = false;
    let ((), ledger) = current_thread(1).block_on(account(
        "ledgers::self_wake",
        poll_fn(|context| {
            if std::mem::replace(&mut polled, true) {
                return Poll::Ready(());
            }
            let start = Instant::now();
            context.waker().wake_by_ref();
            thread::sleep(30 * MS);
            worked = start.elapsed();
            Poll::Pending
        }),
    ));
    // All of it, so by the sum none of it is scheduled.
    assert!(ledger.longest_poll + SKEW >= worked && ledger.polls == 2, "{ledger:?}");
}

/// Keeps the runtime's only thread while the call that waits at `gate` starts, runs for 30 ms and ends, and for 30 ms
/// before and after.
async fn meanwhile(gate: Gate, ends: std::sync::mpsc::Receiver<()>) {
    thread::sleep(30 * MS);
    gate.open();
    ends.recv_timeout(support::DEADLINE).unwrap();
    thread::sleep(30 * MS);
}

#[test]
fn once_woken_in_its_own_poll_a_future_is_scheduled_whatever_its_call_does() {
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    runtime.block_on(async {
        let (ends, has_ended) = std::sync::mpsc::channel();
        let mut call = None;
        let task = tokio::spawn(account(
            "ledgers::woken_early",
            poll_fn(move |context| {
                if call.is_some() {
                    return Poll::Ready(());
                }
                let ends = ends.clone();
                call = Some(instrument_blocking("ledgers::runs_meanwhile", move || {
                    thread::sleep(30 * MS);
                    ends.send(()).unwrap();
                }));
                context.waker().wake_by_ref();
                Poll::Pending
            }),
        ));
        tokio::spawn(meanwhile(gate, has_ended));
        let ((), ledger) = task.await.unwrap();
        assert!(ledger.scheduled >= 88 * MS, "{ledger:?}");
    });
}

#[test]
fn once_woken_by_another_a_future_is_scheduled_whatever_its_call_does() {
    let runtime = current_thread(1);
    let gate = Gate::default();
    occupy(runtime.handle(), &gate);
    runtime.block_on(async {
        let (ends, has_ended) = std::sync::mpsc::channel();
        let (wakes, woken) = oneshot::channel();
        let task = tokio::spawn(account("ledgers::woken_late", async {
            let call = instrument_blocking("ledgers::runs_afterwards", move || {
                thread::sleep(30 * MS);
                ends.send(()).unwrap();
            });
            woken.await.unwrap();
            call.await.unwrap();
        }));
        tokio::spawn(async move {
            thread::sleep(30 * MS);
            wakes.send(()).unwrap();
            meanwhile(gate, has_ended).await;
        });
        let ((), ledger) = task.await.unwrap();
        assert!(ledger.blocking_queue >= 29 * MS && ledger.scheduled >= 88 * MS, "{ledger:?}");
    });
}
