//! What the kernel tells of a thread. Unknown is `None`, never 0.

/// What a thread has had of the CPUs since its start, in nanoseconds, and whether it wants one now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuTime {
    pub(crate) on_cpu: u64,
    /// Ready to run and not given a CPU. The kernel adds a wait when it is over.
    pub(crate) waited: u64,
    pub(crate) runnable: bool,
}

/// Some 20 us: two files are opened, read and closed. Only for threads under suspicion.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time(tid: u32) -> Option<CpuTime> {
    // On a CPU, ready and not on one, number of times given one.
    let schedstat = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    let mut sums = schedstat.split_ascii_whitespace().map(str::parse);
    let (on_cpu, waited) = (sums.next()?.ok()?, sums.next()?.ok()?);
    // The name in parentheses may hold anything; the state comes after the last of them.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).ok()?;
    let runnable = stat.rsplit_once(')')?.1.trim_start().starts_with('R');
    Some(CpuTime { on_cpu, waited, runnable })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_time(_: u32) -> Option<CpuTime> {
    None
}

/// The kernel brings the sum of a thread that runs up to date once in its timer's tick: 10 ms where it is longest.
const TIMER_TICK: u64 = 10_000_000;

impl CpuTime {
    /// Of the `elapsed` time since `before`: how long the thread was ready to run and had no CPU. If it is ready now, what
    /// nothing accounts for counts as the wait that goes on.
    pub(crate) fn without_cpu_since(&self, before: &Self, elapsed: u64) -> u64 {
        let waited = self.waited.saturating_sub(before.waited);
        let on_cpu = self.on_cpu.saturating_sub(before.on_cpu);
        let unaccounted = if self.runnable { elapsed.saturating_sub(waited + on_cpu + TIMER_TICK) } else { 0 };
        waited + unaccounted
    }
}

/// How many CPUs this process may use at once.
pub(crate) fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// The calling thread's id as the kernel has it.
#[cfg(target_os = "linux")]
pub(crate) fn thread_id() -> Option<u32> {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn thread_id() -> Option<u32> {
    None
}

#[cfg(all(test, target_os = "linux", not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_a_thread_that_lives_and_not_of_one_that_does_not() {
        // The thread that asks is running.
        assert!(thread_id().and_then(cpu_time).is_some_and(|time| time.runnable));
        assert_eq!(cpu_time(u32::MAX), None);
    }

    #[test]
    fn a_wait_that_goes_on_is_what_nothing_else_accounts_for() {
        const MS: u64 = 1_000_000;
        let before = CpuTime { on_cpu: 100 * MS, waited: 10 * MS, runnable: true };
        let ready = CpuTime { on_cpu: 103 * MS, waited: 15 * MS, runnable: true };
        assert_eq!(ready.without_cpu_since(&before, 330 * MS), 317 * MS);
        assert_eq!(ready.without_cpu_since(&before, 17 * MS), 5 * MS);
        let asleep = CpuTime { runnable: false, ..ready };
        assert_eq!(asleep.without_cpu_since(&before, 330 * MS), 5 * MS);
    }
}
