//! Whether the observing thread ran when it meant to: at other times it has seen nothing, and perhaps nobody ran.

use crate::clock;
use crate::evidence::{self, Process};
use crate::sample::{Sample, Stop};

/// An observer that is this late, or by two ticks if that is longer, cannot tell who else was.
pub(crate) const LATE: u64 = 10_000_000;
/// What is less than this is how long it takes to wake a thread.
pub(crate) const NOTICED: u64 = 1_000_000;

/// How the observing thread has run since it began its last look.
#[derive(Debug)]
pub(crate) struct Presence {
    /// When that was, or when it was last asked, and the CPU time of this thread then.
    looked_at: u64,
    looked_cpu: Option<u64>,
    /// How long it has had no CPU since that look began.
    pub(crate) stopped: u64,
    /// How long it had waited for a CPU since its start, when that was last asked.
    waited: Option<u64>,
    /// The process's CPU time and page faults then.
    process: Option<Process>,
}

impl Presence {
    /// To be called on the observing thread.
    pub(crate) fn new(now: u64) -> Self {
        Self { looked_at: now, looked_cpu: clock::thread_cpu(), stopped: 0, waited: None, process: None }
    }

    /// Counts from now on.
    pub(crate) fn wake(&mut self) {
        (self.looked_at, self.looked_cpu) = (clock::now(), clock::thread_cpu());
        self.waited = evidence::thread_id().and_then(evidence::cpu_time).map(|time| time.waited).or(self.waited);
        self.process = evidence::usage();
    }

    /// From here on this thread means to run.
    pub(crate) fn begin(&mut self, now: u64) {
        (self.looked_at, self.looked_cpu) = (now, clock::thread_cpu());
        self.process = evidence::usage();
        self.stopped = 0;
    }

    /// Takes note of how long this thread had no CPU since it began its look, or last did this: a pause like any other.
    pub(crate) fn notice_stop(&mut self, now: u64, sample: &mut Sample) {
        let cpu = clock::thread_cpu();
        let (from, before) = (self.looked_at, self.looked_cpu);
        (self.looked_at, self.looked_cpu) = (now, cpu);
        let Some(ran) = cpu.zip(before).map(|(cpu, before)| cpu.saturating_sub(before)) else { return };
        let stopped = now.saturating_sub(from).saturating_sub(ran);
        if stopped >= NOTICED {
            self.stopped += stopped;
            self.paused(now - stopped, now, stopped, sample);
        }
    }

    /// This thread did not run when it wanted to, for `late` at least and perhaps since `from`. What of that it did not wait
    /// for a CPU the process was stopped.
    pub(crate) fn paused(&mut self, from: u64, to: u64, late: u64, sample: &mut Sample) {
        sample.pauses.add(from, to);
        let waited = evidence::thread_id().and_then(evidence::cpu_time).map(|time| time.waited);
        let fresh = waited.zip(self.waited).map(|(waited, before)| waited.saturating_sub(before));
        self.waited = waited.or(self.waited);
        let (now, before) = (evidence::usage(), self.process);
        self.process = now;
        let since = |of: fn(&Process) -> Option<u64>| of(&now?)?.checked_sub(of(&before?)?);
        let used = (since(|process| process.user), since(|process| process.system));
        if let Some(stop) = stop_of(from, to, late, fresh, used) {
            sample.stops.add(stop.from, stop.to);
            if stop.to - stop.from >= LATE {
                sample.shortage.read(to);
            }
            let wanted = sample.shortage.longest_ended(stop.from);
            sample.stop = Some(Stop { major_faults: since(|process| process.major_faults), wanted, ..stop });
        }
    }
}

/// What of a pause of the observer was a stop of the whole process, given how long the observer waited for a CPU and how
/// much CPU time the process had, of its own and in the kernel. It may have begun in a sleep, at `from` the earliest, and
/// was `late` after that.
fn stop_of(from: u64, to: u64, late: u64, waited: Option<u64>, used: (Option<u64>, Option<u64>)) -> Option<Stop> {
    // Where nobody tells whether it waited for a CPU, nobody knows whether it was stopped. One that came late only for want
    // of a CPU has slept before as it meant to.
    let waited = waited?;
    if waited.saturating_add(NOTICED) > late {
        return None;
    }
    let from = from.saturating_add(waited);
    let (user, system) = used;
    // Who computed meanwhile was not stopped: not all waits for a CPU are told of this thread.
    if user.is_some_and(|user| user.saturating_mul(4) >= to - from) {
        return None;
    }
    let cpu = user.zip(system).map(|(user, system)| user + system);
    Some(Stop { from, to, cpu, major_faults: None, wanted: None })
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pause_is_a_stop_only_where_nobody_ran_and_nothing_else_explains_it() {
        let told =
            |late, waited, used| stop_of(100 * MS, 300 * MS, late, waited, used).map(|stop| (stop.from, stop.to));
        let stop = |waited, user| told(200 * MS, waited, (user, Some(MS)));
        assert_eq!(stop(Some(0), Some(0)), Some((100 * MS, 300 * MS)));
        // What it waited for a CPU is none, and all of it may have been that.
        assert_eq!(stop(Some(150 * MS), Some(0)), Some((250 * MS, 300 * MS)));
        assert_eq!(stop(Some(200 * MS), Some(0)), None);
        // The process computed.
        assert_eq!(stop(Some(0), Some(60 * MS)), None);
        // Not known is not nothing.
        assert_eq!(stop(None, Some(0)), None);
        assert_eq!(stop(Some(0), None), Some((100 * MS, 300 * MS)));
        // It slept on purpose, and was late by 20 ms, for want of a CPU or not.
        assert_eq!(told(20 * MS, Some(20 * MS), (Some(0), None)), None);
        assert_eq!(told(20 * MS, Some(0), (Some(0), None)), Some((100 * MS, 300 * MS)));
    }
}
