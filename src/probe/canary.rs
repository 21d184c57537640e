//! An empty job for a runtime's blocking pool, from time to time: how long it waits for a thread, every job waits there,
//! wrapped or not.
//!
//! It is submitted by the observing thread, and wakes no worker. `spawn_blocking` takes the pool's lock, which is held
//! for as long as it takes to append to a queue, or to start a thread: tens of microseconds, unless whoever holds it is
//! preempted. Then the observer may wait as long as a thread there waits for a CPU. It does not wait for anything that a
//! job does.

use crate::clock;
use crate::threads;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tokio::runtime::Handle;

const MS: u64 = 1_000_000;
/// While calls execute or wait on the runtime, or the last canary did.
const CLOSE: u64 = 100 * MS;
/// While only its workers do something.
const LOOSE: u64 = 1_000 * MS;
/// A canary that waited so long waited for something: with a thread free it takes a fraction of it.
const WAITED: u64 = 5 * MS;
/// A thread of the pool that ran something so lately is still there, by Tokio's default of 10 s.
const ALIVE: u64 = 5_000 * MS;

/// What a runtime does, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing: a canary would only keep a thread alive.
    Idle,
    /// Its workers are active.
    Busy,
    /// Calls execute or wait.
    Calls,
}

/// One look at a canary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Canary {
    /// When the one was submitted that has not run yet.
    pub(crate) pending_since: Option<u64>,
    /// How long the last one that ran had waited.
    pub(crate) last_wait: Option<u64>,
    /// The same of those that ran since the look before, and of the one that is pending, whichever is worst.
    pub(crate) worst: Option<u64>,
    /// How many have run.
    pub(crate) ran: u64,
    /// The thread that ran the last one.
    pub(crate) tid: Option<u32>,
    /// The system refused a thread while none was known to be there, and when.
    pub(crate) refused_at: Option<u64>,
    /// The runtime has shut down.
    pub(crate) ended: bool,
}

const NOT_YET: u64 = 0;
const DROPPED: u64 = u64::MAX;

/// One job on its way: when it ran.
#[derive(Debug)]
struct Flight {
    ran_at: AtomicU64,
    tid: AtomicU64,
}

/// The job's end of it.
struct Job(Arc<Flight>);

impl Job {
    fn run(self, runtime: Option<u64>) {
        let tid = threads::learn(runtime, threads::Role::Pool).map_or(0, u64::from);
        self.0.tid.store(tid, Ordering::Relaxed);
        // Release: the thread is there before the time.
        self.0.ran_at.store(clock::now(), Ordering::Release);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Relaxed: nothing comes along with it. Where it has run this changes nothing.
        let _ = self.0.ran_at.compare_exchange(NOT_YET, DROPPED, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The canaries of one runtime: at most one is on its way.
#[derive(Debug)]
pub(crate) struct Canaries {
    handle: Handle,
    runtime: Option<u64>,
    flight: Option<(Arc<Flight>, u64)>,
    submitted_at: u64,
    ran_at: Option<u64>,
    seen: Canary,
}

impl Canaries {
    pub(crate) fn of(handle: &Handle) -> Self {
        let runtime = crate::op::runtime_number(handle.id());
        Self { handle: handle.clone(), runtime, flight: None, submitted_at: 0, ran_at: None, seen: Canary::default() }
    }

    /// Looks after the one on its way, and sends the next if it is time. Nothing here panics or prints, unless the system
    /// refuses a thread in the very moment after it granted one.
    pub(crate) fn look(&mut self, now: u64, load: Load) -> Canary {
        self.seen.worst = None;
        self.land(now);
        if self.is_due(now, load) {
            self.send(now, load);
        }
        self.seen.pending_since = self.flight.as_ref().map(|&(_, since)| since);
        self.seen
    }

    fn land(&mut self, now: u64) {
        let Some((flight, since)) = &self.flight else { return };
        // Acquire: pairs with the Release of `run`.
        let waited = match flight.ran_at.load(Ordering::Acquire) {
            NOT_YET => now.saturating_sub(*since),
            DROPPED => {
                self.seen.ended = true;
                self.flight = None;
                return;
            }
            ran_at => {
                let waited = ran_at.saturating_sub(*since);
                self.seen.ran += 1;
                self.seen.last_wait = Some(waited);
                self.seen.tid = u32::try_from(flight.tid.load(Ordering::Relaxed)).ok().filter(|&tid| tid > 0);
                self.ran_at = Some(ran_at);
                self.flight = None;
                waited
            }
        };
        self.seen.worst = Some(waited);
    }

    fn is_due(&self, now: u64, load: Load) -> bool {
        if self.seen.ended || self.flight.is_some() {
            return false;
        }
        let waited = self.seen.last_wait.is_some_and(|wait| wait >= WAITED);
        let period = match load {
            Load::Calls => CLOSE,
            Load::Busy | Load::Idle if waited => CLOSE,
            Load::Busy => LOOSE,
            Load::Idle => return false,
        };
        self.submitted_at == 0 || now.saturating_sub(self.submitted_at) >= period
    }

    fn send(&mut self, now: u64, load: Load) {
        self.submitted_at = now;
        // Where the pool has no thread and gets none `spawn_blocking` panics, and a panic prints. So the system is asked
        // first, unless there is one.
        let known = load == Load::Calls || self.ran_at.is_some_and(|at| now.saturating_sub(at) < ALIVE);
        if !known && !grants_a_thread() {
            self.seen.refused_at = Some(now);
            return;
        }
        let flight = Arc::new(Flight { ran_at: AtomicU64::new(NOT_YET), tid: AtomicU64::new(0) });
        let (job, runtime) = (Job(Arc::clone(&flight)), self.runtime);
        let submitted = clock::now();
        let submit = || drop(super::unseen(|| self.handle.spawn_blocking(move || job.run(runtime))));
        if panic::catch_unwind(AssertUnwindSafe(submit)).is_err() {
            self.seen.refused_at = Some(now);
        }
        // After a shutdown it is dropped already; the next look sees that.
        self.flight = Some((flight, submitted));
    }
}

/// Whether the system still grants this process a thread.
fn grants_a_thread() -> bool {
    thread::Builder::new().name("starvation".to_owned()).stack_size(64 << 10).spawn(|| ()).is_ok()
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
