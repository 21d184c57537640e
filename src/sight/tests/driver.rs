//! The driver's holder: one task, woken alone by the driver, that blocks, holds up all timers and sockets although other
//! workers have nothing to do. A detector must not cure what it is there to see.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCKED: u64 = 500;
/// On a busy machine the driver often finds several tasks to wake at once, and then another worker takes over: there is no
/// stall in such a round. So it is tried again and again; where it is cured it never comes.
const TRIES: usize = 25;
const WANTED: usize = 3;

/// Lets one task block that the driver wakes alone, and tells whether a timer that was due meanwhile had to wait for most
/// of it. Calls `during` a while after the timer was due.
fn stalls(runtime: &Runtime, during: impl FnOnce()) -> bool {
    let (tell, told) = mpsc::channel();
    runtime.spawn(async move {
        tokio::time::sleep(ms(57)).await;
        tell.send(()).unwrap();
        thread::sleep(ms(BLOCKED));
    });
    // What it tells it tells without the runtime: to wait in there for it would wake a worker.
    let (answer, answered) = mpsc::channel();
    runtime.spawn(async move {
        let due = Instant::now() + ms(111);
        tokio::time::sleep_until(due.into()).await;
        answer.send(due.elapsed()).unwrap();
    });
    told.recv().unwrap();
    thread::sleep(ms(100));
    during();
    answered.recv().unwrap() >= ms(BLOCKED * 2 / 3)
}

/// It goes so as often as it must for that not to be chance.
fn happens(round: impl FnMut() -> bool) -> bool {
    std::iter::repeat_with(round).take(TRIES).filter(|&happened| happened).take(WANTED).count() == WANTED
}

/// How many of `rounds` go so.
fn times(rounds: usize, round: impl FnMut() -> bool) -> usize {
    std::iter::repeat_with(round).take(rounds).filter(|&happened| happened).count()
}

#[test]
fn it_stalls_timers_although_workers_are_free() {
    for workers in [2, 4] {
        assert!(happens(|| stalls(&runtime(workers), || ())), "with {workers} workers");
    }
}

#[test]
fn looking_does_not_cure_it_and_shows_it() {
    for workers in [2, 4] {
        let stalls_and_shows = || {
            let runtime = runtime(workers);
            let mut sight = sight(&runtime);
            let stop = Arc::new(AtomicBool::new(false));
            let observer = thread::spawn({
                let stop = Arc::clone(&stop);
                move || {
                    let mut late_with_one_stuck = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let now = clock::now();
                        // All it has, canaries and fresh tasks included.
                        let seen = sight.look(now, Ask { calls: true, suspect: true });
                        if stuck(seen, now).is_some() && seen.parked.is_some_and(|parked| parked + 1 == workers) {
                            late_with_one_stuck = seen.heartbeat.late.unwrap_or(0).max(late_with_one_stuck);
                        }
                        thread::sleep(TICK);
                    }
                    (late_with_one_stuck, sight.last().fresh.polled)
                }
            });
            let stalled = stalls(&runtime, || ());
            stop.store(true, Ordering::Relaxed);
            let (late, polled) = observer.join().unwrap();
            stalled && late >= STUCK && polled == 0
        };
        assert!(happens(stalls_and_shows), "with {workers} workers");
    }
}

#[test]
fn a_task_spawned_from_outside_would_cure_it() {
    for workers in [2, 4] {
        let stalled = times(2 * WANTED, || {
            let runtime = runtime(workers);
            stalls(&runtime, || {
                let errands = Arc::new(Errands::start().unwrap());
                let mut spawned = Spawned::of(runtime.handle(), &errands);
                while spawned.look(clock::now(), true).polled == 0 {
                    thread::sleep(ms(1));
                }
            })
        });
        assert!(stalled < WANTED, "{stalled} times with {workers} workers: the rule would not be needed");
    }
}
