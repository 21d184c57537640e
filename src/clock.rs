//! Monotonic nanoseconds since the process first asked, and the CPU time of the calling thread.
//!
//! Reading the time-stamp counter costs a third of reading the system's clock, but has to be calibrated first, which
//! takes from half a millisecond to 200 ms: too long for anybody's worker. So readings come from
//! [`std::time::Instant`] until [`calibrate`] has run, on the observing thread, and from `quanta` afterwards. Where the
//! counter cannot be trusted `quanta` falls back to the system's clock by itself.
//!
//! The two sources can disagree by the microsecond that passes while one is anchored in the other, and the counters of
//! two cores by less. Every consumer therefore clamps: a later mark is never before an earlier one.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The counter, tied to the system's clock at one instant.
struct Counter {
    clock: quanta::Clock,
    /// The counter's raw reading at the instant of the anchor.
    anchor: u64,
    /// The nanoseconds since the origin at the same instant.
    base: u64,
}

static ORIGIN: OnceLock<Instant> = OnceLock::new();
static COUNTER: OnceLock<Counter> = OnceLock::new();

/// Nanoseconds since the first reading in this process. Never 0, so that 0 can mean "not yet".
#[inline]
pub(crate) fn now() -> u64 {
    match COUNTER.get() {
        Some(counter) => counter.base + counter.clock.delta_as_nanos(counter.anchor, counter.clock.raw()),
        None => system_now(),
    }
}

#[cold]
fn system_now() -> u64 {
    let origin = ORIGIN.get_or_init(Instant::now);
    // 1: the very first reading must not be 0 either.
    u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX - 1) + 1
}

/// Switches this process to the calibrated counter. Takes up to 200 ms, once; called from the observing thread only.
pub(crate) fn calibrate() {
    COUNTER.get_or_init(|| {
        let clock = quanta::Clock::new();
        let base = system_now();
        let anchor = clock.raw();
        Counter { clock, anchor, base }
    });
}

/// The CPU time that the calling thread has used, in nanoseconds; `None` where the system does not tell.
///
/// One system call, 0.3 to 1 us: for blocking calls, never for polls.
#[cfg(unix)]
pub(crate) fn thread_cpu() -> Option<u64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u64::try_from(time.tv_nsec).ok()?;
    Some(seconds * 1_000_000_000 + nanos)
}

#[cfg(not(unix))]
pub(crate) fn thread_cpu() -> Option<u64> {
    None
}

/// A duration from a public setter as nanoseconds; what does not fit is as good as for ever.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_do_not_go_back_across_the_switch_to_the_counter() {
        let before = now();
        assert_ne!(before, 0);
        calibrate();
        let after = now();
        // The two clocks may disagree by the time between two adjacent readings; a millisecond would be a wrong anchor.
        assert!(after + 1_000_000 > before, "{before} then {after}");
        let elapsed = Instant::now();
        let from = now();
        while elapsed.elapsed() < Duration::from_millis(20) {}
        let counted = now() - from;
        assert!(counted >= 19_900_000, "20 ms by the system's clock were {counted} ns by the counter");
    }

    #[test]
    #[cfg(unix)]
    fn a_sleeping_thread_uses_no_cpu() {
        let before = thread_cpu();
        std::thread::sleep(Duration::from_millis(30));
        let after = thread_cpu();
        let (Some(before), Some(after)) = (before, after) else { panic!("this system tells no thread CPU time") };
        assert!(after - before < 20_000_000);
    }
}
