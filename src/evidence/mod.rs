//! What the kernel tells. Unknown is `None`, never 0.
//!
//! All of it is pure reading, but [`can_start_thread`] and [`Shapes::learn`], which start threads. Each function says what
//! it costs on an idle machine; nothing here is for a thread that is watched but [`thread_id`].

#[cfg(any(not(target_os = "linux"), starvation_elsewhere))]
mod elsewhere;
#[cfg(all(target_os = "linux", not(starvation_elsewhere)))]
mod linux;
#[cfg_attr(
    any(not(target_os = "linux"), starvation_elsewhere),
    allow(dead_code, reason = "what nothing is read into there")
)]
mod told;

#[cfg(any(not(target_os = "linux"), starvation_elsewhere))]
pub(crate) use elsewhere::*;
#[cfg(all(target_os = "linux", not(starvation_elsewhere)))]
pub(crate) use linux::*;
pub(crate) use told::*;

use std::io::ErrorKind;

/// What a thread has had of the CPUs since its start, in nanoseconds, and whether it wants one now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuTime {
    pub(crate) on_cpu: u64,
    /// Ready to run and not given a CPU. The kernel adds a wait when it is over.
    pub(crate) waited: u64,
    pub(crate) runnable: bool,
    /// How often it was given a CPU: who has not been given one in between has slept, or wanted one, all the time.
    pub(crate) turns: u64,
}

/// The kernel brings the sum of a thread that runs up to date once in its timer's tick: 10 ms where it is longest.
pub(crate) const TIMER_TICK: u64 = 10_000_000;

impl CpuTime {
    /// Of the `elapsed` time since `before`: how long the thread was ready to run and had no CPU. If it is ready now, what
    /// nothing accounts for counts as the wait that goes on.
    pub(crate) fn without_cpu_since(&self, before: &Self, elapsed: u64) -> u64 {
        let waited = self.waited.saturating_sub(before.waited);
        let on_cpu = self.on_cpu.saturating_sub(before.on_cpu);
        let unaccounted = if self.runnable {
            elapsed.saturating_sub(waited.saturating_add(on_cpu).saturating_add(TIMER_TICK))
        } else {
            0
        };
        waited.saturating_add(unaccounted)
    }
}

/// How many CPUs this process may use at once. Some 13 us on Linux, since quotas are read.
pub(crate) fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// As much stack as threads have that nobody has chosen a size for.
pub(crate) const USUAL_STACK: u64 = 2 << 20;

/// A bit more, so that none will do that an ended thread has left, and none is left that the threads would be given which
/// are refused.
const MORE: u64 = 64 << 10;

/// Whether a thread with so much stack can be started now. It tries, and waits for the thread's end: dear, 50 us and as
/// long as there is no CPU, and the thread counts against the very limit that is asked after. Only under suspicion.
pub(crate) fn can_start_thread(stack: u64) -> Result<(), ErrorKind> {
    let stack = usize::try_from(stack.saturating_add(MORE)).map_err(|_| ErrorKind::OutOfMemory)?;
    let thread = std::thread::Builder::new().name("starvation-try".into()).stack_size(stack).spawn(|| {});
    // It does nothing that could panic.
    thread.map(|thread| drop(thread.join())).map_err(|error| error.kind())
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_goes_on_is_what_nothing_else_accounts_for() {
        const MS: u64 = 1_000_000;
        let before = CpuTime { on_cpu: 100 * MS, waited: 10 * MS, runnable: true, turns: 1 };
        let ready = CpuTime { on_cpu: 103 * MS, waited: 15 * MS, runnable: true, turns: 2 };
        assert_eq!(ready.without_cpu_since(&before, 330 * MS), 317 * MS);
        assert_eq!(ready.without_cpu_since(&before, 17 * MS), 5 * MS);
        let asleep = CpuTime { runnable: false, ..ready };
        assert_eq!(asleep.without_cpu_since(&before, 330 * MS), 5 * MS);
    }

    #[test]
    fn a_thread_can_be_started_where_this_test_runs() {
        assert_eq!(can_start_thread(USUAL_STACK), Ok(()));
        assert!(can_start_thread(1 << 60).is_err());
        assert!(cpus() >= 1);
    }
}
