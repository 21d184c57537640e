//! An empty task that is spawned from outside: how long a fresh task waits for its first poll.
//!
//! Only once there is a suspicion, and only while no worker is parked: a parked one would be woken by it and would take
//! over the driver, which cures the stall that is suspected. See [`probe`](super).

use crate::clock;
use crate::threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Handle;

/// Not more often than this, however strong the suspicion.
const APART: u64 = 100_000_000;
const NOT_YET: u64 = 0;
const DROPPED: u64 = u64::MAX;

/// One look at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// When the task was spawned that has not been polled yet.
    pub(crate) pending_since: Option<u64>,
    /// How long the last one that was polled had waited.
    pub(crate) last_wait: Option<u64>,
    /// How many have been polled.
    pub(crate) polled: u64,
}

/// The task's end: when it was polled, or that it never was.
struct Task(Arc<AtomicU64>);

impl Task {
    fn run(self, runtime: Option<u64>) {
        threads::learn(runtime, threads::Role::Worker);
        // Relaxed, here and below: the time is all there is.
        self.0.store(clock::now(), Ordering::Relaxed);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.0.compare_exchange(NOT_YET, DROPPED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The spawn probes of one runtime: at most one is on its way.
#[derive(Debug)]
pub(crate) struct Spawned {
    handle: Handle,
    runtime: Option<u64>,
    flight: Option<(Arc<AtomicU64>, u64)>,
    spawned_at: u64,
    seen: Fresh,
}

impl Spawned {
    pub(crate) fn of(handle: &Handle) -> Self {
        let runtime = crate::op::runtime_number(handle.id());
        Self { handle: handle.clone(), runtime, flight: None, spawned_at: 0, seen: Fresh::default() }
    }

    /// Looks after the one on its way; spawns the next if it may.
    pub(crate) fn look(&mut self, now: u64, may_spawn: bool) -> Fresh {
        if let Some((polled_at, since)) = &self.flight {
            match polled_at.load(Ordering::Relaxed) {
                NOT_YET => {}
                DROPPED => self.flight = None,
                at => {
                    self.seen.last_wait = Some(at.saturating_sub(*since));
                    self.seen.polled += 1;
                    self.flight = None;
                }
            }
        }
        let apart = self.spawned_at == 0 || now.saturating_sub(self.spawned_at) >= APART;
        if may_spawn && apart && self.flight.is_none() {
            self.spawn(now);
        }
        self.seen.pending_since = self.flight.as_ref().map(|&(_, since)| since);
        self.seen
    }

    fn spawn(&mut self, now: u64) {
        self.spawned_at = now;
        let polled_at = Arc::new(AtomicU64::new(NOT_YET));
        let (task, runtime) = (Task(Arc::clone(&polled_at)), self.runtime);
        let spawned = clock::now();
        drop(super::unseen(|| self.handle.spawn(async move { task.run(runtime) })));
        self.flight = Some((polled_at, spawned));
    }
}
