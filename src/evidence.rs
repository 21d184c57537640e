//! What the kernel tells of a thread. Unknown is `None`, never 0.

/// How long a thread has been ready to run and was not given a CPU, in nanoseconds since its start.
///
/// Some 10 us: a file is opened, read and closed. Only for threads under suspicion.
#[cfg(target_os = "linux")]
pub(crate) fn run_queue_wait(tid: u32) -> Option<u64> {
    // On a CPU, ready and not on one, number of times given one.
    let schedstat = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run_queue_wait(_: u32) -> Option<u64> {
    None
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
        assert!(thread_id().and_then(run_queue_wait).is_some());
        assert_eq!(run_queue_wait(u32::MAX), None);
    }
}
