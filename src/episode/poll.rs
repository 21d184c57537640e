//! Polls of one op that go on for too long.

use super::{Key, Look, Toll, culprit, oldest_of, victim};
use crate::conduct::{Conduct, Manner};
use crate::incident::Victim;
use crate::judge::poll::{self, Around};
use crate::judge::{self, Verdict};
use crate::lately::{Lately, Peak};
use crate::sample::{Held, Site};
use crate::stacks::Place;
use std::collections::HashMap;

/// So many are told that wait for the same lock.
const SHARERS: usize = 3;

#[derive(Debug)]
pub(super) struct Polls {
    op: u32,
    site: Option<Site>,
    ended: u64,
    ended_time: u64,
    /// How many go on at the last look, and for how long the oldest does.
    now: u64,
    age: u64,
    /// The most at once and the longest, lately.
    most: Peak,
    longest: Peak,
    /// The same with the time in which their threads, or those that they wait for, had no CPU: as a clock on the wall has it.
    wall: u64,
    longest_wall: Peak,
    conduct: Lately<Conduct>,
    /// Inside one of these polls those of other watched futures came and went.
    steps: bool,
    /// One of them held its worker, for certain.
    held_worker: bool,
    around: Around,
    /// Who waited behind them: how often, and for how long.
    victims: HashMap<u32, (Site, u64, u64)>,
}

impl Polls {
    pub(super) fn new(op: u32) -> Self {
        Self {
            op,
            site: None,
            ended: 0,
            ended_time: 0,
            now: 0,
            age: 0,
            most: Peak::default(),
            longest: Peak::default(),
            wall: 0,
            longest_wall: Peak::default(),
            conduct: Lately::default(),
            steps: false,
            held_worker: false,
            around: Around { spared: true, ..Around::default() },
            victims: HashMap::new(),
        }
    }

    pub(super) fn see(&mut self, look: &Look<'_>) -> Toll {
        if look.turns {
            self.most.turn();
            self.longest.turn();
            self.longest_wall.turn();
            self.conduct.turn();
        }
        if let Some((op, fresh)) = look.op(self.op) {
            self.site = Some(op.site);
            self.ended += fresh.long_polls;
            self.ended_time += fresh.long_poll_time;
            self.conduct.add(op.ended_conduct);
        }
        (self.now, self.age) = oldest_of(&look.sample.overdue, self.op, look.sample.now);
        self.most.see(self.now);
        self.longest.see(self.age);
        let own = look.sample.overdue.iter().filter(|held| held.op == self.op);
        self.wall = own.map(|held| look.wall(held.began)).max().unwrap_or(0);
        self.longest_wall.see(self.wall);
        for held in look.sample.overdue.iter().filter(|held| held.op == self.op) {
            self.conduct.add(held.conduct);
            self.steps |= held.steps;
            self.around.by_hand |= held.by_hand;
            self.around.root |= held.root;
        }
        self.held_worker |= self.is_worker_held(look);
        for (op, fresh) in look.ops().filter(|(op, fresh)| fresh.late_polls > 0 && op.late_behind == Some(self.op)) {
            let (_, calls, delay) = self.victims.entry(op.site.index).or_insert((op.site, 0, 0));
            *calls += fresh.late_polls;
            *delay += fresh.late_poll_time;
        }
        if self.now > 0 {
            self.look_around(look);
        }
        Toll {
            calls: self.ended + self.now,
            delay: self.ended_time.saturating_add(self.wall),
            longest: self.age,
            news: self.now == 0,
        }
    }

    /// Whether any of them is seen to hold its worker now, or has until a moment ago.
    fn is_worker_held(&self, look: &Look<'_>) -> bool {
        let (Some((op, fresh)), sample) = (look.op(self.op), look.sample) else { return false };
        let seen = look.facts.runtime(op.site.runtime).map(|facts| &facts.last);
        if self.held_worker || seen.is_none_or(|seen| seen.workers == 0 || seen.current_thread) {
            return true;
        }
        let held = |began: u64, age: u64| sample.held_worker(began, age, op.long_poll_limit);
        let own = sample.overdue.iter().filter(|held| held.op == self.op);
        let average = fresh.long_poll_time.checked_div(fresh.long_polls);
        own.map(|poll| poll.began).any(|began| held(began, look.age(began)))
            || average.is_some_and(|age| held(sample.previous.saturating_sub(age), age))
    }

    /// What else goes on while these polls do.
    fn look_around(&mut self, look: &Look<'_>) {
        let runtime = self.site.and_then(|site| site.runtime);
        // Of its own, each for itself: one may hold the lock that the others wait for.
        let locked = |held: &&Held| match held.op == self.op {
            true => self.now > 1 && held.conduct.manner() == Some(Manner::Locked),
            false => look.facts.op(held.op).is_some_and(|op| op.conduct.recent().manner() == Some(Manner::Locked)),
        };
        let on_it = |op: u32| look.sample.op(op).is_some_and(|op| op.site.runtime == runtime);
        let stuck = look.sample.overdue.iter().filter(|held| on_it(held.op)).count() as u64;
        self.around.stuck = self.around.stuck.max(stuck);
        see_runtime(&mut self.around, look, runtime);
        let others_locked = look.sample.overdue.iter().filter(|held| on_it(held.op)).filter(locked).count() as u64;
        self.around.others_locked = self.around.others_locked.max(others_locked);
        let addresses: Vec<u64> = look.sample.overdue.iter().map(|held| held.address).filter(|at| *at != 0).collect();
        let own = look.sample.overdue.iter().filter(|held| held.op == self.op && held.address != 0);
        let same = own.map(|held| addresses.iter().filter(|at| **at == held.address).count() as u64).max();
        self.around.same_address = self.around.same_address.max(same.unwrap_or(0));
        self.around.others |= look.sample.overdue.len() > 1 || !look.sample.executions.is_empty();
    }

    pub(super) fn judge(&self, look: &Look<'_>, calls: u64) -> Option<(Option<Site>, Verdict)> {
        let site = self.site?;
        let mut victims: Vec<Victim> =
            self.victims.values().map(|(site, calls, delay)| victim(site, *calls, *delay)).collect();
        victims.sort_by_key(|victim| std::cmp::Reverse(victim.delay));
        let polls = poll::Polls {
            culprits: vec![culprit(&site, "poller", self.most.recent(), self.longest_wall.recent(), None)],
            victims,
            calls,
            now: self.now,
            age: self.age,
            longest: self.longest.recent(),
            wall: self.wall,
            conduct: self.conduct.recent(),
            length: self.age.max(self.ended_time / self.ended.max(1)),
            steps: self.steps,
            limit: look.op(self.op).map_or(0, |(op, _)| op.long_poll_limit),
            around: Around {
                short: look.facts.is_short_of_cpu(),
                gives_away: look.sample.given_at.contains_key(&self.op),
                untaken: !self.held_worker,
                ..self.around
            },
            stack: stack_of(look),
        };
        Some((Some(site), judge::poll::judge(polls)))
    }
}

/// What the stacks of the threads of such polls say.
pub(super) fn stack_of(look: &Look<'_>) -> poll::Stack {
    let captures = look.captures;
    let (asleep, computing) = (captures.told(true), captures.told(false));
    poll::Stack { asleep, computing, places: captures.places(), sharers: sharers(look) }
}

/// What else waits for the lock that the told place is at.
pub(super) fn sharers(look: &Look<'_>) -> Vec<String> {
    let Some(lock) = look.captures.lock() else { return Vec::new() };
    let mut sharers = Vec::new();
    for (place, told) in look.facts.locks.others(lock, |place| super::concerns(look.key, place, look.sample)) {
        let name = match place {
            Place::Poll(op) | Place::Execution(op) => look.sample.op(op).map(|op| op.site.name),
            Place::Worker(_) | Place::Pool(_) => None,
        };
        let sharer = name.map_or_else(|| format!("what is at {told}"), |name| format!("`{name}` at {told}"));
        if !sharers.contains(&sharer) && sharers.len() < SHARERS {
            sharers.push(sharer);
        }
    }
    sharers
}

/// Takes in what is seen of the runtime that polls are made on.
pub(super) fn see_runtime(around: &mut Around, look: &Look<'_>, runtime: Option<tokio::runtime::Id>) {
    let Some(seen) = look.facts.runtime(runtime).map(|facts| &facts.last) else {
        around.spared = false;
        return;
    };
    around.workers = seen.workers;
    // Workers that have only just been made have not parked yet, most of all where CPUs are short.
    let fresh = seen.frozen.iter().filter(|frozen| !frozen.started).count() as u64;
    let is_free = seen.parked > 0 || fresh > around.stuck.max(1);
    around.spared &= is_free && seen.depth == 0 && !seen.current_thread;
    around.current_thread = seen.current_thread;
    around.parked = around.parked.max(seen.parked);
    around.beat_late = around.beat_late.max(seen.beat_late.unwrap_or(0));
    around.depth = around.depth.max(seen.depth);
    let executing: u64 = look.sample.ops.iter().filter(|op| op.site.runtime == runtime).map(|op| op.executing).sum();
    around.pool_full |= seen.cap.is_some_and(|cap| executing >= cap) || seen.canary_waits && look.key != Key::Machine;
}
