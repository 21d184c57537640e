//! The episodes that a look shows, new and old.

use super::Tracker;
use crate::counted::Counted;
use crate::episode::Key;
use crate::facts::RuntimeFacts;
use crate::sample::{Excused, Frozen, Held, OpSample, RuntimeSample, Sample};
#[cfg(feature = "stacks")]
use crate::stacks::Who;

/// A worker that computes and publishes nothing is in one poll, or in an unbroken row of up to 61: only from so many times
/// the threshold on are those polls long by themselves. So it is where nobody knows what its thread does.
const ROW: u64 = 10;
/// A worker that sleeps without a break is in one poll. It has to stand still for so many times the threshold, and to sleep
/// for one of them: 61 polls of some milliseconds each, such as of files that are read, are long for nobody.
const ASLEEP: u64 = 2;
/// A branch without its turn: at least so many times, for at least so long.
const UNPOLLED: u64 = 100;
const UNPOLLED_FOR: u64 = 1_000_000_000;
/// So many polls or waits that a lack of CPU explains, or so many times the threshold of a single one.
const EXCUSED: u64 = 5;
const EXCUSED_TIMES: u64 = 20;
/// Where nothing that is watched waits, the observer's own call must wait for so many times the floor: calls may hold all
/// threads for a while, and nobody wants one.
const CANARY: u64 = 4;
/// Stops count together that lie this close.
const STOPS_WITHIN: u64 = 250_000_000;
/// Threads that an op has not given back are told after so many windows; after one where they are so many quarters of the
/// pool.
const LOST_WINDOWS: u64 = 4;
const LOST_PART: u64 = 3;
/// A runtime is crowded when none of its workers was parked in so many percent of the looks.
const FULL: u64 = 90;
/// Fewer looks say nothing about that.
const LOOKS: u64 = 10;
/// Or in all looks for so many times the floor for waits, while a task of the observer's own had to wait for longer than that.
const FULL_FOR: u64 = 10;
/// What is waited for may have passed so many that were late, one after the other, until it is there.
const HANDS: u64 = 4;

impl Tracker {
    /// Each once.
    pub(super) fn keys(&self, sample: &Sample, fresh: &[Counted], excused: Excused) -> Vec<Key> {
        let mut keys = Vec::new();
        let lately = sample.now.saturating_sub(STOPS_WITHIN);
        if sample.stop.is_some() && sample.stops.since(lately) >= sample.queue_wait_limit {
            keys.push(Key::Process);
        }
        let lately = self.facts.excused.recent();
        let many = lately.count >= EXCUSED || lately.time >= sample.long_poll_limit.saturating_mul(EXCUSED_TIMES);
        if excused.count > 0 && many {
            keys.push(Key::Machine);
        }
        let mut behind = Vec::new();
        for (op, fresh) in sample.ops.iter().zip(fresh) {
            let index = op.site.index;
            if fresh.long_polls > 0 || sample.overdue.iter().any(|held| held.op == index) {
                keys.push(Key::LongPoll(index));
            }
            // Who waited behind a poll is often seen only after it.
            if let Some(culprit) = op.late_behind.map(Key::LongPoll).filter(|_| fresh.late_polls > 0)
                && self.open.contains_key(&culprit)
            {
                behind.push(culprit);
            }
            let goes_on = |key: Key| self.open.contains_key(&key);
            let known = goes_on(Key::Wait(index));
            let waits = fresh.long_waits > 0 || waits_too_long(op, sample, known);
            if waits && (known || !self.is_handed_on_late(op, fresh, sample)) && !is_secondhand(op, sample) {
                keys.push(Key::Wait(index));
            }
            let pool = pool_of(op);
            if (fresh.dominated > 0 || queued_too_long(op, sample, goes_on(pool))) && !keys.contains(&pool) {
                keys.push(pool);
            }
            if self.is_unfair(op, fresh, sample) {
                keys.push(Key::Unfair(index));
            }
        }
        behind.retain(|culprit| !keys.contains(culprit));
        behind.dedup();
        keys.extend(behind);
        for runtime in &sample.runtimes {
            self.of_runtime(runtime, sample, fresh, &mut keys);
        }
        self.drop_late_waits(sample, &mut keys);
        // What a pool that calls wait for is told of itself is not told again of its ops.
        for (op, fresh) in sample.ops.iter().zip(fresh) {
            let pool = pool_of(op);
            if keys.contains(&pool) || self.open.contains_key(&pool) {
                continue;
            }
            if fresh.nested > 0 {
                keys.push(Key::Nested(op.site.index));
            }
            if self.is_lost(op, sample) {
                keys.push(Key::Lost(op.site.index));
            }
        }
        keys
    }

    /// Whether a watched poll that is overdue on another runtime holds up none of its workers: then its future has moved on
    /// from there, to the one that is stuck.
    fn is_explained_elsewhere(&self, id: tokio::runtime::Id, sample: &Sample) -> bool {
        let others = sample.runtimes.iter().filter(|seen| seen.runtime != Some(id) && !seen.current_thread);
        let moved = |seen: &RuntimeSample| {
            let overdue =
                |held: &&Held| !held.root && sample.op(held.op).is_some_and(|op| op.site.runtime == seen.runtime);
            sample.overdue.iter().filter(overdue).count() > seen.frozen.len()
        };
        others.into_iter().any(moved)
    }

    /// Whether its waits are too long by no more than their runtime's timers are late: so late is each of those that have
    /// what is waited for, and hand it on from one to the next, as well. Timers that are later yet have a cause of their own.
    fn is_handed_on_late(&self, op: &OpSample, fresh: &Counted, sample: &Sample) -> bool {
        // Those of a thread that nobody drives are late for that alone.
        let driven = self.facts.runtime(op.site.runtime).filter(|facts| !facts.last.current_thread);
        let late = driven.map_or(0, |facts| facts.beat_late.recent());
        let handed_on = late.min(sample.long_poll_limit).saturating_mul(HANDS);
        let ended = fresh.long_wait_time.checked_div(fresh.long_waits).unwrap_or(0);
        op.wait_age(sample.now).max(ended) < op.queue_wait_limit.saturating_add(handed_on)
    }

    /// A wait does not begin to be too long while its runtime is stuck: it may be over, and nobody polls it.
    fn drop_late_waits(&self, sample: &Sample, keys: &mut Vec<Key>) {
        let runtime_of = |op: u32| sample.op(op).and_then(|op| op.site.runtime);
        // Also while it has been stuck a moment ago.
        let stuck: Vec<_> = keys
            .iter()
            .chain(self.open.keys())
            .filter_map(|key| match key {
                Key::LongPoll(op) => runtime_of(*op),
                Key::Workers(runtime) | Key::Overload(runtime) => Some(*runtime),
                _ => None,
            })
            .collect();
        keys.retain(|key| match key {
            Key::Wait(op) => self.open.contains_key(key) || runtime_of(*op).is_none_or(|of| !stuck.contains(&of)),
            _ => true,
        });
    }

    /// How many workers of a runtime are stuck in what nobody wrapped without it being known which threads they are, and
    /// since when the first of them is.
    #[cfg(feature = "stacks")]
    pub(super) fn stuck_unknown(runtime: &RuntimeSample, sample: &Sample) -> Option<(Who, u64)> {
        let stuck = sample.stuck_unwrapped(runtime, |frozen| is_stuck(frozen, sample));
        let unknown = || stuck.iter().filter(|frozen| frozen.whom.is_none());
        let since = unknown().map(|frozen| frozen.seen_since).min()?;
        Some((Who::Among { stuck: unknown().count() as u64, workers: runtime.workers }, since))
    }

    fn of_runtime(&self, runtime: &RuntimeSample, sample: &Sample, fresh: &[Counted], keys: &mut Vec<Key>) {
        let Some(id) = runtime.runtime else { return };
        let pool = Key::Pool(id);
        let canary = runtime.canary.unwrap_or(0) >= sample.queue_wait_limit.saturating_mul(CANARY);
        let goes_on = self.open.contains_key(&pool) && runtime.canary.unwrap_or(0) >= sample.queue_wait_limit;
        if (canary || goes_on) && !keys.contains(&pool) {
            keys.push(pool);
        }
        let on_it = |op: &OpSample| op.site.runtime == Some(id);
        let unwrapped = sample.stuck_unwrapped(runtime, |frozen| is_stuck(frozen, sample));
        if !runtime.current_thread && !unwrapped.is_empty() && !self.is_explained_elsewhere(id, sample) {
            keys.push(Key::Workers(id));
        }
        let Some(facts) = self.facts.runtime(Some(id)) else { return };
        let overdue = sample.overdue.iter().any(|held| sample.op(held.op).is_some_and(on_it));
        let in_poll = sample.in_poll.iter().chain(&sample.was_in_poll).any(|poll| poll.runtime == id);
        let stuck = runtime.frozen.iter().any(|frozen| is_stuck(frozen, sample));
        let blamed = overdue || in_poll || stuck || self.open.contains_key(&Key::Workers(id));
        let late = sample.ops.iter().zip(fresh).any(|(op, fresh)| on_it(op) && fresh.late_polls > 0);
        if !blamed && !self.any_long_poll(id, sample) && is_crowded(facts, sample, late) {
            keys.push(Key::Overload(id));
        }
    }

    /// Whether an episode about polls on this runtime is open: who comes late waits behind those.
    fn any_long_poll(&self, id: tokio::runtime::Id, sample: &Sample) -> bool {
        self.open.keys().any(|key| match key {
            Key::LongPoll(op) => sample.op(*op).is_some_and(|op| op.site.runtime == Some(id)),
            Key::Process | Key::Machine => true,
            _ => false,
        })
    }

    /// Whether a wait is offered again and again without being polled, or is ready and nobody polls it, though its runtime
    /// does all that is ready in good time.
    fn is_unfair(&self, op: &OpSample, fresh: &Counted, sample: &Sample) -> bool {
        let offered = fresh.unpolled > 0
            && self.facts.op(op.site.index).is_some_and(|facts| {
                facts.unpolled >= UNPOLLED && sample.now.saturating_sub(facts.unpolled_since) >= UNPOLLED_FOR
            });
        let ready = op.woken_age(sample.now) >= UNPOLLED_FOR && self.is_prompt(op.site.runtime, sample);
        offered || ready
    }

    /// Whether what is ready on a runtime is done in good time, as far as is known. Not where its thread may have left it.
    fn is_prompt(&self, id: Option<tokio::runtime::Id>, sample: &Sample) -> bool {
        let Some(facts) = self.facts.runtime(id) else { return false };
        let late = facts.last.beat_late.is_none_or(|late| late >= sample.long_poll_limit);
        let stuck = facts.last.frozen.iter().any(|frozen| is_stuck(frozen, sample));
        let crowded = facts.full.recent().is_at_least(FULL) && facts.last.depth > 0;
        !late && !stuck && !crowded && sample.overdue.is_empty()
    }

    /// Whether an op holds threads of a runtime's pool that it never gives back, for all that is seen.
    fn is_lost(&self, op: &OpSample, sample: &Sample) -> bool {
        if op.executing == 0 || op.counted.ended > 0 || op.site.runtime.is_none() {
            return false;
        }
        let held = sample.executions.iter().filter(|held| held.op == op.site.index);
        // Since when the youngest of them has been held: each for itself must be old enough.
        let Some(age) = held.map(|held| sample.now.saturating_sub(held.since)).min() else { return false };
        let cap = self.facts.runtime(op.site.runtime).and_then(|runtime| runtime.last.cap);
        let part = cap.is_some_and(|cap| op.executing.saturating_mul(4) >= cap.saturating_mul(LOST_PART));
        let windows = if part { 1 } else { LOST_WINDOWS };
        age >= (self.stretch * 2).saturating_mul(windows)
    }
}

/// Whether a wait of it is too old, and not only, unless that is known, because those who hand it on had no CPU.
fn waits_too_long(op: &OpSample, sample: &Sample, is_known: bool) -> bool {
    let age = op.wait_age(sample.now);
    let lost = || if is_known { 0 } else { sample.lost_by_all(sample.now.saturating_sub(age)) };
    age >= op.queue_wait_limit && age.saturating_sub(lost()) >= op.queue_wait_limit
}

/// Whether a call of it has been queued for too long, and not only, unless that is known, because the thread that it was
/// given had no CPU.
fn queued_too_long(op: &OpSample, sample: &Sample, is_known: bool) -> bool {
    let age = op.queued_age(sample.now);
    let lost = sample.now.saturating_sub(age);
    let lost = || if is_known { 0 } else { sample.lost_by_waking(lost).min(sample.most_lost(op)) };
    age >= op.queue_wait_limit && age.saturating_sub(lost()) >= op.queue_wait_limit
}

/// Whether whoever has what is waited for waits itself, for a thread of its pool: then it is the pool that is short.
fn is_secondhand(op: &OpSample, sample: &Sample) -> bool {
    let queued = |call: &OpSample| call.queued > 0 && call.queued_age(sample.now) >= call.queue_wait_limit / 2;
    op.holder.is_some_and(|holder| sample.ops.iter().any(|call| call.caller == Some(holder) && queued(call)))
}

/// Whether a worker that stands still is stuck in what it does.
fn is_stuck(frozen: &Frozen, sample: &Sample) -> bool {
    if !frozen.started {
        return false;
    }
    let so_long = |since: u64| sample.now.saturating_sub(since).saturating_sub(sample.pauses.since(since));
    let asleep = frozen.one_sleep.is_some_and(|since| so_long(since) >= sample.long_poll_limit);
    if let Some(since) = frozen.one_poll {
        return so_long(since) >= sample.long_poll_limit;
    }
    let times = if asleep { ASLEEP } else { ROW };
    so_long(frozen.since) >= sample.long_poll_limit.saturating_mul(times)
}

/// Whether tasks that are ready wait because all workers are busy with others.
fn is_crowded(facts: &RuntimeFacts, sample: &Sample, late: bool) -> bool {
    let full = facts.full.recent();
    let probe = facts.last.probe.unwrap_or(0) >= sample.queue_wait_limit;
    let mostly = full.of >= LOOKS && full.is_at_least(FULL);
    let full_for = facts.full_since.map_or(0, |since| sample.now.saturating_sub(since));
    let long = full_for >= sample.queue_wait_limit.saturating_mul(FULL_FOR) && facts.full_looks >= LOOKS;
    // Between two `block_on` nobody drives a runtime without threads of its own, and nothing there is late.
    let all_along = long && !facts.last.current_thread;
    facts.last.is_full() && (probe && (mostly || all_along) || late && mostly)
}

fn pool_of(op: &OpSample) -> Key {
    op.site.runtime.map_or(Key::Jobs(op.site.index), Key::Pool)
}
