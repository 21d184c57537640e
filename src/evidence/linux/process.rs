//! This process as a whole.

use super::cgroup::Cgroups;
use super::read;
use super::thread::Stat;
use crate::evidence::{Process, ThreadLimits};
use rustix::process::{Resource, getrlimit};

/// Some 10 us: one call that adds up all threads, and one file.
pub(crate) fn process() -> Option<Process> {
    let mut process = usage().unwrap_or_default();
    process.resident = read("/proc/self/statm").and_then(|text| parse_statm(&text, rustix::param::page_size() as u64));
    Some(process)
}

/// The same without what is resident: 1 us, and more with many threads.
pub(crate) fn usage() -> Option<Process> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for the one structure that the call fills in.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, so it has filled it in.
    let usage = unsafe { usage.assume_init() };
    Some(Process {
        user: nanoseconds(usage.ru_utime),
        system: nanoseconds(usage.ru_stime),
        minor_faults: usage.ru_minflt.try_into().ok(),
        major_faults: usage.ru_majflt.try_into().ok(),
        voluntary_switches: usage.ru_nvcsw.try_into().ok(),
        involuntary_switches: usage.ru_nivcsw.try_into().ok(),
        resident: None,
    })
}

// The fields are as wide as the C library makes them.
#[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions, reason = "wider on some targets")]
fn nanoseconds(time: libc::timeval) -> Option<u64> {
    let (seconds, micros) = (u64::try_from(time.tv_sec).ok()?, u64::try_from(time.tv_usec).ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(micros.checked_mul(1_000)?)
}

/// Pages of memory: all that is mapped, and what of it is resident.
fn parse_statm(text: &str, page: u64) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(page)
}

/// Some 200 us: the groups are looked up anew. Only where a thread could not be started.
pub(crate) fn thread_limits() -> Option<ThreadLimits> {
    let (group_limit, group_threads) = Cgroups::find().threads(&|path| read(path)).unzip();
    Some(ThreadLimits {
        threads: read("/proc/self/stat").and_then(|text| Stat::parse(&text)?.threads),
        group_limit,
        group_threads,
        user_limit: getrlimit(Resource::Nproc).current,
    })
}
