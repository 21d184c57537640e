//! What the recent past shows of the whole process: the numbers that convict one suspect and clear the others.
//!
//! Pure: looks in, plain figures out. Two stretches of half a window each are kept, so that the figures are of at least
//! half a window and at most a whole one.

use crate::burst::Busy;
use crate::conduct::Conduct;
use crate::counted::Counted;
use crate::lately::{Lately, Peak, Plus, Share};
use crate::replay::{Growth, Level, Replay};
use crate::sample::{Excused, Machine, OpSample, RuntimeSample, Sample, Site, Stop};
use crate::stacks::Locks;
use crate::trips::Trips;
use std::collections::{HashMap, VecDeque};
use tokio::runtime;

/// So many pools are remembered whatever they do.
const POOLS: usize = 64;
/// So many stops are remembered, to tell whether they come evenly.
const STOPS: usize = 32;
/// So many calls are its first.
const EARLY: u64 = 24;

/// One op, lately.
#[derive(Debug, Clone)]
pub(crate) struct OpFacts {
    pub(crate) site: Site,
    pub(crate) counted: Lately<Counted>,
    /// What it has counted since the process started.
    pub(crate) history: Counted,
    /// What it had counted when its first calls had ended: how it used to be, where there is no longer past to compare with.
    pub(crate) early: Counted,
    pub(crate) queued_age: Peak,
    pub(crate) wait_age: Peak,
    pub(crate) executing: Peak,
    /// How long a poll or an execution of it has been seen to go on.
    pub(crate) poll_age: Peak,
    pub(crate) execution_age: Peak,
    /// What the threads of its overdue polls did.
    pub(crate) conduct: Lately<Conduct>,
    busy: Busy,
    /// Since when waits of it have been dropped unpolled and none has been polled; 0 where that is not so.
    pub(crate) unpolled_since: u64,
    pub(crate) unpolled: u64,
    growth: Growth,
}

/// One runtime, lately.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuntimeFacts {
    pub(crate) last: RuntimeSample,
    /// In how many looks none of its workers was parked.
    pub(crate) full: Lately<Share>,
    pub(crate) frozen: Peak,
    /// How late its timers were, how long the observer's calls and tasks waited; meaningless where they are not known.
    pub(crate) beat_late: Peak,
    pub(crate) canary: Peak,
    pub(crate) probe: Peak,
    pub(crate) depth: Peak,
    /// Small trips of its pool's threads.
    pub(crate) trips: Lately<Trips>,
    /// For how many looks in a row tasks have been waiting in the shared queue while no worker was parked.
    pub(crate) crowded: u64,
    /// Since when, and in how many, all looks have found none of its workers parked.
    pub(crate) full_since: Option<u64>,
    pub(crate) full_looks: u64,
}

/// Of a runtime, or of one op outside of any.
type PoolKey = (Option<runtime::Id>, u32);

/// The calls of a pool.
#[derive(Debug, Clone)]
struct Pool {
    /// How many execute at once.
    executing: Peak,
    replay: Replay,
}

/// How many calls a pool has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Crowd {
    /// Executing at once.
    pub(crate) executing: Peak,
    /// So many threads would have been enough for each to start when it came; 0 where that is not known.
    pub(crate) enough: u64,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// The time of the last look, and how long a stretch is.
    pub(crate) now: u64,
    pub(crate) stretch: u64,
    /// Since when the figures are.
    pub(crate) since: u64,
    since_before: u64,
    pub(crate) cpus: u64,
    pub(crate) ops: Vec<OpFacts>,
    pub(crate) runtimes: Vec<RuntimeFacts>,
    /// The calls of each pool: of a runtime, or of one op outside of any.
    pools: HashMap<PoolKey, Pool>,
    /// Looks, and those that came late.
    pub(crate) looks: Lately<Share>,
    /// How long the observer was kept from running, and how long of that the process was stopped.
    pub(crate) paused: Lately<u64>,
    pub(crate) stopped: Lately<u64>,
    paused_sum: u64,
    pub(crate) last_stop: Option<Stop>,
    /// From when to when the last ones lasted: an episode can have many.
    pub(crate) stops: VecDeque<(u64, u64)>,
    /// An op whose calls were executing all through that stop.
    pub(crate) coincides: Option<Site>,
    /// An op that makes up at once for what it missed in that stop.
    pub(crate) burst: Option<Site>,
    pub(crate) excused: Lately<Excused>,
    pub(crate) machine: Lately<Machine>,
    /// Who was found waiting for locks.
    pub(crate) locks: Locks,
}

impl Facts {
    /// `window` is how much of the past a judgement rests on.
    pub(crate) fn new(started: u64, window: u64) -> Self {
        let stretch = (window / 2).max(1);
        Self { now: started, stretch, since: started, since_before: started, cpus: 1, ..Self::default() }
    }

    /// Whether threads of this process have wanted a CPU lately and had none, or it has not run at all: then what a thread does
    /// that nobody saw may be nothing.
    pub(crate) fn is_short_of_cpu(&self) -> bool {
        /// So many percent of the time.
        const SHORT: u64 = 5;
        let lost = Share { part: self.paused.recent(), of: self.elapsed() };
        self.excused.recent().count > 0 || lost.is_at_least(SHORT)
    }

    /// Takes in a look. `fresh` is what each op of it has counted since the one before.
    pub(crate) fn see(&mut self, sample: &Sample, fresh: &[Counted], excused: Excused) {
        if sample.now / self.stretch != sample.previous / self.stretch {
            self.turn(sample.previous);
        }
        let previous = std::mem::replace(&mut self.now, sample.now);
        self.cpus = sample.cpus;
        self.looks.add(Share { part: u64::from(sample.late), of: 1 });
        self.excused.add(excused);
        let paused = sample.pauses.since(0);
        self.paused.add(paused.saturating_sub(self.paused_sum));
        self.paused_sum = paused;
        if let Some(stop) = sample.stop {
            self.stopped.add(stop.to - stop.from);
            self.last_stop = Some(stop);
            if stop.to - stop.from >= sample.queue_wait_limit {
                self.stops.truncate(STOPS - 1);
                self.stops.push_front((stop.from, stop.to));
            }
            self.burst = None;
            self.coincides = coincides(sample, fresh, stop);
        }
        if let Some(machine) = sample.machine {
            self.machine.add(machine);
        }
        sample.stacks.iter().for_each(|taken| self.locks.see(taken));
        if !self.locks.is_empty() {
            self.locks.keep(|tid, since| sample.is_stuck(tid, since));
        }
        let mut pools: HashMap<_, (Level, Vec<(u32, u64)>)> = HashMap::new();
        for (op, fresh) in sample.ops.iter().zip(fresh).filter(|(op, _)| op.is_read) {
            let arrived = self.see_op(op, *fresh, sample.now);
            if op.queued + op.executing + arrived > 0 {
                let (level, new) = pools.entry(pool_of(&op.site)).or_default();
                level.queued += op.queued;
                level.executing += op.executing;
                new.push((op.site.index, arrived));
            }
        }
        for held in &sample.overdue {
            self.with(held.op, |op| {
                op.poll_age.see(sample.now.saturating_sub(held.since));
                op.conduct.add(held.conduct);
            });
        }
        for held in &sample.executions {
            self.with(held.op, |op| op.execution_age.see(sample.now.saturating_sub(held.since)));
        }
        self.see_pools(pools, previous);
        self.see_runtimes(&sample.runtimes);
    }

    fn turn(&mut self, at: u64) {
        (self.since, self.since_before) = (self.since_before, at);
        for op in &mut self.ops {
            op.counted.turn();
            op.conduct.turn();
            let ages = [&mut op.queued_age, &mut op.wait_age, &mut op.poll_age, &mut op.execution_age];
            ages.into_iter().chain([&mut op.executing]).for_each(Peak::turn);
        }
        for runtime in &mut self.runtimes {
            runtime.full.turn();
            runtime.trips.turn();
            let lateness = [&mut runtime.frozen, &mut runtime.beat_late, &mut runtime.canary, &mut runtime.probe];
            lateness.into_iter().chain([&mut runtime.depth]).for_each(Peak::turn);
        }
        self.pools.values_mut().for_each(|pool| pool.executing.turn());
        // A program may make runtimes without end: of pools that do nothing only some are remembered.
        if self.pools.len() > POOLS {
            self.pools.retain(|_, pool| pool.executing.recent() > 0);
        }
        self.looks.turn();
        self.paused.turn();
        self.stopped.turn();
        self.excused.turn();
        self.machine.turn();
    }

    fn with(&mut self, index: u32, see: impl FnOnce(&mut OpFacts)) {
        if let Ok(at) = self.ops.binary_search_by_key(&index, |op| op.site.index) {
            see(&mut self.ops[at]);
        }
    }

    /// Returns how many of its calls came since the last look.
    fn see_op(&mut self, op: &OpSample, fresh: Counted, now: u64) -> u64 {
        let at = match self.ops.binary_search_by_key(&op.site.index, |known| known.site.index) {
            Ok(at) => at,
            Err(at) => {
                self.ops.insert(at, OpFacts::new(op.site));
                at
            }
        };
        let facts = &mut self.ops[at];
        if facts.busy.see(op, now, self.last_stop.map(|stop| stop.to)) {
            self.burst = Some(op.site);
        }
        facts.counted.add(fresh);
        facts.conduct.add(op.ended_conduct);
        facts.history = op.counted;
        if facts.early.ended < EARLY {
            facts.early = op.counted;
        }
        facts.queued_age.see(op.queued_age(now));
        facts.wait_age.see(op.wait_age(now));
        facts.executing.see(op.executing);
        let there = op.queued + op.executing;
        let arrived = facts.growth.see(op.counted.ended + there, fresh.ended + there);
        if fresh.wait_time > 0 || op.waits > 0 {
            (facts.unpolled_since, facts.unpolled) = (0, 0);
        } else if fresh.unpolled > 0 {
            if facts.unpolled_since == 0 {
                facts.unpolled_since = now;
            }
            facts.unpolled += fresh.unpolled;
        }
        arrived
    }

    /// Keeps what each pool had to do: an episode opens when the first of its calls may have ended already.
    fn see_pools(&mut self, mut levels: HashMap<PoolKey, (Level, Vec<(u32, u64)>)>, previous: u64) {
        let window = self.stretch * 2;
        for pool in levels.keys() {
            self.pools.entry(*pool).or_insert_with(|| Pool { executing: Peak::default(), replay: Replay::new(window) });
        }
        let ops = &self.ops;
        let mean = |op| {
            let op = ops.binary_search_by_key(&op, |op: &OpFacts| op.site.index).ok().map(|at| &ops[at])?;
            let mean = |counted: Counted| counted.execution_time.checked_div(counted.ended);
            mean(op.counted.recent()).or(mean(op.history))
        };
        for (at, pool) in &mut self.pools {
            let (level, new) = levels.remove(at).unwrap_or_default();
            pool.executing.see(level.executing);
            pool.replay.see(previous, self.now, level, new.into_iter());
            pool.replay.refresh(self.now, pool.executing.recent(), mean);
        }
    }

    fn see_runtimes(&mut self, runtimes: &[RuntimeSample]) {
        self.runtimes.retain(|known| runtimes.iter().any(|runtime| runtime.runtime == known.last.runtime));
        for runtime in runtimes {
            let at = match self.runtimes.iter().position(|known| known.last.runtime == runtime.runtime) {
                Some(at) => at,
                None => {
                    self.runtimes.push(RuntimeFacts::default());
                    self.runtimes.len() - 1
                }
            };
            self.runtimes[at].see(runtime, self.now);
        }
    }

    pub(crate) fn op(&self, index: u32) -> Option<&OpFacts> {
        self.ops.binary_search_by_key(&index, |op| op.site.index).ok().map(|at| &self.ops[at])
    }

    pub(crate) fn runtime(&self, id: Option<runtime::Id>) -> Option<&RuntimeFacts> {
        self.runtimes.iter().find(|runtime| id.is_some() && runtime.last.runtime == id)
    }

    pub(crate) fn crowd(&self, pool: (Option<runtime::Id>, u32)) -> Crowd {
        self.pools
            .get(&pool)
            .map_or_else(Crowd::default, |pool| Crowd { executing: pool.executing, enough: pool.replay.enough() })
    }

    /// How long the stretch of time is that the figures are of.
    pub(crate) fn elapsed(&self) -> u64 {
        self.now.saturating_sub(self.since).max(1)
    }

    /// What all ops, or those of one runtime, have counted lately.
    pub(crate) fn counted(&self, of: Option<runtime::Id>) -> Counted {
        let ops = self.ops.iter().filter(|op| of.is_none() || op.site.runtime == of);
        ops.fold(Counted::default(), |sum, op| sum.plus(op.counted.recent()))
    }
}

impl OpFacts {
    fn new(site: Site) -> Self {
        Self {
            site,
            counted: Lately::default(),
            history: Counted::default(),
            early: Counted::default(),
            queued_age: Peak::default(),
            wait_age: Peak::default(),
            executing: Peak::default(),
            poll_age: Peak::default(),
            execution_age: Peak::default(),
            conduct: Lately::default(),
            busy: Busy::default(),
            unpolled_since: 0,
            unpolled: 0,
            growth: Growth::default(),
        }
    }
}

impl RuntimeFacts {
    fn see(&mut self, runtime: &RuntimeSample, now: u64) {
        let full = runtime.is_full();
        self.full.add(Share { part: u64::from(full), of: 1 });
        self.frozen.see(runtime.frozen.iter().map(|frozen| now.saturating_sub(frozen.since)).max().unwrap_or(0));
        self.beat_late.see(runtime.beat_late.unwrap_or(0));
        self.canary.see(runtime.canary.unwrap_or(0));
        self.probe.see(runtime.probe.unwrap_or(0));
        self.depth.see(runtime.depth);
        self.trips.add(runtime.trips.unwrap_or_default());
        self.full_since = self.full_since.or(Some(now)).filter(|_| full);
        self.full_looks = if full { self.full_looks + 1 } else { 0 };
        self.crowded = if full && runtime.depth > 0 { self.crowded + 1 } else { 0 };
        self.last.clone_from(runtime);
    }
}

/// An op of which a call was executing all through a stop: of those that have ended just now, or go on.
fn coincides(sample: &Sample, fresh: &[Counted], stop: Stop) -> Option<Site> {
    let length = stop.to.saturating_sub(stop.from);
    let ended = sample.ops.iter().zip(fresh).find(|(_, fresh)| {
        fresh.execution_time.checked_div(fresh.ended).is_some_and(|mean| mean.saturating_mul(2) >= length)
    });
    let goes_on = || sample.executions.iter().find(|held| held.began <= stop.from).and_then(|held| sample.op(held.op));
    ended.map(|(op, _)| op).or_else(goes_on).map(|op| op.site)
}

/// The pool that the calls of a site run on: its runtime's, or one that is told apart by its op.
pub(crate) fn pool_of(site: &Site) -> (Option<runtime::Id>, u32) {
    (site.runtime, if site.runtime.is_some() { 0 } else { site.index })
}
