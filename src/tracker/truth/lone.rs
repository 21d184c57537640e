//! Long polls that nobody waits for.

use super::poll::Does::Computes;
use super::polls::{COMPUTES, HARMLESS};
use super::timeline::{MS, Timeline};
use super::truths;
use crate::cause::Cause::*;
use crate::cause::Effect::*;

truths! {
    /// One poll of 500 ms at the start, which nobody waits for.
    lone_start_poll: lone_poll(500) => HARMLESS.meanwhile(&[LongPoll], &["warm_cache"]);
    /// A worker that is away for so long is missed.
    /// Its other workers have not come to run yet, or are all at work.
    lone_first_poll: lone_poll_of_a_fresh_runtime(true) => HARMLESS.meanwhile(&[LongPoll], &["warm_cache"]);
    no_lone_poll: lone_poll_of_a_fresh_runtime(false) => COMPUTES.culprits(&["warm_cache"]);
    /// By so little other things make timers late.
    lone_poll_not_the_timers: lone_poll_and_timers(60) => HARMLESS.meanwhile(&[LongPoll], &["warm_cache"]);
    lone_poll_and_the_timers: lone_poll_and_timers(300)
        => COMPUTES.culprits(&["warm_cache"]).effects(&[DriverHeld]);
    lone_endless_poll: lone_poll(1_500) => COMPUTES.culprits(&["warm_cache"]);
}

fn lone_poll(takes: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(4);
    let warm = time.op("warm_cache", runtime);
    time.poll(runtime, warm, takes, Computes);
    time.pass(takes + 500);
    time
}

fn lone_poll_of_a_fresh_runtime(unstarted: bool) -> Timeline {
    let mut time = Timeline::new();
    (time.unstarted, time.crowded) = (unstarted, !unstarted);
    let runtime = time.runtime(4);
    let warm = time.op("warm_cache", runtime);
    time.poll(runtime, warm, 500, Computes);
    time.pass(500);
    (time.unstarted, time.crowded) = (false, false);
    time.pass(500);
    time
}

/// Timers come so late meanwhile.
fn lone_poll_and_timers(late: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(4);
    time.runtimes[runtime].beat_late = Some(late * MS);
    let warm = time.op("warm_cache", runtime);
    time.poll(runtime, warm, 500, Computes);
    time.pass(500);
    time.runtimes[runtime].beat_late = Some(0);
    time.pass(500);
    time
}
