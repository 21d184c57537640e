//! The two incidents that this crate exists for, and the same worker with other faults or none; and programs with nothing
//! wrong in them.

use super::poll::Does;
use super::station::Work::{self, Both, Computes, Sleeps};
use super::timeline::Timeline;
use super::{Expected, truths};
use crate::cause::Action::*;
use crate::cause::Cause::*;
use crate::cause::Effect::CatchUpBurst;

const TOO_SMALL: Expected = Expected::of(PoolSaturated, RaisePool)
    .detail("io")
    .culprits(&["model_call"])
    .victims(&["model_call"])
    .meanwhile(&[Undetermined], &[])
    .says("a pool of 20 ")
    .cleared(8);

truths! {
    /// 20 jobs at once, each with a hidden blocking call, and 6 threads.
    story_a_6: worker(6, 20, Sleeps(230)) => TOO_SMALL;
    story_a_8: worker(8, 20, Sleeps(230)) => TOO_SMALL;
    /// The fix.
    story_a_40: worker(40, 20, Sleeps(230)) => Expected::healthy();
    /// The old fleet: three jobs at once on six threads.
    story_a_old: worker(6, 3, Sleeps(230)) => Expected::healthy();
    /// The calls compute: a bigger pool would only move the wait.
    story_a_cpu: worker(8, 20, Computes(50))
        => Expected::of(PoolSaturated, BoundCpuPool).detail("cpu").culprits(&["model_call"]).victims(&["model_call"]);
    /// The pool has room, and the answers themselves take longer in steps.
    story_a_decoy: decoy(0, 15, 0)
        => Expected::of(SlowWork, LookDownstream).culprits(&["model_call"]);
    /// They take as long as ever.
    story_a_steady: decoy(0, 1, 0) => Expected::healthy();

    /// They wait for somebody else, and so they do on a machine that is short of CPUs, where the observer comes late.
    decoy_on_a_busy_machine: decoy(0, 15, 300)
        => Expected::of(SlowWork, LookDownstream).culprits(&["model_call"]);
    /// They compute for a part of their time, which takes longer there.
    slow_on_a_busy_machine: decoy(20, 15, 300) => Expected::healthy();

    /// A server is stopped at an even period.
    story_b: stopped_server(&[20_000; 7]) => PAUSED.period_ms(20_700);
    /// A few times as often.
    story_b_often: stopped_server(&[2_000; 9]) => PAUSED.period_ms(2_700);
    /// Now and then.
    story_b_uneven: stopped_server(&[2_000, 7_000, 900, 4_000, 12_000, 1_000, 3_000]) => PAUSED;
    /// Never.
    story_b_running: stopped_server(&[]) => Expected::healthy();

    /// What it missed it makes up for all at once.
    catch_up_burst: burst(40) => Expected::of(ProcessPaused, SkipMissedTicks).detail("stopped").effects(&[CatchUpBurst])
        .says("`tick` skip");
    /// It goes on as before.
    skipped_ticks: burst(2) => PAUSED;

    /// A single tick that gets no CPU takes as long.
    starved_tick: one_tick(95) => PAUSED;
    /// Nobody knows what becomes of it, but it is one.
    single_tick: one_tick(0) => PAUSED.meanwhile(&[LongPoll], &["tick"]);

    /// A long blocking job where it belongs, and small ones beside it.
    long_job: long_job(64) => Expected::healthy();
    /// The same on a single thread.
    long_job_alone: long_job(1)
        => Expected::of(PoolSaturated, RaisePool).detail("io").culprits(&["export", "small"]).victims(&["small"])
            .meanwhile(&[Undetermined], &["small"]);
}

const PAUSED: Expected = Expected::of(ProcessPaused, LookAtHost).detail("stopped");

/// A worker with so many pool threads and jobs at once, each of which makes one call after the other.
fn worker(threads: usize, jobs: usize, call: Work) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.pool(runtime, threads);
    let (model_call, job) = (time.op("model_call", runtime), time.op("job", runtime));
    time.keep_calling(pool, model_call, jobs, call);
    for _ in 0..100 {
        time.poll(runtime, job, 1, Does::Computes);
        time.pass(80);
    }
    time
}

/// Six jobs at once on forty threads, whose calls come to take so many times as long.
/// Calls of 100 ms, which compute for `percent` of their time, then take so many times as long; the observer comes so late
/// meanwhile.
fn decoy(percent: u64, times: u64, late: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.pool(runtime, 40);
    let model_call = time.op("model_call", runtime);
    for _ in 0..20 {
        time.calls(pool, model_call, 6, Both(percent, 100 - percent));
        time.pass(250);
    }
    for _ in 0..8 {
        time.calls(pool, model_call, 6, Both(percent * times, (100 - percent) * times));
        if late > 0 {
            time.be_late(late);
        }
        time.pass(100 * times + 50);
    }
    time
}

/// A single-threaded server that is stopped for 700 ms after each of these times.
fn stopped_server(between: &[u64]) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(1);
    let ingest = time.op("ingest", runtime);
    for &pause in between {
        time.pass(pause);
        time.poll(runtime, ingest, 2, Does::Computes);
        // The first client that waited comes that much later, and so does the timer.
        time.stop(700);
        time.came_late(ingest, Option::None, 690);
    }
    time.pass(500);
    time
}

/// A task ticks every 50 ms; the process is stopped, and then it does so many ticks in 200 ms.
fn burst(ticks: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(1);
    let tick = time.op("tick", runtime);
    for _ in 0..60 {
        time.poll(runtime, tick, 4, Does::Computes);
        time.pass(50);
    }
    time.stop(2_000);
    for at in 0..40 {
        if at % (40 / ticks) == 0 {
            time.poll(runtime, tick, 4, Does::Computes);
        }
        time.pass(5);
    }
    time.pass(300);
    time
}

fn one_tick(without_cpu: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(1);
    let tick = time.op("tick", runtime);
    for _ in 0..60 {
        time.poll(runtime, tick, 4, Does::Computes);
        time.pass(50);
    }
    time.stop(2_000);
    time.pass(40);
    time.poll(runtime, tick, 100, Does::HasNoCpu(without_cpu));
    time.pass(500);
    time
}

fn long_job(threads: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let pool = time.known_pool(runtime, threads);
    let (export, small) = (time.op("export", runtime), time.op("small", runtime));
    time.calls(pool, export, 1, Sleeps(3_000));
    for _ in 0..35 {
        time.calls(pool, small, 1, Sleeps(10));
        time.pass(80);
    }
    time.pass(500);
    time
}
