//! All that can be seen of one runtime in one look, wrapped or not, as plain data.

use crate::op;
use crate::parity::{self, Frozen, Parity};
use crate::probe::canary::{Canaries, Canary, Load};
use crate::probe::errand::Errands;
use crate::probe::heartbeat::{Beat, Heartbeat, State};
use crate::probe::spawned::{Fresh, Spawned};
use crate::probe::timer;
use crate::threads::{self, Role, Settings, Thread};
use std::sync::Arc;
use tokio::runtime::{Handle, RuntimeFlavor, RuntimeMetrics};

/// A runtime whose workers have not moved for so long does nothing, where no heartbeat tells; and one whose heartbeat is
/// so late does not nothing.
const QUIET: u64 = 1_000_000_000;
/// A worker that publishes nothing for so long is doing something.
const LONG: u64 = 50_000_000;
/// It takes a worker so long, at most, to call back after it has unparked.
const CALLED_BACK: u64 = 5_000_000;

/// What the observer knows besides, and asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ask {
    /// Watched calls execute or wait on the runtime.
    pub(crate) calls: bool,
    /// Fresh tasks are suspected to wait: spawn one, unless a parked worker would be woken by it.
    pub(crate) suspect: bool,
}

/// The gauges of the blocking pool that only `--cfg tokio_unstable` has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PoolGauges {
    pub(crate) threads: Option<usize>,
    pub(crate) idle: Option<usize>,
    pub(crate) queued: Option<usize>,
}

/// One look at one runtime.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) workers: usize,
    /// How many are parked; none where Tokio does not tell.
    pub(crate) parked: Option<usize>,
    /// Those that have stood still for at least one look, however short. Not told of a runtime that has shut down.
    pub(crate) frozen: Vec<Frozen>,
    pub(crate) global_queue: usize,
    /// Without the detector's own.
    pub(crate) alive_tasks: usize,
    pub(crate) heartbeat: Beat,
    pub(crate) canary: Canary,
    pub(crate) fresh: Fresh,
    pub(crate) pool: PoolGauges,
    /// How it was set up, if it was prepared by `hooks`.
    pub(crate) settings: Settings,
    /// It has shut down: nothing else here means anything.
    pub(crate) ended: bool,
    /// A current-thread runtime stands still whenever nobody is in its `block_on`, and its worker then looks frozen and its
    /// heartbeat late, for ever. That is no fault, and Tokio does not tell it from one.
    pub(crate) may_be_undriven: bool,
    /// It did something since the look before, or is doing it.
    pub(crate) active: bool,
}

/// Looks at one runtime again and again. To be made on the thread that attaches to it, looked at by the observer; ends what
/// it has set going when it is dropped.
#[derive(Debug)]
pub(crate) struct Sight {
    runtime: Option<u64>,
    metrics: RuntimeMetrics,
    heartbeat: Heartbeat,
    canaries: Canaries,
    spawned: Spawned,
    parity: Parity,
    moved_at: u64,
    seen: Seen,
}

impl Sight {
    /// Takes some microseconds, and locks that only threads that panic hold; never for the observer's thread.
    pub(crate) fn of(handle: &Handle, errands: &Arc<Errands>) -> Self {
        let timer = timer::of(handle);
        let heartbeat = Heartbeat::start(handle, timer);
        let metrics = handle.metrics();
        let workers = metrics.num_workers();
        let seen = Seen {
            workers,
            parked: None,
            frozen: Vec::with_capacity(workers),
            global_queue: 0,
            alive_tasks: 0,
            heartbeat: heartbeat.look(0),
            canary: Canary::default(),
            fresh: Fresh::default(),
            pool: PoolGauges::default(),
            settings: Settings::default(),
            ended: false,
            may_be_undriven: handle.runtime_flavor() == RuntimeFlavor::CurrentThread,
            active: true,
        };
        Self {
            runtime: op::runtime_number(handle.id()),
            metrics,
            heartbeat,
            canaries: Canaries::of(handle, errands),
            spawned: Spawned::of(handle, errands),
            parity: Parity::default(),
            moved_at: 0,
            seen,
        }
    }

    /// One look. Once warm it allocates only for a canary or a task that it sends out.
    pub(crate) fn look(&mut self, now: u64, ask: Ask) -> &Seen {
        let beat = self.heartbeat.look(now);
        self.seen.heartbeat = beat;
        self.seen.ended = beat.state == State::Ended;
        self.seen.frozen.clear();
        if self.seen.ended {
            return &self.seen;
        }
        self.look_at_workers(now);
        self.seen.active = self.is_active(now, beat);
        let load = match (ask.calls, self.seen.active) {
            (true, _) => Load::Calls,
            (false, true) => Load::Busy,
            (false, false) => Load::Idle,
        };
        self.seen.canary = self.canaries.look(now, load);
        // Where the parked are not known none is woken at a guess.
        self.seen.fresh = self.spawned.look(now, ask.suspect && self.seen.parked == Some(0));
        let own = 1 + usize::from(self.seen.fresh.pending_since.is_some());
        self.seen.alive_tasks = self.metrics.num_alive_tasks().saturating_sub(own);
        self.seen.global_queue = self.metrics.global_queue_depth();
        self.seen.pool = gauges(&self.metrics);
        if self.seen.settings == Settings::default() {
            self.seen.settings = self.runtime.and_then(threads::settings).unwrap_or_default();
        }
        &self.seen
    }

    fn look_at_workers(&mut self, now: u64) {
        self.parity.look(now, parity::readings(&self.metrics, 0..self.seen.workers));
        self.seen.parked = (self.parity.workers() > 0).then_some(self.parity.parked());
        if self.parity.moved() > 0 {
            self.moved_at = now;
        }
        self.seen.frozen.extend(self.parity.frozen());
    }

    fn is_active(&self, now: u64, beat: Beat) -> bool {
        // A worker in one long poll publishes nothing, and the others may sleep.
        let stuck = |frozen: &Frozen| frozen.started && now.saturating_sub(frozen.since) >= LONG;
        if !self.seen.may_be_undriven && self.seen.frozen.iter().any(stuck) {
            return true;
        }
        match beat.state {
            _ if beat.late.is_some_and(|late| late > QUIET) => !self.seen.may_be_undriven,
            // It knows its own doing from others'.
            State::Beating => beat.active,
            // Nothing else there moves the workers.
            State::NoTimer | State::ClockPaused => now.saturating_sub(self.moved_at) < QUIET,
            State::Starting | State::Ended => false,
        }
    }

    pub(crate) fn last(&self) -> &Seen {
        &self.seen
    }

    /// The thread of a frozen worker, where there is no doubt which it is. For a look into the kernel: some microseconds.
    pub(crate) fn thread_of(&self, frozen: Frozen) -> Option<Thread> {
        let is_known = |thread: &Thread| match thread.role {
            Role::Worker => true,
            Role::Unknown => !frozen.started,
            Role::Pool => false,
        };
        // Where some have told nothing it may be one of those.
        let all_known = self.threads().filter(is_known).count() >= self.seen.workers;
        let mut suspects = self.suspects(frozen);
        let first = suspects.next().filter(|_| all_known || self.number_of(frozen.worker).is_some());
        first.filter(|_| suspects.next().is_none())
    }

    /// All known threads that may be a frozen worker's. One that once lost its work to another, in `block_in_place`, may
    /// be among them without reason.
    pub(crate) fn suspects(&self, frozen: Frozen) -> impl Iterator<Item = Thread> + '_ {
        let numbered = self.number_of(frozen.worker);
        let may_be = move |thread: &Thread| match thread.role {
            Role::Pool => false,
            // Threads of the pool are so, too, until they run a canary.
            Role::Unknown if frozen.started => false,
            // Tokio publishes that it has unparked a moment before it calls back.
            Role::Unknown | Role::Worker if thread.hooked => {
                thread.active_since.is_some_and(|at| at <= frozen.since.saturating_add(CALLED_BACK))
            }
            Role::Unknown | Role::Worker => true,
        };
        // Where Tokio tells which thread it is, it is no other.
        let is_it = move |thread: &Thread| numbered.is_none_or(|number| number_of(thread) == Some(number));
        self.threads().filter(move |thread| may_be(thread) && is_it(thread))
    }

    fn threads(&self) -> impl Iterator<Item = Thread> {
        self.runtime.into_iter().flat_map(threads::threads)
    }

    #[cfg(tokio_unstable)]
    fn number_of(&self, worker: usize) -> Option<u64> {
        self.metrics.worker_thread_id(worker).and_then(threads::number_of)
    }

    #[cfg(not(tokio_unstable))]
    fn number_of(&self, _: usize) -> Option<u64> {
        None
    }
}

#[cfg(tokio_unstable)]
fn number_of(thread: &Thread) -> Option<u64> {
    thread.number
}

#[cfg(not(tokio_unstable))]
fn number_of(_: &Thread) -> Option<u64> {
    None
}

#[cfg(tokio_unstable)]
fn gauges(metrics: &RuntimeMetrics) -> PoolGauges {
    PoolGauges {
        threads: Some(metrics.num_blocking_threads()),
        idle: Some(metrics.num_idle_blocking_threads()),
        queued: Some(metrics.blocking_queue_depth()),
    }
}

#[cfg(not(tokio_unstable))]
fn gauges(_: &RuntimeMetrics) -> PoolGauges {
    PoolGauges::default()
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
