//! Where in the code threads are stuck: in incidents, in their JSON, and on demand.

#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"), not(starvation_elsewhere)))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod support;

use starvation::{
    Action, Builder, Cause, Detector, Incident, Stacks, StacksError, ThreadRole, instrument_blocking,
    instrument_blocking_on, instrument_future,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::{Gate, Keeper, MS, current_thread, eventually, exclusive, incidents_of, multi_thread};

/// Wide, so that nothing else is overdue on a busy machine.
const LIMIT: Duration = Duration::from_millis(100);

fn with_stacks(runtime: &tokio::runtime::Runtime, stacks: Stacks) -> Detector {
    builder(runtime).stacks(stacks).start().unwrap()
}

fn builder(runtime: &tokio::runtime::Runtime) -> Builder {
    Detector::builder().long_poll(LIMIT).queue_wait(LIMIT).attach(runtime.handle())
}

/// Whether it has a cause and says this: it may have none at first, where threads had no CPU for a moment.
fn tells(incident: &Incident, text: &str) -> bool {
    incident.cause != Cause::Undetermined && incident.diagnosis.evidence.contains(text)
}

/// An incident of this op that has a cause and says where its thread is.
#[track_caller]
fn located(detector: &Detector, op: &str, place: &str) -> Arc<Incident> {
    eventually(place, || {
        incidents_of(detector, op).into_iter().filter(|incident| incident.cause != Cause::Undetermined).find(
            |incident| {
                let lines = incident.diagnosis.culprits.iter().flat_map(|culprit| culprit.stack.iter().flatten());
                let all: Vec<_> = lines.collect();
                all.iter().any(|line| line.contains(place))
            },
        )
    })
}

fn sleeps_in_a_poll(gate: &Keeper) {
    gate.wait();
}

#[test]
fn a_poll_that_waits_is_told_by_the_function_that_it_waits_in() {
    let _one = exclusive();
    let runtime = multi_thread(2, 1);
    let detector = with_stacks(&runtime, Stacks::Asleep);
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.spawn(instrument_future("stacks::waits", async move { sleeps_in_a_poll(&keeper) }));
    let incident = located(&detector, "stacks::waits", "sleeps_in_a_poll");
    assert_eq!((incident.cause, incident.detail), (Cause::LongPoll, Some("blocked")), "{incident}");
    let group = incident.stacks.first().unwrap();
    assert_eq!((group.op, group.threads, group.asleep), (Some("stacks::waits"), 1, true));
    let culprit = &group.stack.frames[group.stack.culprit.unwrap()];
    assert!(culprit.file.as_ref().unwrap().ends_with("tests/support/mod.rs"), "{culprit}");
    assert!(group.stack.complete, "{}", group.stack);
    assert!(incident.diagnosis.to_string().contains("sleeps_in_a_poll"), "{}", incident.diagnosis);
}

static CACHE: Mutex<u32> = Mutex::new(0);

fn reads_the_cache() -> u32 {
    *CACHE.lock().unwrap()
}

#[test]
fn a_poll_that_waits_for_a_lock_is_locked() {
    let _one = exclusive();
    let runtime = multi_thread(2, 1);
    let detector = with_stacks(&runtime, Stacks::Asleep);
    let held = CACHE.lock().unwrap();
    runtime.spawn(instrument_future("stacks::locked", async { reads_the_cache() }));
    let incident = located(&detector, "stacks::locked", "reads_the_cache");
    assert_eq!(
        (incident.detail, incident.diagnosis.advice.action),
        (Some("locked"), Action::ShortenLock),
        "{incident}"
    );
    drop(held);
}

static SHARED: Mutex<u32> = Mutex::new(0);
static ELSE: Mutex<u32> = Mutex::new(0);

fn adds_to_the_shared() {
    *SHARED.lock().unwrap() += 1;
}

fn takes_from_the_shared() {
    *SHARED.lock().unwrap() -= 1;
}

fn reads_something_else() -> u32 {
    *ELSE.lock().unwrap()
}

#[test]
fn who_waits_for_the_same_lock_is_told_with_each_other() {
    let _one = exclusive();
    let runtime = multi_thread(4, 1);
    let detector = with_stacks(&runtime, Stacks::Asleep);
    let held = (SHARED.lock().unwrap(), ELSE.lock().unwrap());
    runtime.spawn(instrument_future("stacks::adds", async { adds_to_the_shared() }));
    runtime.spawn(instrument_future("stacks::takes", async { takes_from_the_shared() }));
    runtime.spawn(instrument_future("stacks::reads", async { reads_something_else() }));
    let told = |op, what: &[&str]| {
        eventually("who shares the lock", || {
            let told: Vec<String> = incidents_of(&detector, op).iter().map(|it| it.diagnosis.to_string()).collect();
            told.into_iter().find(|told| what.iter().all(|part| told.contains(part)))
        })
    };
    let adds = told("stacks::adds", &["`stacks::takes` at", "takes_from_the_shared", "waits for the same lock"]);
    let takes = told("stacks::takes", &["`stacks::adds` at", "adds_to_the_shared"]);
    let reads = told("stacks::reads", &["reads_something_else"]);
    assert!(!adds.contains("reads_something_else") && !takes.contains("reads_something_else"), "{adds}\n{takes}");
    assert!(!reads.contains("the same lock"), "{reads}");
    drop(held);
}

fn waits_by_hand(done: tokio::sync::oneshot::Receiver<()>) {
    let _ = futures_executor::block_on(done);
}

#[test]
fn a_poll_that_runs_a_future_by_hand_is_told_so() {
    let _one = exclusive();
    let runtime = multi_thread(2, 1);
    let detector = with_stacks(&runtime, Stacks::Asleep);
    let (done, is_done) = tokio::sync::oneshot::channel();
    runtime.spawn(instrument_future("stacks::by_hand", async move { waits_by_hand(is_done) }));
    let incident = located(&detector, "stacks::by_hand", "waits_by_hand");
    assert_eq!((incident.detail, incident.diagnosis.advice.action), (Some("block_on"), Action::GoAsync), "{incident}");
    drop(done);
}

fn computes_for_long(stop: &AtomicBool) -> u64 {
    let mut sum = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        sum = (0..1_000).fold(sum, |sum, number| sum.wrapping_mul(31).wrapping_add(number));
    }
    sum
}

#[test]
fn a_poll_that_computes_is_told_where_and_only_with_signals() {
    let _one = exclusive();
    for (stacks, op) in [(Stacks::WithSignals, "stacks::computes"), (Stacks::Asleep, "stacks::computes_unseen")] {
        let runtime = multi_thread(2, 1);
        let detector = with_stacks(&runtime, stacks);
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        runtime.spawn(instrument_future(op, async move { computes_for_long(&stops) }));
        if stacks == Stacks::WithSignals {
            let incident = located(&detector, op, "computes_for_long");
            assert_eq!(incident.detail, Some("computing"), "{incident}");
            assert!(incident.stacks.iter().any(|group| !group.asleep), "{incident:?}");
        } else {
            let incident = eventually("a reason", || {
                incidents_of(&detector, op).into_iter().find(|incident| incident.no_stack.is_some())
            });
            assert!(incident.no_stack.unwrap().contains("signals are off"), "{:?}", incident.no_stack);
        }
        stop.store(true, Ordering::Relaxed);
    }
}

fn what_nobody_wrapped(gate: &Keeper) {
    gate.wait();
}

#[test]
fn a_worker_that_is_stuck_in_what_nobody_wrapped_is_told_where() {
    let _one = exclusive();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = starvation::hooks(builder.worker_threads(2).enable_all()).build().unwrap();
    let detector = with_stacks(&runtime, Stacks::WithSignals);
    // Both have been at work, and so are known.
    runtime.block_on(async {
        for _ in 0..20 {
            tokio::spawn(tokio::task::yield_now()).await.unwrap();
            tokio::time::sleep(MS).await;
        }
    });
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.spawn(async move { what_nobody_wrapped(&keeper) });
    let incident = eventually("an incident that says where", || {
        let all = detector.incidents();
        all.into_iter().find(|incident| tells(incident, "what_nobody_wrapped"))
    });
    assert_eq!((incident.cause, incident.op), (Cause::LongPoll, None), "{incident}");
    assert_eq!(incident.stacks.first().unwrap().op, None);
}

/// A worker that is stuck in a runtime of which nobody has told the threads. Another runtime has so many workers.
#[track_caller]
fn stuck_without_hooks(beside: usize, stuck: fn(&Keeper), until: impl Fn(&Incident) -> bool) -> Arc<Incident> {
    let _one = exclusive();
    let _other = (beside > 0).then(|| multi_thread(beside, 1));
    let runtime = multi_thread(3, 1);
    let detector = with_stacks(&runtime, Stacks::Asleep);
    let gate = Gate::default();
    let keeper = gate.keeper();
    runtime.spawn(async move {
        // Long enough for the observer to see its worker come and go.
        tokio::time::sleep(2 * LIMIT).await;
        stuck(&keeper);
    });
    eventually("an incident that says where, or why not", || {
        detector.incidents().into_iter().find(|incident| incident.op.is_none() && until(incident))
    })
}

#[test]
fn a_stuck_worker_that_nobody_has_told_of_is_found_by_its_stack() {
    let incident = stuck_without_hooks(0, what_nobody_wrapped, |all| tells(all, "what_nobody_wrapped"));
    assert_eq!((incident.cause, incident.detail), (Cause::LongPoll, Some("blocked")), "{incident}");
    assert_eq!((incident.stacks.first().unwrap().threads, incident.no_stack), (1, None));
}

#[test]
fn where_it_may_be_a_worker_of_another_runtime_none_is_found() {
    let incident = stuck_without_hooks(1, what_nobody_wrapped, |all| all.no_stack.is_some());
    assert!(incident.no_stack.unwrap().contains("workers of other runtimes"), "{incident:?}");
    assert!(incident.no_stack.unwrap().contains("`hooks`"), "it says what to do");
    assert!(incident.stacks.is_empty());
}

fn computes_unwrapped(gate: &Keeper) {
    while !gate.is_open() {
        std::hint::black_box((0..1_000_u64).sum::<u64>());
    }
}

#[test]
fn one_that_computes_is_not_found_and_another_is_not_taken_for_it() {
    let incident = stuck_without_hooks(0, computes_unwrapped, |all| all.no_stack.is_some());
    assert!(incident.no_stack.unwrap().contains("one that computes"), "{incident:?}");
    assert!(incident.stacks.is_empty());
}

fn fetches(gate: &Keeper) {
    gate.wait();
}

#[test]
fn those_who_hold_a_pool_are_told_together() {
    const THREADS: usize = 4;
    let _one = exclusive();
    let runtime = multi_thread(1, THREADS);
    let detector = with_stacks(&runtime, Stacks::Asleep);
    let gate = Gate::default();
    let calls: Vec<_> = (0..THREADS + 1)
        .map(|_| {
            let keeper = gate.keeper();
            instrument_blocking_on(runtime.handle(), "stacks::fetch", move || fetches(&keeper))
        })
        .collect();
    let incident = eventually("a group of all threads", || {
        incidents_of(&detector, "stacks::fetch")
            .into_iter()
            .find(|incident| incident.stacks.first().is_some_and(|group| group.threads == THREADS as u64))
    });
    let group = incident.stacks.first().unwrap();
    assert!(group.stack.frames[group.stack.culprit.unwrap()].to_string().contains("wait"), "{group}");
    assert!(group.to_string().contains("fetches"), "{group}");
    // On demand, too.
    let dump = detector.stacks().unwrap();
    let pool = dump.groups.iter().find(|group| group.op == Some("stacks::fetch")).unwrap();
    assert_eq!((pool.role, pool.threads.len(), pool.asleep), (ThreadRole::Pool, THREADS, true), "{dump}");
    assert!(pool.threads.iter().all(|thread| thread.since.is_some()), "{dump}");
    assert!(dump.to_string().contains("4 pool threads asleep in `stacks::fetch`"), "{dump}");
    gate.open();
    runtime.block_on(async {
        for call in calls {
            call.await.unwrap();
        }
    });
}

/// The verdict on a pool of three threads that are held by calls which nobody wrapped.
#[track_caller]
fn unwrapped_pool(hooked: bool) -> Arc<Incident> {
    let _one = exclusive();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).max_blocking_threads(3).enable_all();
    let runtime = if hooked { starvation::hooks(&mut builder) } else { &mut builder }.build().unwrap();
    let detector = with_stacks(&runtime, Stacks::Asleep);
    let gate = Gate::default();
    for _ in 0..3 {
        let keeper = gate.keeper();
        runtime.spawn_blocking(move || fetches(&keeper));
    }
    // Of a runtime that does nothing nobody asks how its pool is.
    runtime.spawn(async {
        loop {
            tokio::time::sleep(MS).await;
        }
    });
    eventually("where the threads of the pool are", || {
        let all = detector.incidents();
        all.into_iter().find(|incident| incident.diagnosis.evidence.contains("3 of those threads were found at"))
    })
}

#[test]
fn who_holds_a_pool_without_being_wrapped_is_told_by_its_place() {
    for hooked in [true, false] {
        let incident = unwrapped_pool(hooked);
        assert_eq!((incident.cause, incident.op), (Cause::PoolSaturated, None), "{incident}");
        let group = incident.stacks.first().unwrap();
        assert_eq!((group.threads, group.op, group.asleep), (3, None, true), "{group}");
        assert!(group.to_string().contains("fetches"), "{group}");
    }
}

#[test]
fn nothing_is_taken_that_was_not_asked_for() {
    let _one = exclusive();
    let runtime = current_thread(1);
    let detector = builder(&runtime).start().unwrap();
    assert_eq!(detector.stacks(), Err(StacksError::NotAskedFor));
    assert!(StacksError::NotAskedFor.to_string().contains("Builder::stacks"));
    let gate = Gate::default();
    let keeper = gate.keeper();
    let opens = thread::spawn(move || {
        thread::sleep(3 * LIMIT);
        keeper.open();
    });
    let keeper = gate.keeper();
    runtime.block_on(instrument_future("stacks::off", async move { sleeps_in_a_poll(&keeper) }));
    let incident = eventually("an incident", || incidents_of(&detector, "stacks::off").pop());
    assert!(incident.stacks.is_empty() && incident.no_stack.is_none(), "{incident:?}");
    assert!(incident.diagnosis.culprits.iter().all(|culprit| culprit.stack.is_none()), "{incident:?}");
    opens.join().unwrap();
}

#[test]
fn threads_that_come_and_go_are_no_trouble() {
    let _one = exclusive();
    let runtime = multi_thread(2, 16);
    let detector = with_stacks(&runtime, Stacks::WithSignals);
    runtime.block_on(async {
        for round in 0..20 {
            let calls =
                (0..16).map(|_| instrument_blocking("stacks::comes_and_goes", move || thread::sleep(MS * (round % 3))));
            futures_util::future::join_all(calls).await;
        }
    });
    let dump = detector.stacks().unwrap();
    assert!(!dump.groups.is_empty(), "{dump:?}");
}
