//! One episode of starvation while it goes on: who holds what, who waits, how much has come together.

use crate::incident::{Culprit, Diagnosis, Incident, IncidentChange, State, Victim};
use crate::judge;
use crate::peak::{Crowd, Peak};
use crate::pool::{self, Pool};
use crate::sample::{Counted, Held, OpSample, Sample, Site};
use crate::suspect::Share;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime;

/// What an episode is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    LongPoll(u32),
    /// The blocking pool of a runtime.
    Pool(runtime::Id),
    /// Whatever pool runs the jobs of one op.
    Jobs(u32),
    Wait(u32),
}

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

impl Seen {
    fn plus(self, more: Self) -> Self {
        Self {
            counted: self.counted.plus(more.counted),
            held: self.held + more.held,
            most_held: self.most_held.max(more.most_held),
            longest_held: self.longest_held.max(more.longest_held),
        }
    }
}

/// The part of one op in an episode.
#[derive(Debug)]
struct Part {
    site: Site,
    /// What has ended in the whole episode: the totals are of this.
    counted: Counted,
    /// In this stretch of time, and in the one before: the judgement is of these.
    now: Seen,
    before: Seen,
    /// How many threads it holds at the last look.
    holds: u64,
    /// What of it waits at the last look, and for how long the oldest does.
    waiting: u64,
    age: u64,
    /// What the op has counted since the process started.
    history: Counted,
}

/// One episode.
#[derive(Debug)]
pub(crate) struct Episode {
    /// None where it is not reported.
    id: Option<u64>,
    opened: u64,
    /// When what it was opened for began.
    began: u64,
    /// The last look that saw it.
    pub(crate) seen: u64,
    parts: HashMap<u32, Part>,
    /// The most that was seen to wait at one look, and the longest.
    most_waiting: u64,
    longest_wait: u64,
    /// Of how much time a thread that executes calls had no CPU, in this stretch of time and in the one before.
    without_cpu: [Share; 2],
    /// Jobs of other ops that execute outside of any runtime, perhaps on the same pool.
    other_jobs: Peak,
    /// In how many looks calls waited, and in how many of those a watched call held a thread; this stretch and the last.
    looks: [(u64, u64); 2],
    cpus: u64,
    /// How long such a stretch is, and when this one began.
    stretch: u64,
    turned: u64,
    latest: Option<(Site, Diagnosis)>,
    delay: u64,
    calls: u64,
    reports: u64,
    reported_delay: u64,
    reported_as: Option<(crate::cause::Cause, Option<&'static str>)>,
    /// Calls of earlier episodes like this one that were not reported.
    carried: u64,
}

impl Episode {
    pub(crate) fn new(id: Option<u64>, now: u64, carried: u64, stretch: u64) -> Self {
        Self {
            id,
            opened: now,
            began: now,
            seen: now,
            parts: HashMap::new(),
            most_waiting: 0,
            longest_wait: 0,
            without_cpu: [Share::default(); 2],
            other_jobs: Peak::default(),
            looks: [(0, 0); 2],
            cpus: 1,
            stretch,
            turned: now,
            latest: None,
            delay: 0,
            calls: 0,
            reports: 0,
            reported_delay: 0,
            reported_as: None,
            carried,
        }
    }

    /// How many polls, calls or waits are part of it.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    /// A look shows the episode; `fresh` is what each op of the sample has counted since the look before, `crowd` how many
    /// calls its pool has had lately.
    pub(crate) fn see(&mut self, key: Key, sample: &Sample, fresh: &[Counted], crowd: Crowd) {
        self.seen = sample.now;
        self.cpus = sample.cpus;
        self.turn(sample.now);
        self.without_cpu[0] = self.without_cpu[0].plus(sample.without_cpu);
        let (mut all_waiting, mut all_held, mut other_jobs) = (0, 0, 0);
        for (op, fresh) in sample.ops.iter().zip(fresh) {
            let index = op.site.index;
            let (held, waiting) = match key {
                Key::LongPoll(of) if of == index => (oldest_of(&sample.overdue, index, sample.now), (0, 0)),
                Key::Wait(of) if of == index => ((0, 0), (op.waits, op.wait_age(sample.now))),
                Key::Jobs(of) if of == index => in_pool(op, sample),
                Key::Pool(of) if op.site.runtime == Some(of) => in_pool(op, sample),
                Key::Jobs(_) if op.site.runtime.is_none() => {
                    other_jobs += op.executing;
                    continue;
                }
                _ => continue,
            };
            let idle = held.0 == 0 && waiting.0 == 0 && fresh.is_nothing();
            if idle && !self.parts.contains_key(&index) {
                continue;
            }
            let part = self.parts.entry(index).or_insert_with(|| Part::new(op.site));
            part.counted = part.counted.plus(*fresh);
            let (count, longest) = held;
            let seen = Seen { counted: *fresh, held: count, most_held: count, longest_held: longest };
            part.now = part.now.plus(seen);
            part.holds = count;
            part.history = op.counted;
            // Who blocks a worker is the one that is delayed, too.
            (part.waiting, part.age) = if matches!(key, Key::LongPoll(_)) { held } else { waiting };
            all_waiting += part.waiting;
            all_held += count;
            self.longest_wait = self.longest_wait.max(part.age);
        }
        self.most_waiting = self.most_waiting.max(all_waiting);
        self.other_jobs.see(other_jobs);
        if all_waiting > 0 {
            self.looks[0].0 += 1;
            self.looks[0].1 += u64::from(all_held > 0);
        }
        self.conclude(key, crowd);
        if self.reports == 0 {
            // The delay of the first look is that of the oldest, or of what has ended: an average has to do.
            self.began = self
                .seen
                .saturating_sub(self.delay / self.calls.max(1))
                .min(self.seen.saturating_sub(self.longest_wait));
        }
    }

    /// Begins a new stretch of time when it is time to.
    fn turn(&mut self, now: u64) {
        if now.saturating_sub(self.turned) < self.stretch {
            return;
        }
        self.turned = now;
        self.without_cpu = [Share::default(), self.without_cpu[0]];
        self.other_jobs.turn();
        self.looks = [(0, 0), self.looks[0]];
        for part in self.parts.values_mut() {
            part.before = std::mem::take(&mut part.now);
        }
    }
}

impl Part {
    fn new(site: Site) -> Self {
        let counted = Counted::default();
        let (now, before) = (Seen::default(), Seen::default());
        Self { site, counted, now, before, holds: 0, waiting: 0, age: 0, history: counted }
    }

    /// What has been seen of it lately.
    fn recent(&self) -> Seen {
        self.now.plus(self.before)
    }

    /// How many of it have waited too long, or do, and for how long: what has ended, and the oldest of what has not.
    fn delayed(&self, key: Key) -> (u64, u64) {
        let Counted { long_polls, long_poll_time, long_waits, long_wait_time, dominated, dominated_wait, .. } =
            self.counted;
        let (calls, delay) = match key {
            Key::LongPoll(_) => (long_polls, long_poll_time),
            Key::Wait(_) => (long_waits, long_wait_time),
            Key::Pool(_) | Key::Jobs(_) => (dominated, dominated_wait),
        };
        (calls + self.waiting, delay.saturating_add(self.age))
    }

    fn culprit(&self, role: &'static str, count: u64, oldest: u64, share: Option<f64>) -> Culprit {
        let (op, location) = (self.site.name, self.site.location);
        Culprit { op, location, role, count, oldest: Duration::from_nanos(oldest), share }
    }
}

impl Episode {
    /// Judges what has been seen lately.
    fn conclude(&mut self, key: Key, crowd: Crowd) {
        let (calls, delay) = self
            .parts
            .values()
            .map(|part| part.delayed(key))
            .fold((0, 0_u64), |(calls, delay), part| (calls + part.0, delay.saturating_add(part.1)));
        // What waits may leave uncounted, aborted or shorter than it ran: the totals do not shrink for that.
        self.calls = self.calls.max(calls);
        self.delay = self.delay.max(delay);
        self.latest = match key {
            Key::LongPoll(op) => self.parts.get(&op).map(|part| {
                let Seen { most_held, longest_held, .. } = part.recent();
                let culprit = part.culprit("poller", most_held, longest_held, None);
                (part.site, judge::long_poll(culprit, calls, part.waiting))
            }),
            Key::Wait(op) => self.parts.get(&op).map(|part| {
                let culprit = part.culprit("resource", self.most_waiting, self.longest_wait, None);
                (part.site, judge::wait(culprit, calls, part.waiting))
            }),
            Key::Pool(_) | Key::Jobs(_) => self.conclude_pool(key, crowd),
        };
    }

    fn conclude_pool(&self, key: Key, crowd: Crowd) -> Option<(Site, Diagnosis)> {
        let mut holders: Vec<(&Part, Seen)> = self.parts.values().map(|part| (part, part.recent())).collect();
        let counted = holders.iter().fold(Counted::default(), |sum, (_, seen)| sum.plus(seen.counted));
        // Who holds threads now, or, between two calls, lately.
        let held_now = holders.iter().any(|(part, _)| part.holds > 0);
        holders.retain(|(part, seen)| if held_now { part.holds > 0 } else { seen.held > 0 });
        let held: u64 = holders.iter().map(|(_, seen)| seen.held).sum();
        holders.sort_by_key(|(_, seen)| std::cmp::Reverse((seen.held, seen.longest_held)));
        let mut waiters: Vec<&Part> = self.parts.values().filter(|part| part.delayed(key).0 > 0).collect();
        waiters.sort_by_key(|part| std::cmp::Reverse(part.delayed(key).1));

        let culprits = holders
            .iter()
            .map(|(part, seen)| {
                let share = seen.held as f64 / held as f64;
                part.culprit("occupant", seen.most_held, seen.longest_held, Some(share))
            })
            .collect();
        let victims = waiters
            .iter()
            .map(|part| {
                let (calls, delay) = part.delayed(key);
                Victim { op: part.site.name, location: part.site.location, calls, delay: Duration::from_nanos(delay) }
            })
            .collect();
        let (waited, covered) = (self.looks[0].0 + self.looks[1].0, self.looks[0].1 + self.looks[1].1);
        let pool = Pool {
            waiting: self.parts.values().map(|part| part.waiting).sum(),
            age: Duration::from_nanos(self.parts.values().map(|part| part.age).max().unwrap_or(0)),
            most_waiting: self.most_waiting,
            longest_wait: Duration::from_nanos(self.longest_wait),
            crowd,
            other_jobs: self.other_jobs.recent(),
            counted,
            history: holders.first().map_or_else(Counted::default, |(first, _)| first.history),
            without_cpu: self.without_cpu[0].plus(self.without_cpu[1]),
            cpus: self.cpus,
            uncovered: covered * 2 < waited,
        };
        let (diagnosis, of_holder) = pool::judge(culprits, victims, &pool);
        // Who is not found at fault is not named for it: then it is the one that waits.
        let holder = holders.first().map(|(part, _)| part.site).filter(|_| of_holder);
        let site = holder.or(waiters.first().map(|part| part.site)).or(holders.first().map(|(part, _)| part.site))?;
        Some((site, diagnosis))
    }

    /// What there is to report now: the opening, or that it has become twice as bad or clearer.
    pub(crate) fn report(&mut self, started: u64) -> Option<IncidentChange> {
        let judged = self.latest.as_ref().map(|(_, diagnosis)| (diagnosis.cause, diagnosis.detail));
        let twice = self.delay >= self.reported_delay.saturating_mul(2);
        if self.reports > 0 && !twice && judged == self.reported_as {
            return None;
        }
        let first = self.reports == 0;
        self.reports += 1;
        self.reported_delay = self.delay;
        self.reported_as = judged;
        let incident = self.incident(started, State::Open)?;
        Some(if first { IncidentChange::Opened(incident) } else { IncidentChange::Updated(incident) })
    }

    /// The episode as a report has it; none where it is not reported.
    pub(crate) fn incident(&self, started: u64, state: State) -> Option<Arc<Incident>> {
        let (site, diagnosis) = self.latest.as_ref()?;
        Some(Arc::new(Incident {
            id: self.id?,
            state,
            opened_after: Duration::from_nanos(self.opened.saturating_sub(started)),
            duration: Duration::from_nanos(self.seen.saturating_sub(self.began)),
            cause: diagnosis.cause,
            detail: diagnosis.detail,
            op: site.name,
            location: site.location,
            runtime: site.runtime.and_then(crate::op::runtime_number),
            calls: self.calls,
            delay: Duration::from_nanos(self.delay),
            suppressed: self.carried + self.calls.saturating_sub(1),
            diagnosis: diagnosis.clone(),
        }))
    }
}

/// What an op holds of its pool's threads, and what of it waits for one.
fn in_pool(op: &OpSample, sample: &Sample) -> ((u64, u64), (u64, u64)) {
    let held = oldest_of(&sample.executions, op.site.index, sample.now);
    (held, (op.queued, op.queued_age(sample.now)))
}

/// How many of an op there are, and the age of the oldest.
fn oldest_of(held: &[Held], op: u32, now: u64) -> (u64, u64) {
    held.iter()
        .filter(|held| held.op == op)
        .fold((0, 0), |(count, age), held| (count + 1, age.max(now.saturating_sub(held.since))))
}
