//! An empty task that is spawned from outside: how long a fresh task waits for its first poll, and how long for its second
//! when it wakes itself.
//!
//! What comes from outside waits in the queue that all workers share, and those look there often. What was woken on a
//! worker waits in its own queue, behind all that is there; so does a task that wakes itself while it is polled.
//!
//! Only once there is a suspicion, and only while no worker is parked: a parked one would be woken by it and would take
//! over the driver, which cures the stall that is suspected. See [`probe`](super).

use super::errand::Errands;
use crate::clock;
use crate::threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use tokio::runtime::Handle;

/// Not more often than this, however strong the suspicion.
const APART: u64 = 100_000_000;
const NOT_YET: u64 = 0;
const DROPPED: u64 = u64::MAX;

/// One task on its way.
#[derive(Debug, Default)]
struct Flight {
    spawned_at: AtomicU64,
    /// When it was polled, for the first and for the second time, or that it never will be.
    polled_at: [AtomicU64; 2],
}

/// One look at it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fresh {
    /// Since when the task on its way waits for its first poll or for its second.
    pub(crate) pending_since: Option<u64>,
    /// How long the last one that was polled had waited, for the one of the two for which it did for longer.
    pub(crate) last_wait: Option<u64>,
    /// How many have been polled.
    pub(crate) polled: u64,
}

/// The task's end of it.
struct Task(Arc<Flight>);

impl Task {
    async fn run(self, runtime: Option<u64>) {
        threads::learn(runtime, threads::Role::Worker);
        let [first, second] = &self.0.polled_at;
        // Release, twice: who sees it sees when it was spawned.
        first.store(clock::now(), Ordering::Release);
        let mut woken = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut woken, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        second.store(clock::now(), Ordering::Release);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        for polled_at in &self.0.polled_at {
            // Relaxed: nothing comes along with it. Where it was polled this changes nothing.
            let _ = polled_at.compare_exchange(NOT_YET, DROPPED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The fresh tasks of one runtime: at most one is on its way.
#[derive(Debug)]
pub(crate) struct Spawned {
    handle: Handle,
    errands: Arc<Errands>,
    runtime: Option<u64>,
    flight: Option<Arc<Flight>>,
    sent_at: u64,
    seen: Fresh,
}

impl Spawned {
    pub(crate) fn of(handle: &Handle, errands: &Arc<Errands>) -> Self {
        let runtime = crate::op::runtime_number(handle.id());
        let (handle, errands) = (handle.clone(), Arc::clone(errands));
        Self { handle, errands, runtime, flight: None, sent_at: 0, seen: Fresh::default() }
    }

    /// Looks after the one on its way; spawns the next if it may.
    pub(crate) fn look(&mut self, now: u64, may_spawn: bool) -> Fresh {
        self.seen.pending_since = None;
        if let Some(flight) = self.flight.take() {
            self.follow(flight);
        }
        let apart = self.sent_at == 0 || now.saturating_sub(self.sent_at) >= APART;
        if may_spawn && apart && self.flight.is_none() {
            self.send(now);
        }
        self.seen
    }

    fn follow(&mut self, flight: Arc<Flight>) {
        // Acquire: pairs with the Release of `run`. Read first: what was polled had been spawned.
        let [second, first] = [1, 0].map(|poll| flight.polled_at[poll].load(Ordering::Acquire));
        let spawned = flight.spawned_at.load(Ordering::Relaxed);
        match (first, second) {
            (DROPPED, _) | (_, DROPPED) => {}
            (NOT_YET, _) | (_, NOT_YET) => {
                self.seen.pending_since = Some(first.max(spawned)).filter(|&at| at != NOT_YET);
                self.flight = Some(flight);
            }
            _ => {
                self.seen.last_wait = Some(first.saturating_sub(spawned).max(second.saturating_sub(first)));
                self.seen.polled += 1;
            }
        }
    }

    fn send(&mut self, now: u64) {
        self.sent_at = now;
        let flight = Arc::new(Flight::default());
        self.flight = Some(Arc::clone(&flight));
        let (handle, runtime) = (self.handle.clone(), self.runtime);
        self.errands.send(move || {
            let task = Task(Arc::clone(&flight));
            // Relaxed: published by the spawning.
            flight.spawned_at.store(clock::now(), Ordering::Relaxed);
            drop(super::unseen(|| handle.spawn(task.run(runtime))));
        });
    }
}
