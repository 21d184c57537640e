//! How many threads would have been enough: the calls that arrived, replayed on a pool that has a thread for each.
//!
//! Two kinds of load fill a pool. In an open loop calls come when they come: what is needed is how many would run at once
//! if each started at its arrival, and the backlog that stands in the queue says nothing. In a closed loop each of so many
//! jobs waits for its call before it makes the next, so calls come as slowly as the pool lets them: replayed, they would
//! need no more threads than there are, and it is the number of jobs that counts. It shows as a plateau: calls come and
//! go, many times over, and as many as before are in the pool.
//!
//! Pure. It is fed at each look; what is kept is bounded.

use std::collections::VecDeque;

/// So many looks at which calls of an op arrived are kept, the latest.
const ARRIVALS: usize = 2_048;
/// So many stretches of time of which it is kept how many calls were there; when there are more, two become one.
const STRETCHES: usize = 256;
/// A window is so many of them to begin with.
const IN_WINDOW: u64 = 64;
/// While calls wait without a break, so many windows count.
const WINDOWS: u64 = 64;

/// A plateau: over so many stretches of so many looks each, while so many calls arrived, and each has gone round once.
const LEAST_STRETCHES: u64 = 4;
const LEAST_LOOKS: u64 = 4;
const LEAST_ARRIVALS: u64 = 16;
/// Longer than so many times round it need not hold.
const ROUNDS: u64 = 10;
/// So far the level may wander, in percent of itself; and as a part of what as many independent arrivals would make it do.
const WANDERS: f64 = 15.0;
const OF_CHANCE: f64 = 0.5;

/// How many calls have come of an op, told from a figure that only grows but for what was read at another moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth {
    last: Option<u64>,
    below: bool,
}

impl Growth {
    /// `level` is all that have ended and all that are there. `first` is how many are new where nothing is known yet.
    pub(crate) fn see(&mut self, level: u64, first: u64) -> u64 {
        let Some(last) = self.last else {
            self.last = Some(level);
            return first;
        };
        // A call that moves on between two reads is seen twice or not at all, and comes right at the next look; one that
        // was dropped unrun does not.
        let keep = level < last && !self.below;
        self.below = keep;
        if !keep {
            self.last = Some(level);
        }
        level.saturating_sub(last)
    }
}

/// Calls of one op that came between two looks.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    after: u64,
    before: u64,
    op: u32,
    calls: u64,
}

/// How many calls were there, waiting or executing, at the looks of a stretch of time.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    from: u64,
    looks: u64,
    sum: u64,
    high: u64,
    arrived: u64,
}

impl Stretch {
    fn mean(&self) -> f64 {
        self.sum as f64 / self.looks.max(1) as f64
    }

    fn join(&mut self, later: &Self) {
        self.looks += later.looks;
        self.sum += later.sum;
        self.high = self.high.max(later.high);
        self.arrived += later.arrived;
    }
}

/// One pool at one look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) queued: u64,
    pub(crate) executing: u64,
}

/// The calls of one pool, lately.
#[derive(Debug)]
pub(crate) struct Replay {
    window: u64,
    width: u64,
    previous: u64,
    arrivals: VecDeque<Arrival>,
    stretches: VecDeque<Stretch>,
    /// Since when calls have been waiting, with breaks of less than a stretch, and when one did last.
    waiting_since: Option<u64>,
    waited: u64,
    /// When and what it was last replayed to.
    replayed: Option<u64>,
    enough: u64,
}

/// What was found, without what it was found from: a copy is made at every look, for those who ask the detector.
impl Clone for Replay {
    fn clone(&self) -> Self {
        Self { enough: self.enough, ..Self::new(self.window) }
    }
}

impl Replay {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            window,
            width: (window / IN_WINDOW).max(1),
            previous: 0,
            arrivals: VecDeque::new(),
            stretches: VecDeque::new(),
            waiting_since: None,
            waited: 0,
            replayed: None,
            enough: 0,
        }
    }

    /// Takes in a look: how many calls of which op came since the one before.
    pub(crate) fn see(&mut self, previous: u64, now: u64, level: Level, arrived: impl Iterator<Item = (u32, u64)>) {
        self.previous = previous;
        self.forget(now);
        let mut calls = 0;
        for (op, new) in arrived.filter(|(_, new)| *new > 0) {
            if self.arrivals.len() == ARRIVALS {
                self.arrivals.pop_front();
            }
            self.arrivals.push_back(Arrival { after: previous, before: now, op, calls: new });
            calls += new;
        }
        if level.queued > 0 {
            self.waiting_since = self.waiting_since.or(Some(now));
            self.waited = now;
        } else if now.saturating_sub(self.waited) >= self.width {
            self.waiting_since = None;
            self.width = (self.window / IN_WINDOW).max(1);
        }
        let there = level.queued + level.executing;
        let look = Stretch { from: now, looks: 1, sum: there, high: there, arrived: calls };
        match self.stretches.back_mut() {
            Some(last) if now.saturating_sub(last.from) < self.width => last.join(&look),
            // A pool that nobody uses needs no memory.
            None if there + calls == 0 => {}
            _ => self.stretches.push_back(look),
        }
        if self.stretches.len() > STRETCHES {
            self.coarsen();
        }
    }

    /// What is older than a window, or than the present backlog, is past.
    fn forget(&mut self, now: u64) {
        let recent = now.saturating_sub(self.window);
        let longest = now.saturating_sub(self.window.saturating_mul(WINDOWS));
        let from = self.waiting_since.map_or(recent, |since| since.saturating_sub(self.width).clamp(longest, recent));
        while self.arrivals.front().is_some_and(|arrival| arrival.before < from) {
            self.arrivals.pop_front();
        }
        while self.stretches.front().is_some_and(|stretch| stretch.from.saturating_add(self.width) < from) {
            self.stretches.pop_front();
        }
    }

    fn coarsen(&mut self) {
        self.width = self.width.saturating_mul(2);
        let mut joined: VecDeque<Stretch> = VecDeque::with_capacity(STRETCHES + 1);
        for stretch in self.stretches.drain(..) {
            match joined.back_mut() {
                Some(last) if stretch.from.saturating_sub(last.from) < self.width => last.join(&stretch),
                _ => joined.push_back(stretch),
            }
        }
        self.stretches = joined;
    }

    /// Works out anew how many threads would have been enough, if it is time to. `mean` is how long a call of an op
    /// executes, where that is known; `held` how many threads have been seen at work at once.
    pub(crate) fn refresh(&mut self, now: u64, held: u64, mean: impl Fn(u32) -> Option<u64>) {
        // It takes some ten microseconds. A backlog that has just begun changes with every look.
        let new = self.waiting_since.is_some_and(|since| now.saturating_sub(since) < self.width);
        let due = self.replayed.is_none_or(|at| now.saturating_sub(at) >= self.width / 2);
        if (new || due) && !self.stretches.is_empty() {
            self.replayed = Some(now);
            self.enough = self.work_out(held, mean);
        }
    }

    /// How many threads would have been enough, as of the last time that it was worked out; 0 before.
    pub(crate) fn enough(&self) -> u64 {
        self.enough
    }

    fn work_out(&self, held: u64, mean: impl Fn(u32) -> Option<u64>) -> u64 {
        // In a wider pool each call leaves sooner, so that there are never more at once than there were here.
        let most = self.stretches.iter().map(|stretch| stretch.high).max().unwrap_or(0);
        match self.shape() {
            Shape::Closed(jobs) => jobs,
            // Calls waited for `held` threads: a replay that needs no more has missed why.
            shape => Some(self.at_once(mean))
                .filter(|&at_once| at_once > held && (shape == Shape::Open || self.reaches_back()))
                .map_or(most, |at_once| at_once.min(most)),
        }
    }

    /// Whether the first calls that had to wait are among those that are kept.
    fn reaches_back(&self) -> bool {
        let first = self.arrivals.front().map(|arrival| arrival.after);
        self.waiting_since.zip(first).is_none_or(|(since, first)| first <= since)
    }

    /// How many of the calls that came would have run at once at most, each from its arrival for as long as its op's calls
    /// execute. Between two looks nobody knows when: the earliest arrival and the latest end are taken.
    fn at_once(&self, mean: impl Fn(u32) -> Option<u64>) -> u64 {
        let mut means: Vec<(u32, Option<u64>)> = Vec::new();
        let mut mean_of = |op| match means.iter().find(|(known, _)| *known == op) {
            Some((_, known)) => *known,
            None => {
                means.push((op, mean(op)));
                means[means.len() - 1].1
            }
        };
        // Where none has ended yet, none would have.
        // It has not ended before it was seen to have come.
        let end = |arrival: &Arrival, mean: Option<u64>| {
            let end = mean.map_or(u64::MAX, |mean| arrival.before.saturating_add(mean));
            end.max(arrival.after.saturating_add(1))
        };
        let mut ends: Vec<(u64, u64)> =
            self.arrivals.iter().map(|arrival| (end(arrival, mean_of(arrival.op)), arrival.calls)).collect();
        ends.sort_unstable();
        let mut ended = ends.into_iter().peekable();
        let (mut running, mut most) = (0_u64, 0);
        for arrival in &self.arrivals {
            while let Some((_, calls)) = ended.next_if(|(at, _)| *at <= arrival.after) {
                running = running.saturating_sub(calls);
            }
            running += arrival.calls;
            most = most.max(running);
        }
        most
    }

    fn shape(&self) -> Shape {
        let Some(since) = self.waiting_since else { return Shape::Unknown };
        let (mut arrived, mut high, mut stretches) = (0, 0, 0);
        let (mut lowest, mut highest) = (f64::INFINITY, 0.0_f64);
        for stretch in self.stretches.iter().rev() {
            let enough = stretches >= 2 * LEAST_STRETCHES && arrived >= high * ROUNDS;
            // In the first one the pool fills.
            if stretch.from <= since || enough {
                break;
            }
            arrived += stretch.arrived;
            if stretch.looks < LEAST_LOOKS {
                continue;
            }
            stretches += 1;
            high = high.max(stretch.high);
            (lowest, highest) = (lowest.min(stretch.mean()), highest.max(stretch.mean()));
        }
        if stretches < LEAST_STRETCHES || arrived < LEAST_ARRIVALS {
            return Shape::Unknown;
        }
        let wandered = highest - lowest;
        let chance = (arrived as f64).sqrt() * OF_CHANCE;
        if wandered > chance.max(2.0) || wandered * 100.0 > high as f64 * WANDERS {
            return Shape::Open;
        }
        if arrived >= high { Shape::Closed(high) } else { Shape::Unknown }
    }
}

/// What kind of load it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Calls come when they come.
    Open,
    /// So many jobs, each of which waits for its call.
    Closed(u64),
    /// It has not been seen for long enough.
    Unknown,
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
