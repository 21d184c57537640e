//! This process as a whole.

use super::cgroup::Cgroups;
use super::read;
use super::thread::Stat;
use crate::evidence::{Process, ThreadLimits};
use rustix::process::{Resource, getrlimit};

/// Some 3 us: one call that adds up all threads, and one file.
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

/// Some 40 us: the groups are looked up anew. Only where a thread could not be started.
pub(crate) fn thread_limits() -> Option<ThreadLimits> {
    let (group_limit, group_threads) = Cgroups::find().threads(&|path| read(path)).unzip();
    Some(ThreadLimits {
        threads: read("/proc/self/stat").and_then(|text| Stat::parse(&text)?.threads),
        group_limit,
        group_threads,
        user_limit: getrlimit(Resource::Nproc).current,
    })
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::super::thread::tests::any_text;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let before = process();
        let memory = std::hint::black_box(vec![1_u8; 16 << 20]);
        let begin = std::time::Instant::now();
        let mut rounds = 0_u64;
        // Until the system has counted it, which it may do in steps.
        let more = |f: fn(Process) -> Option<u64>| process().and_then(f) > before.and_then(f);
        while !(more(|process| process.user) && more(|process| process.minor_faults)) {
            rounds += (0..100_000).map(std::hint::black_box).sum::<u64>() & 1;
            assert!(begin.elapsed().as_secs() < 100, "{before:?} {:?} {rounds}", process());
        }
        let Some(now) = process() else { panic!("it is told") };
        assert!(now.resident >= Some(memory.len() as u64), "{now:?}");
        assert!(now.system.is_some() && now.major_faults.is_some() && now.involuntary_switches.is_some(), "{now:?}");
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(more(|process| process.voluntary_switches));
    }

    #[test]
    fn what_limits_threads_is_told_with_how_many_there_are() {
        let Some(limits) = thread_limits() else { panic!("it is told") };
        assert!(limits.threads >= Some(1), "{limits:?}");
        assert_eq!(limits.group_limit.is_some(), limits.group_threads.is_some(), "{limits:?}");
    }

    #[test]
    fn resident_memory_is_told_in_pages() {
        assert_eq!(parse_statm("765 414 399 5 0 122 0\n", 4_096), Some(414 * 4_096));
        assert_eq!(parse_statm("1 18446744073709551615", 4_096), None);
        assert_eq!([parse_statm("", 1), parse_statm("765", 1), parse_statm("1 x", 1)], [None; 3]);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in any_text("765 414 399 5 0 122 0\n"), page in any::<u64>()) {
            let _ = parse_statm(&text, page);
        }
    }
}
