//! Calls that wait for a thread of one pool: who holds its threads, who waits.

use super::{Key, Look, Toll, culprit, oldest_of, victim};
use crate::conduct::Conduct;
use crate::counted::Counted;
use crate::facts::RuntimeFacts;
use crate::incident::{Culprit, Victim};
use crate::judge::pool::{self, Nest, Pool};
use crate::judge::{Verdict, nanos};
use crate::lately::{Lately, Peak, Plus, Share};
use crate::sample::{OpSample, Sample, Site};
use std::collections::HashMap;

/// What has been seen of one op in a stretch of time.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// What has ended.
    counted: Counted,
    /// The threads that it held, summed over all looks; the most at one look; the longest that it held one.
    held: u64,
    most_held: u64,
    longest_held: u64,
}

impl Plus for Seen {
    fn plus(self, more: Self) -> Self {
        Self {
            counted: self.counted.plus(more.counted),
            held: self.held + more.held,
            most_held: self.most_held.max(more.most_held),
            longest_held: self.longest_held.max(more.longest_held),
        }
    }
}

/// The part of one op.
#[derive(Debug)]
struct Part {
    site: Site,
    /// What has ended in the whole episode: the totals are of this. The judgement is of what was seen lately.
    counted: Counted,
    lately: Lately<Seen>,
    /// Of how much time a thread that executes it had no CPU, and what it did.
    without_cpu: Lately<Share>,
    conduct: Lately<Conduct>,
    /// How many threads it holds at the last look, and for how long the oldest does.
    holds: u64,
    held_for: u64,
    /// When it was last seen to hold any.
    held_at: u64,
    /// What of it waits at the last look, and for how long the oldest does.
    waiting: u64,
    age: u64,
    /// It may wait for however long, so that it is nobody's victim.
    may_wait: bool,
    /// What the op has counted since the process started.
    history: Counted,
    nested: u64,
    nested_in: Option<u32>,
    nested_made: bool,
}

/// The calls of one pool.
#[derive(Debug, Default)]
pub(super) struct Calls {
    parts: HashMap<u32, Part>,
    /// The most that was seen to wait at one look, and the longest.
    most_waiting: u64,
    longest_wait: u64,
    /// Workers of the runtime stood still for too long while all of this was so.
    workers_stuck: bool,
    /// How long the observer's own call waited at the longest.
    canary: Option<u64>,
    /// Jobs of other ops that execute outside of any runtime, perhaps on the same pool.
    other_jobs: Peak,
    /// In how many looks calls waited, and in how many of those a watched call held a thread.
    covered: Lately<Share>,
}

impl Calls {
    pub(super) fn see(&mut self, look: &Look<'_>) -> Toll {
        if look.turns {
            self.other_jobs.turn();
            self.covered.turn();
            for part in self.parts.values_mut() {
                part.lately.turn();
                part.without_cpu.turn();
                part.conduct.turn();
            }
        }
        let (mut waiting, mut held, mut other_jobs, mut news) = (0, 0, 0, false);
        for (op, fresh) in look.ops() {
            match look.key {
                Key::Jobs(of) if of == op.site.index => {}
                Key::Pool(of) if op.site.runtime == Some(of) => {}
                Key::Jobs(_) if op.site.runtime.is_none() => {
                    other_jobs += op.executing;
                    continue;
                }
                _ => continue,
            }
            news |= fresh.ended > 0;
            if let Some(part) = self.see_op(op, fresh, look.sample) {
                (waiting, held) = (waiting + part.0, held + part.1);
            }
        }
        for thread in &look.sample.threads {
            if let Some(part) = self.parts.get_mut(&thread.op) {
                part.without_cpu.add(thread.without_cpu);
                part.conduct.add(thread.conduct);
            }
        }
        self.other_jobs.see(other_jobs);
        self.most_waiting = self.most_waiting.max(waiting);
        let runtime = runtime_of(look);
        let canary = look.facts.runtime(runtime).and_then(|runtime| runtime.last.canary);
        self.canary = self.canary.max(canary);
        let stuck = |runtime: &RuntimeFacts| {
            let limit = look.sample.long_poll_limit;
            !runtime.last.current_thread && runtime.last.frozen.iter().any(|frozen| look.age(frozen.since) >= limit)
        };
        self.workers_stuck |= look.facts.runtime(runtime).is_some_and(stuck);
        if waiting > 0 || look.facts.runtime(runtime).is_some_and(|runtime| runtime.last.canary_waits) {
            self.covered.add(Share { part: u64::from(held > 0), of: 1 });
        }
        self.toll(canary, news)
    }

    /// Takes in one op. Returns how many of it wait and how many execute; none where it has no part in it.
    fn see_op(&mut self, op: &OpSample, fresh: Counted, sample: &Sample) -> Option<(u64, u64)> {
        let index = op.site.index;
        let (holds, held_for) = oldest_of(&sample.executions, index, sample.now);
        let age = op.queued_age(sample.now);
        if holds == 0 && op.queued == 0 && fresh.is_nothing() && !self.parts.contains_key(&index) {
            return None;
        }
        let part = self.parts.entry(index).or_insert_with(|| Part::new(op.site));
        part.counted = part.counted.plus(fresh);
        part.lately.add(Seen { counted: fresh, held: holds, most_held: holds, longest_held: held_for });
        (part.holds, part.held_for, part.waiting, part.age) = (holds, held_for, op.queued, age);
        if holds > 0 {
            part.held_at = sample.now;
        }
        (part.history, part.may_wait) = (op.counted, op.queue_wait_limit == u64::MAX);
        (part.nested, part.nested_in, part.nested_made) = (op.nested_now, op.nested_in, op.nested_made);
        self.longest_wait = self.longest_wait.max(age);
        Some((op.queued, holds))
    }

    fn toll(&self, canary: Option<u64>, news: bool) -> Toll {
        let sum = self
            .parts
            .values()
            .map(Part::delayed)
            .fold((0, 0_u64), |sum, part| (sum.0 + part.0, sum.1.saturating_add(part.1)));
        let longest = self.parts.values().map(|part| part.age).max().unwrap_or(0);
        // Where nobody that is watched waits, the observer's own call stands for those that do.
        let (calls, delay) = if sum.0 == 0 { (1, self.canary.unwrap_or(0)) } else { sum };
        Toll { calls, delay, longest: longest.max(canary.filter(|_| sum.0 == 0).unwrap_or(0)), news }
    }
}

impl Part {
    fn new(site: Site) -> Self {
        Self {
            site,
            counted: Counted::default(),
            lately: Lately::default(),
            without_cpu: Lately::default(),
            conduct: Lately::default(),
            holds: 0,
            held_for: 0,
            held_at: 0,
            waiting: 0,
            age: 0,
            may_wait: false,
            history: Counted::default(),
            nested: 0,
            nested_in: None,
            nested_made: false,
        }
    }

    /// How many of it have waited too long, or do, and for how long: what has ended, and the oldest of what has not.
    fn delayed(&self) -> (u64, u64) {
        let (waiting, age) = if self.may_wait { (0, 0) } else { (self.waiting, self.age) };
        (self.counted.dominated + waiting, self.counted.dominated_wait.saturating_add(age))
    }

    fn never_ended(&self) -> bool {
        self.history.ended == 0 && self.holds > 0
    }
}

fn runtime_of(look: &Look<'_>) -> Option<tokio::runtime::Id> {
    match look.key {
        Key::Pool(runtime) => Some(runtime),
        _ => None,
    }
}

/// Whoever held the threads for less than one such part of the time is not at fault.
const PASSED_BY: u64 = 20;
/// A wait that began so much later than those who hold the threads has nothing to do with what those wait for.
const LATER: u64 = 1_000_000_000;

impl Calls {
    pub(super) fn judge(&self, look: &Look<'_>) -> Option<(Option<Site>, Verdict)> {
        let mut holders: Vec<(&Part, Seen)> = self.parts.values().map(|part| (part, part.lately.recent())).collect();
        let counted = holders.iter().fold(Counted::default(), |sum, (_, seen)| sum.plus(seen.counted));
        // Who holds threads now, or, between two calls, lately.
        let held_now = self.is_held_now(&holders, look);
        holders.retain(|(part, seen)| if held_now { part.holds > 0 } else { seen.held > 0 });
        let held: u64 = holders.iter().map(|(_, seen)| seen.held).sum();
        // Who had so small a part in it only passed by.
        holders.retain(|(_, seen)| seen.held * PASSED_BY >= held);
        // Who has never given one back holds it for good.
        holders.sort_by_key(|(_, seen)| std::cmp::Reverse((seen.held, seen.longest_held)));
        let mut waiters: Vec<&Part> = self.parts.values().filter(|part| part.delayed().0 > 0).collect();
        waiters.sort_by_key(|part| std::cmp::Reverse(part.delayed().1));

        let culprits: Vec<Culprit> = holders
            .iter()
            .map(|(part, seen)| {
                let share = seen.held as f64 / held.max(1) as f64;
                culprit(&part.site, "occupant", seen.most_held, seen.longest_held, Some(share))
            })
            .collect();
        let victims: Vec<Victim> = waiters
            .iter()
            .map(|part| {
                let (calls, delay) = part.delayed();
                victim(&part.site, calls, delay)
            })
            .collect();
        let pool = self.pool(look, holders.first().map(|(first, _)| *first), counted);
        let (verdict, of_holder) = pool::judge(culprits, victims, &pool);
        // Who is not found at fault is not named for it: then it is the one that waits.
        let named = verdict.culprits.first().and_then(|first| {
            self.parts.values().find(|part| part.site.name == first.op && part.site.location == first.location)
        });
        let holder = named.map(|part| part.site).filter(|_| of_holder);
        let waiter = waiters.first().map(|part| part.site).filter(|_| verdict.culprits.is_empty() || !of_holder);
        Some((holder.or(waiter).or(named.map(|part| part.site)), verdict))
    }

    /// Whether the threads are held by those at fault even now. Not where it is the turn of those that waited, and somebody
    /// who has let go of the threads had held them for longer, and has made those wait that still do.
    fn is_held_now(&self, holders: &[(&Part, Seen)], look: &Look<'_>) -> bool {
        let oldest = self.parts.values().filter(|part| part.waiting > 0).map(|part| part.age).max();
        let made_wait = |part: &Part| oldest.is_none_or(|oldest| look.age(part.held_at) < oldest);
        let (now, mut before): (Vec<_>, Vec<_>) = holders.iter().partition(|(part, _)| part.holds > 0);
        before.retain(|(part, _)| made_wait(part));
        let most = |of: &[(&Part, Seen)]| of.iter().map(|(_, seen)| seen.held).max().unwrap_or(0);
        let turn_of_waiters = now.iter().all(|(part, _)| part.delayed().0 > 0) && most(&before) > most(&now);
        !now.is_empty() && !turn_of_waiters
    }

    fn pool(&self, look: &Look<'_>, first: Option<&Part>, counted: Counted) -> Pool {
        let runtime = look.facts.runtime(runtime_of(look)).map(|runtime| &runtime.last);
        let covered = self.covered.recent();
        let nested: u64 = self.parts.values().map(|part| part.nested).sum();
        let lost = || self.parts.values().filter(|part| part.never_ended());
        let waiting_since = self.parts.values().filter(|part| part.waiting > 0).map(|part| part.age).max();
        let waits_for_own =
            |first: &Part| self.parts.values().any(|part| part.waiting > 0 && part.site.index == first.site.index);
        let crowd = match look.key {
            Key::Pool(runtime) => look.facts.crowd((Some(runtime), 0)),
            Key::Jobs(op) => look.facts.crowd((None, op)),
            _ => Default::default(),
        };
        let canary = self.canary;
        Pool {
            waiting: self.parts.values().map(|part| part.waiting).sum(),
            age: nanos(self.parts.values().map(|part| part.age).max().unwrap_or(0)),
            most_waiting: self.most_waiting,
            longest_wait: nanos(self.longest_wait.max(canary.unwrap_or(0))),
            executing: self.parts.values().map(|part| part.holds).sum(),
            crowd,
            cap: runtime.and_then(|runtime| runtime.cap),
            threads: runtime.and_then(|runtime| runtime.pool_threads),
            idle: runtime.and_then(|runtime| runtime.pool_idle),
            refused: runtime.and_then(|runtime| runtime.refused),
            canary: canary.map(nanos),
            overtaken: runtime.is_some_and(|runtime| {
                let since = waiting_since.map(|age| look.sample.now.saturating_sub(age));
                runtime.canary_passed.zip(since).is_some_and(|(sent, since)| sent > since)
            }),
            uncovered: covered.part * 2 < covered.of,
            other_jobs: self.other_jobs.recent(),
            counted,
            history: first.map_or_else(Counted::default, |first| first.history),
            nested,
            nest: self.nest(look.sample),
            made_inside: self.parts.values().any(|part| part.waiting > 0 && part.history.made_inside > 0),
            came_later: first.is_some_and(|first| {
                let began_before = waiting_since.is_some_and(|age| first.held_for.saturating_sub(age) >= LATER);
                began_before && !waits_for_own(first)
            }),
            lost: lost().map(|part| part.holds).sum(),
            lost_for: nanos(lost().map(|part| part.held_for).min().unwrap_or(0)),
            lost_after: nanos(look.facts.stretch * 2),
            conduct: first.map(|first| first.conduct.recent()).unwrap_or_default(),
            workers_stuck: self.workers_stuck,
            without_cpu: first.map(|first| first.without_cpu.recent()).unwrap_or_default(),
            machine: look.facts.machine.recent(),
            cpus: look.facts.cpus,
            enough: crowd.enough,
            waits_inside: self.waits_inside(look),
            unwrapped: look.captures.unwrapped(),
        }
    }

    /// The calls that a thread of this pool waits for.
    fn nest(&self, sample: &Sample) -> Option<Nest> {
        let inner = self.parts.values().filter(|part| part.nested > 0).max_by_key(|part| part.nested)?;
        let outer = inner.nested_in.and_then(|outer| sample.op(outer))?;
        let (count, oldest) = oldest_of(&sample.executions, outer.site.index, sample.now);
        Some(Nest {
            outer: culprit(&outer.site, "submitter", count, oldest, None),
            inner: inner.site.name,
            inner_location: inner.site.location,
            made_inside: inner.nested_made,
        })
    }

    /// An op whose long waits pass on threads that hold this pool.
    fn waits_inside(&self, look: &Look<'_>) -> Option<&'static str> {
        let waits = look.facts.ops.iter().filter(|op| op.counted.recent().long_waits > 0 || op.wait_age.recent() > 0);
        waits
            .filter_map(|op| Some((op.site.name, look.sample.op(op.site.index)?.waiter?)))
            .find(|(_, waiter)| self.parts.get(waiter).is_some_and(|part| part.holds > 0))
            .map(|(name, _)| name)
    }
}
