//! What there is to say where nothing harms anybody: that all is well, or slow without being starved.

use super::{LIKELY, SURE, Verdict, nanos, so_many};
use crate::cause::{Action, Cause};
use crate::counted::Counted;
use crate::facts::{Facts, OpFacts};
use crate::incident::{Culprit, Incident};
use crate::lately::Share;
use crate::trips::Trips;
use std::sync::Arc;
use std::time::Duration;

/// From this many calls on their average says something.
const CALLS: u64 = 8;
/// Executions of this length and more are long: twice what a call may wait.
const LONG: u64 = 100_000_000;
/// So many times slower than ever is slower than usual, in percent.
const SLOWER: u64 = 150;
/// From so many percent of its time on a CPU on a call that lacks one may take many times as long.
const WANTS: u64 = 5;
/// A flood is at least so many calls, and so much time on the way to their threads and back.
const FLOOD: u64 = 2_000;
const FLOOD_TIME: u64 = 100_000_000;
/// Each trip of a thread is then at most so long.
const TINY: u64 = 50_000;
/// The way of each is then at least so long, and so many times its execution.
const WAY: u64 = 4_000;
const TIMES: u64 = 4;

/// The verdict where nothing has harmed anybody; `harmless` is what was over a threshold all the same.
pub(crate) fn judge(facts: &Facts, harmless: &[Arc<Incident>]) -> Verdict {
    let worst = |of: fn(&OpFacts) -> u64| facts.ops.iter().max_by_key(move |op| of(op));
    // Where CPUs are short all work is slow that wants one, and it is not the work's fault.
    let explained = |op: &OpFacts| facts.is_short_of_cpu() && !only_waits(op);
    if let Some(slow) = worst(slow_time).filter(|op| slow_time(op) > 0 && !explained(op)) {
        return slow_work(slow);
    }
    if let Some(flood) = worst(flood_time).filter(|op| flood_time(op) > 0) {
        return dispatch_overhead(flood);
    }
    if let Some(trips) = facts.runtimes.iter().map(|runtime| runtime.trips.recent()).max_by_key(|trips| trips.count)
        && is_flood(&trips, facts)
    {
        return unwrapped_overhead(&trips);
    }
    let evidence = well(nanos(facts.elapsed()), harmless);
    Verdict::new(Cause::Healthy, SURE, evidence).advise(Action::None, "There is nothing to do".to_owned())
}

/// That all is well, and what the reports of the time were then about.
fn well(window: Duration, harmless: &[Arc<Incident>]) -> String {
    let Some(worst) = harmless.iter().max_by_key(|incident| incident.delay) else {
        return format!("nothing was over a threshold in the last {window:.1?}");
    };
    format!(
        "nobody was seen to wait in the last {window:.1?}: {} and harmed nobody, the worst a {} of {}, {:.1?} in all",
        so_many(harmless.len() as u64, "incident came", "incidents came"),
        worst.cause,
        worst.op.map_or("code that nobody wrapped".to_owned(), |op| format!("`{op}`")),
        worst.delay,
    )
}

/// How long the calls of an op executed, where that is long, unlike before, and no fault of the pool; otherwise 0.
fn slow_time(op: &OpFacts) -> u64 {
    let recent = op.counted.recent();
    let mean = recent.execution_time.checked_div(recent.ended).unwrap_or(0);
    let starved = recent.queue_wait * 5 > recent.execution_time;
    if recent.ended < CALLS || mean < LONG || starved {
        return 0;
    }
    // Without a history nobody knows whether it was ever faster.
    let usual = |before: Counted| before.execution_time.checked_div(before.ended).filter(|_| before.ended >= CALLS);
    let slower = |now: u64, before: Counted| usual(before).is_some_and(|usual| now * 100 >= usual * SLOWER);
    let later = op.history.since(op.early);
    let since = later.execution_time.checked_div(later.ended).filter(|_| later.ended >= CALLS).unwrap_or(0);
    if slower(mean, op.history.since(recent)) || slower(since, op.early) { recent.execution_time } else { 0 }
}

/// Whether the calls of an op want next to no CPU and are so long that to get one late at their end explains nothing.
fn only_waits(op: &OpFacts) -> bool {
    let recent = op.counted.recent();
    let cpu = Share { part: recent.cpu, of: recent.cpu_known_execution };
    let mean = recent.execution_time.checked_div(recent.ended).unwrap_or(0);
    cpu.of > 0 && !cpu.is_at_least(WANTS) && mean >= 2 * LONG
}

/// How long the calls of an op were on their way, where that is what they mostly did; otherwise 0.
fn flood_time(op: &OpFacts) -> u64 {
    let recent = op.counted.recent();
    let way = recent.queue_wait + recent.resume_delay;
    let flood = recent.ended >= FLOOD && way >= FLOOD_TIME && way >= recent.ended * WAY;
    if flood && way >= recent.execution_time * TIMES && recent.dominated == 0 { way } else { 0 }
}

/// Whether a pool's threads woke again and again for next to nothing, for calls that nobody wrapped.
fn is_flood(trips: &Trips, facts: &Facts) -> bool {
    let watched = facts.counted(None).started;
    trips.count >= FLOOD && trips.count >= watched.saturating_mul(2) && trips.on_cpu / trips.count.max(1) <= TINY
}

fn unwrapped_overhead(trips: &Trips) -> Verdict {
    let evidence = format!(
        "threads of the blocking pool woke {} times, for {:.1?} of CPU time each, for calls that nobody wrapped; nothing waits",
        trips.count,
        nanos(trips.on_cpu / trips.count.max(1)),
    );
    let advice = "Each `tokio::fs` call and each name lookup is a trip to the pool and back: do many of them in one blocking \
                  call; the pool's size has no part in it";
    Verdict::new(Cause::DispatchOverhead, LIKELY, evidence).advise(Action::Batch, advice.to_owned())
}

fn culprit(op: &OpFacts) -> Culprit {
    Culprit {
        op: op.site.name,
        location: op.site.location,
        role: "occupant",
        count: op.executing.recent(),
        oldest: nanos(op.execution_age.recent()),
        share: None,
        stack: None,
    }
}

fn slow_work(op: &OpFacts) -> Verdict {
    let (name, recent) = (op.site.name, op.counted.recent());
    let before = if op.history.ended > recent.ended { op.history.since(recent) } else { op.early };
    let average = |time: u64, calls: u64| nanos(time.checked_div(calls).unwrap_or(0));
    let mut evidence = format!(
        "{} calls of `{name}` executed for {:.1?} each and waited {:.1?} for their thread",
        recent.ended,
        average(recent.execution_time, recent.ended),
        average(recent.queue_wait, recent.started),
    );
    if before.ended > 0 {
        evidence += &format!("; {:.1?} were usual", average(before.execution_time, before.ended));
    }
    let advice = format!("Not starvation: look at what `{name}` does, or waits for; a bigger pool changes nothing");
    let mut verdict = Verdict::new(Cause::SlowWork, LIKELY, evidence).advise(Action::LookDownstream, advice);
    verdict.culprits.push(culprit(op));
    verdict
}

fn dispatch_overhead(op: &OpFacts) -> Verdict {
    let (name, recent) = (op.site.name, op.counted.recent());
    let evidence = format!(
        "{} calls of `{name}` executed for {:.1?} each and were on their way to the thread and back for {:.1?}",
        recent.ended,
        nanos(recent.execution_time / recent.ended.max(1)),
        nanos((recent.queue_wait + recent.resume_delay) / recent.ended.max(1)),
    );
    let advice =
        format!("Do many of the small steps of `{name}` in one blocking call; the pool's size has no part in it");
    let mut verdict = Verdict::new(Cause::DispatchOverhead, LIKELY, evidence).advise(Action::Batch, advice);
    verdict.culprits.push(culprit(op));
    verdict
}
