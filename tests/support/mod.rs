//! What the integration tests share: patience, held threads, small runtimes, and the two identities.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

pub(crate) mod capture;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use starvation::{CallTiming, Detector, Incident, Ledger, OpSnapshot};
use tokio::runtime::{Builder, Handle, Runtime};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// How long anything may take that should happen at all. No test measures anything against it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Lets one test at a time start a detector: there is one in a process.
pub(crate) fn exclusive() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    // A test that failed has dropped its detector all the same.
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A detector that is never stopped, for binaries whose tests only read figures.
pub(crate) fn detector() -> &'static Detector {
    static DETECTOR: OnceLock<Detector> = OnceLock::new();
    DETECTOR.get_or_init(|| {
        let runtime = Box::leak(Box::new(current_thread(1)));
        Detector::builder().attach(runtime.handle()).start().unwrap()
    })
}

/// The figures of an op that has one site on one runtime.
#[track_caller]
pub(crate) fn figures(op: &str) -> OpSnapshot {
    let mut found: Vec<_> = detector().snapshot().op(op).cloned().collect();
    assert_eq!(found.len(), 1, "`{op}` should be one site on one runtime");
    found.remove(0)
}

/// The incidents that name `op` as culprit or victim.
pub(crate) fn incidents_of(detector: &Detector, op: &str) -> Vec<Arc<Incident>> {
    detector.incidents().into_iter().filter(|incident| names(incident, op)).collect()
}

/// Whether an incident names `op`, as culprit or as victim.
pub(crate) fn names(incident: &Incident, op: &str) -> bool {
    let diagnosis = &incident.diagnosis;
    incident.op == Some(op)
        || diagnosis.culprits.iter().any(|culprit| culprit.op == op)
        || diagnosis.victims.iter().any(|victim| victim.op == op)
}

/// Waits until all workers have parked once: one in its very first poll cannot be told from one that has not started.
pub(crate) fn until_started(runtime: &Runtime) {
    let metrics = runtime.metrics();
    let all = || (0..metrics.num_workers()).all(|worker| metrics.worker_park_unpark_count(worker) > 0);
    until("the workers to start", all);
}

/// Waits until there is what `look` looks for.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
        thread::sleep(MS);
    }
}

/// Waits until `true`.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// Computes until this thread has been on a CPU for so long, however long that takes on a busy machine.
pub(crate) fn burn(cpu: Duration) {
    let end = thread_cpu() + cpu;
    while thread_cpu() < end {
        (0..1_000).for_each(|_| std::hint::spin_loop());
    }
}

#[cfg(unix)]
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

#[cfg(not(unix))]
fn thread_cpu() -> Duration {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed()
}

/// Holds threads until it is opened. It opens when it is dropped: a test that fails must not hang on its own threads.
/// So it is to be made after the runtime whose threads it holds.
#[derive(Debug, Default)]
pub(crate) struct Gate(Keeper);

/// What a thread waits at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keeper(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn keeper(&self) -> Keeper {
        self.0.clone()
    }

    pub(crate) fn open(&self) {
        self.0.open();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

impl Keeper {
    /// Blocks the thread until the gate is open.
    pub(crate) fn wait(&self) {
        let (open, changed) = &*self.0;
        let open = open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_while(open, |open| !*open).unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) {
        let (open, changed) = &*self.0;
        *open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }
}

/// A runtime of one thread, whoever enters it, and a pool of so many.
pub(crate) fn current_thread(pool: usize) -> Runtime {
    Builder::new_current_thread().max_blocking_threads(pool).enable_all().build().unwrap()
}

/// A runtime of so many workers and pool threads.
pub(crate) fn multi_thread(workers: usize, pool: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).max_blocking_threads(pool).enable_all().build().unwrap()
}

/// Holds one thread of the pool until the gate opens, with work that nobody wrapped. Returns once it is held.
pub(crate) fn occupy(runtime: &Handle, gate: &Gate) {
    let (holds, is_held) = mpsc::channel();
    let keeper = gate.keeper();
    runtime.spawn_blocking(move || {
        holds.send(()).unwrap();
        keeper.wait();
    });
    is_held.recv_timeout(DEADLINE).unwrap();
}

/// A name for an op that no other test uses, where it cannot be written down. Names live as long as the process.
pub(crate) fn leak(name: String) -> &'static str {
    Box::leak(name.into_boxed_str())
}

/// No nanosecond of a call is missing, and none is counted twice.
#[track_caller]
pub(crate) fn assert_phases(timing: &CallTiming) {
    let sum = timing.queue_wait + timing.execution + timing.resume_delay + timing.unclaimed;
    assert_eq!(sum, timing.total(), "{timing:?}");
    assert!(timing.resume_delay.is_zero() || timing.unclaimed.is_zero(), "{timing:?}");
}

/// No nanosecond of a watched future is missing, and none is counted twice.
#[track_caller]
pub(crate) fn assert_classes(ledger: &Ledger) {
    let sum = ledger.polling
        + ledger.scheduled
        + ledger.blocking_queue
        + ledger.blocking_execution
        + ledger.waiting
        + ledger.other;
    assert_eq!(sum, ledger.total, "{ledger:?}");
    assert!(ledger.longest_poll <= ledger.polling, "{ledger:?}");
}
