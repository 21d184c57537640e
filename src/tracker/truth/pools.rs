//! Blocking pools: full, too small, waiting for themselves, never given back, or asked too often.

use super::station::Work::{self, Both, Computes, Loops, Sleeps, WaitsFor};
use super::timeline::{MS, Timeline};
use super::{Expected, truths};
use crate::cause::Action;
use crate::cause::Action::{
    AvoidNested, Batch, BoundCpuPool, CancelAbandoned, CheckLimits, DedicatedThread, LookAtHost, LookDownstream,
    RaisePool, SeparatePool,
};
use crate::cause::Cause::*;
use crate::cause::Effect;
use crate::evidence::ThreadLimits;
use crate::sample::RuntimeSample;

const ALL_HELD: Expected = Expected::of(PoolSaturated, RaisePool).detail("io");
const COMPUTED: Expected = Expected::of(PoolSaturated, BoundCpuPool).detail("cpu");
const HANGS: Expected = Expected::of(PoolDeadlock, AvoidNested).detail("nested");
const HAS_ROOM: Expected =
    Expected::of(Undetermined, LookAtHost).detail("the pool has room, and calls wait").victims(&["read"]).unsure();
const LEAKS: Expected = Expected::of(PoolLeak, DedicatedThread);

truths! {
    /// Long computing jobs keep small ones out of the pool that they share.
    pool_cpu_trace: shared_pool(4, Computes(300), 8)
        => COMPUTED.culprits(&["trace"]).victims(&["eth", "trace"]).meanwhile(&[Undetermined], &[]);
    /// The same jobs, but what they do is sleep.
    pool_io_trace: shared_pool(4, Sleeps(600), 8)
        => ALL_HELD.culprits(&["trace"]).victims(&["eth", "trace"]).meanwhile(&[Undetermined], &[]);
    /// They do as much of the one as of the other.
    pool_mixed_trace: shared_pool(4, Both(300, 150), 8)
        => Expected::of(PoolSaturated, SeparatePool).detail("mixed").culprits(&["trace"]).victims(&["eth", "trace"])
            .meanwhile(&[Undetermined, PoolSaturated], &[]);
    /// The same on a machine that is short of CPUs: what they have of them is small, and what they want is not.
    pool_mixed_on_a_busy_machine: shared_pool_without(45, Both(100, 350))
        => Expected::of(PoolSaturated, SeparatePool).detail("mixed").culprits(&["trace"]).victims(&["eth", "trace"])
            .meanwhile(&[Undetermined, PoolSaturated], &[]);
    /// As little, on a machine that has CPUs.
    pool_io_that_computes_a_little: shared_pool_without(0, Both(100, 350))
        => ALL_HELD.culprits(&["trace"]).victims(&["eth", "trace"]).meanwhile(&[Undetermined], &[]);
    /// A CPU for each thread: nothing there waits for one.
    pool_of_cpus: shared_pool(2, Computes(300), 4)
        => COMPUTED.culprits(&["trace"]).victims(&["eth", "trace"]).meanwhile(&[Undetermined], &[]);
    /// One at a time of the long jobs.
    pool_with_room: shared_pool(4, Computes(300), 1) => Expected::healthy();

    /// Reads are sent to a runtime whose pool has one thread, and a long job on it.
    undersized_runtime: undersized_runtime(1)
        => ALL_HELD.culprits(&["optimise"]).victims(&["read"]).meanwhile(&[Undetermined], &[]);
    /// Its pool has a second one.
    sized_runtime: undersized_runtime(2) => Expected::healthy();

    /// Jobs that hold all threads wait for jobs behind them.
    nested_block_on: nested(4, 4, 1) => HANGS.culprits(&["outer"]).victims(&["inner"]);
    /// Somebody else made the jobs behind them.
    circular: circular() => Expected::of(PoolDeadlock, AvoidNested).detail("circular").culprits(&["outer"]).victims(&["inner"]);
    /// One job less than the pool has threads: it has not hung yet.
    nested_in_time: nested(4, 3, 1) => HANGS.culprits(&["outer"]).victims(&["inner"]).unsure().says("has not hung yet");
    /// The job behind them is the one that executes.
    nested_that_executes: nested(4, 3, 4_000)
        => Expected::of(Undetermined, Action::None).detail("the calls that hold this pool do not end: long calls, a leak or a deadlock")
            .culprits(&["outer", "inner"]).victims(&["inner"]).unsure().meanwhile(&[PoolDeadlock], &[]);

    /// Loops that never end hold all threads.
    endless_loops: loops(4, 0) => LEAKS.culprits(&["runner"]).victims(&["job"]).meanwhile(&[Undetermined], &[]);
    /// Runs of this op have always been long, and have always ended.
    long_executions: loops(4, 20) => ALL_HELD.culprits(&["runner"]).victims(&["job"]);
    /// A thread is left over for the others.
    three_endless_loops: loops(3, 0) => LEAKS.culprits(&["runner"]).unsure().says("3 threads of the pool's 4");
    one_lost_thread: loops_for(1, 0, 45_000) => LEAKS.culprits(&["runner"]).unsure().says("1 thread of the pool's 4");
    /// One may as well be a long job that is the first of its kind.
    one_long_job: loops(1, 0) => Expected::healthy();
    /// That others get a thread does not bring it back, and a history of long runs makes it no loss.
    three_long_executions: loops(3, 20) => Expected::healthy();

    /// One thread is lost, and the others come and go: they are what there is to wait for.
    one_endless_loop: loop_beside_others(1) => ALL_HELD.culprits(&["report", "runner"]).victims(&["report"])
        .meanwhile(&[Undetermined], &[]);
    most_are_endless_loops: loop_beside_others(3) => LEAKS.culprits(&["runner", "report"]).victims(&["report"])
        .meanwhile(&[Undetermined], &[]);

    /// Thousands of tiny calls, one after the other.
    tiny_calls: tiny_calls(2_000, 1_000, 70_000)
        => Expected::of(DispatchOverhead, Batch).culprits(&["metadata"]);
    /// On a fast machine, where the way is short; there are all the more of them.
    quick_tiny_calls: tiny_calls(14_000, 800, 3_900)
        => Expected::of(DispatchOverhead, Batch).culprits(&["metadata"]);
    /// Each does enough for its way.
    calls_that_do_much: tiny_calls(2_000, 200_000, 70_000) => Expected::healthy();
    /// Tiny blocking jobs that wait for many times their execution.
    tiny_jobs: tiny_calls(200, 20, 3_500) => Expected::healthy();

    /// A name lookup and a file wait for threads that other jobs hold, and nobody wrapped them.
    hidden_dns: hidden_dns(4) => ALL_HELD.culprits(&["thumbnail"]).unsure().meanwhile(&[Undetermined], &[])
            .says("name lookups");
    /// One job less: they get the fourth thread at once.
    visible_room: hidden_dns(3) => Expected::healthy();
    /// Small calls queue behind each other, some time after long ones of others.
    former_holder: former_holder(2_000)
        => ALL_HELD.culprits(&["small"]).victims(&["small"]).meanwhile(&[Undetermined], &["export"]);
    /// They have waited since those held the threads.
    recent_holder: former_holder(0) => ALL_HELD.culprits(&["export", "small"]).victims(&["small"])
        .meanwhile(&[Undetermined], &[]);
    /// Nobody wrapped those that hold the threads.
    unwrapped_pool: unwrapped_pool(4) => Expected::of(PoolSaturated, RaisePool).victims(&["read"])
        .meanwhile(&[Undetermined], &[]).says("4 of the pool's 4 threads are held by calls that nobody wrapped");
    unwrapped_room: unwrapped_pool(3) => Expected::healthy();

    /// Blocking jobs wait for a connection while they hold a thread, and others for the thread.
    connections_in_jobs: connections_in_jobs(8)
        => ALL_HELD.culprits(&["query"]).victims(&["render", "query"])
            .meanwhile(&[Undetermined, DownstreamLimit], &["connection", "query"]).says("connection");
    /// Fewer of them: then it is the connection alone.
    connections_in_few_jobs: connections_in_jobs(3)
        => Expected::of(DownstreamLimit, LookDownstream).culprits(&["connection"]).victims(&["query"]);

    /// Most callers have left, and their calls run all the same.
    abandoned_calls: abandoned_calls(9)
        => Expected::of(PoolSaturated, CancelAbandoned).detail("io").culprits(&["report"]).victims(&["report"])
            .effects(&[Effect::AbandonedWork]).meanwhile(&[Undetermined], &[]);
    patient_callers: abandoned_calls(2)
        => ALL_HELD.culprits(&["report"]).victims(&["report"]).meanwhile(&[Undetermined], &[]);

    /// The system refuses another thread.
    thread_limit: below_cap(|shown| shown.refused = Some(ThreadLimits::default()))
        => Expected::of(PoolStalled, CheckLimits).detail("no_thread").victims(&["read"]);
    /// Threads idle, and calls wait.
    idle_threads: below_cap(|shown| (shown.pool_threads, shown.pool_idle) = (Some(4), Some(2)))
        => Expected::of(PoolStalled, LookAtHost).detail("idle_threads").victims(&["read"]).meanwhile(&[Undetermined], &[]);
    /// The pool may have more threads than it has.
    pool_below_cap: below_cap(|shown| shown.pool_threads = Some(2)) => HAS_ROOM;
    /// How many it may have is not known, and a call of the detector's own gets one at once.
    canary_overtakes: below_cap(|shown| (shown.cap, shown.canary_passed) = (None, Some(2_990 * MS))) => HAS_ROOM;
    /// It passed before those that wait were made.
    canary_before: below_cap(|shown| (shown.cap, shown.canary_passed) = (None, Some(1))) => ALL_HELD.culprits(&["read"])
        .victims(&["read"]).meanwhile(&[Undetermined], &[]);
}

/// So many clients keep a pool busy with long jobs, and every 50 ms there is a small one.
fn shared_pool(threads: usize, trace: Work, clients: usize) -> Timeline {
    share_pool(threads, trace, clients, 0)
}

/// Four threads that have no CPU for so many percent of the time.
fn shared_pool_without(without_cpu: u64, trace: Work) -> Timeline {
    share_pool(4, trace, 8, without_cpu)
}

fn share_pool(threads: usize, trace: Work, clients: usize, without_cpu: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, threads);
    time.stations[pool].without_cpu = without_cpu;
    let (long, small) = (time.op("trace", runtime), time.op("eth", runtime));
    time.keep_calling(pool, long, clients, trace);
    for _ in 0..100 {
        time.pass(50);
        time.calls(pool, small, 1, Computes(1));
    }
    time
}

fn undersized_runtime(threads: usize) -> Timeline {
    let mut time = Timeline::new();
    let (serving, updating) = (time.runtime(2), time.runtime(1));
    let (_, pool) = (time.pool(serving, 64), time.known_pool(updating, threads));
    let (optimise, read) = (time.op("optimise", updating), time.op("read", updating));
    for _ in 0..3 {
        time.calls(pool, optimise, 1, Sleeps(3_000));
        time.pass(50);
        time.calls(pool, read, 10, Sleeps(1));
        time.pass(3_200);
    }
    time
}

fn nested(threads: usize, outers: usize, inner_takes: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, threads);
    let (outer, inner) = (time.op("outer", runtime), time.op("inner", runtime));
    time.pass(5);
    time.calls(pool, outer, outers, WaitsFor(inner, inner_takes));
    time.pass(3_000);
    time
}

fn circular() -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 4);
    let (outer, inner) = (time.op("outer", runtime), time.op("inner", runtime));
    time.stations[pool].made_outside = true;
    time.pass(5);
    time.calls(pool, outer, 4, WaitsFor(inner, 1));
    time.pass(3_000);
    time
}

/// So many threads of a pool of four are held, and a small job comes; so many runs as long have ended before.
fn loops(many: usize, before: u64) -> Timeline {
    loops_for(many, before, 12_000)
}

fn loops_for(many: usize, before: u64, millis: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 4);
    let (runner, job) = (time.op("runner", runtime), time.op("job", runtime));
    let counted = &mut time.sample.ops[runner].counted;
    (counted.started, counted.ended) = (before, before);
    (counted.execution_time, counted.cpu_known_execution) = (before * 20_000 * MS, before * 20_000 * MS);
    time.pass(100);
    time.calls(pool, runner, many, Loops);
    time.pass(millis);
    time.calls(pool, job, 1, Sleeps(1));
    time.pass(8_000);
    time
}

/// So many threads of four are held for good, and others call as often as they can.
fn loop_beside_others(many: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 4);
    let (runner, report) = (time.op("runner", runtime), time.op("report", runtime));
    time.calls(pool, runner, many, Loops);
    time.pass(100);
    time.keep_calling(pool, report, 8, Sleeps(100));
    time.pass(14_000);
    time
}

/// In each look a few calls are made, executed for so many nanoseconds, after so many on their way.
fn tiny_calls(calls: u64, execution: u64, way: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    time.pool(runtime, 64);
    let metadata = time.op("metadata", runtime);
    for _ in 0..400 {
        let counted = &mut time.sample.ops[metadata].counted;
        let each = calls / 100;
        (counted.started, counted.ended) = (counted.started + each, counted.ended + each);
        counted.execution_time += each * execution;
        (counted.queue_wait, counted.resume_delay) =
            (counted.queue_wait + each * way, counted.resume_delay + each * way);
        time.pass(5);
    }
    time
}

fn hidden_dns(thumbnails: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 4);
    let thumbnail = time.op("thumbnail", runtime);
    for _ in 0..4 {
        time.calls(pool, thumbnail, thumbnails, Sleeps(780));
        time.pass(900);
    }
    time
}

/// So long after a long call of another op many small ones come at once; it is judged 400 ms later, or right after it.
fn former_holder(gap: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 1);
    let (export, small) = (time.op("export", runtime), time.op("small", runtime));
    time.calls(pool, export, 1, Sleeps(3_000));
    time.pass(if gap == 0 { 1_000 } else { 3_000 + gap });
    time.calls(pool, small, 60, Sleeps(20));
    time.pass(if gap == 0 { 2_400 } else { 400 });
    time
}

fn unwrapped_pool(hidden: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 4);
    let read = time.op("read", runtime);
    time.hidden_calls(pool, hidden, Sleeps(700));
    for _ in 0..20 {
        time.calls(pool, read, 1, Sleeps(1));
        time.pass(100);
    }
    time
}

fn connections_in_jobs(clients: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let (pool, connections) = (time.known_pool(runtime, 4), time.permits(1));
    let (query, render) = (time.op("query", runtime), time.op("render", runtime));
    let connection = time.op("connection", runtime);
    // Of four jobs that execute one has the connection, for 150 ms.
    let at_once = clients.min(4) as u64;
    time.keep_calling(pool, query, clients, Sleeps(150 * at_once));
    for _ in 0..clients.min(4) {
        time.asks(connections, Some(connection), query, 150, true);
    }
    for _ in 0..40 {
        time.pass(100);
        time.calls(pool, render, 1, Sleeps(1));
    }
    time
}

/// Of ten calls so many have lost their callers.
fn abandoned_calls(of_ten: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 4);
    let report = time.op("report", runtime);
    for _ in 0..20 {
        time.calls(pool, report, 10, Sleeps(100));
        time.sample.ops[report].counted.abandoned += of_ten;
        time.pass(200);
    }
    time
}

/// A pool that may have eight threads runs two calls, and ten wait; what else shows of it.
fn below_cap(show: fn(&mut RuntimeSample)) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.pool(runtime, 2);
    let read = time.op("read", runtime);
    time.runtimes[runtime].cap = Some(8);
    // Its canary is told of here, too.
    time.stations[pool].runtime = None;
    show(&mut time.runtimes[runtime]);
    time.keep_calling(pool, read, 12, Sleeps(400));
    time.pass(3_000);
    time
}
