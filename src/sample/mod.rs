//! One look at the process, as plain data: what a decision rests on.

mod observer;
mod op;
mod seen;

pub(crate) use observer::ObserverFigures;
pub(crate) use op::{Excused, OpSample, Site};
pub(crate) use seen::{Frozen, InPoll, Machine, RuntimeSample, Stop};

use crate::activity::{Activity, Kind};
use crate::conduct::Conduct;
use crate::lately::Plus;
use crate::op as ops;
use crate::owner::Whom;
use crate::pause::Pauses;
use crate::poller::Pollers;
use crate::pool_thread::{OpThread, PoolThreads};
use crate::shortage::Shortage;
use crate::slot;
use crate::stacks::Taken;
use std::collections::{HashMap, VecDeque};

/// An activity that a thread has not ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) op: u32,
    pub(crate) since: u64,
    #[cfg_attr(not(feature = "stacks"), allow(dead_code, reason = "only who takes stacks asks"))]
    /// When it really began: `since` leaves out the time without a CPU.
    pub(crate) began: u64,
    /// What its thread has done since the last look; of polls that are overdue.
    pub(crate) conduct: Conduct,
    /// Where it was last seen to wait for another thread; 0 where it was not.
    pub(crate) address: u64,
    /// It is many small steps: the poll of another watched future began and ended inside it.
    pub(crate) steps: bool,
    /// Something watched was polled in it by hand.
    pub(crate) by_hand: bool,
    /// It is of no task: the root of a `block_on` on a runtime whose workers are other threads.
    pub(crate) root: bool,
    #[cfg_attr(not(feature = "stacks"), allow(dead_code, reason = "only who takes stacks asks"))]
    /// The thread, where it is known.
    pub(crate) whom: Option<Whom>,
}

impl Held {
    pub(crate) fn new(op: u32, since: u64) -> Self {
        Self {
            op,
            since,
            began: since,
            conduct: Conduct::default(),
            address: 0,
            steps: false,
            by_hand: false,
            root: false,
            whom: None,
        }
    }
}

/// A worker has published that it is awake so long after it began to poll.
const SHOWS: u64 = 1_000_000;
/// A worker that is given away is taken over within so long, on a busy machine.
const HANDED_OVER: u64 = 250_000_000;
/// From so many ops on those that do nothing are read in one look of so many.
const MANY: usize = 256;
const TURNS: u64 = 16;
/// The times of so many looks are remembered.
const LOOKS: usize = 256;

/// One look.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) now: u64,
    /// The time of the look before.
    pub(crate) previous: u64,
    /// For how long the observer meant to sleep in between.
    pub(crate) meant_to_sleep: u64,
    /// The observer came late. What looks old may be so for the same reason.
    pub(crate) late: bool,
    /// All times at which it did, and those at which it did not even wait for a CPU: the process was stopped.
    pub(crate) pauses: Pauses,
    pub(crate) stops: Pauses,
    /// The stop that this look comes after, if it does.
    pub(crate) stop: Option<Stop>,
    /// The innermost overdue poll of each thread that has one outside of any execution.
    pub(crate) overdue: Vec<Held>,
    pub(crate) executions: Vec<Held>,
    /// Threads that have been in one watched poll for longer than its limit, whoever is at fault inside it; at this look and
    /// at the one before.
    pub(crate) in_poll: Vec<InPoll>,
    pub(crate) was_in_poll: Vec<InPoll>,
    /// Ops of polls that go on and have given their worker away, at this look and at the one before.
    pub(crate) given_away: Vec<u32>,
    /// By op: when that was last seen.
    pub(crate) given_at: HashMap<u32, u64>,
    /// In the order of their places.
    pub(crate) ops: Vec<OpSample>,
    pub(crate) ops_before: Vec<OpSample>,
    pub(crate) looks: u64,
    /// When the last ones were, this one the last.
    pub(crate) looked_at: VecDeque<u64>,
    pub(crate) runtimes: Vec<RuntimeSample>,
    /// What the kernel tells, at the looks at which it was asked.
    pub(crate) machine: Option<Machine>,
    /// How long each op's futures have been polled is to be told.
    pub(crate) asks_poll_time: bool,
    /// How many CPUs the process may use.
    pub(crate) cpus: u64,
    /// The limits where an op has none of its own.
    pub(crate) long_poll_limit: u64,
    pub(crate) queue_wait_limit: u64,
    /// Anything is in flight.
    pub(crate) busy: bool,
    /// While calls queue: what a thread did, of some of the ops that hold their threads.
    pub(crate) threads: Vec<OpThread>,
    pub(crate) pollers: Pollers,
    pub(crate) shortage: Shortage,
    pub(crate) pool_threads: PoolThreads,
    /// Stacks of threads that are stuck or were, which have come since the last look.
    pub(crate) stacks: Vec<Taken>,
}

impl Sample {
    /// A look begins: first at the runtimes, then at what is wrapped.
    pub(crate) fn begin(&mut self, now: u64) {
        self.pollers.begin();
        let something_waits = self.something_waits(now);
        self.shortage.look(now, something_waits, self.busy);
    }

    /// Whether anything is late of which it is to be known soon whether its threads had a CPU.
    fn something_waits(&self, now: u64) -> bool {
        let waits = |op: &OpSample| op.wait_age(now).max(op.queued_age(now)) >= op.queue_wait_limit / 4;
        let stuck = |seen: &RuntimeSample| {
            let long = |frozen: &Frozen| now.saturating_sub(frozen.since) >= self.long_poll_limit / 4;
            seen.canary_waits || seen.frozen.iter().any(|frozen| frozen.started && !seen.current_thread && long(frozen))
        };
        self.ops.iter().any(waits) || self.runtimes.iter().any(stuck)
    }

    /// Looks, reusing the space of the last look. Ages do not count the time in which nobody had a CPU.
    pub(crate) fn take(&mut self, now: u64, late: bool) {
        self.previous = std::mem::replace(&mut self.now, now);
        self.late = late;
        if self.looked_at.len() == LOOKS {
            self.looked_at.pop_front();
        }
        self.looked_at.push_back(now);
        self.busy = false;
        self.given_away.clear();
        std::mem::swap(&mut self.in_poll, &mut self.was_in_poll);
        self.in_poll.clear();
        self.overdue.clear();
        self.executions.clear();
        self.look_at_ops();
        self.pool_threads.begin();
        for slot in slot::all() {
            self.look_at(slot);
        }
        self.look_at_pools();
        if !self.overdue.is_empty() {
            // Whether they hold their workers, or threads that were to take those had no CPU, is asked at once.
            self.shortage.look(now, true, true);
        }
        let (ops, stops) = (&mut self.ops, &self.stops);
        self.pollers.ended(now, stops, |over| {
            if let Ok(at) = ops.binary_search_by_key(&over.op, |sample| sample.site.index) {
                let sample = &mut ops[at];
                if over.waited >= sample.without_cpu {
                    (sample.without_cpu, sample.behind) = (over.waited, over.behind);
                }
                sample.observed = true;
                if now.saturating_sub(over.start) >= sample.long_poll_limit {
                    sample.ended_conduct = sample.ended_conduct.plus(over.conduct);
                }
            }
        });
    }

    /// Reads what the ops have counted. Of many, those that have done nothing for a while are read by turns.
    fn look_at_ops(&mut self) {
        self.looks += 1;
        std::mem::swap(&mut self.ops, &mut self.ops_before);
        self.ops.clear();
        let many = self.ops_before.len() > MANY;
        let mut known = self.ops_before.iter().peekable();
        for op in ops::all() {
            while known.next_if(|before| before.site.index < op.index).is_some() {}
            let before = known.next_if(|before| before.site.index == op.index);
            let its_turn = (u64::from(op.index) + self.looks).is_multiple_of(TURNS);
            if let Some(before) =
                before.filter(|before| many && !its_turn && !self.asks_poll_time && before.rests(self.now))
            {
                self.ops.push(before.unread());
                continue;
            }
            let mut sample = op::of(op, self.now, &self.pauses);
            sample.stirred = match before {
                Some(before) if before.counted == sample.counted && !sample.is_busy() => before.stirred,
                _ => self.now,
            };
            if self.asks_poll_time {
                let figures = slot::all().filter_map(|slot| slot.figures(op.index));
                sample.poll_time = Some(figures.map(|figures| figures.poll_duration.sum()).sum());
            }
            self.busy |= sample.is_busy();
            self.ops.push(sample);
        }
    }

    /// A thread is busy with this op.
    fn stir(&mut self, index: u32) {
        if let Ok(at) = self.ops.binary_search_by_key(&index, |op| op.site.index) {
            self.ops[at].stirred = self.now;
        }
    }

    /// Whether a worker of a runtime is stuck in a poll that is not known to be one of it.
    fn has_stray(&self, seen: &RuntimeSample) -> bool {
        let old = |frozen: &&Frozen| self.now.saturating_sub(frozen.since) >= self.long_poll_limit;
        let stuck = seen.frozen.iter().filter(old).count();
        let known = self.was_in_poll.iter().filter(|known| Some(known.runtime) == seen.runtime).count();
        !seen.current_thread && stuck > known
    }

    /// Looks at threads of the pools that calls wait for.
    fn look_at_pools(&mut self) {
        let now = self.now;
        let waits = |op: &OpSample| op.queued_age(now) >= op.queue_wait_limit / 2 && op.queued > 0;
        let full = |runtime: &RuntimeSample| runtime.canary_waits;
        let pools: Vec<_> = self.ops.iter().filter(|op| waits(op)).map(|op| op.site.runtime).collect();
        let waited_for = |op: &OpSample| {
            let of_it = self.runtimes.iter().find(|seen| op.site.runtime.is_some() && seen.runtime == op.site.runtime);
            op.executing > 0 && (pools.contains(&op.site.runtime) || of_it.is_some_and(full))
        };
        let asked: Vec<u32> = self.ops.iter().filter(|op| waited_for(op)).map(|op| op.site.index).collect();
        self.threads.clear();
        self.pool_threads.look(&asked, now, &self.pollers.sleeps, &mut self.threads);
    }

    /// Whether a task that is being polled since `start` has given its worker away (`block_in_place`): a poll that holds a
    /// worker keeps it from parking and from publishing anything.
    fn is_given_away(&self, runtime: Option<tokio::runtime::Id>, start: u64) -> bool {
        let seen = self.runtimes.iter().find(|seen| runtime.is_some() && seen.runtime == runtime);
        // The first look that saw it held also saw its worker publish for the last time. One that has published after that
        // is another's, kept from going on by something else: a lack of CPU is enough.
        let first = self.looked_at.partition_point(|at| *at < start.saturating_add(SHOWS));
        let first = self.looked_at.get(first).copied().unwrap_or(self.now);
        let none_stuck = |seen: &RuntimeSample| {
            let others =
                |frozen: &Frozen| first > self.looked_at.front().map_or(0, |at| *at) && frozen.seen_since > first;
            seen.workers > 0 && !seen.current_thread && seen.frozen.iter().all(others)
        };
        // It may be of a future that has moved on to another runtime than its first.
        let elsewhere = || self.runtimes.iter().filter(|seen| seen.runtime != runtime);
        seen.is_some_and(none_stuck) && !elsewhere().any(|seen| self.has_stray(seen))
    }

    /// Whether a task's poll of `age` that began then, and goes on or has just ended, held its worker: it may have given it
    /// away to a thread that had no CPU to take it over. Who held it for half of what a poll may take is not let off for a
    /// thread that was late by the rest.
    pub(crate) fn held_worker(&self, began: u64, age: u64, limit: u64) -> bool {
        let by_waking = |of: &Shortage, since, now| of.of_waking(since, now, &self.stops);
        let lost = || self.shortage.of_ended(began, self.now, by_waking);
        age >= HANDED_OVER.saturating_add(limit) || age.saturating_sub(lost()) >= limit / 2
    }

    /// How long what passes from one thread to the next may have been held up since `since` for want of a CPU.
    pub(crate) fn lost_by_all(&self, since: u64) -> u64 {
        self.shortage.of_all(since, self.now, &self.stops)
    }

    /// The same of what waits for a single thread to wake.
    pub(crate) fn lost_by_waking(&self, since: u64) -> u64 {
        self.shortage.of_waking(since, self.now, &self.stops)
    }

    /// The op at this place.
    pub(crate) fn op(&self, index: u32) -> Option<&OpSample> {
        self.ops.binary_search_by_key(&index, |op| op.site.index).ok().map(|at| &self.ops[at])
    }

    fn look_at(&mut self, slot: &'static slot::Slot) {
        let mut overdue: Option<(Held, u64, Activity)> = None;
        let (mut pool, mut outermost) = (None, true);
        let activities = slot.activities();
        let blamed = slot.blamed();
        let id = std::ptr::from_ref(slot) as usize;
        for activity in activities.into_iter().flatten() {
            self.busy = true;
            // An op whose place is not filled in yet was met this very moment.
            let Some(op) = ops::get(activity.op()) else { continue };
            self.stir(op.index);
            let start = activity.start(self.now);
            if activity.kind() == Kind::Execution {
                let since = start.saturating_add(self.pauses.since(start)).min(self.now);
                self.executions.push(Held { whom: slot.whom(), began: start, ..Held::new(op.index, since) });
                self.pool_threads.found(op.index, slot.tid());
                pool = Some(op.runtime);
                continue;
            }
            // What is polled on a thread of the runtime's own blocking pool holds up no worker.
            if pool == Some(op.runtime) {
                continue;
            }
            if std::mem::take(&mut outermost)
                && self.now.saturating_sub(start) >= op.long_poll_limit().min(self.long_poll_limit)
            {
                let tid = slot.tid();
                self.in_poll.extend(op.runtime.map(|runtime| InPoll { runtime, tid }));
            }
            // What an inner poll took has been reported for that one.
            let start = start.max(blamed).min(self.now);
            let (age, limit) = (self.now - start, op.long_poll_limit());
            // The one around it may have come over its limit by this one alone, which will be over its own in a moment.
            overdue = overdue.filter(|&(outer, outer_limit, _)| {
                limit > outer_limit || start.saturating_sub(outer.since) >= outer_limit
            });
            if let Some((outer, ..)) = &mut overdue {
                outer.steps = start.saturating_sub(outer.since) >= limit / 4;
            }
            if age < limit / 4 {
                continue;
            }
            // Where the kernel tells of the thread, the observer's own waits for a CPU say nothing more.
            let without_cpu = match self.pollers.waited(id, activity, slot.tid(), self.now, &self.stops) {
                Some(waited) => waited,
                None => self.pauses.since(start),
            };
            let since = start.saturating_add(without_cpu).min(self.now);
            let stopped = self.stops.since(start);
            let mostly_stopped = stopped >= limit / 2 && stopped.saturating_mul(3) >= age;
            if self.now - since < limit || mostly_stopped {
                continue;
            }
            let none_stuck = activity.kind() == Kind::Poll && self.is_given_away(op.runtime, activity.start(self.now));
            // The thread that is to take the worker over may have had no CPU so far.
            let gives = activity.kind() == Kind::Poll && self.given_at.contains_key(&op.index);
            if !none_stuck && gives && self.now.saturating_sub(activity.start(self.now)) < HANDED_OVER {
                continue;
            }
            // That a worker stands still shows at the second look only.
            if none_stuck && activity.start(self.now).saturating_add(SHOWS) >= self.previous {
                continue;
            }
            if none_stuck {
                self.given_away.push(op.index);
                self.given_at.insert(op.index, self.now);
            } else {
                overdue = Some((Held::new(op.index, since), limit, activity));
            }
        }
        if let Some((held, _, activity)) = overdue {
            let (conduct, address) = (self.pollers.take_conduct(id, activity), self.pollers.address(id, activity));
            let by_hand = slot.by_hand() >= activity.start(self.now);
            let of_workers = |seen: &RuntimeSample| seen.workers > 0 && !seen.current_thread;
            let runtime = ops::get(held.op).and_then(|op| op.runtime);
            let seen = self.runtimes.iter().find(|seen| runtime.is_some() && seen.runtime == runtime);
            let root = activity.kind() == Kind::Root && seen.is_some_and(of_workers);
            self.overdue.push(Held {
                conduct,
                address,
                by_hand,
                root,
                whom: slot.whom(),
                began: activity.start(self.now),
                ..held
            });
        }
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_execution_is_as_old_as_a_wait_that_began_with_it() {
        const SECOND: u64 = 1_000_000_000;
        let now = crate::clock::now() + 100 * SECOND;
        let op = ops::intern("sample::tests::executes", std::panic::Location::caller(), None);
        let Some(own) = slot::own() else { panic!("this thread is not ending") };
        let depth = own.enter(Activity::new(Kind::Execution, op.index, now - 5 * SECOND));
        op.queued.enter(now - 5 * SECOND);
        let mut sample = Sample::default();
        // For three seconds nobody was seen to have a CPU.
        sample.pauses.add(now - 4 * SECOND, now - SECOND);
        sample.take(now, false);
        op.queued.leave(now - 5 * SECOND);
        own.leave(depth);
        let held = sample.executions.iter().find(|held| held.op == op.index);
        let ages = held.map(|held| [held.began, held.since].map(|since| (now - since) / (SECOND / 10)));
        assert_eq!(ages, Some([50, 20]));
        let queued = sample.op(op.index).map_or(0, |op| op.queued_age(now)) as f64 / SECOND as f64;
        assert!((1.9..=2.1).contains(&queued), "{queued}");
    }

    #[test]
    fn a_worker_is_held_by_who_is_on_it_for_half_of_the_limit_besides_what_a_taker_may_have_waited() {
        use crate::evidence::CpuTime;
        const MS: u64 = 1_000_000;
        let held = |waited: u64, age: u64| {
            let mut sample = Sample { now: 1_000 * MS, ..Sample::default() };
            let time = |waited: u64| CpuTime { on_cpu: 0, waited: waited * MS, runnable: false, turns: 0 };
            sample.shortage.add(1_000 * MS - age * MS, vec![(1, time(0))], Vec::new());
            sample.shortage.add(1_000 * MS, vec![(1, time(waited))], Vec::new());
            sample.held_worker(1_000 * MS - age * MS, age * MS, 25 * MS)
        };
        assert_eq!([held(0, 26), held(13, 26), held(14, 26), held(60, 60)], [true, true, false, false]);
        // It may have been late by a good deal, but not by this much.
        assert_eq!([held(274, 274), held(275, 275)], [false, true]);
    }
}
