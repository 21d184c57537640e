//! Loads on a simulated pool, looked at every few milliseconds, and what the replay says of them.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const MS: u64 = 1_000_000;
const TICK: u64 = 5 * MS;
const WINDOW: u64 = 10_000 * MS;

/// A call: when it came, started and ended.
#[derive(Debug, Clone, Copy)]
struct Call {
    came: u64,
    started: u64,
    ended: u64,
}

/// A first-come-first-served pool of so many threads, given calls in the order in which they come. `next` is told when a
/// call ends, and says when the job that made it makes another.
fn serve(
    threads: usize,
    until: u64,
    first: impl IntoIterator<Item = u64>,
    run: impl Fn(usize) -> u64,
    next: impl Fn(u64) -> Option<u64>,
) -> Vec<Call> {
    let mut free: BinaryHeap<Reverse<u64>> = (0..threads).map(|_| Reverse(0)).collect();
    let mut coming: BinaryHeap<Reverse<u64>> = first.into_iter().map(Reverse).collect();
    let mut calls = Vec::new();
    while let Some(Reverse(came)) = coming.pop().filter(|Reverse(came)| *came < until) {
        let Some(Reverse(at)) = free.pop() else { return calls };
        let started = at.max(came);
        let ended = started + run(calls.len());
        free.push(Reverse(ended));
        calls.push(Call { came, started, ended });
        coming.extend(next(ended).map(Reverse));
    }
    calls
}

/// What is said of these calls, as seen by looks from the beginning `until` then.
fn told_at(calls: &[Call], until: u64) -> u64 {
    told(calls, until, |_| ())
}

fn told(calls: &[Call], until: u64, mut each: impl FnMut(&Replay)) -> u64 {
    let count = |at: &dyn Fn(&Call) -> u64, now: u64| calls.iter().filter(|call| at(call) <= now).count() as u64;
    let sorted = |of: &dyn Fn(&Call) -> u64| {
        let mut all: Vec<u64> = calls.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    let (came, started, ended) = (sorted(&|c| c.came), sorted(&|c| c.started), sorted(&|c| c.ended));
    let upto = |all: &[u64], now: u64| all.partition_point(|at| *at <= now) as u64;
    assert_eq!(upto(&came, until), count(&|call| call.came, until));
    let mut replay = Replay::new(WINDOW);
    let (mut growth, mut held, mut now) = (Growth::default(), 0, 0);
    while now < until {
        let previous = now;
        now += TICK;
        let [come, begun, over] = [&came, &started, &ended].map(|all| upto(all, now));
        let level = Level { queued: come - begun, executing: begun - over };
        held = held.max(level.executing);
        let new = growth.see(over + level.queued + level.executing, level.queued + level.executing);
        replay.see(previous, now, level, [(1, new)].into_iter());
        let time: u64 = calls.iter().filter(|call| call.ended <= now).map(|call| call.ended - call.started).sum();
        replay.refresh(now, held, |_| time.checked_div(over));
        each(&replay);
    }
    let over = upto(&ended, now);
    let time: u64 = calls.iter().filter(|call| call.ended <= now).map(|call| call.ended - call.started).sum();
    replay.work_out(held, |_| time.checked_div(over))
}

/// So many jobs, each of which makes its next call so long after the last has ended.
fn closed(jobs: u64, threads: usize, run: u64, pause: u64, seconds: u64) -> Vec<Call> {
    // No two calls are quite alike.
    let run = move |number: usize| run + (number as u64 * 7_919 % 997) * 1_000;
    serve(threads, seconds * 1_000 * MS, (0..jobs).map(|job| job * 10_000), run, |ended| Some(ended + pause))
}

/// A call every so often, whatever becomes of it.
fn open(every: impl Fn(u64) -> u64, threads: usize, run: u64, seconds: u64) -> Vec<Call> {
    let mut at = 0;
    let arrivals = (0_u64..).map(|number| {
        at += every(number);
        at
    });
    let until = seconds * 1_000 * MS;
    serve(threads, until, arrivals.take_while(|at| *at < until), |_| run, |_| None)
}

#[test]
fn a_closed_loop_needs_a_thread_for_each_job_at_any_time() {
    for (jobs, threads, run) in [(20, 8, 46 * MS), (121, 8, 46 * MS), (20, 6, 230 * MS), (9, 8, 60 * MS)] {
        for seconds in [1, 3, 12, 40] {
            let calls = closed(jobs, threads, run, 100_000, seconds);
            let enough = told_at(&calls, seconds * 1_000 * MS);
            assert_eq!(enough, jobs, "{jobs} jobs on {threads} threads after {seconds} s");
        }
    }
}

#[test]
fn a_closed_loop_that_takes_longer_than_a_window_to_go_round_is_none_the_smaller() {
    // The story at its own scale: 121 calls of 4.6 s on 8 threads.
    let calls = closed(121, 8, 4_600 * MS, 100_000, 300);
    let mut least = u64::MAX;
    told(&calls, 300_000 * MS, |replay| {
        least = least.min(if replay.previous > 100 * MS { replay.enough() } else { 121 });
    });
    assert_eq!(least, 121);
}

#[test]
fn an_open_loop_needs_what_arrives_and_not_what_stands_in_the_queue() {
    // 100 calls a second of 100 ms each need 10 threads; on 8 of them 20 more wait with each second.
    for seconds in [2, 5, 12, 60] {
        let calls = open(|_| 10 * MS, 8, 100 * MS, seconds);
        let waiting = calls.iter().filter(|call| call.started > seconds * 1_000 * MS).count() as u64;
        let enough = told_at(&calls, seconds * 1_000 * MS);
        assert!((10..=14).contains(&enough), "{enough} after {seconds} s, with {waiting} waiting");
        assert!(seconds < 12 || waiting > 200, "{waiting}");
    }
}

#[test]
fn an_open_loop_of_uneven_arrivals_is_told_from_a_closed_one() {
    // As many as before on the average, some at once and some far apart.
    let uneven = |number: u64| if number.is_multiple_of(7) { 40 * MS } else { 5 * MS + (number * 7_919 % 11) * MS / 2 };
    let calls = open(uneven, 8, 100 * MS, 30);
    let enough = told_at(&calls, 30_000 * MS);
    assert!((10..=30).contains(&enough), "{enough}");
}

#[test]
fn a_burst_needs_a_thread_for_each_of_its_calls() {
    let calls = serve(4, 1_000 * MS, std::iter::repeat_n(3 * MS, 40), |_| 50 * MS, |_| None);
    for millis in [20, 100, 300, 490] {
        assert_eq!(told_at(&calls, millis * MS), 40, "after {millis} ms");
    }
}

#[test]
fn a_backlog_that_is_being_worked_off_counts_for_what_made_it() {
    // Two seconds of overload, then half of what the pool can do.
    let every = |number: u64| if number < 400 { 5 * MS } else { 25 * MS };
    let calls = open(every, 8, 100 * MS, 4);
    let enough = told_at(&calls, 3_500 * MS);
    assert!((20..=23).contains(&enough), "{enough}");
}

#[test]
fn where_no_call_has_ended_all_count() {
    let calls = serve(2, 500 * MS, (0..30).map(|call| call * 10 * MS), |_| 60_000 * MS, |_| None);
    assert_eq!(told_at(&calls, 400 * MS), 30);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut replay = Replay::new(WINDOW);
    for look in 0..200_000_u64 {
        let level = Level { queued: 10 + look % 3, executing: 8 };
        replay.see(look * TICK, (look + 1) * TICK, level, (0..3).map(|op| (op, 1)));
    }
    assert_eq!(replay.arrivals.len(), ARRIVALS);
    assert!(replay.stretches.len() <= STRETCHES, "{}", replay.stretches.len());
    // A pool that has gone quiet keeps nothing.
    for look in 200_000..210_000_u64 {
        replay.see(look * TICK, (look + 1) * TICK, Level::default(), std::iter::empty());
    }
    assert_eq!(replay.arrivals.len(), 0);
}

#[test]
fn arrivals_are_told_from_figures_that_were_read_one_after_the_other() {
    let mut growth = Growth::default();
    assert_eq!(growth.see(1_000, 3), 3);
    // One was seen queued and started at once, and then as it was.
    assert_eq!([1_005, 1_004, 1_006].map(|level| growth.see(level, 0)), [5, 0, 1]);
    // Two were dropped unrun: what comes then counts in full.
    assert_eq!([1_004, 1_004, 1_007].map(|level| growth.see(level, 0)), [0, 0, 3]);
}

/// The smallest pool in which none of these calls waits, by trying.
fn by_trial(came: &[u64], run: u64) -> u64 {
    let waits = |threads: usize| {
        serve(threads, u64::MAX, came.iter().copied(), |_| run, |_| None).iter().any(|call| call.started > call.came)
    };
    (1..=came.len()).find(|threads| !waits(*threads)).unwrap_or(0) as u64
}

fn replayed(came: &[u64], run: u64) -> u64 {
    let mut replay = Replay::new(WINDOW);
    let last = came.iter().max().copied().unwrap_or(0);
    for look in 0..=last / TICK {
        let (previous, now) = (look * TICK, (look + 1) * TICK);
        let new = came.iter().filter(|at| (previous..now).contains(*at)).count() as u64;
        replay.see(previous, now, Level { queued: new, executing: 0 }, [(1, new)].into_iter());
    }
    replay.at_once(|_| Some(run))
}

proptest! {
    /// Nobody waits in a pool of the size told, and by trial a pool is no smaller than one whose calls take two looks
    /// longer: that is as much as is not known of when they came.
    #[test]
    fn the_replay_finds_the_smallest_pool_in_which_nobody_waits(
        came in prop::collection::vec(0_u64..2_000 * MS, 1..120),
        run in 0_u64..400 * MS,
    ) {
        let told = replayed(&came, run);
        prop_assert!(by_trial(&came, run.max(1)) <= told);
        prop_assert!(told <= by_trial(&came, run + 2 * TICK));
    }

    /// Where calls come at the looks themselves and take a whole number of them less one, it is exact.
    #[test]
    fn the_replay_is_exact_as_far_as_looks_can_tell(
        came in prop::collection::vec(0_u64..300, 1..120),
        run in 1_u64..60,
    ) {
        let came: Vec<u64> = came.into_iter().map(|look| look * TICK).collect();
        prop_assert_eq!(replayed(&came, (run - 1) * TICK), by_trial(&came, run * TICK));
    }

    /// Whatever comes, it never tells less than the pool had, nor more than were there.
    #[test]
    fn what_is_told_lies_between_what_was_held_and_what_was_there(
        came in prop::collection::vec(0_u64..3_000 * MS, 30..300),
        run in MS..300 * MS,
        threads in 1_usize..12,
    ) {
        let calls = serve(threads, u64::MAX, came.iter().copied(), |_| run, |_| None);
        let (mut most, mut held) = (0, 0);
        for look in 1..=600_u64 {
            let there = |call: &&Call| call.came <= look * TICK && call.ended > look * TICK;
            most = most.max(calls.iter().filter(there).count() as u64);
            held = held.max(calls.iter().filter(|call| there(call) && call.started <= look * TICK).count() as u64);
        }
        let enough = told_at(&calls, 3_000 * MS);
        prop_assert!(enough <= most && enough >= held.min(most), "{} of {} to {}", enough, held, most);
    }
}
