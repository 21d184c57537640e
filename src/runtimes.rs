//! The runtimes that the observer looks at, wrapped or not, and what each look at them says.

use crate::activity::{Activity, Kind};
use crate::cap::Cap;
use crate::evidence::{self, ThreadLimits};
use crate::op;
use crate::parity::Frozen;
use crate::pause::Pauses;
use crate::poller::Pollers;
use crate::probe::errand::Errands;
use crate::probe::heartbeat::State;
use crate::sample::{self, OpSample, RuntimeSample, Sample};
use crate::sight::{Ask, Seen, Sight};
use crate::threads::{self, Role};
use crate::trips;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::{self, Handle};

/// A thread is asked for at most once in so long: it is a suspicion, and the asking is dear.
const TRIED_EVERY: u64 = 1_000_000_000;
/// So many looks in a row tasks wait in the shared queue before one is spawned to see for how long.
const CROWDED: u64 = 10;
/// Or for so long no worker is parked.
const FULL_FOR: u64 = 250_000_000;
/// A canary that waited for no longer than this did not wait.
const AT_ONCE: u64 = 10_000_000;

/// One runtime.
#[derive(Debug)]
pub(crate) struct Watched {
    id: runtime::Id,
    sight: Sight,
    /// For how many looks in a row tasks have been waiting while no worker was parked.
    crowded: u64,
    /// Since when every look has found none of its workers parked, where it has threads of its own.
    full_since: Option<u64>,
    /// How many spawn probes and canaries had come through at the last look, and when the last canary was sent that did
    /// not wait.
    probes: u64,
    canaries: u64,
    sent: Option<u64>,
    passed: Option<u64>,
    tried_at: u64,
    tried: u64,
    /// What came of the last try, which the errands' thread tells.
    refused: Arc<AtomicBool>,
    /// What limited them when one was last refused.
    limits: Option<ThreadLimits>,
    cap: Cap,
    errands: Arc<Errands>,
    trips: trips::Counter,
    /// By worker: how many polls it had begun, and since when it has not begun another.
    polls: HashMap<usize, (u64, u64)>,
}

impl Watched {
    /// To be made on the thread that attaches to the runtime; see [`Sight::of`].
    pub(crate) fn of(handle: &Handle, errands: &Arc<Errands>) -> Self {
        Self {
            id: handle.id(),
            sight: Sight::of(handle, errands),
            crowded: 0,
            full_since: None,
            probes: 0,
            canaries: 0,
            sent: None,
            passed: None,
            tried_at: 0,
            tried: 0,
            refused: Arc::default(),
            limits: None,
            cap: Cap::default(),
            errands: Arc::clone(errands),
            trips: trips::Counter::default(),
            polls: HashMap::new(),
        }
    }

    pub(crate) fn id(&self) -> runtime::Id {
        self.id
    }

    /// Whether it did something since the look before; and whether it has shut down.
    pub(crate) fn is_active(&self) -> bool {
        self.sight.last().active
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.sight.last().ended
    }

    /// Looks at it. The sample is that of the look before, but for its time.
    pub(crate) fn look(&mut self, now: u64, sample: &mut Sample) -> RuntimeSample {
        let on_it = |op: &&OpSample| op.site.runtime == Some(self.id);
        let calls = sample.ops.iter().filter(on_it).any(|op| op.executing + op.queued > 0);
        let waits =
            sample.ops.iter().filter(on_it).any(|op| op.queued_age(now) >= op.queue_wait_limit / 2 && op.queued > 0);
        let executing: u64 = sample.ops.iter().filter(on_it).map(|op| op.executing).sum();
        // The queues of the workers themselves are not told: tasks may wait there.
        let full_for = self.full_since.map_or(0, |since| now.saturating_sub(since));
        let ask = Ask { calls, suspect: self.crowded >= CROWDED || full_for >= FULL_FOR };
        let seen = self.sight.look(now, ask);
        let mut told = told(self.id, seen, sample, now);
        if let Some(wait) = seen.fresh.last_wait.filter(|_| seen.fresh.polled != self.probes) {
            told.probe = told.probe.max(Some(without_shortage(sample, now.saturating_sub(wait), now)));
        }
        self.probes = seen.fresh.polled;
        if seen.canary.ran != self.canaries && seen.canary.last_wait.is_some_and(|wait| wait <= AT_ONCE) {
            self.passed = self.sent.or(self.passed);
        }
        (self.canaries, self.sent) = (seen.canary.ran, seen.canary.pending_since.or(Some(now)));
        told.canary_passed = self.passed;
        let crowded = told.depth > 0 && told.is_full();
        self.crowded = if crowded { self.crowded + 1 } else { 0 };
        self.full_since = self.full_since.or(Some(now)).filter(|_| told.is_full() && !told.current_thread);
        self.tell_threads(&mut told);
        if self.sight.last().active {
            told.trips = self.trips.count(op::runtime_number(self.id), now);
        }
        let held = sample.executions.iter().find(|held| sample.op(held.op).as_ref().is_some_and(on_it));
        let stack = held.and_then(|held| held.whom?.stack()).map(|stack| stack.end - stack.start);
        let refused = self.is_refused(now, waits || told.canary_waits, executing, stack, &told);
        told.cap = self.cap.look(told.cap, told.pool_threads, told.canary.filter(|_| told.canary_waits), refused);
        told.refused =
            refused.then(|| *self.limits.get_or_insert_with(|| evidence::thread_limits().unwrap_or_default()));
        let frozen: Vec<Frozen> = self.sight.last().frozen.clone();
        for (known, frozen) in told.frozen.iter_mut().zip(frozen) {
            if !self.look_at_thread(frozen, known, &mut sample.pollers, &sample.stops, now, sample.long_poll_limit) {
                // It may be any of those that have no CPU.
                let lost = sample.shortage.of_one(known.since, now, &sample.stops);
                let stopped = sample.stops.since(known.since);
                known.since = known.since.saturating_add(lost).saturating_add(stopped).min(now);
            }
        }
        told
    }

    /// How many threads its pool has, where that is known.
    fn tell_threads(&self, told: &mut RuntimeSample) {
        let gauges = self.sight.last().pool;
        told.pool_threads = gauges.threads.map(|threads| threads as u64);
        told.pool_idle = gauges.idle.map(|idle| idle as u64);
        if told.pool_threads.is_none() && self.sight.last().settings != threads::Settings::default() {
            let number = op::runtime_number(self.id);
            let own = number.into_iter().flat_map(threads::threads);
            told.pool_threads = Some(own.filter(|thread| thread.hooked && thread.role != Role::Worker).count() as u64);
        }
    }

    /// Whether the system refuses a thread, asked where calls wait though the pool may have more threads: one with as much
    /// stack as those of the pool have, `stack` for all that is known.
    fn is_refused(&mut self, now: u64, waits: bool, executing: u64, stack: Option<u64>, told: &RuntimeSample) -> bool {
        let room = told.cap.is_none_or(|cap| executing < cap && told.pool_threads.is_none_or(|threads| threads < cap));
        // Relaxed, here and below: a figure by itself.
        if !room || !waits && now.saturating_sub(self.tried_at) > TRIED_EVERY {
            self.refused.store(false, Ordering::Relaxed);
            return false;
        }
        if !waits {
            return self.refused.load(Ordering::Relaxed);
        }
        let stack = self.sight.last().canary.stack.or(stack).unwrap_or(evidence::USUAL_STACK);
        // One that has not come back holds on to the place for its answer: a thread that hangs is given no more to do.
        let is_out = Arc::strong_count(&self.refused) > 1;
        if !is_out && (now.saturating_sub(self.tried_at) >= TRIED_EVERY || self.tried != stack) {
            (self.tried_at, self.tried, self.limits) = (now, stack, None);
            let refused = Arc::clone(&self.refused);
            self.errands.send(move || refused.store(evidence::can_start_thread(stack).is_err(), Ordering::Relaxed));
        }
        let canary = self.sight.last().canary.refused_at.is_some_and(|at| now.saturating_sub(at) < TRIED_EVERY);
        canary || self.refused.load(Ordering::Relaxed)
    }

    /// What the thread of a worker that stands still does. Returns whether it is known which that is, or has no need to be.
    fn look_at_thread(
        &mut self,
        frozen: Frozen,
        known: &mut sample::Frozen,
        pollers: &mut Pollers,
        stops: &Pauses,
        now: u64,
        limit: u64,
    ) -> bool {
        if now.saturating_sub(known.since) < limit / 4 {
            return true;
        }
        let Some(thread) = self.sight.thread_of(frozen) else { return false };
        if let Some(polls) = thread.polls {
            let known_since = self.polls.entry(frozen.worker).or_insert((polls, now));
            if known_since.0 != polls {
                *known_since = (polls, now);
            }
            known.one_poll = Some(known_since.1);
        }
        let Some(whom) = thread.whom else { return false };
        let tid = whom.tid;
        known.whom = Some(whom);
        // An activity of no op, in a place where no slot is.
        let (place, activity) = (tid as usize, Activity::new(Kind::Poll, 0, frozen.since));
        let without_cpu = pollers.waited(place, activity, Some(tid), now, stops);
        known.since = known.since.saturating_add(without_cpu.unwrap_or(0)).min(now);
        known.conduct = Some(pollers.take_conduct(place, activity));
        known.one_sleep = pollers.sleeps_since(place, activity);
        true
    }
}

/// How long a task has waited for a worker since then, but for the time in which one and the same thread, such as the worker
/// that is to poll it, may have had no CPU.
fn without_shortage(sample: &Sample, since: u64, now: u64) -> u64 {
    let lost = sample.pauses.since(since).max(sample.shortage.of_one(since, now, &sample.stops));
    now.saturating_sub(since).saturating_sub(lost)
}

fn told(id: runtime::Id, seen: &Seen, sample: &Sample, now: u64) -> RuntimeSample {
    let Sample { pauses, stops, shortage, .. } = sample;
    // What is late for want of a CPU, or because the process was stopped, is late by so much less.
    let beat = seen.heartbeat;
    let beat_late = beat.worst.filter(|_| beat.state == State::Beating);
    // Once one has come through, none that waits is known, too.
    let canary = seen.canary.worst.or(seen.canary.last_wait.map(|_| 0));
    // The thread that was to run it may have had no CPU, though the runtime had it to spare.
    let without_cpu = |since: u64| pauses.since(since).max(shortage.of_waking(since, now, stops));
    let beat_without_cpu = |since: u64| pauses.since(since).max(shortage.of_one_as_read(since, stops));
    RuntimeSample {
        runtime: Some(id),
        current_thread: seen.may_be_undriven,
        workers: if seen.parked.is_some() { seen.workers as u64 } else { 0 },
        parked: seen.parked.unwrap_or(0) as u64,
        frozen: seen
            .frozen
            .iter()
            .map(|frozen| sample::Frozen {
                worker: frozen.worker as u64,
                since: frozen.since,
                seen_since: frozen.since,
                started: frozen.started,
                one_poll: None,
                one_sleep: None,
                conduct: None,
                whom: None,
            })
            .collect(),
        cap: seen.settings.max_blocking_threads.map(|cap| cap as u64),
        beat_late: beat_late.map(|late| late.saturating_sub(beat_without_cpu(now.saturating_sub(late)))),
        canary: canary.map(|wait| wait.saturating_sub(without_cpu(now.saturating_sub(wait)))),
        canary_waits: seen
            .canary
            .pending_since
            .is_some_and(|at| now.saturating_sub(at).saturating_sub(without_cpu(at)) >= AT_ONCE),
        canary_sent: seen.canary.pending_since,
        canary_passed: None,
        probe: seen.fresh.pending_since.map(|at| without_shortage(sample, at, now)),
        depth: seen.global_queue as u64,
        pool_threads: None,
        pool_idle: None,
        trips: None,
        refused: None,
    }
}
