//! Processes that get no CPU, or do not run at all: no op is to blame.

use super::poll::Does::{self, HasNoCpu, SleepsIn};
use super::station::Work::{Computes, Sleeps};
use super::timeline::{MS, Timeline};
use super::{Expected, truths};
use crate::cause::Action::*;
use crate::cause::Cause::*;
use crate::cause::Effect::*;
use crate::sample::{Machine, Stop};

const PAUSED: Expected = Expected::of(ProcessPaused, LookAtHost);
const SHORT: Expected = Expected::of(CpuContention, LookAtHost);
const SECOND: Machine = Machine {
    of: 1_000 * MS,
    quota: Option::None,
    throttled: Option::None,
    steal: Option::None,
    own: Some(100 * MS),
    idle: Some(0),
    major_faults: Option::None,
    memory_pressure: Option::None,
};

truths! {
    /// A big process forks: all of its threads wait for the page tables to be copied.
    big_fork: stops(&[120; 6], Some(115), 0, 0) => PAUSED.detail("memory").period_ms(520);
    /// It reads its pages from disk.
    page_faults: stops(&[120; 6], Some(2), 5_000, 0) => PAUSED.detail("memory").period_ms(520);
    /// It does nothing meanwhile.
    stopped_by_signal: stops(&[120; 6], Some(2), 0, 20) => PAUSED.detail("stopped").period_ms(520);
    /// One of its threads is not stopped, but has no CPU: it may hold up all others, in a fork.
    fork_without_cpu: stops(&[120; 6], Some(2), 0, 110) => PAUSED.detail("unknown").period_ms(520).says("wanted one");
    stopped_for_what: stops(&[120; 6], Option::None, 0, 0) => PAUSED.detail("unknown").period_ms(520);
    /// Too briefly to be missed.
    small_fork: stops(&[20; 3], Some(18), 0, 0) => Expected::healthy();

    /// The process is stopped, as by a debugger, with all sorts of work in flight.
    stopped: stopped_in_the_middle(true) => PAUSED.detail("stopped");
    /// It is not: the poll sleeps for as long, and the observer runs.
    not_stopped: stopped_in_the_middle(false)
        => Expected::of(LongPoll, Offload).detail("blocked").culprits(&["request"]).effects(&[WorkersBlocked]);

    /// The observer comes late, by itself, while all is well.
    late_look: late_looks(0) => Expected::healthy();
    /// A poll is long all the same, by far more than that.
    long_poll_in_a_late_look: late_looks(600)
        => Expected::of(LongPoll, Offload).detail("blocked").culprits(&["request"]).meanwhile(&[Undetermined], &[]).effects(&[WorkersBlocked]);

    /// Polls, waits and calls were long before the observer had its first look: nobody knows of what.
    long_before_the_first_look: before_the_first_look(300) => Expected::healthy();
    /// It looks in between.
    looked_in_time: before_the_first_look(20)
        => Expected::of(LongPoll, Yield).detail("computing").culprits(&["request"]).victims(&["page"]).effects(&[WorkersBlocked]);

    /// Eight busy workers share half a CPU.
    cpu_quota: busy(HasNoCpu(98), Machine { quota: Some(0.5), throttled: Some(800 * MS), ..SECOND })
        => Expected::of(CpuContention, FitWorkersToQuota).detail("quota").says("0.5 CPUs");
    /// The machine itself is not given its CPUs.
    stolen: busy(HasNoCpu(98), Machine { steal: Some(1_200 * MS), ..SECOND }) => SHORT.detail("steal");
    /// Other processes use every CPU.
    neighbours: busy(HasNoCpu(98), SECOND) => SHORT.detail("neighbours");
    /// They had a CPU all the time, whatever the machine has to do.
    busy_machine: busy(SleepsIn("read"), Machine { quota: Some(0.5), throttled: Some(800 * MS), ..SECOND })
        => Expected::of(LongPoll, Offload).detail("blocked").culprits(&["request"]).effects(&[WorkersBlocked]);

    /// The threads of a pool get no CPU, of which there are as many as of them.
    starved_pool: pool(2, 80) => SHORT.detail("neighbours").victims(&["call"]);
    /// Calls wait a little longer than they may, while threads have no CPU for as long.
    late_threads: late_threads(75) => Expected::healthy();
    /// It is full, and they wait for much longer.
    late_and_full: late_and_full()
        => Expected::of(PoolSaturated, RaisePool).detail("io").culprits(&["call"]).victims(&["call"]);
    /// Their pool is full, and its threads have what they want.
    full_pool: late_threads(5)
        => Expected::of(PoolSaturated, RaisePool).detail("io").culprits(&["call"]).victims(&["call"]);
    /// So it is where one of them has no CPU for a part of the wait only.
    full_pool_on_a_busy_machine: late_threads(40)
        => Expected::of(PoolSaturated, RaisePool).detail("io").culprits(&["call"]).victims(&["call"]);
    /// Eight have only each other to blame.
    crowded_pool: pool(8, 80)
        => Expected::of(PoolSaturated, BoundCpuPool).detail("cpu").culprits(&["call"]).victims(&["call"])
            .meanwhile(&[Undetermined], &[]);
}

/// Stops of these lengths, with 400 ms between them, in which the process used so much CPU time and read so many pages, and
/// one of its threads wanted a CPU for so long and had none.
fn stops(lengths: &[u64], cpu: Option<u64>, major_faults: u64, wanted: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.pool(runtime, 16);
    let child = time.op("spawn_child", runtime);
    let ping = time.op("ping", runtime);
    for &length in lengths {
        time.calls(pool, child, 1, Computes(5));
        time.poll(runtime, ping, 3, Does::Computes);
        let (from, to) = (time.sample.now, time.sample.now + length * MS);
        let (cpu, wanted) = (cpu.map(|cpu| cpu * MS), Some(wanted * MS));
        time.sample.stop = Some(Stop { from, to, cpu, major_faults: Some(major_faults), wanted });
        time.stop(length);
        time.pass(400);
    }
    time
}

fn stopped_in_the_middle(stopped: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(1);
    let (pool, permits) = (time.pool(runtime, 2), time.permits(1));
    let (request, read) = (time.op("request", runtime), time.op("read", runtime));
    let (permit, task) = (time.op("permit", runtime), time.op("task", runtime));
    if stopped {
        time.keep_calling(pool, read, 4, Sleeps(10));
        time.asks(permits, Some(permit), task, 10, true);
        time.asks(permits, Some(permit), task, 10, true);
    }
    time.pass(900);
    let takes = if stopped { 2 } else { 602 };
    time.poll(runtime, request, takes, if stopped { Does::Computes } else { SleepsIn("read") });
    if stopped {
        time.stop(600);
    }
    time.pass(1_000);
    time
}

fn late_looks(poll: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(1);
    let (pool, request) = (time.pool(runtime, 2), time.op("request", runtime));
    let read = time.op("read", runtime);
    time.keep_calling(pool, read, 2, Sleeps(20));
    time.pass(500);
    for _ in 0..3 {
        time.poll(runtime, request, poll.max(2), if poll > 0 { SleepsIn("read") } else { Does::Computes });
        time.be_late(100);
        time.pass(1_000);
    }
    time
}

/// Nobody looks for so long at a time, while polls take 120 ms and others wait behind them.
fn before_the_first_look(blind: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(1);
    let (request, page) = (time.op("request", runtime), time.op("page", runtime));
    time.pass(5);
    for _ in 0..2 {
        time.poll(runtime, request, 120, Does::Computes).delays = Some((page, 110));
        for _ in 0..300 / blind {
            time.be_blind(blind);
        }
    }
    time.pass(1_000);
    time
}

/// Polls of 6 ms of work that take 200 ms.
fn busy(does: Does, machine: Machine) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(8);
    let request = time.op("request", runtime);
    time.machine = machine;
    time.pass(1_000);
    for _ in 0..10 {
        for _ in 0..8 {
            time.poll(runtime, request, 200, does);
        }
        time.pass(250);
    }
    time
}

/// Three calls at a time for a pool of one thread, some of whose threads are without a CPU for so much of the time.
fn late_threads(short: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 1);
    let call = time.op("call", runtime);
    time.short = short;
    time.calls(pool, call, 1, Sleeps(40));
    time.pass(500);
    for _ in 0..4 {
        time.calls(pool, call, 3, Sleeps(40));
        time.pass(500);
    }
    time
}

/// Twenty calls at a time for a pool of two threads, of the process's threads one is nearly always without a CPU.
fn late_and_full() -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, 2);
    let call = time.op("call", runtime);
    time.short = 90;
    for _ in 0..4 {
        time.calls(pool, call, 20, Sleeps(50));
        time.pass(700);
    }
    time
}

/// A pool of so many threads whose calls have had a CPU for so little of their time.
fn pool(threads: usize, without_cpu: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, threads);
    let call = time.op("call", runtime);
    time.machine = SECOND;
    time.stations[pool].without_cpu = without_cpu;
    time.keep_calling(pool, call, threads * 4, Sleeps(100));
    time.pass(4_000);
    time
}
