//! Watched futures that end in another way than by completion, and those that move, nest or block: the account holds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_util::poll;
use starvation::{Instrumented, instrument_blocking, instrument_future};
use support::capture::{Captured, Fields, Value, subscriber};
use support::{Gate, MS, assert_classes, current_thread, figures, multi_thread};
use tokio::sync::oneshot;
use tracing::Level;

/// Polls once, for nobody.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// What the span of the only watched future says of it: it outlives the future.
struct Account(Fields);

impl Account {
    fn of(captured: &Captured) -> Self {
        let (_, span) = captured.only("future");
        assert!(span.closed.is_some());
        Self(span.fields)
    }

    fn number(&self, field: &str) -> i64 {
        match self.0.get(field) {
            Some(Value::I64(number)) => *number,
            other => panic!("`{field}` is {other:?}"),
        }
    }

    /// Each of the six is cut off at a microsecond.
    fn assert_classes(&self) {
        let classes =
            ["polling_us", "scheduled_us", "blocking_queue_us", "blocking_execution_us", "waiting_us", "other_us"];
        let sum: i64 = classes.iter().map(|class| self.number(class)).sum();
        let missing = self.number("total_us") - sum;
        assert!((0..6).contains(&missing), "{missing} us are missing of {:?}", self.0);
    }
}

#[test]
fn a_future_dropped_before_it_completes_is_accounted_for_up_to_its_end() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(20 * MS);
        }
    }

    let op = "ledger_ends::dropped";
    let (subscriber, captured) = subscriber(Level::INFO);
    let _guard = tracing::subscriber::set_default(subscriber);
    let runtime = current_thread(1);
    runtime.block_on(async {
        let slow = Slow;
        let mut watched = Box::pin(instrument_future(op, async move {
            let _slow = slow;
            pending::<()>().await;
        }));
        assert!(poll!(&mut watched).is_pending());
        thread::sleep(30 * MS);
    });
    let account = Account::of(&captured);
    account.assert_classes();
    assert_eq!(account.number("polls"), 1, "a drop is no poll");
    assert!(account.number("polling_us") >= 19_000, "but its time counts as polling: {:?}", account.0);
    assert!(account.number("other_us") >= 29_000, "{:?}", account.0);
    let figures = figures(op);
    assert_eq!((figures.futures_dropped, figures.futures_completed), (1, 0));
}

#[test]
fn a_future_dropped_while_its_call_executes_is_accounted_for() {
    let (subscriber, captured) = subscriber(Level::INFO);
    let _guard = tracing::subscriber::set_default(subscriber);
    let runtime = current_thread(1);
    let gate = Gate::default();
    let (keeper, (starts, has_started)) = (gate.keeper(), mpsc::channel());
    runtime.block_on(async {
        let mut watched = Box::pin(instrument_future("ledger_ends::dropped_call", async move {
            let call = instrument_blocking("ledger_ends::runs_on", move || {
                starts.send(()).unwrap();
                keeper.wait();
            });
            call.await.unwrap();
        }));
        assert!(poll!(&mut watched).is_pending());
        has_started.recv_timeout(support::DEADLINE).unwrap();
        thread::sleep(30 * MS);
    });
    gate.open();
    drop(runtime);
    let account = Account::of(&captured);
    account.assert_classes();
    assert!(account.number("blocking_execution_us") >= 29_000, "{:?}", account.0);
}

#[test]
fn a_future_that_was_never_polled_was_never_asked_for() {
    let (subscriber, captured) = subscriber(Level::INFO);
    let _guard = tracing::subscriber::set_default(subscriber);
    let watched = instrument_future("ledger_ends::unpolled", async {});
    thread::sleep(20 * MS);
    drop(watched);
    let account = Account::of(&captured);
    account.assert_classes();
    assert_eq!((account.number("polls"), account.number("scheduled_us")), (0, 0));
    assert!(account.number("other_us") >= 19_000, "{:?}", account.0);
}

#[test]
fn a_poll_that_panics_is_counted_and_the_panic_passes_through() {
    let op = "ledger_ends::panics";
    let (subscriber, captured) = subscriber(Level::INFO);
    let guard = tracing::subscriber::set_default(subscriber);
    {
        let mut watched = Box::pin(instrument_future(
            op,
            poll_fn(|_| -> Poll<()> {
                thread::sleep(20 * MS);
                resume_unwind(Box::new(7_u32))
            }),
        ));
        let payload = catch_unwind(AssertUnwindSafe(|| poll_once(watched.as_mut()))).unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&7_u32));
        thread::sleep(20 * MS);
    }
    drop(guard);
    let account = Account::of(&captured);
    account.assert_classes();
    assert_eq!(account.number("polls"), 1);
    assert!(account.number("polling_us") >= 19_000 && account.number("other_us") >= 19_000, "{:?}", account.0);
    assert_eq!(figures(op).poll_duration.count, 2, "the poll and the drop");
    assert_eq!(figures(op).futures_dropped, 1);

    // What is made on this thread afterwards does not report to the future that panicked.
    let ((), ledger) = current_thread(1).block_on(
        instrument_future("ledger_ends::after_panic", async {
            instrument_blocking("ledger_ends::plain", || ()).await.unwrap()
        })
        .timed(),
    );
    assert_classes(&ledger);
}

#[test]
fn a_future_that_moves_to_another_task_is_woken_there() {
    let runtime = current_thread(1);
    runtime.block_on(async {
        let (wakes, woken) = oneshot::channel();
        let mut watched = Box::pin(instrument_future("ledger_ends::moved", woken).timed());
        let watched = tokio::spawn(async move {
            assert!(poll!(&mut watched).is_pending());
            Some(watched)
        });
        let watched = watched.await.unwrap().unwrap();
        let task = tokio::spawn(watched);
        tokio::task::yield_now().await;
        wakes.send(()).unwrap();
        // Woken in its new task, and kept from running.
        thread::sleep(30 * MS);
        let (output, ledger) = task.await.unwrap();
        output.unwrap();
        assert_classes(&ledger);
        assert!(ledger.scheduled >= 29 * MS && ledger.polls == 3, "{ledger:?}");
    });
}

#[test]
fn a_future_that_moves_back_and_forth_is_woken_wherever_it_is() {
    let runtime = multi_thread(2, 1);
    runtime.block_on(async {
        let (ticks, mut ticked) = tokio::sync::mpsc::channel::<u32>(1);
        let future = async move {
            let mut sum = 0;
            while let Some(tick) = ticked.recv().await {
                sum += tick;
            }
            sum
        };
        let mut watched = Box::pin(instrument_future("ledger_ends::wanders", future).timed());
        for _ in 0..20 {
            assert!(poll!(&mut watched).is_pending());
            let moved = tokio::spawn(async move {
                assert!(poll!(&mut watched).is_pending());
                Some(watched)
            });
            watched = moved.await.unwrap().unwrap();
            ticks.send(1).await.unwrap();
        }
        drop(ticks);
        let (sum, ledger) = tokio::spawn(watched).await.unwrap();
        assert_eq!(sum, 20);
        assert_classes(&ledger);
    });
}

#[test]
fn blocking_in_place_is_part_of_the_poll() {
    let runtime = multi_thread(1, 1);
    let ledger = runtime.block_on(async {
        let blocks = async { tokio::task::block_in_place(|| thread::sleep(30 * MS)) };
        tokio::spawn(instrument_future("ledger_ends::in_place", blocks).timed()).await.unwrap().1
    });
    assert_classes(&ledger);
    assert!(ledger.longest_poll >= 29 * MS, "{ledger:?}");
}

#[test]
fn a_poll_inside_a_poll_is_part_of_the_outer_one_and_waits_for_itself() {
    // One pool thread for the worker that takes over, one for the call.
    let runtime = multi_thread(1, 2);
    let handle = runtime.handle().clone();
    let (inner, outer) = runtime.block_on(async {
        let outer = async move {
            tokio::task::block_in_place(|| {
                let call =
                    async { instrument_blocking("ledger_ends::innermost", || thread::sleep(60 * MS)).await.unwrap() };
                handle.block_on(instrument_future("ledger_ends::inner", call).timed()).1
            })
        };
        tokio::spawn(instrument_future("ledger_ends::outer", outer).timed()).await.unwrap()
    });
    assert_classes(&inner);
    assert_classes(&outer);
    assert!(inner.blocking_execution >= 30 * MS, "{inner:?}");
    assert!(outer.polling >= inner.total && outer.blocking_execution == Duration::ZERO, "{inner:?} in {outer:?}");
}

/// One site, whoever calls it.
fn at_one_site<F: Future>(future: F) -> Instrumented<F> {
    instrument_future("ledger_ends::two_runtimes", future)
}

#[test]
fn runtimes_are_kept_apart() {
    let (first, second) = (current_thread(1), multi_thread(1, 1));
    for (runtime, times) in [(&first, 1), (&second, 2)] {
        for _ in 0..times {
            runtime.block_on(at_one_site(async { tokio::task::yield_now().await }));
        }
    }
    poll_once(pin!(at_one_site(async {}))).is_ready().then_some(()).unwrap();
    let number = |runtime: &tokio::runtime::Runtime| runtime.handle().id().to_string().parse::<u64>().unwrap();
    let snapshot = support::detector().snapshot();
    let mut told: Vec<_> =
        snapshot.op("ledger_ends::two_runtimes").map(|entry| (entry.runtime, entry.futures_completed)).collect();
    told.sort();
    let mut expected = [(None, 1), (Some(number(&first)), 1), (Some(number(&second)), 2)];
    expected.sort();
    assert_eq!(told, expected);
}
