//! The observing thread: sleep, look, decide, report.
//!
//! It shares nothing with the watched threads but atomics, waits on no lock (what it publishes it publishes when the
//! lock is free), and never runs anybody else's code: reports go to the sinks' own threads.

use crate::clock;
use crate::evidence::{self, Baseline, Witness};
use crate::facts::Facts;
use crate::figures::count;
use crate::incident::{Incident, IncidentChange};
use crate::poller::Sleeps;
use crate::presence::{LATE, NOTICED, Presence};
use crate::rouse;
use crate::runtimes::Watched;
use crate::sample::{Machine, ObserverFigures, RuntimeSample, Sample};
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
    run_beside(shared, pace, || {
        clock::calibrate();
        Sleeps::learn();
    });
}

/// Watches, and has another thread learn what takes a while. Where memory is hard to come by, as in a large process that
/// forks again and again, that can be seconds, in which nobody would look.
fn run_beside(shared: &Shared, pace: Pace, learn: fn()) {
    let mut watchdog = Watchdog::new(pace);
    rouse::register(Some(thread::current()));
    // What is counted from here on is this detector's.
    watchdog.look(shared, clock::now(), false);
    let learning = thread::Builder::new().name("starvation-learn".to_owned()).spawn(learn);
    if learning.is_err() {
        learn();
    }
    // What has passed until now was no pause.
    watchdog.presence.wake();
    while let Some((now, late)) = watchdog.sleep(shared) {
        watchdog.look(shared, now, late);
    }
    rouse::register(None);
    // Its failure shows in what it has not learned.
    let _ = learning.map(thread::JoinHandle::join);
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

struct Watchdog {
    pace: Pace,
    presence: Presence,
    witness: Witness,
    baseline: Baseline,
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
    #[cfg(feature = "stacks")]
    asks: Asks,
}

impl Watchdog {
    fn new(pace: Pace) -> Self {
        Self {
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
            presence: Presence::new(),
            pace,
            witness: Witness::default(),
            baseline: Baseline::default(),
            #[cfg(feature = "stacks")]
            asks: Asks::default(),
        }
    }

    /// Sleeps until the next look is due. Returns its time and whether it is late; `None` when it is time to stop.
    fn sleep(&mut self, shared: &Shared) -> Option<(u64, bool)> {
        let from = self.presence.notice_stop(&mut self.sample);
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
        let is_late = |lateness: u64| lateness >= LATE.max(self.pace.tick.saturating_mul(2));
        let mut late = is_late((now - due).max(self.presence.stopped));
        if now - due >= NOTICED {
            // With nothing in flight a pause may have begun at any time of a long sleep.
            let from = if busy || !late { due } else { from };
            now = self.presence.came_late(from, now, now - due, &mut self.sample);
            late |= is_late(now - due);
        }
        shared.figures.looked(now - due, late);
        Some((now, late))
    }

    /// Whether a worker stands still for longer than most polls take: what it does is to be seen while it does.
    fn is_suspicious(&self, now: u64) -> bool {
        let long = |since: u64| now.saturating_sub(since) >= self.pace.long_poll / 4;
        let workers = self.sample.runtimes.iter().filter(|runtime| !runtime.current_thread);
        workers.flat_map(|runtime| &runtime.frozen).any(|frozen| frozen.started && long(frozen.since))
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
        self.presence.begin(now, &mut self.sample);
        self.read(shared, now, late);
        self.tell(shared, now);
    }

    /// Reads what all others have counted and what goes on.
    fn read(&mut self, shared: &Shared, now: u64, late: bool) {
        self.look_at_runtimes(shared, now);
        self.witness(now);
        let stopped = self.sample.stops.since(now.saturating_sub(AFTERMATH)) > 0;
        self.sample.asks_poll_time = stopped || self.sample.machine.is_some();
        self.sample.take(now, late);
        // Where it was stopped in the middle, it has counted what was stopped with it.
        self.presence.notice_stop(&mut self.sample);
        self.sample.late |= self.presence.stopped >= LATE;
    }

    /// Decides, and reports what has changed.
    fn tell(&mut self, shared: &Shared, now: u64) {
        #[cfg(feature = "stacks")]
        self.take_stacks(shared);
        let changes = self.tracker.look(&self.sample);
        #[cfg(feature = "stacks")]
        self.ask_for_stacks(shared, now);
        #[cfg(not(feature = "stacks"))]
        let _ = now;
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
    use std::sync::LazyLock;
    use std::sync::atomic::AtomicU64;

    const MS: u64 = 1_000_000;

    static WATCHED: LazyLock<Shared> = LazyLock::new(Shared::default);
    static LOOKS: AtomicU64 = AtomicU64::new(0);

    fn pace() -> Pace {
        Pace {
            started: clock::now(),
            warm_up: 0,
            tick: 5 * MS,
            window: 60_000 * MS,
            long_poll: 50 * MS,
            queue_wait: 50 * MS,
            shortest_limit: 50 * MS,
        }
    }

    #[test]
    fn what_was_stopped_in_the_middle_of_a_look_is_no_news_of_that_look() {
        let stopped_in_between = |stopped: bool| {
            let (shared, mut watchdog) = (Shared::default(), Watchdog::new(pace()));
            watchdog.look(&shared, clock::now(), false);
            // It was to sleep for so long that nothing else makes an exception of what it has not seen.
            watchdog.sample.meant_to_sleep = 1_000 * MS;
            let name = if stopped { "watchdog::tests::stopped" } else { "watchdog::tests::not_stopped" };
            let poll = || {
                let future = crate::instrument_future(name, async { thread::sleep(Duration::from_millis(120)) });
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                assert!(std::pin::pin!(future).poll(&mut context).is_ready());
            };
            if !stopped {
                poll();
            }
            let now = clock::now();
            watchdog.presence.begin(now, &mut watchdog.sample);
            if stopped {
                poll();
            }
            watchdog.read(&shared, now, false);
            watchdog.tell(&shared, now);
            for _ in 0..2 {
                watchdog.look(&shared, clock::now(), false);
            }
            watchdog.tracker.incidents().iter().filter(|incident| incident.op == Some(name)).count()
        };
        assert_eq!([true, false].map(stopped_in_between), [0, 1]);
    }

    #[test]
    fn it_looks_while_it_learns() {
        // Learning goes on until the observer has looked some times, and only then is it stopped.
        run_beside(&WATCHED, pace(), || {
            let patience = Instant::now() + Duration::from_secs(20);
            while WATCHED.figures.looks.load(Ordering::Relaxed) < 5 && Instant::now() < patience {
                thread::sleep(Duration::from_millis(1));
            }
            LOOKS.store(WATCHED.figures.looks.load(Ordering::Relaxed), Ordering::Relaxed);
            WATCHED.stop.store(true, Ordering::Release);
        });
        assert!(LOOKS.load(Ordering::Relaxed) >= 5);
    }
}
