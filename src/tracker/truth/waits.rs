//! What is handed out: permits, connections, turns.

use super::station::Work::Computes;
use super::timeline::{MS, Timeline};
use super::{Expected, truths};
use crate::cause::Action::*;
use crate::cause::Cause::*;

const LIMITED: Expected = Expected::of(DownstreamLimit, LookDownstream);

truths! {
    /// The only consumer of a channel waits for a permit before it receives, so that its senders wait, too.
    permit_holder: permit_holder(1_000)
        => LIMITED.culprits(&["queue_slot"]).victims(&["sender"]).meanwhile(&[], &["cpu_budget"]).named("cpu_budget");
    /// The other one keeps the permit for a moment.
    permit_lender: permit_holder(20) => Expected::healthy();

    /// Both waits are wrapped, and nobody waits behind the consumer.
    permit_kept: permit_kept(1_000) => LIMITED.culprits(&["cpu_budget", "optimiser"]).victims(&["consumer"]).says("`optimiser` keeps it");
    permit_lent: permit_kept(20) => Expected::healthy();

    /// 64 tasks share four permits.
    few_permits: permits(4) => LIMITED.culprits(&["permit"]).victims(&["upload"]).says("hand out more");
    enough_permits: permits(64) => Expected::healthy();

    /// Two tasks pass a permit on to each other, each a little too late: the threads that hand it over have no CPU.
    slow_hands: passed_on(40) => Expected::of(CpuContention, LookAtHost).detail("neighbours");
    /// They have what they want.
    kept_hands: passed_on(5) => LIMITED.culprits(&["permit"]).victims(&["upload"]);

    /// Five tasks take turns, and each gets its own a little too late on a runtime whose timers are late.
    late_hands: taken_in_turns(18, 20, false) => Expected::healthy();
    /// Its timers have nothing to do with it, or explain only a part.
    slow_turns: taken_in_turns(18, 0, false) => LIMITED.culprits(&["permit"]).victims(&["upload"]);
    slower_turns: taken_in_turns(60, 20, false) => LIMITED.culprits(&["permit"]).victims(&["upload"]);
    /// They are late because nobody drove the only thread for a while.
    turns_on_a_lone_thread: taken_in_turns(18, 20, true) => LIMITED.culprits(&["permit"]).victims(&["upload"]);

    /// A biased select takes from a channel that is never empty, and never from the other, which is ready.
    biased_select: ready_branch(2_000, 0) => Expected::of(Unfair, None).culprits(&["control"]).says("ready for");
    /// It gets its turn soon.
    prompt_select: ready_branch(300, 0) => Expected::healthy();
    /// Its runtime does nothing in time: then it is not the select.
    select_on_a_late_runtime: ready_branch(2_000, 60) => Expected::healthy();

    /// A branch is offered again and again and dropped without having been polled once.
    biased_offers: offered_branch(2_000, false) => Expected::of(Unfair, None).culprits(&["control"]).says("without having been polled");
    /// It has been polled in between.
    fair_offers: offered_branch(2_000, true) => Expected::healthy();
    few_offers: offered_branch(50, false) => Expected::healthy();

    /// Nothing is wrapped that could show it: it is nobody else's fault.
    biased_unwrapped: unwrapped_select() => Expected::healthy();
}

fn permit_holder(keeps: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let (budget, slots) = (time.permits(1), time.permits(1));
    let (cpu_budget, queue_slot) = (time.op("cpu_budget", runtime), time.op("queue_slot", runtime));
    let (optimiser, consumer) = (time.op("optimiser", runtime), time.op("consumer", runtime));
    let sender = time.op("sender", runtime);
    // The optimiser's own waiting is not wrapped. One of 20 senders gets a slot whenever the consumer has had its turn.
    time.asks(budget, Option::None, optimiser, keeps, true);
    time.asks(budget, Some(cpu_budget), consumer, 1, true);
    for _ in 0..keeps.min(20) {
        time.asks(slots, Some(queue_slot), sender, keeps / 20, true);
    }
    time.pass(5_500);
    time
}

fn permit_kept(keeps: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let budget = time.permits(1);
    let cpu_budget = time.op("cpu_budget", runtime);
    let (optimiser, consumer) = (time.op("optimiser", runtime), time.op("consumer", runtime));
    time.asks(budget, Some(cpu_budget), optimiser, keeps, true);
    time.asks(budget, Some(cpu_budget), consumer, 1, true);
    time.pass(5_500);
    time
}

/// Each of two tasks keeps what the other wants for 60 ms; threads are without a CPU for so much of the time.
fn passed_on(short: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let permits = time.permits(1);
    let (permit, upload) = (time.op("permit", runtime), time.op("upload", runtime));
    time.short = short;
    for _ in 0..2 {
        time.asks(permits, Some(permit), upload, 60, true);
    }
    time.pass(3_500);
    time
}

fn permits(many: usize) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let permits = time.permits(many);
    let (permit, upload) = (time.op("permit", runtime), time.op("upload", runtime));
    for _ in 0..64 {
        time.asks(permits, Some(permit), upload, 200, false);
    }
    time.pass(3_500);
    time
}

/// Five tasks keep a permit in turns, each for so long; timers are so late.
fn taken_in_turns(keeps: u64, late: u64, alone: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(if alone { 1 } else { 2 });
    time.runtimes[runtime].current_thread = alone;
    let permits = time.permits(1);
    let (permit, upload) = (time.op("permit", runtime), time.op("upload", runtime));
    time.runtimes[runtime].beat_late = Some(late * MS);
    for _ in 0..5 {
        time.asks(permits, Some(permit), upload, keeps, true);
    }
    time.pass(3_500);
    time
}

/// A branch is ready for so long without being polled; timers are so late.
fn ready_branch(millis: u64, late: u64) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let control = time.op("control", runtime);
    time.op("session", runtime);
    time.runtimes[runtime].beat_late = Some(late * MS);
    time.pass(500);
    time.sample.ops[control].oldest_woken = Some(time.sample.now);
    time.pass(millis);
    time.sample.ops[control].oldest_woken = Option::None;
    time.pass(300);
    time
}

/// A branch is dropped unpolled so many times in two seconds.
fn offered_branch(times: u64, polled: bool) -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let control = time.op("control", runtime);
    for look in 0..400 {
        let counted = &mut time.sample.ops[control].counted;
        counted.unpolled += (look + 1) * times / 400 - look * times / 400;
        // A waiting of a moment, once in a while.
        counted.wait_time += u64::from(polled && look % 40 == 0) * MS;
        time.pass(5);
    }
    time
}

fn unwrapped_select() -> Timeline {
    let mut time = Timeline::new();
    let runtime = time.runtime(2);
    let (pool, session) = (time.pool(runtime, 16), time.op("session", runtime));
    time.keep_calling(pool, session, 1, Computes(1));
    time.pass(2_500);
    time
}
