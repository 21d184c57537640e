//! One op at one look.

use super::Sample;
use crate::conduct::Conduct;
use crate::counted::Counted;
use crate::figures::CallFigures;
use crate::lately::Plus;
use crate::op::{self, Op};
use crate::pause::Pauses;
use crate::shortage::Shortage;
use std::panic::Location;
use std::sync::atomic::Ordering;

/// A site, as far as a report names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    /// Tells sites apart; see [`op`].
    pub(crate) index: u32,
    pub(crate) name: &'static str,
    pub(crate) location: &'static Location<'static>,
    pub(crate) runtime: Option<tokio::runtime::Id>,
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
    /// Since when the oldest of its waits is ready that nobody has polled since.
    pub(crate) oldest_woken: Option<u64>,
    pub(crate) counted: Counted,
    /// When it was last seen to do anything; and whether it was read at this look.
    pub(crate) stirred: u64,
    pub(crate) is_read: bool,
    /// How long its futures have been polled since the process started, where that was asked.
    pub(crate) poll_time: Option<u64>,
    /// How long of the polls that have ended since the last look one was ready to run and had no CPU, at most: not all of
    /// them were looked at.
    pub(crate) without_cpu: u64,
    /// How much of that it was another thread that had none, for which it may have waited.
    pub(crate) behind: u64,
    /// Of such polls at least one was looked at while it went on.
    pub(crate) observed: bool,
    /// What the threads of such polls did that were over their limit.
    pub(crate) ended_conduct: Conduct,
    /// Its calls that a thread of their own pool waits for now, and the op that this thread executes.
    pub(crate) nested_now: u64,
    pub(crate) nested_in: Option<u32>,
    /// Such calls were made on such a thread, too.
    pub(crate) nested_made: bool,
    /// The op that made its last call.
    pub(crate) caller: Option<u32>,
    /// The op whose long poll its last late poll waited behind.
    pub(crate) late_behind: Option<u32>,
    /// Of its waits: the op that waited last, and the one that was last given what it waited for.
    pub(crate) waiter: Option<u32>,
    pub(crate) holder: Option<u32>,
}

/// An observer that has not looked for so much longer than it meant to has not seen what went on.
const BLIND: u64 = 10_000_000;
/// An op that has done nothing for so long rests.
const RESTS: u64 = 1_000_000_000;

impl OpSample {
    pub(crate) fn is_busy(&self) -> bool {
        self.queued > 0 || self.executing > 0 || self.waits > 0 || self.oldest_woken.is_some()
    }

    /// Whether it has done nothing for a while.
    pub(super) fn rests(&self, now: u64) -> bool {
        !self.is_busy() && now.saturating_sub(self.stirred) >= RESTS
    }

    /// The same, as it stands where it is not read.
    pub(super) fn unread(&self) -> Self {
        Self {
            is_read: false,
            without_cpu: 0,
            behind: 0,
            observed: false,
            ended_conduct: Conduct::default(),
            poll_time: None,
            ..*self
        }
    }

    /// How long its oldest call has been queued; 0 where none is.
    pub(crate) fn queued_age(&self, now: u64) -> u64 {
        self.oldest_queued.map_or(0, |since| now.saturating_sub(since))
    }

    /// How long its oldest wait has been pending; 0 where none is.
    pub(crate) fn wait_age(&self, now: u64) -> u64 {
        self.oldest_wait.map_or(0, |since| now.saturating_sub(since))
    }

    /// How long the oldest of its waits has been ready without being polled; 0 where none is.
    pub(crate) fn woken_age(&self, now: u64) -> u64 {
        self.oldest_woken.map_or(0, |since| now.saturating_sub(since))
    }

    /// What it has counted since `before`, and of that what a lack of CPU time explains: polls and waits that were over
    /// their limits by no more than that. This is what has been counted between the last look and this one.
    pub(crate) fn counted_since(&self, before: Counted, sample: &Sample) -> (Counted, Excused) {
        let mut fresh = self.counted.since(before);
        let average = fresh.long_poll_time / fresh.long_polls.max(1);
        // At some look of a poll that is over now it had given its worker away.
        let given_at = sample.given_at.get(&self.site.index);
        if given_at.is_some_and(|at| at.saturating_add(average) >= sample.previous) {
            (fresh.long_polls, fresh.long_poll_time) = (0, 0);
        }
        let mut excused = Excused::default();
        let gap = sample.now.saturating_sub(sample.previous);
        if gap >= sample.meant_to_sleep.saturating_add(BLIND) {
            self.forget_unseen(&mut fresh, gap);
        }
        // Of a poll that nobody saw, because the observer came late, nobody knows what it did, unless it was much too long.
        let average = fresh.long_poll_time / fresh.long_polls.max(1);
        let unseen = !self.observed && sample.pauses.since(sample.previous.saturating_sub(average)) > 0;
        if unseen && average < self.long_poll_limit.saturating_mul(2) {
            (fresh.long_polls, fresh.long_poll_time) = (0, 0);
        }
        let mut excuse = |count: &mut u64, time: &mut u64, limit: u64, [without_cpu, own]: [u64; 2]| {
            let Some(average) = time.checked_div(*count) else { return };
            let began = sample.previous.saturating_sub(average);
            let (paused, stopped) = (sample.pauses.since(began), sample.stops.since(began));
            // Of a stop not all is seen where others were stopped sooner or longer than the observer.
            let mostly_stopped = stopped >= limit / 2 && stopped.saturating_mul(3) >= average;
            if mostly_stopped || average.saturating_sub(paused.max(without_cpu / *count)) < limit {
                // A process that is stopped is not short of CPUs.
                if !mostly_stopped && average.saturating_sub(stopped) >= limit {
                    let read = if average.saturating_sub(own / *count) < limit { *count } else { 0 };
                    excused = excused.plus(Excused { count: *count, time: *time, read });
                }
                (*count, *time) = (0, 0);
            }
        };
        let own = self.without_cpu.saturating_sub(self.behind);
        let without_cpu = [self.without_cpu, own].map(|time| time.saturating_mul(fresh.long_polls));
        excuse(&mut fresh.long_polls, &mut fresh.long_poll_time, self.long_poll_limit, without_cpu);
        excuse(&mut fresh.late_polls, &mut fresh.late_poll_time, self.long_poll_limit, [0; 2]);
        let average = fresh.dominated_wait.checked_div(fresh.dominated).unwrap_or(0);
        let began = sample.previous.saturating_sub(average);
        let by_waking = |of: &Shortage, since, now| of.of_waking(since, now, &sample.stops);
        let lost = sample.shortage.of_ended(began, sample.now, by_waking);
        // A thread that waited for a CPU is the reason only if it did so for most of the time: others serve the same queue.
        let mostly = lost.saturating_mul(3) >= average.saturating_mul(2);
        let lost = if mostly { lost.min(sample.most_lost(self)) } else { 0 };
        let lost = lost.saturating_mul(fresh.dominated);
        excuse(&mut fresh.dominated, &mut fresh.dominated_wait, self.queue_wait_limit, [lost, 0]);
        // What is handed out passes from one thread to the next, each of which may have had no CPU.
        let average = fresh.long_wait_time.checked_div(fresh.long_waits).unwrap_or(0);
        let began = sample.previous.saturating_sub(average);
        let by_all = |of: &Shortage, since, now| of.of_all(since, now, &sample.stops);
        let lost = sample.shortage.of_ended(began, sample.now, by_all).saturating_mul(fresh.long_waits);
        excuse(&mut fresh.long_waits, &mut fresh.long_wait_time, self.queue_wait_limit, [lost, 0]);
        (fresh, excused)
    }

    /// What has begun and ended while the observer could not look for a long time, `gap`, leaves its length behind and
    /// nothing of what it did meanwhile: it may as well have had no CPU. The observer's start is such a time, and a long one
    /// on a busy machine.
    fn forget_unseen(&self, fresh: &mut Counted, gap: u64) {
        let forget = |count: &mut u64, time: &mut u64| {
            // It may have begun right before the last look that there was.
            let most = gap.saturating_add(self.long_poll_limit);
            if time.checked_div(*count).is_some_and(|average| average <= most) {
                (*count, *time) = (0, 0);
            }
        };
        if !self.observed {
            forget(&mut fresh.long_polls, &mut fresh.long_poll_time);
        }
        forget(&mut fresh.late_polls, &mut fresh.late_poll_time);
        forget(&mut fresh.dominated, &mut fresh.dominated_wait);
        forget(&mut fresh.long_waits, &mut fresh.long_wait_time);
    }
}

/// What was over its limit for want of a CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Excused {
    pub(crate) count: u64,
    pub(crate) time: u64,
    /// Of so many it was read that their own threads had none; of the others some thread had, and they may have waited for it.
    pub(crate) read: u64,
}

impl Plus for Excused {
    fn plus(self, more: Self) -> Self {
        Self { count: self.count + more.count, time: self.time + more.time, read: self.read + more.read }
    }
}

/// The op as it is now.
pub(super) fn of(op: &'static Op, now: u64, pauses: &Pauses) -> OpSample {
    let (calls, waits) = (op.known_calls(), op.known_waits());
    let arrived = |oldest: crate::age::Oldest| {
        let since = oldest.latest.min(now);
        since.saturating_add(pauses.since(since)).min(now)
    };
    OpSample {
        site: Site { index: op.index, name: op.name, location: op.location, runtime: op.runtime },
        long_poll_limit: op.long_poll_limit(),
        queue_wait_limit: op.queue_wait_limit(),
        executing: calls.map_or(0, CallFigures::executing),
        queued: op.queued.waiting(),
        oldest_queued: op.queued.oldest().map(arrived),
        waits: waits.map_or(0, |waits| waits.pending.waiting()),
        oldest_woken: waits.and_then(|waits| waits.woken.oldest()).map(arrived),
        oldest_wait: waits.and_then(|waits| waits.pending.oldest()).map(arrived),
        counted: Counted::of(op),
        stirred: 0,
        is_read: true,
        poll_time: None,
        without_cpu: 0,
        behind: 0,
        observed: false,
        ended_conduct: Conduct::default(),
        nested_now: calls.map_or(0, |calls| calls.nested_now.load(Ordering::Relaxed)),
        nested_made: calls.is_some_and(|calls| calls.nested_made.load(Ordering::Relaxed) > 0),
        nested_in: calls.and_then(|calls| op::noted(&calls.nested_in)),
        caller: calls.and_then(|calls| op::noted(&calls.caller)),
        late_behind: op::noted(&op.late_behind),
        waiter: waits.and_then(|waits| op::noted(&waits.waiter)),
        holder: waits.and_then(|waits| op::noted(&waits.holder)),
    }
}
