//! Episodes that are about no single poll, wait or queue: nested calls, threads that are not given back, branches without
//! a turn, stuck or crowded workers, the process and the machine.

use super::{Key, Look, Toll, culprit, oldest_of, poll, victim};
use crate::conduct::Conduct;
use crate::incident::Victim;
use crate::judge::poll::{Around, Polls};
use crate::judge::pool::{self, Nest};
use crate::judge::{self, Verdict, machine, wait, workers};
use crate::lately::Lately;
use crate::sample::{Excused, Frozen, Site, Stop};
use std::collections::HashMap;
use tokio::runtime;

#[derive(Debug, Default)]
pub(super) struct Other {
    calls: u64,
    delay: u64,
    /// Of so many it is known that their own threads had no CPU.
    read: u64,
    /// How long the oldest of what is seen now has been going on; the longest of all.
    now: u64,
    age: u64,
    longest: u64,
    /// How long the oldest has been going on with the time in which its thread had no CPU.
    wall: u64,
    /// The longest that the process was stopped.
    stop: Option<Stop>,
    conduct: Lately<Conduct>,
    around: Around,
    /// Who waited: how often, and for how long.
    victims: HashMap<u32, (Site, u64, u64)>,
}

impl Other {
    pub(super) fn see(&mut self, look: &Look<'_>) -> Toll {
        if look.turns {
            self.conduct.turn();
        }
        (self.now, self.age) = (0, 0);
        match look.key {
            Key::Nested(op) => self.calls += look.op(op).map_or(0, |(_, fresh)| fresh.nested),
            Key::Lost(op) => {
                (self.now, self.age) = oldest_of(&look.sample.executions, op, look.sample.now);
                self.calls = self.calls.max(self.now);
            }
            Key::Unfair(op) => {
                if let Some((op, fresh)) = look.op(op) {
                    self.calls = (self.calls + fresh.unpolled).max(1);
                    self.age = op.woken_age(look.sample.now);
                    self.delay = self.delay.max(self.age);
                }
            }
            Key::Workers(runtime) => self.see_workers(look, runtime),
            Key::Overload(runtime) => self.see_overload(look, runtime),
            Key::Process => {
                if let Some(stop) = look.sample.stop {
                    self.calls += 1;
                    self.age = stop.to - stop.from;
                    self.delay += self.age;
                    if self.age >= self.longest {
                        self.stop = Some(stop);
                    }
                }
            }
            Key::Machine => {
                let excused = look.facts.excused.recent();
                if excused.count >= self.calls {
                    (self.calls, self.read) = (excused.count, excused.read);
                }
                self.delay = self.delay.max(excused.time);
            }
            _ => {}
        }
        self.longest = self.longest.max(self.age);
        Toll { calls: self.calls, delay: self.delay.max(self.waiting()), longest: self.age, news: false }
    }

    fn waiting(&self) -> u64 {
        self.victims.values().map(|(_, _, delay)| *delay).sum()
    }

    fn see_workers(&mut self, look: &Look<'_>, runtime: runtime::Id) {
        poll::see_runtime(&mut self.around, look, Some(runtime));
        let Some(seen) = look.facts.runtime(Some(runtime)) else { return };
        let is_stuck = |frozen: &Frozen| look.age(frozen.since) >= look.sample.long_poll_limit;
        let stuck = look.sample.stuck_unwrapped(&seen.last, is_stuck);
        self.now = stuck.len() as u64;
        self.age = stuck.iter().map(|frozen| look.age(frozen.since)).max().unwrap_or(0);
        self.around.stuck = self.around.stuck.max(self.now);
        self.calls = self.calls.max(self.now);
        self.wall = stuck.iter().map(|frozen| look.wall(frozen.seen_since)).max().unwrap_or(0);
        self.delay = self.delay.max(self.wall);
        for conduct in stuck.iter().filter_map(|frozen| frozen.conduct) {
            self.conduct.add(conduct);
        }
    }

    fn see_overload(&mut self, look: &Look<'_>, runtime: runtime::Id) {
        for (op, fresh) in look.ops().filter(|(op, fresh)| fresh.late_polls > 0 && op.site.runtime == Some(runtime)) {
            let (_, calls, delay) = self.victims.entry(op.site.index).or_insert((op.site, 0, 0));
            *calls += fresh.late_polls;
            *delay += fresh.late_poll_time;
            self.calls += fresh.late_polls;
            self.age = self.age.max(fresh.late_poll_time / fresh.late_polls);
        }
        let probe = look.facts.runtime(Some(runtime)).and_then(|runtime| runtime.last.probe).unwrap_or(0);
        self.age = self.age.max(probe);
        self.delay = self.delay.max(probe);
        self.calls = self.calls.max(1);
    }

    fn told_victims(&self) -> Vec<Victim> {
        let mut victims: Vec<Victim> =
            self.victims.values().map(|(site, calls, delay)| victim(site, *calls, *delay)).collect();
        victims.sort_by_key(|victim| std::cmp::Reverse(victim.delay));
        victims
    }

    pub(super) fn judge(&self, look: &Look<'_>) -> Option<(Option<Site>, Verdict)> {
        match look.key {
            Key::Nested(op) => self.judge_nested(look, op),
            Key::Lost(op) => {
                let (site, cap) = (look.op(op)?.0.site, cap_of(look, op));
                Some((Some(site), pool::leaking(culprit(&site, "occupant", self.now.max(1), self.longest, None), cap)))
            }
            Key::Unfair(op) => {
                let facts = look.facts.op(op)?;
                let since = judge::nanos(look.age(facts.unpolled_since));
                let woken = Some(self.age).filter(|age| *age > 0);
                let oldest = woken.unwrap_or(look.age(facts.unpolled_since));
                let branch = culprit(&facts.site, "resource", 1, oldest, None);
                let verdict = wait::never_asked(branch, woken.map(judge::nanos), facts.unpolled, since);
                Some((Some(facts.site), verdict))
            }
            Key::Workers(_) => {
                let polls = Polls {
                    calls: self.calls,
                    now: self.now,
                    age: self.age,
                    longest: self.longest,
                    wall: self.wall,
                    conduct: self.conduct.recent(),
                    limit: look.sample.long_poll_limit,
                    around: Around { short: look.facts.is_short_of_cpu(), ..self.around },
                    stack: poll::stack_of(look),
                    ..Polls::default()
                };
                Some((None, judge::poll::judge(polls)))
            }
            Key::Overload(runtime) => {
                let runtime = look.facts.runtime(Some(runtime));
                Some((None, workers::overloaded(runtime, self.told_victims(), self.calls, self.longest)))
            }
            Key::Process => Some((None, machine::paused(look.facts, self.stop?, self.calls))),
            Key::Machine => {
                let excused = Excused { count: self.calls, time: self.delay, read: self.read };
                Some((None, machine::contention(look.facts, excused)))
            }
            _ => None,
        }
    }

    fn judge_nested(&self, look: &Look<'_>, op: u32) -> Option<(Option<Site>, Verdict)> {
        let inner = look.op(op)?.0;
        let outer = look.sample.op(inner.nested_in?)?;
        let (count, oldest) = oldest_of(&look.sample.executions, outer.site.index, look.sample.now);
        let nest = Nest {
            outer: culprit(&outer.site, "submitter", count.max(1), oldest, None),
            inner: inner.site.name,
            inner_location: inner.site.location,
            made_inside: inner.nested_made,
        };
        let victims = vec![victim(&inner.site, self.calls, inner.queued_age(look.sample.now))];
        Some((Some(outer.site), nest.warn(victims, self.calls, cap_of(look, op))))
    }
}

fn cap_of(look: &Look<'_>, op: u32) -> Option<u64> {
    look.facts.runtime(look.op(op)?.0.site.runtime)?.last.cap
}
