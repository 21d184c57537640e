//! Real runtimes in trouble, with nothing wrapped.
//!
//! The machine that runs these may be busy: a thread that has no CPU looks stuck, and one that should be stuck is so
//! late. So what must be seen is waited for, and what must not be seen must be absent in one of several rounds.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::clock;
use crate::evidence;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

const MS: u64 = 1_000_000;
/// What is frozen for so long is stuck.
const STUCK: u64 = 100 * MS;
const TICK: Duration = Duration::from_millis(5);

fn runtime(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

fn sight(runtime: &Runtime) -> Sight {
    Sight::of(runtime.handle(), &Arc::new(Errands::start().unwrap()))
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Looks once a tick until one look is as wanted.
fn until<T>(sight: &mut Sight, ask: Ask, wanted: impl Fn(&Seen, u64) -> Option<T>) -> T {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let now = clock::now();
        let seen = sight.look(now, ask);
        if let Some(found) = wanted(seen, now) {
            return found;
        }
        assert!(Instant::now() < patience, "{seen:?}");
        thread::sleep(TICK);
    }
}

fn stuck(seen: &Seen, now: u64) -> Option<Frozen> {
    seen.frozen.iter().copied().find(|frozen| frozen.started && now.saturating_sub(frozen.since) >= STUCK)
}

/// The first look that finds a worker stuck, within a time; the time in which the looking itself was late does not count.
fn stuck_within(sight: &mut Sight, time: Duration) -> Option<Frozen> {
    let from = Instant::now();
    let mut paused_at = clock::now();
    let mut looked_at = paused_at;
    while from.elapsed() < time {
        let now = clock::now();
        if now - looked_at > 4 * MS + 5 * MS {
            paused_at = now;
        }
        looked_at = now;
        let found = stuck(sight.look(now, Ask::default()), now);
        if found.is_some_and(|frozen| now.saturating_sub(frozen.since.max(paused_at)) >= STUCK) {
            return found;
        }
        thread::sleep(TICK);
    }
    None
}

/// Nobody is stuck in one round at least.
fn nobody_is_stuck(sight: &mut Sight) -> bool {
    (0..8).any(|_| stuck_within(sight, ms(400)).is_none())
}

/// A task that holds its worker until told; returns how to tell, and its thread.
fn block(runtime: &Runtime) -> (mpsc::Sender<()>, Option<u32>) {
    let (release, released) = mpsc::channel();
    let (tell, told) = mpsc::channel();
    runtime.spawn(async move {
        tell.send(evidence::thread_id()).unwrap();
        released.recv().is_ok()
    });
    (release, told.recv().unwrap())
}

#[test]
fn a_blocked_worker_is_seen_and_its_thread_named() {
    let mut builder = Builder::new_multi_thread();
    let runtime = crate::hooks::hooks(builder.worker_threads(2).max_blocking_threads(3).enable_all()).build().unwrap();
    let mut sight = sight(&runtime);
    until(&mut sight, Ask::default(), |seen, _| (seen.heartbeat.beats > 0 && seen.parked == Some(2)).then_some(()));
    assert_eq!(sight.last().settings, Settings { max_blocking_threads: Some(3), worker_threads: Some(2) });

    let (release, tid) = block(&runtime);
    let frozen = until(&mut sight, Ask::default(), |seen, now| {
        // The other one is back in its place by then, but for a moment's business.
        stuck(seen, now).filter(|_| seen.parked == Some(1))
    });
    assert!(frozen.after <= frozen.since && sight.last().active, "{frozen:?}");
    // A thread of the pool is none of a worker's.
    runtime.block_on(runtime.spawn_blocking(|| ())).unwrap();
    assert_eq!(sight.thread_of(frozen).map(|thread| thread.tid()), Some(tid));
    drop(release);
    until(&mut sight, Ask::default(), |seen, now| stuck(seen, now).is_none().then_some(()));
}

#[test]
fn a_blocked_worker_is_seen_without_hooks() {
    let runtime = runtime(1);
    let mut sight = sight(&runtime);
    until(&mut sight, Ask::default(), |seen, _| (seen.heartbeat.beats > 0 && seen.parked == Some(1)).then_some(()));
    let (release, tid) = block(&runtime);
    let frozen = until(&mut sight, Ask::default(), stuck);
    // The heartbeat has been on the only worker's thread.
    assert_eq!(sight.thread_of(frozen).map(|thread| thread.tid()), Some(tid));
    until(&mut sight, Ask::default(), |seen, _| seen.heartbeat.late.filter(|&late| late >= STUCK));
    drop(release);
}

#[test]
fn a_thread_is_not_named_while_others_are_not_known() {
    let runtime = runtime(3);
    let mut sight = sight(&runtime);
    until(&mut sight, Ask::default(), |seen, _| (seen.heartbeat.beats > 0 && seen.parked == Some(3)).then_some(()));
    let (release, _) = block(&runtime);
    let frozen = until(&mut sight, Ask::default(), stuck);
    let known = sight.threads().filter(|thread| thread.role == Role::Worker).count();
    assert!(known == 3 || sight.thread_of(frozen).is_none() || cfg!(tokio_unstable), "{known} of 3 are known");
    drop(release);
}

#[test]
fn nobody_is_stuck_in_a_runtime_with_nothing_to_do() {
    let runtime = runtime(2);
    let mut sight = sight(&runtime);
    assert!(nobody_is_stuck(&mut sight));
}

/// Tasks that keep all workers busy with polls of this length.
fn saturate(runtime: &Runtime, tasks: usize, poll: Duration, work: fn(Duration)) -> Vec<tokio::task::JoinHandle<()>> {
    let task = move |_| {
        runtime.spawn(async move {
            loop {
                work(poll);
                tokio::task::yield_now().await;
            }
        })
    };
    (0..tasks).map(task).collect()
}

fn compute(time: Duration) {
    let from = Instant::now();
    while from.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn nobody_is_stuck_in_a_runtime_saturated_with_short_polls() {
    let runtime = runtime(2);
    let tasks = saturate(&runtime, 8, Duration::from_micros(50), compute);
    let mut sight = sight(&runtime);
    let fine = nobody_is_stuck(&mut sight);
    tasks.iter().for_each(|task| task.abort());
    assert!(fine);
}

#[test]
fn a_row_of_polls_of_some_milliseconds_looks_like_one() {
    let runtime = runtime(1);
    let tasks = saturate(&runtime, 2, ms(4), thread::sleep);
    let mut sight = sight(&runtime);
    // A known limit: 61 of them pass before the worker publishes anything.
    until(&mut sight, Ask::default(), stuck);
    tasks.iter().for_each(|task| task.abort());
}

#[test]
fn who_lets_another_thread_take_over_is_not_stuck() {
    let runtime = runtime(2);
    let mut sight = sight(&runtime);
    let (release, released) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    runtime.spawn(async move {
        tokio::task::block_in_place(|| {
            tell.send(()).unwrap();
            released.recv().is_ok()
        })
    });
    told.recv().unwrap();
    assert!(nobody_is_stuck(&mut sight));
    drop(release);
}

#[test]
fn a_full_pool_holds_up_the_canary_and_not_the_workers() {
    let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(4).enable_all().build().unwrap();
    let mut sight = sight(&runtime);
    let calls = Ask { calls: true, suspect: false };
    until(&mut sight, calls, |seen, _| (seen.canary.ran > 0).then_some(()));
    for _ in 0..40 {
        runtime.spawn_blocking(|| thread::sleep(ms(50)));
    }
    let waited = until(&mut sight, calls, |seen, _| seen.canary.worst.filter(|&worst| worst >= 50 * MS));
    assert!(waited >= 50 * MS);
    assert!((0..8).any(|_| stuck_within(&mut sight, ms(50)).is_none()));
    runtime.shutdown_background();
}

#[test]
fn the_end_of_a_runtime_is_seen_and_nothing_of_it_after() {
    let runtime = runtime(2);
    let mut sight = sight(&runtime);
    until(&mut sight, Ask { calls: true, suspect: true }, |seen, _| (seen.heartbeat.beats > 0).then_some(()));
    drop(runtime);
    let (ended, frozen) =
        until(&mut sight, Ask { calls: true, suspect: true }, |seen, _| Some((seen.ended, seen.frozen.len())));
    assert!(ended);
    assert_eq!(frozen, 0);
}

#[test]
fn a_runtime_that_nobody_drives_is_flagged_and_gets_no_canaries() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::task::yield_now().await });
    let mut sight = sight(&runtime);
    let late = until(&mut sight, Ask::default(), |seen, now| {
        assert!(seen.may_be_undriven);
        seen.heartbeat.late.filter(|&late| late >= STUCK).and(stuck(seen, now).or(seen.frozen.first().copied()))
    });
    assert!(!sight.last().active && late.worker == 0);
    assert_eq!(sight.last().canary, Canary::default());
}

#[test]
fn its_own_tasks_are_not_among_those_alive() {
    let runtime = runtime(1);
    let sleeper = runtime.spawn(std::future::pending::<()>());
    let mut sight = sight(&runtime);
    until(&mut sight, Ask::default(), |seen, _| (seen.alive_tasks == 1).then_some(()));
    sleeper.abort();
}

#[test]
fn a_fresh_task_is_tried_only_while_no_worker_is_parked() {
    let runtime = runtime(1);
    let mut sight = sight(&runtime);
    let suspect = Ask { calls: false, suspect: true };
    until(&mut sight, Ask::default(), |seen, _| (seen.parked == Some(1)).then_some(()));
    let (release, _) = block(&runtime);
    until(&mut sight, suspect, |seen, _| {
        assert!(seen.parked == Some(0) || seen.fresh.pending_since.is_none());
        seen.fresh.pending_since
    });
    drop(release);
    let waited = until(&mut sight, Ask::default(), |seen, _| seen.fresh.last_wait);
    assert!(waited > 0);
}

mod driver;
