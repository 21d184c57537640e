//! Polls that wait for a lock, or for what is written to under one.

use super::poll::Does::{self, Locks, SleepsIn};
use super::polls::{BLOCKS, LOCKED};
use super::station::Work::Sleeps;
use super::timeline::{NEVER, Timeline};
use super::truths;
use crate::cause::Cause::*;
use crate::cause::Effect::*;

truths! {
    /// All that log wait for the lock of a stdout that nobody reads, and one of them for the pipe.
    full_stdout: full_stdout(Locks(0x8000))
        => LOCKED.culprits(&["write_order"]).effects(&[WorkersBlocked]).says("common lock or sink")
            .meanwhile(&[], &["read_order", "write_order"]);
    /// The same with one op.
    full_stdout_of_one: two_that_write(Locks(0x8000))
        => LOCKED.culprits(&["write_order"]).meanwhile(&[LongPoll], &["write_order"]);
    full_pipes_of_one: two_that_write(SleepsIn("write")) => BLOCKS.culprits(&["write_order"]);
    /// Each sleeps in a pipe of its own.
    full_pipes: full_stdout(SleepsIn("write"))
        => BLOCKS.culprits(&["write_order"]).effects(&[WorkersBlocked])
            .meanwhile(&[], &["read_order", "write_order"]);

    /// A lock is held across an await, and the only thread waits for it.
    lock_across_await: lock_across_await(false)
        => LOCKED.culprits(&["cache_read"]).effects(&[WorkersBlocked]).says("held by a task that awaits");
    /// A blocking call goes on that may hold it.
    lock_beside_a_call: lock_across_await(true) => LOCKED.culprits(&["cache_read"]).effects(&[WorkersBlocked]);
}

/// Four workers, of which one is in `write` and the others do as told.
fn full_stdout(others: Does) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(4);
    let (write, read) = (time.op("write_order", runtime), time.op("read_order", runtime));
    time.pass(50);
    time.poll(runtime, write, NEVER, SleepsIn("write"));
    time.pass(10);
    time.poll(runtime, read, NEVER, others);
    time.poll(runtime, read, NEVER, others);
    time.poll(runtime, read, NEVER, others);
    time.pass(2_500);
    time
}

/// Two polls of one op, of which one is in `write` and the other does as told.
fn two_that_write(other: Does) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(4);
    let write = time.op("write_order", runtime);
    time.pass(50);
    time.poll(runtime, write, NEVER, SleepsIn("write"));
    time.pass(60);
    time.poll(runtime, write, NEVER, other);
    time.pass(2_500);
    time
}

fn lock_across_await(beside_a_call: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(0);
    let pool = time.pool(runtime, 4);
    let (cache_read, refresh) = (time.op("cache_read", runtime), time.op("refresh", runtime));
    time.pass(20);
    if beside_a_call {
        time.calls(pool, refresh, 1, Sleeps(1_500));
    }
    time.poll(runtime, cache_read, NEVER, Locks(0x8000));
    time.pass(2_000);
    time
}
