//! From looks to incidents: what opens one, what keeps it open, when it has got worse, when it is over.
//!
//! Pure: a [`Sample`] in, changes out, so that every history can be replayed. One episode is one incident, however many
//! calls are part of it. It is keyed by what can be at fault: an op that blocks a worker, a pool whose threads are all
//! taken, a resource that is waited for, a runtime, the process, the machine.

mod keys;

use crate::cause::Cause;
use crate::counted::Counted;
#[cfg(feature = "stacks")]
use crate::episode::concerns;
use crate::episode::{Episode, Key};
use crate::facts::Facts;
use crate::incident::{Incident, IncidentChange, State};
use crate::judge;
use crate::lately::Plus;
#[cfg(feature = "stacks")]
use crate::sample::Frozen;
use crate::sample::{Excused, Sample};
#[cfg(feature = "stacks")]
use crate::stacks::{Place, Stuck, Who};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How many incidents can be open at once. Further ones are counted.
const MAX_OPEN: usize = 128;
/// How many closed ones are kept.
const KEPT: usize = 64;
/// Of one kind, so many are reported in [`OPENINGS_WITHIN`]; further ones are counted into the next that is.
const OPENINGS: usize = 5;
const OPENINGS_WITHIN: u64 = 60_000_000_000;
/// Of one kind, so many beginnings are remembered, for so long: what comes evenly has a period.
const BEGINNINGS: usize = 32;
const BEGINNINGS_WITHIN: u64 = 600_000_000_000;
/// An episode about the machine's CPUs is over when none of it has been seen for this long: they come in bursts.
const CALM: u64 = 1_000_000_000;
const AFTERMATH: u64 = 300_000_000;

/// The openings of one kind of episode.
#[derive(Debug, Default)]
struct History {
    /// Of those that were reported.
    recent: VecDeque<u64>,
    /// When each began, reported or not.
    beginnings: VecDeque<u64>,
    /// Calls of episodes that were not reported.
    carried: u64,
}

impl History {
    /// One more began. Returns the period in which they do.
    fn begin(&mut self, began: u64) -> Option<u64> {
        if self.beginnings.len() == BEGINNINGS {
            self.beginnings.pop_front();
        }
        self.beginnings.push_back(began);
        judge::period_of(self.beginnings.iter().copied())
    }
}

/// Turns looks into incidents.
#[derive(Debug)]
pub(crate) struct Tracker {
    started: u64,
    /// A judgement rests on this stretch of time and the one before.
    stretch: u64,
    /// Before this nothing is opened.
    warm: u64,
    /// An episode is over when nothing of it has been seen for so long.
    quiet: u64,
    next_id: u64,
    facts: Facts,
    open: HashMap<Key, Episode>,
    history: HashMap<Key, History>,
    closed: VecDeque<Arc<Incident>>,
    /// Closed ones that were not reported.
    unreported: VecDeque<Arc<Incident>>,
    /// By op: what had been counted at the last look; empty before the first.
    before: Option<Vec<Counted>>,
    /// By op: what late looks have counted, who may open nothing. It is told at the next that may.
    withheld: Vec<Counted>,
    /// Looks that found an episode which could not be opened because too many were open.
    unopened: u64,
    /// Episodes that were not reported because too many of their kind had been.
    muted: u64,
}

impl Tracker {
    /// `window` is how much of the past a judgement rests on.
    pub(crate) fn new(started: u64, warm_up: u64, tick: u64, window: u64) -> Self {
        Self {
            started,
            stretch: (window / 2).max(1),
            warm: started.saturating_add(warm_up),
            quiet: tick.saturating_mul(20).max(100_000_000),
            next_id: 1,
            facts: Facts::new(started, window),
            open: HashMap::new(),
            history: HashMap::new(),
            closed: VecDeque::new(),
            unreported: VecDeque::new(),
            before: None,
            withheld: Vec::new(),
            unopened: 0,
            muted: 0,
        }
    }

    /// Whether any episode is open, reported or not.
    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// What the recent past shows.
    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How many looks found an episode that could not be opened, and how many episodes were not reported.
    pub(crate) fn unreported(&self) -> (u64, u64) {
        (self.unopened, self.muted)
    }

    /// Those that are open and the most recent closed ones, the reported ones among them by id, the others first.
    pub(crate) fn incidents(&self) -> Vec<Arc<Incident>> {
        let mut all: Vec<_> = self.unreported.iter().chain(&self.closed).cloned().collect();
        all.extend(self.open.iter().filter_map(|(key, episode)| {
            episode.incident(&self.facts, self.started, State::Open, &self.causes_but(*key))
        }));
        all.sort_by_key(|incident| incident.id);
        all
    }

    /// The causes of the open episodes but this one.
    fn causes_but(&self, key: Key) -> Vec<Cause> {
        self.open.iter().filter(|(other, _)| **other != key).filter_map(|(_, episode)| episode.cause()).collect()
    }

    /// Takes in a look.
    pub(crate) fn look(&mut self, sample: &Sample) -> Vec<IncidentChange> {
        let (fresh, excused) = self.count(sample);
        self.facts.see(sample, &fresh, excused);
        let mut changes = Vec::new();
        for key in self.keys(sample, &fresh, excused) {
            if !self.open.contains_key(&key) && !self.open(key, sample) {
                continue;
            }
            let others = self.causes_but(key);
            let Some(episode) = self.open.get_mut(&key) else { continue };
            let is_new = episode.calls() == 0 && episode.seen == sample.now && episode.cause().is_none();
            episode.see(sample, &fresh, &self.facts);
            if is_new {
                let period = self.history.get_mut(&key).and_then(|history| history.begin(episode.began()));
                episode.recurs(period);
            }
            changes.extend(episode.report(&self.facts, self.started, &others));
        }
        let burst = self.facts.burst.is_some();
        for (key, episode) in &mut self.open {
            // The last that was seen of it, and what a pause has left behind.
            let unjudged = episode.has_news() && episode.seen < sample.now;
            let stacks = episode.seen < sample.now && !sample.stacks.is_empty();
            if unjudged || stacks || burst && *key == Key::Process {
                episode.judge_again(sample, &fresh, &self.facts);
            }
        }
        self.close(sample.now, None, &mut changes);
        changes
    }

    /// The threads that the open episodes are about and that are stuck now: those whose stack may tell more.
    #[cfg(feature = "stacks")]
    pub(crate) fn stuck<'a>(&'a self, sample: &'a Sample) -> impl Iterator<Item = Stuck> + 'a {
        let (overdue, executions) = (sample.overdue.iter(), sample.executions.iter());
        let polls = overdue.map(|held| (Place::Poll(held.op), held.whom.map(Who::Known), held.began));
        let calls = executions.map(|held| (Place::Execution(held.op), held.whom.map(Who::Known), held.began));
        let workers = sample.runtimes.iter().flat_map(|runtime| {
            let place = runtime.runtime.map(Place::Worker);
            let known = |frozen: &Frozen| Some((place?, Some(Who::Known(frozen.whom?)), frozen.seen_since));
            let known: Vec<_> = runtime.frozen.iter().filter_map(known).collect();
            known
                .into_iter()
                .chain(Self::stuck_unknown(runtime, sample).and_then(|(who, since)| Some((place?, Some(who), since))))
        });
        let pools = sample.runtimes.iter().filter_map(|runtime| {
            let on_it = sample.ops.iter().filter(|op| op.site.runtime == runtime.runtime);
            let executing: u64 = on_it.map(|op| op.executing).sum();
            let held = runtime.canary_waits && runtime.cap.is_none_or(|cap| executing < cap);
            let since = runtime.canary_sent.filter(|_| held)?;
            let workers = if runtime.current_thread { 0 } else { runtime.workers };
            Some((Place::Pool(runtime.runtime?), Some(Who::OfPool { workers }), since))
        });
        let wanted = move |place: &Place| self.open.keys().any(|key| concerns(*key, *place, sample));
        polls
            .chain(workers)
            .chain(pools)
            .chain(calls)
            .filter(move |(place, ..)| wanted(place))
            .filter_map(|(place, who, since)| Some(Stuck { place, who: who?, since }))
    }

    /// Ends all that is open.
    pub(crate) fn finish(&mut self, now: u64) -> Vec<IncidentChange> {
        let mut changes = Vec::new();
        self.close(now, Some(0), &mut changes);
        changes
    }

    /// What each op of the sample has counted since the last look, and what of it a lack of CPU time explains.
    fn count(&mut self, sample: &Sample) -> (Vec<Counted>, Excused) {
        let first = self.before.is_none();
        let before = self.before.get_or_insert_default();
        let mut all_excused = Excused::default();
        let fresh = sample
            .ops
            .iter()
            .map(|op| {
                let index = op.site.index as usize;
                if before.len() <= index {
                    before.resize(index + 1, Counted::default());
                    self.withheld.resize(index + 1, Counted::default());
                }
                if !op.is_read && !first {
                    return if sample.late { Counted::default() } else { std::mem::take(&mut self.withheld[index]) };
                }
                let last = std::mem::replace(&mut before[index], op.counted);
                if first {
                    // What was counted before this detector's first look is not its business.
                    return Counted::default();
                }
                let (fresh, excused) = op.counted_since(last, sample);
                all_excused = all_excused.plus(excused);
                let withheld = std::mem::take(&mut self.withheld[index]).plus(fresh);
                if !sample.late {
                    return withheld;
                }
                self.withheld[index] = withheld;
                Counted::default()
            })
            .collect();
        (fresh, all_excused)
    }

    /// Begins an episode, if this is a moment to.
    fn open(&mut self, key: Key, sample: &Sample) -> bool {
        // What looks old to a late observer may have been paused with it.
        if (sample.late && !key.is_of_all()) || sample.now < self.warm {
            return false;
        }
        if self.open.len() >= MAX_OPEN {
            self.unopened += 1;
            return false;
        }
        let history = self.history.entry(key).or_default();
        while history.recent.front().is_some_and(|&at| at.saturating_add(OPENINGS_WITHIN) <= sample.now) {
            history.recent.pop_front();
        }
        let id = if history.recent.len() < OPENINGS {
            history.recent.push_back(sample.now);
            let id = self.next_id;
            self.next_id += 1;
            Some(id)
        } else {
            self.muted += 1;
            None
        };
        let carried = if id.is_some() { std::mem::take(&mut history.carried) } else { 0 };
        self.open.insert(key, Episode::new(key, id, sample.now, carried, self.stretch));
        true
    }

    /// Ends the episodes of which nothing has been seen for a while, or for `quiet`.
    fn close(&mut self, now: u64, quiet: Option<u64>, changes: &mut Vec<IncidentChange>) {
        let usual = |key: &Key| match key {
            Key::Machine => CALM.max(self.quiet),
            // What it leaves behind takes its time to show.
            Key::Process => AFTERMATH.max(self.quiet),
            _ => self.quiet,
        };
        let over: Vec<Key> = self
            .open
            .iter()
            .filter(|(key, episode)| now.saturating_sub(episode.seen) >= quiet.unwrap_or_else(|| usual(key)))
            .map(|(key, _)| *key)
            .collect();
        for key in over {
            let others = self.causes_but(key);
            let Some(episode) = self.open.remove(&key) else { continue };
            let incident = episode.incident(&self.facts, self.started, State::Closed, &others);
            let kept = if episode.is_reported() {
                changes.extend(incident.clone().map(IncidentChange::Closed));
                &mut self.closed
            } else {
                self.history.entry(key).or_default().carried += episode.calls();
                &mut self.unreported
            };
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.extend(incident);
        }
        // A kind of which nothing was seen for so long starts afresh: the memory is of what happens, not of what did.
        let within = |at: Option<&u64>, so_long| at.is_some_and(|&at| at.saturating_add(so_long) > now);
        self.history.retain(|_, history| {
            history.carried > 0
                || within(history.recent.back(), OPENINGS_WITHIN)
                || within(history.beginnings.back(), BEGINNINGS_WITHIN)
        });
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
#[cfg(all(test, not(starvation_loom)))]
mod truth;
