//! From looks to incidents: what opens one, what keeps it open, when it has got worse, when it is over.
//!
//! Pure: a [`Sample`] in, changes out, so that every history can be replayed. One episode is one incident, however many
//! calls are part of it. It is keyed by what can be at fault: an op that blocks a worker, a pool whose threads are all
//! taken, a resource that is waited for.

use crate::episode::{Episode, Key};
use crate::incident::{Incident, IncidentChange, State};
use crate::peak::Crowd;
use crate::sample::{Counted, OpSample, Sample};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How many incidents can be open at once. Further ones are counted.
const MAX_OPEN: usize = 128;
/// How many closed ones are kept.
const KEPT: usize = 64;
/// Of one kind, so many are reported in [`OPENINGS_WITHIN`]; further ones are counted into the next that is.
const OPENINGS: usize = 5;
const OPENINGS_WITHIN: u64 = 60_000_000_000;

/// The openings of one kind of episode.
#[derive(Debug, Default)]
struct History {
    recent: VecDeque<u64>,
    /// Calls of episodes that were not reported.
    carried: u64,
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
    open: HashMap<Key, Episode>,
    history: HashMap<Key, History>,
    crowds: HashMap<Key, Crowd>,
    closed: VecDeque<Arc<Incident>>,
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
            open: HashMap::new(),
            history: HashMap::new(),
            crowds: HashMap::new(),
            closed: VecDeque::new(),
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

    /// How many looks found an episode that could not be opened, and how many episodes were not reported.
    pub(crate) fn unreported(&self) -> (u64, u64) {
        (self.unopened, self.muted)
    }

    /// The reported ones, by id: those that are open and the most recent closed ones.
    pub(crate) fn incidents(&self) -> Vec<Arc<Incident>> {
        let mut all: Vec<_> = self.closed.iter().cloned().collect();
        all.extend(self.open.values().filter_map(|episode| episode.incident(self.started, State::Open)));
        all.sort_by_key(|incident| incident.id);
        all
    }

    /// Takes in a look.
    pub(crate) fn look(&mut self, sample: &Sample) -> Vec<IncidentChange> {
        let fresh = self.count(sample);
        self.count_crowds(sample);
        let mut changes = Vec::new();
        for key in keys(sample, &fresh) {
            if !self.open.contains_key(&key) && !self.open(key, sample) {
                continue;
            }
            let Some(episode) = self.open.get_mut(&key) else { continue };
            let crowd = self.crowds.get(&key).copied().unwrap_or_default();
            episode.see(key, sample, &fresh, crowd);
            changes.extend(episode.report(self.started));
        }
        self.close(sample.now, self.quiet, &mut changes);
        changes
    }

    /// Ends all that is open.
    pub(crate) fn finish(&mut self, now: u64) -> Vec<IncidentChange> {
        let mut changes = Vec::new();
        self.close(now, 0, &mut changes);
        changes
    }

    /// Keeps the most that each pool had at once: an episode opens when the first of its calls may have ended already.
    fn count_crowds(&mut self, sample: &Sample) {
        if sample.now / self.stretch != sample.previous / self.stretch {
            self.crowds.values_mut().for_each(Crowd::turn);
        }
        let mut counted: HashMap<Key, (u64, u64)> = HashMap::new();
        for op in sample.ops.iter().filter(|op| op.queued + op.executing > 0) {
            let (queued, executing) = counted.entry(pool_of(op)).or_default();
            *queued += op.queued;
            *executing += op.executing;
        }
        for (pool, (queued, executing)) in counted {
            self.crowds.entry(pool).or_default().see(queued, executing);
        }
    }

    /// What each op of the sample has counted since the last look.
    fn count(&mut self, sample: &Sample) -> Vec<Counted> {
        let first = self.before.is_none();
        let before = self.before.get_or_insert_default();
        sample
            .ops
            .iter()
            .map(|op| {
                let index = op.site.index as usize;
                if before.len() <= index {
                    before.resize(index + 1, Counted::default());
                    self.withheld.resize(index + 1, Counted::default());
                }
                let last = std::mem::replace(&mut before[index], op.counted);
                if first {
                    // What was counted before this detector's first look is not its business.
                    return Counted::default();
                }
                let fresh = op.counted.since(last).beyond(op, sample);
                let withheld = std::mem::take(&mut self.withheld[index]).plus(fresh);
                if !sample.late {
                    return withheld;
                }
                self.withheld[index] = withheld;
                Counted::default()
            })
            .collect()
    }

    /// Begins an episode, if this is a moment to.
    fn open(&mut self, key: Key, sample: &Sample) -> bool {
        // What looks old to a late observer may have been paused with it.
        if sample.late || sample.now < self.warm {
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
        self.open.insert(key, Episode::new(id, sample.now, carried, self.stretch));
        true
    }

    /// Ends the episodes of which nothing has been seen for `quiet`.
    fn close(&mut self, now: u64, quiet: u64, changes: &mut Vec<IncidentChange>) {
        let over: Vec<Key> =
            self.open.iter().filter(|(_, e)| now.saturating_sub(e.seen) >= quiet).map(|(key, _)| *key).collect();
        for key in over {
            let Some(episode) = self.open.remove(&key) else { continue };
            match episode.incident(self.started, State::Closed) {
                Some(incident) => {
                    if self.closed.len() == KEPT {
                        self.closed.pop_front();
                    }
                    self.closed.push_back(Arc::clone(&incident));
                    changes.push(IncidentChange::Closed(incident));
                }
                None => self.history.entry(key).or_default().carried += episode.calls(),
            }
        }
        // A kind of which nothing was seen for so long starts afresh: the memory is of what happens, not of what did.
        self.history.retain(|_, history| {
            history.carried > 0 || history.recent.back().is_some_and(|&at| at.saturating_add(OPENINGS_WITHIN) > now)
        });
    }
}

/// The episodes that a look shows, new and old, each once.
fn keys(sample: &Sample, fresh: &[Counted]) -> Vec<Key> {
    let mut keys = Vec::new();
    for (op, fresh) in sample.ops.iter().zip(fresh) {
        let index = op.site.index;
        if fresh.long_polls > 0 || sample.overdue.iter().any(|held| held.op == index) {
            keys.push(Key::LongPoll(index));
        }
        if fresh.long_waits > 0 || op.wait_age(sample.now) >= op.queue_wait_limit {
            keys.push(Key::Wait(index));
        }
        let pool = pool_of(op);
        if (fresh.dominated > 0 || op.queued_age(sample.now) >= op.queue_wait_limit) && !keys.contains(&pool) {
            keys.push(pool);
        }
    }
    keys
}

fn pool_of(op: &OpSample) -> Key {
    op.site.runtime.map_or(Key::Jobs(op.site.index), Key::Pool)
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
