//! Canaries in real pools.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(1).max_blocking_threads(threads).build().unwrap()
}

fn canaries(runtime: &Runtime) -> Canaries {
    Canaries::of(runtime.handle(), &Arc::new(Errands::start().unwrap()))
}

fn until(canaries: &mut Canaries, load: Load, wanted: impl Fn(&Canary) -> bool) -> Canary {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let seen = canaries.look(clock::now(), load);
        if wanted(&seen) {
            return seen;
        }
        assert!(Instant::now() < patience, "{seen:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn it_waits_while_the_pool_is_full_of_work_that_nobody_wrapped() {
    let runtime = runtime(4);
    let mut canaries = canaries(&runtime);
    until(&mut canaries, Load::Calls, |seen| seen.ran == 1);
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    for _ in 0..4 {
        let released = Arc::clone(&released);
        runtime.spawn_blocking(move || released.lock().unwrap().recv().is_ok());
    }
    let waits = |seen: &Canary| seen.worst.is_some_and(|worst| worst >= 100 * MS);
    let waiting = until(&mut canaries, Load::Calls, waits);
    assert!(waiting.pending_since.is_some(), "{waiting:?}");
    drop(release);
    let ran = until(&mut canaries, Load::Calls, |seen| seen.ran > waiting.ran);
    assert!(ran.last_wait.is_some_and(|wait| wait >= 100 * MS), "{ran:?}");
    // One that waited is followed closely, whatever else goes on.
    until(&mut canaries, Load::Idle, |seen| seen.ran > ran.ran + 1 || seen.last_wait.is_some_and(|wait| wait < WAITED));
}

#[test]
fn it_tells_the_thread_that_ran_it_and_that_thread_is_the_pools() {
    let runtime = runtime(1);
    let tid = runtime.block_on(runtime.spawn_blocking(crate::evidence::thread_id)).unwrap();
    let mut canaries = canaries(&runtime);
    let seen = until(&mut canaries, Load::Calls, |seen| seen.ran > 0);
    assert_eq!(seen.tid, tid);
    let number = crate::op::runtime_number(runtime.handle().id()).unwrap();
    let known: Vec<_> = threads::threads(number).collect();
    assert!(known.iter().any(|thread| thread.tid() == tid && thread.role == threads::Role::Pool), "{known:?}");
}

#[test]
fn there_is_one_at_a_time_and_none_for_a_runtime_that_does_nothing() {
    let runtime = runtime(1);
    let mut canaries = canaries(&runtime);
    canaries.look(MS, Load::Idle);
    assert!(canaries.flight.is_none());
    let (release, released) = mpsc::channel::<()>();
    runtime.spawn_blocking(move || released.recv().is_ok());
    let first = until(&mut canaries, Load::Busy, |seen| seen.pending_since.is_some()).pending_since;
    assert_eq!(canaries.look(clock::now() + 20_000 * MS, Load::Calls).pending_since, first, "the same one");
    drop(release);
    until(&mut canaries, Load::Idle, |seen| seen.ran > 0);
}

#[test]
fn where_no_thread_is_granted_it_says_so_and_tries_again() {
    let runtime = runtime(1);
    let mut canaries = canaries(&runtime);
    let flight = Arc::new(Flight::default());
    flight.end(REFUSED);
    canaries.flight = Some(flight);
    assert_eq!(canaries.look(7 * MS, Load::Idle).refused_at, Some(7 * MS));
    until(&mut canaries, Load::Busy, |seen| seen.ran == 1);
}

#[test]
fn what_has_not_been_submitted_does_not_wait_yet() {
    let runtime = runtime(1);
    let mut canaries = canaries(&runtime);
    (canaries.flight, canaries.sent_at) = (Some(Arc::new(Flight::default())), 5 * MS);
    let seen = canaries.look(20_000 * MS, Load::Calls);
    assert_eq!((seen.pending_since, seen.worst, seen.ran), (None, None, 0));
    assert_eq!(seen.unsubmitted_since, Some(5 * MS));
}

#[test]
fn how_often_goes_by_what_the_runtime_does() {
    let runtime = runtime(1);
    let mut canaries = canaries(&runtime);
    assert!(canaries.is_due(MS, Load::Busy) && !canaries.is_due(MS, Load::Idle));
    canaries.sent_at = 1_000 * MS;
    let due = |canaries: &Canaries, after, load| canaries.is_due(1_000 * MS + after * MS, load);
    assert!(due(&canaries, 100, Load::Calls) && !due(&canaries, 99, Load::Calls));
    assert!(due(&canaries, 1_000, Load::Busy) && !due(&canaries, 999, Load::Busy));
    assert!(!due(&canaries, 1_000_000, Load::Idle), "it has never done anything");
    canaries.active_at = 999 * MS;
    assert!(due(&canaries, 1_000, Load::Idle) && !due(&canaries, 999, Load::Idle));
    canaries.active_at = 1;
    canaries.sent_at = 4_000 * MS;
    assert!(canaries.is_due(8_000 * MS, Load::Idle) && !canaries.is_due(7_990 * MS, Load::Idle));
    (canaries.sent_at, canaries.active_at) = (1_000 * MS, 0);
    canaries.seen.last_wait = Some(WAITED);
    assert!(due(&canaries, 100, Load::Busy) && due(&canaries, 100, Load::Idle));
}

#[test]
fn after_a_shutdown_it_stops() {
    let runtime = runtime(1);
    let mut canaries = canaries(&runtime);
    until(&mut canaries, Load::Calls, |seen| seen.ran > 0);
    drop(runtime);
    let ended = until(&mut canaries, Load::Calls, |seen| seen.ended);
    assert_eq!(ended.pending_since, None);
    assert_eq!(canaries.look(clock::now() + 10_000 * MS, Load::Calls).pending_since, None);
}

#[test]
fn the_system_still_grants_threads() {
    assert!(grants_a_thread());
}
