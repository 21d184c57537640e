//! Monotonic nanoseconds since the process first asked, and the CPU time of the calling thread.
//!
//! Reading the time-stamp counter costs a third of reading the system's clock, but has to be calibrated first, which
//! takes from half a millisecond to 200 ms: too long for anybody's worker. So readings come from
//! [`std::time::Instant`] until [`calibrate`] has run, on the observing thread, and from the counter afterwards, by the
//! scale that `quanta` has found. Where `quanta` does not trust the counter they go on coming from `Instant`.
//!
//! The two sources can disagree by the microsecond that passes while one is anchored in the other, and the counters of
//! two cores by less. Every consumer therefore clamps: a later mark is never before an earlier one.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The counter, tied to the system's clock at one instant.
struct Counter {
    clock: quanta::Clock,
    /// Nanoseconds of 2^32 ticks.
    scale: u64,
    /// The nanoseconds since the origin at tick 0, modulo 2^64.
    base: u64,
}

impl Counter {
    /// None where `quanta` reads the system's clock, too.
    fn calibrated() -> Option<Self> {
        let clock = quanta::Clock::new();
        let scale = clock.delta_as_nanos(0, 1 << 32);
        // A tick is exactly a nanosecond where the ticks are those of the system's clock.
        (scale != 1 << 32).then(|| {
            // Of several pairs of readings the one with the least in between: the thread may be preempted there.
            let pairs = (0..16).map(|_| {
                let before = raw(&clock);
                let system = system_now();
                (raw(&clock) - before, system, before)
            });
            let (_, system, anchor) = pairs.min().unwrap_or_default();
            Self { base: system.wrapping_sub(scaled(anchor, scale)), clock, scale }
        })
    }
}

/// The counter's reading, inlined: `quanta`'s own is a call and a match.
#[cfg(target_arch = "x86_64")]
#[inline]
fn raw(_: &quanta::Clock) -> u64 {
    // SAFETY: every x86_64 has the instruction; whether its readings are of use `quanta` has found out.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn raw(clock: &quanta::Clock) -> u64 {
    clock.raw()
}

#[inline]
fn scaled(ticks: u64, scale: u64) -> u64 {
    ((u128::from(ticks) * u128::from(scale)) >> 32) as u64
}

static ORIGIN: OnceLock<Instant> = OnceLock::new();
static COUNTER: OnceLock<Counter> = OnceLock::new();

/// Nanoseconds since the first reading in this process. Never 0, so that 0 can mean "not yet".
#[inline]
pub(crate) fn now() -> u64 {
    match COUNTER.get() {
        Some(counter) => counter.base.wrapping_add(scaled(raw(&counter.clock), counter.scale)),
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
    if COUNTER.get().is_none()
        && let Some(counter) = Counter::calibrated()
    {
        // Only one detector runs at a time: nobody else has set it in between.
        let _ = COUNTER.set(counter);
    }
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
