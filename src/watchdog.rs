//! The observing thread: sleep, look, decide, report.
//!
//! It shares nothing with the watched threads but atomics, waits on no lock (what it publishes it publishes when the
//! lock is free), and never runs anybody else's code: reports go to the sinks' own threads.

use crate::clock;
use crate::evidence::{self, Baseline, Process, Witness};
use crate::facts::Facts;
use crate::figures::count;
use crate::incident::{Incident, IncidentChange};
use crate::poller::Sleeps;
use crate::rouse;
use crate::runtimes::Watched;
use crate::sample::{Machine, ObserverFigures, RuntimeSample, Sample, Stop};
use crate::sink::line::Line;
#[cfg(feature = "stacks")]
use crate::stacks::{Asks, Reader};
use crate::tracker::Tracker;
use crossbeam_queue::SegQueue;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime;

/// How long the sinks are given to take the last reports.
const FAREWELL: Duration = Duration::from_millis(100);
/// While incidents are open their figures are published every so many looks, changes at once.
const PUBLISH_EVERY: u64 = 10;
/// An observer that is this late, or by two ticks if that is longer, cannot tell who else was.
const LATE: u64 = 10_000_000;
/// What is less than this is how long it takes to wake a thread.
const NOTICED: u64 = 1_000_000;
/// For so long after a stop it is looked for what the stop has left behind.
const AFTERMATH: u64 = 500_000_000;
/// With nothing in flight it never sleeps longer than this, until it sleeps deeply.
const LONGEST_SLEEP: u64 = 100_000_000;
/// The kernel is asked about the process and the machine once in so long.
const WITNESSED_EVERY: u64 = 1_000_000_000;
/// When nothing has been in flight for so long, it sleeps until something is.
const AWAKE: u64 = 1_000_000_000;
/// It stirs all the same, so that its own figures show it alive.
const STIRS_EVERY: Duration = Duration::from_secs(10);
/// And glances at its runtimes: nobody wakes it for what is not wrapped.
const GLANCES_EVERY: Duration = Duration::from_millis(200);

/// How it watches, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) started: u64,
    pub(crate) warm_up: u64,
    pub(crate) tick: u64,
    pub(crate) window: u64,
    /// The limits where an op has none of its own.
    pub(crate) long_poll: u64,
    pub(crate) queue_wait: u64,
    /// The shortest limit that any op has: nothing can be overdue that began a shorter time ago.
    pub(crate) shortest_limit: u64,
}

/// What the observer shares with the handle.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    pub(crate) figures: Arc<ObserverFigures>,
    /// The incidents as last published.
    pub(crate) incidents: Mutex<Vec<Arc<Incident>>>,
    /// What the recent past shows, as last published.
    pub(crate) facts: Mutex<Facts>,
    /// Sinks that have come since the last look.
    pub(crate) new_lines: SegQueue<Line>,
    /// Runtimes that have been attached since, and those that have been let go of.
    pub(crate) new_runtimes: SegQueue<Watched>,
    pub(crate) gone_runtimes: SegQueue<runtime::Id>,
    /// Those that have shut down.
    pub(crate) ended_runtimes: SegQueue<runtime::Id>,
    /// Takes stacks, if they were asked for.
    #[cfg(feature = "stacks")]
    pub(crate) stacks: Option<Reader>,
}

/// Watches until told to stop. To be run on a thread of its own.
pub(crate) fn run(shared: &Shared, pace: Pace) {
    let mut watchdog = Watchdog {
        tracker: Tracker::new(pace.started, pace.warm_up, pace.tick, pace.window),
        sample: Sample {
            cpus: evidence::cpus(),
            long_poll_limit: pace.long_poll,
            queue_wait_limit: pace.queue_wait,
            ..Sample::default()
        },
        lines: Vec::new(),
        runtimes: Vec::new(),
        unpublished: false,
        looks: 0,
        active: pace.started,
        drowsy: false,
        looked_at: pace.started,
        looked_cpu: clock::thread_cpu(),
        waited: None,
        pace,
        witness: Witness::default(),
        baseline: Baseline::default(),
        process: None,
        #[cfg(feature = "stacks")]
        asks: Asks::default(),
    };
    rouse::register(Some(thread::current()));
    // What is counted from here on is this detector's; the calibration comes second, since it takes a while.
    watchdog.look(shared, clock::now(), false);
    clock::calibrate();
    Sleeps::learn();
    // To learn it has slept on purpose.
    watchdog.wake();
    while let Some((now, late)) = watchdog.sleep(shared) {
        watchdog.look(shared, now, late);
    }
    rouse::register(None);
    let last = watchdog.tracker.finish(clock::now());
    watchdog.report(shared, &last);
    watchdog.publish(shared);
    let deadline = Instant::now() + FAREWELL;
    watchdog.lines.iter().for_each(Line::close);
    watchdog.lines.into_iter().for_each(|line| line.wait(deadline));
}

/// What has been read of the machine, as a judgement has it.
fn machine(change: &Baseline) -> Machine {
    let process = change.process.unwrap_or_default();
    let worst = change.quota.as_ref().and_then(|quota| quota.worst());
    Machine {
        of: change.at,
        quota: change.quota.as_ref().and_then(evidence::Quota::cpus),
        throttled: worst.and_then(|worst| worst.throttled),
        steal: change.host.and_then(|host| host.steal),
        own: process.user.zip(process.system).map(|(user, system)| user + system),
        idle: change.host.and_then(|host| host.idle),
        major_faults: process.major_faults,
        memory_pressure: change.pressure.and_then(|pressure| pressure.memory.full),
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

struct Watchdog {
    pace: Pace,
    witness: Witness,
    baseline: Baseline,
    /// The process's CPU time and page faults at the last look.
    process: Option<Process>,
    tracker: Tracker,
    sample: Sample,
    lines: Vec<Line>,
    runtimes: Vec<Watched>,
    /// Something has changed since the incidents were published.
    unpublished: bool,
    looks: u64,
    /// When anything was last seen in flight.
    active: u64,
    /// It has said that it sleeps, and looks once more before it does.
    drowsy: bool,
    /// The time of the last look, and the CPU time of this thread then.
    looked_at: u64,
    looked_cpu: Option<u64>,
    /// How long this thread had waited for a CPU since its start, when that was last asked.
    waited: Option<u64>,
    #[cfg(feature = "stacks")]
    asks: Asks,
}

impl Watchdog {
    /// Sleeps until the next look is due. Returns its time and whether it is late; `None` when it is time to stop.
    fn sleep(&mut self, shared: &Shared) -> Option<(u64, bool)> {
        let from = clock::now();
        let stopped = self.stopped_in_look(from);
        let busy = self.sample.busy || self.tracker.is_open() || self.is_suspicious(from);
        // What nobody wrapped is looked at less often.
        let active = busy || self.runtimes.iter().any(Watched::is_active);
        if active || (self.drowsy && !rouse::is_asleep()) {
            self.active = from;
            self.drowsy = false;
        } else if self.drowsy {
            return self.sleep_deeply(shared);
        } else if from.saturating_sub(self.active) >= AWAKE {
            self.drowsy = true;
            rouse::fall_asleep();
        }
        // What begins right after a look is seen before it is overdue by more than a tick.
        let idle = self.pace.shortest_limit.saturating_add(self.pace.tick).min(LONGEST_SLEEP).max(self.pace.tick);
        let due = from.saturating_add(if busy { self.pace.tick } else { idle });
        self.sample.meant_to_sleep = due - from;
        let mut now = from;
        while now < due {
            // Acquire: pairs with the Release of the detector's drop, which then unparks.
            if shared.stop.load(Ordering::Acquire) {
                return None;
            }
            thread::park_timeout(Duration::from_nanos(due - now));
            now = clock::now();
        }
        let lateness = now - due;
        let late = lateness.max(stopped) >= LATE.max(self.pace.tick.saturating_mul(2));
        shared.figures.looked(lateness, late);
        if lateness >= NOTICED {
            // With nothing in flight a pause may have begun at any time of a long sleep.
            self.paused(if busy || !late { due } else { from }, now, lateness);
        }
        Some((now, late))
    }

    /// What has passed until now was no pause.
    fn wake(&mut self) {
        (self.looked_at, self.looked_cpu) = (clock::now(), clock::thread_cpu());
        self.waited = evidence::thread_id().and_then(evidence::cpu_time).map(|time| time.waited).or(self.waited);
        self.process = evidence::usage();
    }

    /// Whether a worker stands still for longer than most polls take: what it does is to be seen while it does.
    fn is_suspicious(&self, now: u64) -> bool {
        let long = |since: u64| now.saturating_sub(since) >= self.pace.long_poll / 4;
        let workers = self.sample.runtimes.iter().filter(|runtime| !runtime.current_thread);
        workers.flat_map(|runtime| &runtime.frozen).any(|frozen| frozen.started && long(frozen.since))
    }

    /// How long this thread had no CPU since it began its last look: a pause like any other.
    fn stopped_in_look(&mut self, from: u64) -> u64 {
        let (Some(before), Some(cpu)) = (self.looked_cpu, clock::thread_cpu()) else { return 0 };
        let stopped = from.saturating_sub(self.looked_at).saturating_sub(cpu.saturating_sub(before));
        if stopped >= NOTICED {
            self.paused(from - stopped, from, stopped);
        }
        stopped
    }

    /// This thread did not run when it wanted to, for `late` at least and perhaps since `from`. What of that it did not wait
    /// for a CPU the process was stopped.
    fn paused(&mut self, from: u64, to: u64, late: u64) {
        self.sample.pauses.add(from, to);
        let waited = evidence::thread_id().and_then(evidence::cpu_time).map(|time| time.waited);
        let fresh = waited.zip(self.waited).map(|(waited, before)| waited.saturating_sub(before));
        self.waited = waited.or(self.waited);
        let (now, before) = (evidence::usage(), self.process);
        let since = |of: fn(&Process) -> Option<u64>| of(&now?)?.checked_sub(of(&before?)?);
        let used = (since(|process| process.user), since(|process| process.system));
        if let Some(stop) = stop_of(from, to, late, fresh, used) {
            self.sample.stops.add(stop.from, stop.to);
            if stop.to - stop.from >= LATE {
                self.sample.shortage.read(to);
            }
            let wanted = self.sample.shortage.longest_ended(stop.from);
            self.sample.stop = Some(Stop { major_faults: since(|process| process.major_faults), wanted, ..stop });
        }
    }

    /// Sleeps until something begins, or for long.
    fn sleep_deeply(&mut self, shared: &Shared) -> Option<(u64, bool)> {
        let at_most = if self.runtimes.is_empty() { STIRS_EVERY } else { GLANCES_EVERY };
        self.sample.meant_to_sleep = clock::nanos(at_most);
        let until = Instant::now() + at_most;
        // Acquire: as in `sleep`.
        while !shared.stop.load(Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !rouse::is_asleep() {
                shared.figures.looked(0, false);
                return Some((clock::now(), false));
            }
            thread::park_timeout(left);
        }
        None
    }

    fn look(&mut self, shared: &Shared, now: u64, late: bool) {
        while let Some(line) = shared.new_lines.pop() {
            self.lines.push(line);
        }
        (self.looked_at, self.looked_cpu) = (now, clock::thread_cpu());
        self.process = evidence::usage();
        self.look_at_runtimes(shared, now);
        self.witness(now);
        let stopped = self.sample.stops.since(now.saturating_sub(AFTERMATH)) > 0;
        self.sample.asks_poll_time = stopped || self.sample.machine.is_some();
        self.sample.take(now, late);
        #[cfg(feature = "stacks")]
        self.take_stacks(shared);
        let changes = self.tracker.look(&self.sample);
        #[cfg(feature = "stacks")]
        self.ask_for_stacks(shared, now);
        self.report(shared, &changes);
        self.looks += 1;
        self.sample.stop = None;
        self.unpublished |=
            !changes.is_empty() || self.looks.is_multiple_of(PUBLISH_EVERY) || self.looks < PUBLISH_EVERY;
        if self.unpublished {
            self.publish(shared);
        }
    }

    /// Looks at each runtime, those that have just come and not those that have gone.
    fn look_at_runtimes(&mut self, shared: &Shared, now: u64) {
        while let Some(runtime) = shared.new_runtimes.pop() {
            self.runtimes.push(runtime);
        }
        while let Some(gone) = shared.gone_runtimes.pop() {
            self.runtimes.retain(|runtime| runtime.id() != gone);
        }
        self.sample.begin(now);
        let sample = &mut self.sample;
        let looks: Vec<_> = self.runtimes.iter_mut().map(|runtime| runtime.look(now, sample)).collect();
        self.sample.runtimes = looks;
        // What has shut down shows nothing more, and a handle keeps what is left of it in memory.
        if self.runtimes.iter().any(Watched::has_ended) {
            let ended = |runtime: &RuntimeSample| {
                self.runtimes.iter().any(|watched| Some(watched.id()) == runtime.runtime && watched.has_ended())
            };
            self.sample.runtimes.retain(|runtime| !ended(runtime));
            self.runtimes.retain(|runtime| {
                let ended = runtime.has_ended();
                if ended {
                    shared.ended_runtimes.push(runtime.id());
                }
                !ended
            });
        }
    }

    /// Takes over the stacks that have come.
    #[cfg(feature = "stacks")]
    fn take_stacks(&mut self, shared: &Shared) {
        self.sample.stacks.clear();
        self.sample.stacks.extend(shared.stacks.iter().flat_map(|stacks| std::iter::from_fn(|| stacks.pop())));
    }

    /// Has the stacks of threads taken that the open incidents are about.
    #[cfg(feature = "stacks")]
    fn ask_for_stacks(&mut self, shared: &Shared, now: u64) {
        let Some(stacks) = shared.stacks.as_ref().filter(|_| self.tracker.is_open()) else { return };
        let before = self.asks.left_out;
        self.asks.due(self.tracker.stuck(&self.sample), now).into_iter().for_each(|stuck| stacks.ask(stuck));
        stacks.left_out(self.asks.left_out - before);
    }

    /// Asks the kernel about the process and the machine, once in a while.
    fn witness(&mut self, now: u64) {
        self.sample.machine = None;
        if now.saturating_sub(self.baseline.at) < WITNESSED_EVERY {
            return;
        }
        let baseline = self.witness.baseline();
        let change = baseline.since(&self.baseline);
        // The first only begins the counting.
        if self.baseline.at != 0 {
            self.sample.machine = Some(machine(&change));
        }
        self.baseline = baseline;
    }

    fn report(&self, shared: &Shared, changes: &[IncidentChange]) {
        for change in changes {
            for line in &self.lines {
                if !line.send(change.clone()) {
                    count(&shared.figures.dropped_reports, 1);
                }
            }
        }
    }

    fn publish(&mut self, shared: &Shared) {
        let (unopened, muted) = self.tracker.unreported();
        shared.figures.unopened.store(unopened, Ordering::Relaxed);
        shared.figures.muted.store(muted, Ordering::Relaxed);
        // Not waited for: whoever reads them may be stopped while it does. The next look tries again.
        if let Ok(mut incidents) = shared.incidents.try_lock() {
            *incidents = self.tracker.incidents();
            self.unpublished = false;
        }
        if let Ok(mut facts) = shared.facts.try_lock() {
            facts.clone_from(self.tracker.facts());
        }
    }
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
