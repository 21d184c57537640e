//! An empty job for a runtime's blocking pool, from time to time: how long it waits for a thread, every job waits there,
//! wrapped or not.
//!
//! It wakes no worker. It is sent by way of [`errand`](super::errand), since to submit a job takes the pool's lock; it waits
//! from when it was submitted.

use super::errand::Errands;
use crate::clock;
use crate::evidence;
use crate::threads;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tokio::runtime::Handle;

const MS: u64 = 1_000_000;
/// While calls execute or wait on the runtime, or the last canary did.
const CLOSE: u64 = 100 * MS;
/// While only its workers do something. When they stop doing so the next ones follow after as long as they have been idle:
/// everybody may wait for a pool that has died.
const LOOSE: u64 = 1_000 * MS;
/// A canary that waited so long waited for something: with a thread free it takes a fraction of it.
const WAITED: u64 = 5 * MS;
/// A thread of the pool that ran something so lately is still there, by Tokio's default of 10 s.
const ALIVE: u64 = 5_000 * MS;

/// What a runtime does, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing: canaries would only keep a thread alive.
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
    /// When one was sent out that has not been submitted: whoever holds the pool's lock does not get on.
    pub(crate) unsubmitted_since: Option<u64>,
    /// How long the last one that ran had waited.
    pub(crate) last_wait: Option<u64>,
    /// The same of those that ran since the look before, and of the one that is pending, whichever is worst.
    pub(crate) worst: Option<u64>,
    /// How many have run.
    pub(crate) ran: u64,
    /// The thread that ran the last one.
    pub(crate) tid: Option<u32>,
    /// How much stack the threads of its pool have.
    pub(crate) stack: Option<u64>,
    /// When the system refused the pool a thread while none was known to be there.
    pub(crate) refused_at: Option<u64>,
    /// The runtime has shut down.
    pub(crate) ended: bool,
}

const NOT_YET: u64 = 0;
const DROPPED: u64 = u64::MAX;
const REFUSED: u64 = u64::MAX - 1;

/// One job on its way.
#[derive(Debug, Default)]
struct Flight {
    submitted_at: AtomicU64,
    /// When it ran; or one of the above.
    ran_at: AtomicU64,
    tid: AtomicU64,
    stack: AtomicU64,
}

impl Flight {
    /// It will not run. Where it has this changes nothing.
    fn end(&self, how: u64) {
        // Relaxed: nothing comes along with it.
        let _ = self.ran_at.compare_exchange(NOT_YET, how, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Submits it. Nothing here panics or prints, unless the system refuses a thread in the very moment after it granted
    /// one.
    fn start(self: Arc<Self>, handle: &Handle, runtime: Option<u64>, thread_is_known: bool) {
        // Where the pool has no thread and gets none `spawn_blocking` panics, and a panic prints. So the system is asked
        // first, unless there is one.
        if !thread_is_known && !grants_a_thread() {
            return self.end(REFUSED);
        }
        let job = Job(Arc::clone(&self));
        // Relaxed: a figure. Before it is submitted, so that it does not seem to have run before.
        self.submitted_at.store(clock::now(), Ordering::Relaxed);
        // After a shutdown it is dropped in here.
        let submit = || drop(super::unseen(|| handle.spawn_blocking(move || job.run(runtime))));
        if panic::catch_unwind(AssertUnwindSafe(submit)).is_err() {
            self.end(REFUSED);
        }
    }
}

/// The job's end of it.
struct Job(Arc<Flight>);

impl Job {
    fn run(self, runtime: Option<u64>) {
        let tid = threads::learn(runtime, threads::Role::Pool).map_or(0, u64::from);
        self.0.tid.store(tid, Ordering::Relaxed);
        self.0.stack.store(evidence::stack_size().unwrap_or(0), Ordering::Relaxed);
        // Release: the thread is there before the time.
        self.0.ran_at.store(clock::now(), Ordering::Release);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.0.end(DROPPED);
    }
}

/// The canaries of one runtime: at most one is on its way.
#[derive(Debug)]
pub(crate) struct Canaries {
    handle: Handle,
    errands: Arc<Errands>,
    runtime: Option<u64>,
    flight: Option<Arc<Flight>>,
    sent_at: u64,
    ran_at: Option<u64>,
    /// When the runtime last did something.
    active_at: u64,
    seen: Canary,
}

impl Canaries {
    pub(crate) fn of(handle: &Handle, errands: &Arc<Errands>) -> Self {
        let runtime = crate::op::runtime_number(handle.id());
        let (handle, errands) = (handle.clone(), Arc::clone(errands));
        Self { handle, errands, runtime, flight: None, sent_at: 0, ran_at: None, active_at: 0, seen: Canary::default() }
    }

    /// Looks after the one on its way, and sends the next if it is time.
    pub(crate) fn look(&mut self, now: u64, load: Load) -> Canary {
        (self.seen.worst, self.seen.pending_since, self.seen.unsubmitted_since) = (None, None, None);
        if let Some(flight) = self.flight.take() {
            self.follow(flight, now);
        }
        if load != Load::Idle {
            self.active_at = now;
        }
        if self.is_due(now, load) {
            self.send(now, load);
        }
        self.seen
    }

    fn follow(&mut self, flight: Arc<Flight>, now: u64) {
        // Acquire: pairs with the Release of `run`. Read first: what ran had been submitted.
        let ran_at = flight.ran_at.load(Ordering::Acquire);
        let submitted_at = flight.submitted_at.load(Ordering::Relaxed);
        match ran_at {
            NOT_YET => {
                let submitted = Some(submitted_at).filter(|&at| at != NOT_YET);
                self.seen.pending_since = submitted;
                self.seen.unsubmitted_since = submitted.is_none().then_some(self.sent_at);
                self.seen.worst = submitted.map(|since| now.saturating_sub(since));
                self.flight = Some(flight);
            }
            DROPPED => self.seen.ended = true,
            REFUSED => self.seen.refused_at = Some(now),
            ran_at => {
                self.seen.ran += 1;
                self.seen.last_wait = Some(ran_at.saturating_sub(submitted_at));
                self.seen.worst = self.seen.last_wait;
                self.seen.stack = Some(flight.stack.load(Ordering::Relaxed)).filter(|&stack| stack > 0);
                self.seen.tid = u32::try_from(flight.tid.load(Ordering::Relaxed)).ok().filter(|&tid| tid > 0);
                self.ran_at = Some(ran_at);
            }
        }
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
            Load::Idle if self.active_at == 0 => return false,
            Load::Idle => LOOSE.max(self.sent_at.saturating_sub(self.active_at)),
        };
        self.sent_at == 0 || now.saturating_sub(self.sent_at) >= period
    }

    fn send(&mut self, now: u64, load: Load) {
        self.sent_at = now;
        let thread_is_known = load == Load::Calls || self.ran_at.is_some_and(|at| now.saturating_sub(at) < ALIVE);
        let flight = Arc::new(Flight::default());
        self.flight = Some(Arc::clone(&flight));
        let (handle, runtime) = (self.handle.clone(), self.runtime);
        self.errands.send(move || flight.start(&handle, runtime, thread_is_known));
    }
}

/// Whether the system still grants this process a thread.
fn grants_a_thread() -> bool {
    thread::Builder::new().name("starvation".to_owned()).stack_size(64 << 10).spawn(|| ()).is_ok()
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
