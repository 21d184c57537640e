//! A task in the watched runtime that sleeps on its timer, again and again: how late it is, is how late everybody's timers
//! and sockets are.
//!
//! Nobody wakes it but the runtime's own driver, so it suffers what the tasks there suffer and cures nothing. A single one
//! sees only what keeps the driver from being looked at; a long queue of ready tasks delays it little.
//!
//! It ends with the runtime, which it does not keep from shutting down: a task that sleeps is dropped like any other. That
//! is also how the end of a runtime is seen, and the reason for starting one where there is no timer.

use super::timer::{self, Timer};
use crate::clock;
use crate::parity::{self, Reading};
use crate::threads;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::task::AbortHandle;

/// Between two beats while the runtime does anything.
const SHORTEST: Duration = Duration::from_millis(50);
/// While it does nothing. It gets there by doubling: what begins then is noticed by the beat after.
const LONGEST: Duration = Duration::from_secs(1);
/// Where Tokio does not tell what the workers do.
const UNTOLD: Duration = Duration::from_millis(250);
/// A beat itself moves a worker twice, and others that come to see whether there is more.
const OWN_MOVES: u64 = 8;
/// And takes some microseconds, on a bad day many.
const OWN_BUSY: u64 = 1_000_000;

/// How a heartbeat is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Spawned, and not polled so far.
    Starting,
    Beating,
    /// The runtime has no timers, or whether it has cannot be found out.
    NoTimer,
    /// A test has paused the runtime's clock: a sleep would make it leap.
    ClockPaused,
    /// The runtime has shut down.
    Ended,
}

impl State {
    const ALL: [Self; 5] = [Self::Starting, Self::Beating, Self::NoTimer, Self::ClockPaused, Self::Ended];

    fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Ended)
    }
}

/// What the task writes and the observer reads.
#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    beats: AtomicU64,
    last: AtomicU64,
    due: AtomicU64,
    worst: AtomicU64,
    active: AtomicBool,
}

impl Shared {
    fn new(now: u64, state: State) -> Self {
        let [beats, last, worst] = [const { AtomicU64::new(0) }; 3];
        // The first poll is due at once.
        let (state, due) = (AtomicU8::new(state as u8), AtomicU64::new(now));
        Self { state, beats, last, due, worst, active: AtomicBool::new(true) }
    }

    /// Release: who sees the state sees the figures before it.
    fn enter(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// The beat that was due has come; the next one is due after `period`.
    fn beat(&self, now: u64, period: Duration, active: bool) {
        // Relaxed: each is a figure by itself. A look in between sees a beat a moment early or late.
        let late = now.saturating_sub(self.due.load(Ordering::Relaxed));
        self.worst.fetch_max(late, Ordering::Relaxed);
        self.due.store(now.saturating_add(clock::nanos(period)), Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
        self.active.store(active, Ordering::Relaxed);
        self.beats.fetch_add(1, Ordering::Relaxed);
    }
}

/// One look at a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Beat {
    pub(crate) state: State,
    pub(crate) beats: u64,
    /// When it last beat.
    pub(crate) last: Option<u64>,
    /// When the beat is or was due that has not come yet.
    pub(crate) due: Option<u64>,
    /// How late that one is by now. Timers go by whole milliseconds: up to two are nothing.
    pub(crate) late: Option<u64>,
    /// The same, and how late those came that have come since the last look, whichever is worst.
    pub(crate) worst: Option<u64>,
    /// The runtime did something else between the last two beats.
    pub(crate) active: bool,
}

/// The observer's end of a heartbeat. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Heartbeat {
    /// Starts one. For the thread that attaches to the runtime; see [`timer::of`].
    pub(crate) fn start(handle: &Handle, timer: Timer) -> Self {
        let state = match timer {
            Timer::Running => State::Starting,
            Timer::Paused => State::ClockPaused,
            Timer::Absent | Timer::Unknown => State::NoTimer,
        };
        let shared = Arc::new(Shared::new(clock::now(), state));
        let end = End(Arc::clone(&shared));
        let runtime = crate::op::runtime_number(handle.id());
        let task = run(end, state, runtime, handle.metrics());
        let task = super::unseen(|| handle.spawn(task)).abort_handle();
        Self { shared, task }
    }

    pub(crate) fn look(&self, now: u64) -> Beat {
        // Acquire: pairs with the Release of `enter`.
        let state = State::from_number(self.shared.state.load(Ordering::Acquire));
        let [beats, last, due] = [&self.shared.beats, &self.shared.last, &self.shared.due];
        let [beats, last, due] = [beats, last, due].map(|figure| figure.load(Ordering::Relaxed));
        let came_late = self.shared.worst.swap(0, Ordering::Relaxed);
        let due = matches!(state, State::Starting | State::Beating).then_some(due);
        let late = due.map(|due| now.saturating_sub(due));
        let last = (beats > 0).then_some(last);
        let worst = late.map(|late| late.max(came_late));
        Beat { state, beats, last, due, late, worst, active: self.shared.active.load(Ordering::Relaxed) }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Tells that the task is gone.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.enter(State::Ended);
    }
}

async fn run(end: End, state: State, runtime: Option<u64>, metrics: RuntimeMetrics) {
    let shared = &*end.0;
    if state != State::Starting {
        // Only to see the runtime's end.
        std::future::pending::<()>().await;
    }
    let mut pace = Pace::default();
    // Asked before each sleep: a clock that is paused while one lasts leaps once, to its end, and no further.
    while timer::clock_is_real() {
        threads::learn(runtime, threads::Role::Worker);
        let workers = metrics.num_workers();
        let (period, active) = pace.next(Told::of(parity::readings(&metrics, 0..workers)));
        shared.beat(clock::now(), period, active);
        shared.enter(State::Beating);
        tokio::time::sleep(period).await;
    }
    shared.enter(State::ClockPaused);
    std::future::pending::<()>().await;
}

/// What the workers tell together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    sum: Reading,
    unparked: usize,
}

impl Told {
    fn of(readings: impl Iterator<Item = Reading>) -> Option<Self> {
        let one = |reading: Reading| Self { sum: reading, unparked: usize::from(!reading.is_parked()) };
        readings.map(one).reduce(|all, one| Self {
            sum: Reading {
                moves: all.sum.moves.wrapping_add(one.sum.moves),
                busy: all.sum.busy.wrapping_add(one.sum.busy),
            },
            unparked: all.unparked + one.unparked,
        })
    }
}

/// How often to beat.
#[derive(Debug, Default)]
struct Pace {
    period: Duration,
    before: Option<Reading>,
}

impl Pace {
    /// The time to the next beat, and whether the runtime has done anything but beat since the last one.
    fn next(&mut self, told: Option<Told>) -> (Duration, bool) {
        let Some(Told { sum, unparked }) = told else { return (UNTOLD, true) };
        let before = self.before.replace(sum);
        let moved = before.is_none_or(|before| {
            sum.moves.wrapping_sub(before.moves) > OWN_MOVES || sum.busy.wrapping_sub(before.busy) > OWN_BUSY
        });
        // The one that beats is not parked. Another that is not may be in one long poll, and publishes nothing.
        let active = moved || unparked > 1;
        self.period = if active { SHORTEST } else { (self.period * 2).min(LONGEST) };
        (self.period, active)
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
