//! Whether the observing thread ran when it meant to: at other times it has seen nothing, and perhaps nobody ran.

use crate::clock;
use crate::evidence::{self, Process};
use crate::sample::{Sample, Stop};

/// An observer that is this late, or by two ticks if that is longer, cannot tell who else was.
pub(crate) const LATE: u64 = 10_000_000;
/// What is less than this is how long it takes to wake a thread.
pub(crate) const NOTICED: u64 = 1_000_000;
/// So often a reading is tried.
const TRIES: usize = 3;

/// What is known at one moment.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: u64,
    /// The CPU time of this thread.
    cpu: Option<u64>,
    /// The CPU time and page faults of the process.
    process: Option<Process>,
}

impl Reading {
    /// Each call may have to wait for memory, like all that this thread does: then what is read first is of another moment
    /// than what is read last, and it is all read again.
    fn take() -> Self {
        let mut tries = 0;
        loop {
            let reading = Self { at: clock::now(), cpu: clock::thread_cpu(), process: evidence::usage() };
            tries += 1;
            if tries == TRIES || clock::now().saturating_sub(reading.at) < NOTICED {
                return reading;
            }
        }
    }
}

/// How the observing thread has run since it began its last look. Each reading ends one stretch and begins the next, so that
/// what the process did in a stop is counted into that one.
#[derive(Debug)]
pub(crate) struct Presence {
    last: Reading,
    /// How long it has had no CPU since that look began.
    pub(crate) stopped: u64,
    /// How long it had waited for a CPU since its start, when that was last asked.
    waited: Option<u64>,
}

impl Presence {
    /// To be called on the observing thread.
    pub(crate) fn new() -> Self {
        Self { last: Reading::take(), stopped: 0, waited: None }
    }

    /// Counts from now on.
    pub(crate) fn wake(&mut self) {
        self.last = Reading::take();
        self.waited = waited().or(self.waited);
    }

    /// A look begins, meant for `now`: from then on this thread means to run.
    pub(crate) fn begin(&mut self, now: u64, sample: &mut Sample) {
        self.stopped = 0;
        let reading = Reading::take();
        self.notice(now, reading.at.saturating_sub(now), reading, sample);
    }

    /// Takes note of how long this thread had no CPU since it began its look, or last did this: a pause like any other.
    /// Returns what time it is.
    pub(crate) fn notice_stop(&mut self, sample: &mut Sample) -> u64 {
        let (before, reading) = (self.last, Reading::take());
        // Where nobody tells whether it ran, it ran.
        let ran = reading.cpu.zip(before.cpu).map_or(u64::MAX, |(cpu, before)| cpu.saturating_sub(before));
        let stopped = reading.at.saturating_sub(before.at).saturating_sub(ran);
        self.notice(reading.at.saturating_sub(stopped), stopped, reading, sample);
        reading.at
    }

    /// It has come late, by so much, and may have been stopped since `from`. Returns what time it is.
    pub(crate) fn came_late(&mut self, from: u64, now: u64, lateness: u64, sample: &mut Sample) -> u64 {
        let reading = Reading::take();
        self.pause(from, lateness.saturating_add(reading.at.saturating_sub(now)), reading, sample);
        reading.at
    }

    fn notice(&mut self, from: u64, stopped: u64, reading: Reading, sample: &mut Sample) {
        if stopped >= NOTICED {
            self.stopped += stopped;
            self.pause(from, stopped, reading, sample);
        }
        self.last = reading;
    }

    /// This thread did not run when it wanted to, for `late` at least and perhaps since `from`. What of that it did not wait
    /// for a CPU the process was stopped.
    fn pause(&mut self, from: u64, late: u64, reading: Reading, sample: &mut Sample) {
        let to = reading.at;
        sample.pauses.add(from, to);
        let waited = waited();
        let fresh = waited.zip(self.waited).map(|(waited, before)| waited.saturating_sub(before));
        self.waited = waited.or(self.waited);
        let (now, before) = (reading.process, std::mem::replace(&mut self.last, reading).process);
        let since = |of: fn(&Process) -> Option<u64>| of(&now?)?.checked_sub(of(&before?)?);
        let used = (since(|process| process.user), since(|process| process.system));
        if let Some(stop) = stop_of(from, to, late, fresh, used) {
            sample.stops.add(stop.from, stop.to);
            if stop.to - stop.from >= LATE {
                sample.shortage.read(to);
            }
            let wanted = sample.shortage.longest_ended(stop.from);
            let stop = Stop { major_faults: since(|process| process.major_faults), wanted, ..stop };
            sample.stop = Some(sample.stop.map_or(stop, |before| one_of(before, stop)));
        }
    }
}

/// Two stops that one look comes after: one, if there is next to nothing in between, or else the longer.
fn one_of(before: Stop, after: Stop) -> Stop {
    if after.from.saturating_sub(before.to) >= LATE {
        return if after.to - after.from > before.to - before.from { after } else { before };
    }
    let sum = |of: fn(&Stop) -> Option<u64>| of(&before).zip(of(&after)).map(|(before, after)| before + after);
    Stop {
        from: before.from,
        to: after.to,
        cpu: sum(|stop| stop.cpu),
        major_faults: sum(|stop| stop.major_faults),
        wanted: before.wanted.max(after.wanted),
    }
}

/// How long this thread has waited for a CPU since its start.
fn waited() -> Option<u64> {
    evidence::thread_id().and_then(evidence::cpu_time).map(|time| time.waited)
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
    #[test]
    fn a_short_stop_right_after_a_long_one_is_the_end_of_it_and_later_no_news() {
        let stop = |from, to, cpu| Stop { from, to, cpu: Some(cpu), major_faults: Some(1), wanted: None };
        let (long, short) = (stop(100, 300 * MS, 5), stop(304 * MS, 308 * MS, 2));
        let joined = Stop { major_faults: Some(2), ..stop(100, 308 * MS, 7) };
        assert_eq!(one_of(long, short), joined);
        let later = stop(400 * MS, 404 * MS, 2);
        assert_eq!(
            [one_of(long, later), one_of(short, stop(400 * MS, 600 * MS, 2))],
            [long, stop(400 * MS, 600 * MS, 2)]
        );
    }

    #[test]
    fn what_one_look_comes_after_is_all_told() {
        let (mut presence, mut sample) = (Presence::new(), Sample::default());
        presence.wake();
        let nap = || std::thread::sleep(std::time::Duration::from_millis(30));
        let from = presence.last.at;
        nap();
        let first = clock::now();
        presence.came_late(from, first, first - from, &mut sample);
        presence.begin(clock::now(), &mut sample);
        nap();
        let now = presence.notice_stop(&mut sample);
        assert!(presence.stopped >= 29 * MS, "{}", presence.stopped);
        assert!(sample.pauses.since(from) >= 58 * MS);
        // Elsewhere nobody tells whether it was for want of a CPU. The longer one is told, or both as one.
        if let Some(stop) = sample.stop {
            assert!([first, now].contains(&stop.to) && stop.to - stop.from >= 29 * MS, "{stop:?}");
        }
    }
}
