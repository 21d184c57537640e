//! Polls that hold their worker: computing, blocked, locked, or waiting for what only they could do.

use super::poll::Does::{self, Computes, HasNoCpu, Locks, NapsIn, Parks, SleepsIn, Unknown};
use super::station::Work::Sleeps;
use super::timeline::{NEVER, Timeline};
use super::{Expected, truths};
use crate::cause::Action::*;
use crate::cause::Cause::*;
use crate::cause::Effect::*;

pub(super) const COMPUTES: Expected = Expected::of(LongPoll, Offload).detail("computing");
pub(super) const BLOCKS: Expected = Expected::of(LongPoll, Offload).detail("blocked");
pub(super) const LOCKED: Expected = Expected::of(LongPoll, ShortenLock).detail("locked");
/// Told while it goes on, and in the end no warning.
pub(super) const HARMLESS: Expected = Expected::healthy();

truths! {
    /// A `block_on` inside a task has used up the task's budget and never wakes.
    foreign_block_on: foreign_block_on(Parks, true)
        => Expected::of(LongPoll, GoAsync).detail("block_on").culprits(&["import"]).unsure();
    /// It reads from a socket instead.
    foreign_read: foreign_block_on(SleepsIn("recvfrom"), false) => BLOCKS.culprits(&["import"]).says("recvfrom");
    /// It is parked, and no future was seen to be run by hand.
    parked_in_poll: foreign_block_on(Parks, false)
        => Expected::of(LongPoll, Offload).detail("unknown").culprits(&["import"]).unsure();
    /// Nobody knows what its thread does.
    foreign_unknown: foreign_block_on(Unknown, false)
        => Expected::of(LongPoll, Offload).detail("unknown").culprits(&["import"]).unsure();

    /// One answer in ten is serialised on the worker for 150 ms; small ones wait behind it.
    serialising: serialising(150, Computes)
        => Expected::of(LongPoll, Yield).detail("computing").culprits(&["large_answer"]).victims(&["small_answer"])
            .effects(&[LifoVictim]).period_ms(250).says("small_answer");
    /// Each takes 20 ms.
    serialising_little: serialising(20, Computes) => Expected::healthy();

    /// A stream that is always ready is read without a pause, on the only thread.
    always_ready: always_ready(true)
        => Expected::of(LongPoll, Yield).detail("computing").culprits(&["query"]).effects(&[WorkersBlocked]).says("late");
    /// Nothing comes and goes inside its polls.
    one_long_step: always_ready(false) => COMPUTES.culprits(&["query"]).effects(&[WorkersBlocked]);

    /// The worker that waits for timers and sockets computes; seven others are idle.
    driver_held: idle_workers(8, true) => COMPUTES.culprits(&["resize"]).effects(&[DriverHeld]).says("7 of 8 workers idle");
    /// The same beside a worker that watches the timers: nobody is harmed.
    driver_free: idle_workers(8, false) =>
        HARMLESS.meanwhile(&[LongPoll], &["resize"]).says("1 incident came and harmed nobody, the worst a long_poll of `resize`, ");
    /// There is no other worker.
    one_worker: idle_workers(1, false) => COMPUTES.culprits(&["resize"]).effects(&[WorkersBlocked]);

    /// Half of the handlers call a synchronous database, on all workers at once.
    blocking_handler: handlers(40, SleepsIn("pread64"))
        => BLOCKS.culprits(&["lookup"]).effects(&[WorkersBlocked]).says("pread64");
    /// They compute for as long.
    computing_handler: handlers(40, Computes) => COMPUTES.culprits(&["lookup"]).effects(&[WorkersBlocked]);
    /// They take 20 ms.
    quick_handler: handlers(20, SleepsIn("pread64")) => Expected::healthy().says("nothing was over a threshold");

    /// Opening a named pipe waits until somebody opens the other end.
    fifo_open: fifo(300) => BLOCKS.culprits(&["open_pipe"]).effects(&[WorkersBlocked]).period_ms(450).says("openat");
    /// The other end is opened soon.
    fifo_open_soon: fifo(20) => Expected::healthy();

    /// A collector blocks a worker at an even period; who is on it waits.
    periodic_collector: collector(&[1_000; 12])
        => BLOCKS.culprits(&["collector"]).victims(&["ping"]).effects(&[LifoVictim]).period_ms(1_000);
    /// It comes when it likes.
    uneven_collector: collector(&[1_000, 300, 1_900, 700, 1_500, 400, 2_200, 800, 1_300, 500, 1_700, 600])
        => BLOCKS.culprits(&["collector"]).victims(&["ping"]).effects(&[LifoVictim]);

    /// A task spawns a child and computes; the child waits though other workers are idle.
    lifo_child: lifo_child(280)
        => Expected::of(LongPoll, Yield).detail("computing").culprits(&["parse"]).victims(&["release"]).effects(&[LifoVictim]);
    /// The last of such polls goes on: what it does to others shows when it is over, and what the others did is known.
    lifo_child_again: lifo_child_again(280)
        => Expected::of(LongPoll, Offload).detail("computing").culprits(&["parse"]).victims(&["release"]).effects(&[LifoVictim]);
    lone_parse_again: lifo_child_again(0) => Expected::of(LongPoll, Offload).detail("computing").culprits(&["parse"]);
    /// What the last of them does nobody knows.
    lifo_child_unknown: lifo_child_then(280, Unknown)
        => Expected::of(LongPoll, Yield).detail("computing").culprits(&["parse"]).victims(&["release"]).effects(&[LifoVictim]);
    /// Another worker takes the child at once.
    child_taken: lifo_child(0) => HARMLESS.meanwhile(&[LongPoll], &["parse"]);

    /// A lock in async code, held briefly.
    short_mutex: handlers(5, Locks(0x8000)) => Expected::healthy();
    /// It is held for long.
    long_mutex: handlers(60, Locks(0x8000)) => LOCKED.culprits(&["lookup"]).effects(&[WorkersBlocked]);

    /// A thread is pre-empted once, in the middle of a short poll.
    preempted: preempted(1, 330, HasNoCpu(99)) => Expected::healthy();
    /// It sleeps instead.
    blocked_once: preempted(1, 330, SleepsIn("flock")) => BLOCKS.culprits(&["request"]).effects(&[WorkersBlocked]);
    /// And again and again.
    preempted_often: preempted(6, 330, HasNoCpu(99))
        => Expected::of(CpuContention, LookAtHost).detail("neighbours");
    /// Each time for a moment only.
    preempted_briefly: preempted(6, 60, HasNoCpu(99)) => Expected::of(CpuContention, LookAtHost).detail("neighbours");
    preempted_rarely: preempted(4, 60, HasNoCpu(99)) => Expected::healthy();

    /// Polls that compute and block for long, having given their worker away.
    block_in_place: in_place(true) => Expected::healthy();
    /// They have not.
    in_place: in_place(false) => COMPUTES.culprits(&["convert"]).effects(&[WorkersBlocked]);

    /// A worker stands still in what nobody wrapped.
    unwrapped_poll: unwrapped(400, SleepsIn("futex")) => BLOCKS.effects(&[DriverHeld]).period_ms(700).says("code that nobody wrapped");
    /// It computes for as long: that may be a row of short polls.
    unwrapped_row: unwrapped(200, Computes) => Expected::healthy();
    /// It sleeps again and again, as who reads a file in many short polls does.
    unwrapped_naps: unwrapped(200, NapsIn("read")) => Expected::healthy();
    unwrapped_long_naps: unwrapped(400, NapsIn("read")) => BLOCKS.effects(&[DriverHeld]).period_ms(700);
    unwrapped_long_row: unwrapped(400, Computes) => COMPUTES.effects(&[DriverHeld]).period_ms(700);
    /// A runtime that nobody is in: all of it stands still.
    undriven_runtime: undriven() => Expected::healthy();
    unwrapped_short_poll: unwrapped(40, SleepsIn("futex")) => Expected::healthy();

    /// A poll gives its worker away, and the pool that should take it over is full.
    hand_off_lost: beside_calls(4, 1)
        => Expected::of(PoolSaturated, RaisePool).detail("io").culprits(&["thumbnail"]).unsure()
            .effects(&[HandOffLost]).meanwhile(&[LongPoll, Undetermined], &["convert"]);
    /// It has room.
    hand_off: beside_calls(3, 1) => HARMLESS.meanwhile(&[LongPoll], &["convert"]);
    /// Both are faults of their own, and the one that makes others wait for longest is told first.
    two_faults: beside_calls(4, 30)
        => Expected::of(PoolSaturated, RaisePool).detail("io").culprits(&["thumbnail"]).victims(&["thumbnail"])
            .effects(&[HandOffLost]).meanwhile(&[LongPoll, Undetermined], &["convert"]);

    /// More is runnable than the workers can do, and no poll is long.
    many_small_tasks: crowd(120) => Expected::of(Overloaded, None).victims(&["small"]);
    /// They are done in time.
    small_tasks: crowd(0) => Expected::healthy();
}

fn foreign_block_on(does: Does, by_hand: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.pool(runtime, 16);
    let (import, block) = (time.op("import", runtime), time.op("read_block", runtime));
    for _ in 0..10 {
        time.calls(pool, block, 12, Sleeps(1));
        time.pass(5);
    }
    time.poll(runtime, import, NEVER, does).by_hand = by_hand;
    time.pass(2_500);
    time
}

fn serialising(large_takes: u64, does: Does) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let (large, small) = (time.op("large_answer", runtime), time.op("small_answer", runtime));
    for _ in 0..10 {
        let delay = large_takes - 15;
        time.poll(runtime, large, large_takes, does).delays = (delay >= 25).then_some((small, delay));
        time.pass(large_takes + 100);
    }
    time
}

fn always_ready(steps: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(0);
    let query = time.op("query", runtime);
    for _ in 0..4 {
        time.poll(runtime, query, 400, Computes).steps = steps;
        time.pass(500);
    }
    time
}

fn idle_workers(workers: u64, holds_driver: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(workers);
    let resize = time.op("resize", runtime);
    time.pass(100);
    for _ in 0..6 {
        time.pass(10);
        time.poll(runtime, resize, 400, Computes).holds_driver = holds_driver;
        time.pass(400);
    }
    time.pass(200);
    time
}

fn handlers(takes: u64, does: Does) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let lookup = time.op("lookup", runtime);
    for _ in 0..25 {
        time.poll(runtime, lookup, takes, does);
        time.poll(runtime, lookup, takes, does);
        time.pass(100);
    }
    time
}

fn fifo(takes: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(0);
    let open = time.op("open_pipe", runtime);
    for _ in 0..5 {
        time.poll(runtime, open, takes, SleepsIn("openat"));
        time.pass(takes + 150);
    }
    time
}

fn collector(pauses: &[u64]) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let (collector, ping) = (time.op("collector", runtime), time.op("ping", runtime));
    for pause in pauses {
        time.poll(runtime, collector, 80, SleepsIn("read")).delays = Some((ping, 60));
        time.pass(*pause);
    }
    time
}

fn lifo_child(waits: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(4);
    let (parse, release) = (time.op("parse", runtime), time.op("release", runtime));
    for _ in 0..6 {
        time.poll(runtime, parse, 300, Computes).delays = (waits > 0).then_some((release, waits));
        time.pass(350);
    }
    time.pass(200);
    time
}

fn lifo_child_again(waits: u64) -> Timeline {
    lifo_child_then(waits, Computes)
}

fn lifo_child_then(waits: u64, does: Does) -> Timeline {
    let mut time = lifo_child(waits);
    time.poll(0, 0, 300, does);
    time.pass(100);
    time
}

fn preempted(times: usize, takes: u64, does: Does) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(0);
    let request = time.op("request", runtime);
    time.machine.idle = Some(0);
    time.pass(2_000);
    for _ in 0..times {
        time.poll(runtime, request, takes, does);
        time.pass(500);
    }
    time
}

fn in_place(given_away: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(1);
    let convert = time.op("convert", runtime);
    for _ in 0..4 {
        time.poll(runtime, convert, 200, Computes).given_away = given_away;
        time.pass(250);
    }
    time
}

fn unwrapped(takes: u64, does: Does) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(4);
    for _ in 0..5 {
        time.pass(300);
        time.poll(runtime, Option::None, takes, does).holds_driver = true;
        time.pass(takes);
    }
    time
}

fn undriven() -> Timeline {
    let mut time = Timeline::new();
    let (driven, undriven) = (time.runtime(2), time.runtime(0));
    let ping = time.op("ping", driven);
    time.poll(undriven, Option::None, NEVER, SleepsIn("futex"));
    for _ in 0..30 {
        time.poll(driven, ping, 1, Computes);
        time.pass(100);
    }
    time
}

/// A worker is blocked for 300 ms now and then while so many of four threads are held, and so many calls come at once.
fn beside_calls(threads: usize, calls: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 4);
    let (thumbnail, convert) = (time.op("thumbnail", runtime), time.op("convert", runtime));
    for _ in 0..3 {
        for _ in 0..calls {
            time.calls(pool, thumbnail, threads, Sleeps(350));
        }
        time.pass(20);
        time.poll(runtime, convert, 300, SleepsIn("pread64"));
        time.pass(700);
    }
    time
}

/// More tasks than the workers can do are queued, and come so much later.
fn crowd(late: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let small = time.op("small", runtime);
    time.crowded = true;
    time.runtimes[runtime].depth = if late > 0 { 4_000 } else { 3 };
    for _ in 0..200 {
        if late > 0 {
            time.came_late(small, Option::None, late);
        }
        time.pass(10);
    }
    time
}
