//! Heartbeats in real runtimes. What a test waits for it waits for long; what it measures is told by others' clocks.

#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use std::thread;
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};

const MS: u64 = 1_000_000;

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn start(handle: &Handle) -> Heartbeat {
    Heartbeat::start(handle, timer::of(handle))
}

/// Looks every few milliseconds until one look is as wanted.
fn until(heartbeat: &Heartbeat, wanted: impl Fn(&Beat) -> bool) -> Beat {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        let beat = heartbeat.look(clock::now());
        if wanted(&beat) {
            return beat;
        }
        assert!(Instant::now() < patience, "{beat:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn it_beats_often_while_anything_goes_on_and_rarely_while_nothing_does() {
    let mut pace = Pace::default();
    let told = |moves, busy| Told::of([Reading { moves, busy }, Reading { moves: 1, busy: 0 }].into_iter());
    assert_eq!(pace.next(told(10, 0)), (SHORTEST, true), "nothing to compare with");
    assert_eq!(pace.next(told(12, 0)), (SHORTEST * 2, false), "its own moves");
    assert_eq!(pace.next(told(14, 200_000)), (SHORTEST * 4, false));
    for _ in 0..4 {
        pace.next(told(14, 200_000));
    }
    assert_eq!(pace.next(told(14, 200_000)), (LONGEST, false));
    assert_eq!(pace.next(told(14, 2 * OWN_BUSY)), (SHORTEST, true), "saturated workers never park");
    assert_eq!(pace.next(told(16 + OWN_MOVES, 2 * OWN_BUSY)), (SHORTEST, true));
    assert_eq!(pace.next(told(16 + OWN_MOVES, 2 * OWN_BUSY)), (SHORTEST * 2, false));
    let other_is_stuck = [Reading { moves: 16 + OWN_MOVES, busy: 2 * OWN_BUSY }, Reading { moves: 2, busy: 0 }];
    assert_eq!(pace.next(Told::of(other_is_stuck.into_iter())), (SHORTEST, true));
    assert_eq!(Pace::default().next(Told::of(std::iter::empty())), (UNTOLD, true));
}

#[test]
fn it_beats_and_finds_a_quiet_runtime_quiet() {
    let runtime = multi_thread();
    let heartbeat = start(runtime.handle());
    let beat = until(&heartbeat, |beat| beat.beats >= 3);
    assert_eq!(beat.state, State::Beating);
    assert!(beat.due.zip(beat.last).is_some_and(|(due, last)| due >= last + 50 * MS), "{beat:?}");
    until(&heartbeat, |beat| !beat.active);
    until(&heartbeat, |beat| beat.due.zip(beat.last).is_some_and(|(due, last)| due >= last + 400 * MS));
    // And one that is not quiet not.
    let busy = runtime.spawn(async {
        loop {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    until(&heartbeat, |beat| beat.active);
    busy.abort();
}

#[test]
fn it_is_late_while_its_runtime_is_blocked_and_tells_so_afterwards() {
    let (tell, told) = std::sync::mpsc::channel();
    let blocked = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let heartbeat = start(runtime.handle());
        runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(120)).await;
            tell.send(heartbeat).unwrap();
            thread::sleep(Duration::from_millis(500));
            // Long enough for the beat that was due.
            tokio::time::sleep(Duration::from_millis(300)).await;
        });
    });
    let heartbeat = told.recv().unwrap();
    let during = until(&heartbeat, |beat| beat.late.is_some_and(|late| late >= 200 * MS));
    assert_eq!(during.state, State::Beating);
    until(&heartbeat, |beat| beat.state == State::Ended || beat.beats > during.beats);
    blocked.join().unwrap();
    assert_eq!(heartbeat.look(clock::now()).state, State::Ended);
}

#[test]
fn how_late_a_beat_came_is_told_once_and_how_late_one_is_until_it_comes() {
    let runtime = multi_thread();
    let mut heartbeat = start(runtime.handle());
    // Figures of its own, in place of the task's.
    heartbeat.shared = Arc::new(Shared::new(100 * MS, State::Beating));
    let look = |now| (heartbeat.look(now * MS).late, heartbeat.look(now * MS).worst);
    assert_eq!(look(100), (Some(0), Some(0)));
    assert_eq!(look(300), (Some(200 * MS), Some(200 * MS)));
    heartbeat.shared.beat(400 * MS, SHORTEST, true);
    assert_eq!(heartbeat.look(401 * MS).worst, Some(300 * MS));
    assert_eq!(look(402), (Some(0), Some(0)));
    assert_eq!(heartbeat.look(402 * MS).due, Some(450 * MS));
}

#[test]
fn it_ends_with_the_runtime_and_does_not_keep_it() {
    for builder in [Builder::new_current_thread, Builder::new_multi_thread] {
        for timers in [true, false] {
            let mut builder = builder();
            if timers {
                builder.enable_time();
            }
            let runtime = builder.worker_threads(1).build().unwrap();
            let heartbeat = start(runtime.handle());
            runtime.block_on(async { tokio::task::yield_now().await });
            let before = heartbeat.look(clock::now());
            assert_ne!(before.state, State::Ended);
            assert!(timers || (before.state == State::NoTimer && before.late.is_none()), "{before:?}");
            drop(runtime);
            let ended = heartbeat.look(clock::now());
            assert_eq!((ended.state, ended.late, ended.worst), (State::Ended, None, None));
        }
    }
    let runtime = multi_thread();
    let handle = runtime.handle().clone();
    drop(runtime);
    assert_eq!(start(&handle).look(clock::now()).state, State::Ended, "it never began");
}

#[test]
fn its_task_goes_when_it_is_dropped() {
    let runtime = multi_thread();
    let heartbeat = start(runtime.handle());
    until(&heartbeat, |beat| beat.beats > 0);
    let metrics = runtime.metrics();
    assert_eq!(metrics.num_alive_tasks(), 1);
    drop(heartbeat);
    let patience = Instant::now() + Duration::from_secs(30);
    while metrics.num_alive_tasks() > 0 {
        assert!(Instant::now() < patience);
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_runtime_that_nobody_drives_is_late_for_ever() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let heartbeat = start(runtime.handle());
    let beat = until(&heartbeat, |beat| beat.late.is_some_and(|late| late >= 60 * MS));
    assert_eq!((beat.state, beat.beats, beat.last), (State::Starting, 0, None));
}

#[cfg(starvation_paused_clock)]
mod paused_clock {
    use super::*;

    /// What a test with a paused clock sees: how far the clock goes in a long sleep, and how far while a thread takes its
    /// time to answer.
    async fn paused_hours(answers_after: Duration) -> (Duration, Duration) {
        let before = tokio::time::Instant::now();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let slept = before.elapsed();
        let before = tokio::time::Instant::now();
        let (answer, answered) = tokio::sync::oneshot::channel();
        thread::spawn(move || {
            thread::sleep(answers_after);
            answer.send(()).unwrap();
        });
        answered.await.unwrap();
        (slept, before.elapsed())
    }

    #[test]
    fn a_clock_that_is_paused_from_the_start_goes_as_without_it() {
        let run = |with: bool, inside: bool| {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            let outer = (with && !inside).then(|| start(runtime.handle()));
            let began = Instant::now();
            let seen = runtime.block_on(async {
                let inner = (with && inside).then(|| start(&Handle::current()));
                let seen = paused_hours(Duration::from_millis(100)).await;
                for heartbeat in outer.iter().chain(&inner) {
                    assert_eq!(heartbeat.look(clock::now()).state, State::ClockPaused);
                }
                seen
            });
            assert!(began.elapsed() < Duration::from_secs(600), "an hour of its clock is no hour");
            seen
        };
        let without = run(false, false);
        assert_eq!(without, (Duration::from_secs(3600), Duration::ZERO));
        assert_eq!(run(true, false), without);
        assert_eq!(run(true, true), without);
    }

    #[test]
    fn a_clock_that_is_paused_later_leaps_once_at_most_and_never_to_the_end_of_a_sleep() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let heartbeat = start(runtime.handle());
        let (slept, leapt) = runtime.block_on(async {
            tokio::time::sleep(Duration::from_millis(120)).await;
            tokio::time::pause();
            let before = tokio::time::Instant::now();
            let (answer, answered) = tokio::sync::oneshot::channel();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                answer.send(()).unwrap();
            });
            answered.await.unwrap();
            let leapt = before.elapsed();
            (paused_hours(Duration::from_millis(100)).await, leapt)
        });
        assert!(leapt <= LONGEST + Duration::from_millis(1), "{leapt:?}");
        // Paused between two milliseconds, the clock itself adds what is left to the next.
        let over = slept.0.checked_sub(Duration::from_secs(3600));
        assert!(over.is_some_and(|over| over <= Duration::from_millis(1)), "{slept:?}");
        assert_eq!(slept.1, Duration::ZERO, "it has stopped by then");
        assert_eq!(heartbeat.look(clock::now()).state, State::ClockPaused);
    }
}
