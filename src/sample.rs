//! One look at the process, as plain data: what a decision rests on.

use crate::clock;
use crate::figures::{CallFigures, count};
use crate::op::{self, Op};
use crate::pause::Pauses;
use crate::slot::{self, Kind};
use crate::suspect::{PoolThread, Share, Suspects};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// A site, as far as a report names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// Tells sites apart; see [`op`].
    pub(crate) index: u32,
    pub(crate) name: &'static str,
    pub(crate) location: &'static Location<'static>,
    pub(crate) runtime: Option<tokio::runtime::Id>,
}

/// An activity that a thread has not ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) op: u32,
    pub(crate) since: u64,
}

/// What one op has counted, and what of it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpSample {
    pub(crate) site: Site,
    pub(crate) long_poll_limit: u64,
    pub(crate) queue_wait_limit: u64,
    pub(crate) executing: u64,
    pub(crate) queued: u64,
    /// When the oldest queued call was made, or somewhat later.
    pub(crate) oldest_queued: Option<u64>,
    pub(crate) waits: u64,
    pub(crate) oldest_wait: Option<u64>,
    pub(crate) counted: Counted,
    /// How long polls that have ended since the last look were ready to run and had no CPU.
    pub(crate) without_cpu: u64,
}

impl OpSample {
    /// How long its oldest call has been queued; 0 where none is.
    pub(crate) fn queued_age(&self, now: u64) -> u64 {
        self.oldest_queued.map_or(0, |since| now.saturating_sub(since))
    }

    /// How long its oldest wait has been pending; 0 where none is.
    pub(crate) fn wait_age(&self, now: u64) -> u64 {
        self.oldest_wait.map_or(0, |since| now.saturating_sub(since))
    }
}

/// The counters of one op, which only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) long_polls: u64,
    pub(crate) long_poll_time: u64,
    pub(crate) dominated: u64,
    pub(crate) dominated_wait: u64,
    pub(crate) long_waits: u64,
    pub(crate) long_wait_time: u64,
    pub(crate) ended: u64,
    pub(crate) execution_time: u64,
    pub(crate) cpu: u64,
    pub(crate) cpu_known_execution: u64,
}

impl Counted {
    /// What has been counted since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            long_polls: self.long_polls.saturating_sub(before.long_polls),
            long_poll_time: self.long_poll_time.saturating_sub(before.long_poll_time),
            dominated: self.dominated.saturating_sub(before.dominated),
            dominated_wait: self.dominated_wait.saturating_sub(before.dominated_wait),
            long_waits: self.long_waits.saturating_sub(before.long_waits),
            long_wait_time: self.long_wait_time.saturating_sub(before.long_wait_time),
            ended: self.ended.saturating_sub(before.ended),
            execution_time: self.execution_time.saturating_sub(before.execution_time),
            cpu: self.cpu.saturating_sub(before.cpu),
            cpu_known_execution: self.cpu_known_execution.saturating_sub(before.cpu_known_execution),
        }
    }

    /// Without what a lack of CPU time explains: polls and waits that were over their limits by no more than that. This
    /// is what has been counted between the last look and this one.
    pub(crate) fn beyond(mut self, op: &OpSample, sample: &Sample) -> Self {
        let explained = |count: u64, time: u64, limit: u64, without_cpu: u64| {
            time.checked_div(count).is_some_and(|average| {
                let paused = sample.pauses.since(sample.previous.saturating_sub(average));
                average.saturating_sub(paused.max(without_cpu / count)) < limit
            })
        };
        if explained(self.long_polls, self.long_poll_time, op.long_poll_limit, op.without_cpu) {
            (self.long_polls, self.long_poll_time) = (0, 0);
        }
        if explained(self.dominated, self.dominated_wait, op.queue_wait_limit, 0) {
            (self.dominated, self.dominated_wait) = (0, 0);
        }
        if explained(self.long_waits, self.long_wait_time, op.queue_wait_limit, 0) {
            (self.long_waits, self.long_wait_time) = (0, 0);
        }
        self
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            long_polls: self.long_polls + more.long_polls,
            long_poll_time: self.long_poll_time + more.long_poll_time,
            dominated: self.dominated + more.dominated,
            dominated_wait: self.dominated_wait + more.dominated_wait,
            long_waits: self.long_waits + more.long_waits,
            long_wait_time: self.long_wait_time + more.long_wait_time,
            ended: self.ended + more.ended,
            execution_time: self.execution_time + more.execution_time,
            cpu: self.cpu + more.cpu,
            cpu_known_execution: self.cpu_known_execution + more.cpu_known_execution,
        }
    }
}

/// One look.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    pub(crate) now: u64,
    /// The time of the look before.
    pub(crate) previous: u64,
    /// The observer came late. What looks old may be so for the same reason.
    pub(crate) late: bool,
    /// All times at which it did, and those at which it did not even wait for a CPU: the process was stopped.
    pub(crate) pauses: Pauses,
    pub(crate) stops: Pauses,
    /// The innermost overdue poll of each thread that has one outside of any execution.
    pub(crate) overdue: Vec<Held>,
    pub(crate) executions: Vec<Held>,
    pub(crate) ops: Vec<OpSample>,
    /// How many CPUs the process may use.
    pub(crate) cpus: u64,
    /// Anything is in flight.
    pub(crate) busy: bool,
    /// While calls queue: of how much time since the last look a thread that executes calls had no CPU.
    pub(crate) without_cpu: Share,
    pub(crate) suspects: Suspects,
    pub(crate) pool_thread: PoolThread,
}

impl Sample {
    /// Looks, reusing the space of the last look. Ages do not count the time in which nobody had a CPU.
    pub(crate) fn take(&mut self, now: u64, late: bool) {
        self.previous = std::mem::replace(&mut self.now, now);
        self.late = late;
        self.busy = false;
        self.overdue.clear();
        self.executions.clear();
        self.ops.clear();
        for op in op::all() {
            let sample = of_op(op, now, &self.pauses);
            self.busy |= sample.queued > 0 || sample.waits > 0;
            self.ops.push(sample);
        }
        self.suspects.begin();
        let mut executing = None;
        for slot in slot::all() {
            self.look_at(slot, &mut executing);
        }
        let queued = |op: &OpSample| op.queued_age(now) >= op.queue_wait_limit / 2 && op.queued > 0;
        let asked = executing.filter(|_| self.ops.iter().any(queued));
        self.without_cpu = self.pool_thread.look(asked, now);
        let ops = &mut self.ops;
        self.suspects.ended(now, |op, waited| {
            if let Some(sample) = ops.iter_mut().find(|sample| sample.site.index == op) {
                sample.without_cpu += waited;
            }
        });
    }

    /// `executing` becomes the first thread found that executes a call.
    fn look_at(&mut self, slot: &'static slot::Slot, executing: &mut Option<u32>) {
        let mut overdue: Option<(Held, u64)> = None;
        let mut pool = None;
        let activities = slot.activities();
        let blamed = slot.blamed();
        for activity in activities.into_iter().flatten() {
            self.busy = true;
            // An op whose place is not filled in yet was met this very moment.
            let Some(op) = op::get(activity.op()) else { continue };
            let start = activity.start(self.now);
            if activity.kind() == Kind::Execution {
                self.executions.push(Held { op: op.index, since: start });
                *executing = executing.or(slot.tid());
                pool = Some(op.runtime);
                continue;
            }
            // What is polled on a thread of the runtime's own blocking pool holds up no worker.
            if pool == Some(op.runtime) {
                continue;
            }
            // What an inner poll took has been reported for that one.
            let start = start.max(blamed).min(self.now);
            let (age, limit) = (self.now - start, op.long_poll_limit());
            // The one around it may have come over its limit by this one alone, which will be over its own in a moment.
            overdue = overdue.filter(|&(outer, outer_limit)| {
                limit > outer_limit || start.saturating_sub(outer.since) >= outer_limit
            });
            if age < limit / 4 {
                continue;
            }
            let id = std::ptr::from_ref(slot) as usize;
            // Where the kernel tells of the thread, the observer's own waits for a CPU say nothing more.
            let without_cpu = match self.suspects.waited(id, activity, slot.tid(), self.now) {
                Some(waited) => waited.max(self.stops.since(start)),
                None => self.pauses.since(start),
            };
            let since = start.saturating_add(without_cpu).min(self.now);
            if self.now - since >= limit {
                overdue = Some((Held { op: op.index, since }, limit));
            }
        }
        self.overdue.extend(overdue.map(|(held, _)| held));
    }
}

fn of_op(op: &'static Op, now: u64, pauses: &Pauses) -> OpSample {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut counted =
        Counted { long_polls: read(&op.long_polls), long_poll_time: read(&op.long_poll_time), ..Counted::default() };
    if let Some(calls) = op.known_calls() {
        counted.dominated = read(&calls.dominated);
        counted.dominated_wait = read(&calls.dominated_wait);
        counted.ended = read(&calls.returned) + read(&calls.panicked);
        counted.execution_time = calls.execution.sum();
        counted.cpu = read(&calls.cpu);
        counted.cpu_known_execution = read(&calls.cpu_known_execution);
    }
    let waits = op.known_waits();
    if let Some(waits) = waits {
        counted.long_waits = read(&waits.long);
        counted.long_wait_time = read(&waits.long_time);
    }
    let arrived = |oldest: crate::age::Oldest| {
        let since = oldest.latest.min(now);
        since.saturating_add(pauses.since(since)).min(now)
    };
    OpSample {
        site: Site { index: op.index, name: op.name, location: op.location, runtime: op.runtime },
        long_poll_limit: op.long_poll_limit(),
        queue_wait_limit: op.queue_wait_limit(),
        executing: op.known_calls().map_or(0, CallFigures::executing),
        queued: op.queued.waiting(),
        oldest_queued: op.queued.oldest().map(arrived),
        waits: waits.map_or(0, |waits| waits.pending.waiting()),
        oldest_wait: waits.and_then(|waits| waits.pending.oldest()).map(arrived),
        counted,
        without_cpu: 0,
    }
}

/// The observer's figures about itself.
#[derive(Debug, Default)]
pub(crate) struct ObserverFigures {
    pub(crate) looks: AtomicU64,
    pub(crate) late_looks: AtomicU64,
    pub(crate) lateness: AtomicU64,
    pub(crate) longest_lateness: AtomicU64,
    pub(crate) cpu: AtomicU64,
    pub(crate) cpu_known: std::sync::atomic::AtomicBool,
    pub(crate) unopened: AtomicU64,
    pub(crate) muted: AtomicU64,
    pub(crate) dropped_reports: AtomicU64,
    pub(crate) failed_reports: AtomicU64,
}

impl ObserverFigures {
    /// A look came `lateness` after its time.
    pub(crate) fn looked(&self, lateness: u64, late: bool) {
        count(&self.looks, 1);
        count(&self.lateness, lateness);
        self.longest_lateness.fetch_max(lateness, Ordering::Relaxed);
        if late {
            count(&self.late_looks, 1);
        }
        if let Some(cpu) = clock::thread_cpu() {
            self.cpu.store(cpu, Ordering::Relaxed);
            self.cpu_known.store(true, Ordering::Relaxed);
        }
    }
}
