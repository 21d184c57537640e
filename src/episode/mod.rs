//! One episode of starvation while it goes on: what it is about, how much has come together, what has been reported.

mod other;
mod poll;
mod pool;
mod wait;

use crate::counted::Counted;
use crate::facts::Facts;
use crate::incident::{Culprit, Incident, IncidentChange, State, Victim};
use crate::judge::table::{self, Scope};
use crate::judge::{Verdict, nanos};
use crate::sample::{Held, OpSample, Sample, Site};
use crate::stacks::{Captures, Place, StackGroup, Taken};
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
    /// Calls of an op that threads of their own pool wait for.
    Nested(u32),
    /// Threads that an op does not give back.
    Lost(u32),
    /// A branch that never gets its turn.
    Unfair(u32),
    /// Workers of a runtime that are stuck in what nobody wrapped.
    Workers(runtime::Id),
    /// A runtime that has more to do than it can.
    Overload(runtime::Id),
    /// The process, which did not run.
    Process,
    /// The machine, whose CPUs are short.
    Machine,
}

impl Key {
    /// Whether a late observer is a symptom of it, and no reason to doubt.
    pub(crate) fn is_of_all(self) -> bool {
        matches!(self, Self::Process | Self::Machine)
    }
}

/// A look, and what it means.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) key: Key,
    pub(crate) sample: &'a Sample,
    /// What each op of the sample has counted since the look before.
    pub(crate) fresh: &'a [Counted],
    pub(crate) facts: &'a Facts,
    /// The stacks that were taken of its threads.
    pub(crate) captures: &'a Captures,
    /// A new stretch of time begins.
    pub(crate) turns: bool,
}

impl Look<'_> {
    fn ops(&self) -> impl Iterator<Item = (&OpSample, Counted)> {
        self.sample.ops.iter().zip(self.fresh.iter().copied())
    }

    fn op(&self, index: u32) -> Option<(&OpSample, Counted)> {
        let at = self.sample.ops.binary_search_by_key(&index, |op| op.site.index).ok()?;
        Some((&self.sample.ops[at], self.fresh.get(at).copied()?))
    }

    fn age(&self, since: u64) -> u64 {
        self.sample.now.saturating_sub(since)
    }

    /// How long something that really began then has been going on, but for stops of the whole process.
    fn wall(&self, began: u64) -> u64 {
        self.age(began).saturating_sub(self.sample.stops.since(began))
    }
}

/// The id of an incident that is not reported because too many like it have been. It still counts in a diagnosis.
pub(crate) const UNREPORTED: u64 = 0;

/// How much has come together in an episode: calls, polls or waits, and the delay that they had.
#[derive(Debug, Clone, Copy, Default)]
struct Toll {
    calls: u64,
    delay: u64,
    /// How long the oldest of what is seen now has been going on.
    longest: u64,
    /// Something has ended that may change the verdict.
    news: bool,
}

/// What an episode of one kind keeps.
#[derive(Debug)]
enum Subject {
    Poll(poll::Polls),
    Pool(pool::Calls),
    Wait(wait::Waits),
    Other(other::Other),
}

/// One episode.
#[derive(Debug)]
pub(crate) struct Episode {
    key: Key,
    /// None where it is not reported.
    id: Option<u64>,
    opened: u64,
    /// When what it was opened for began.
    began: u64,
    /// The last look that saw it.
    pub(crate) seen: u64,
    subject: Subject,
    stretch: u64,
    turned: u64,
    latest: Option<(Option<Site>, Verdict)>,
    /// From the beginning of one episode of this kind to that of the next, where they come evenly.
    period: Option<u64>,
    delay: u64,
    calls: u64,
    looks: u64,
    /// Something has ended since it was judged.
    news: bool,
    reports: u64,
    reported_delay: u64,
    reported_as: Option<(crate::cause::Cause, Option<&'static str>)>,
    /// Calls of earlier episodes like this one that were not reported.
    carried: u64,
    /// The stacks of its threads.
    captures: Captures,
    groups: Arc<[StackGroup]>,
}

/// Judged at every so many looks, beside the first ones: a verdict takes some microseconds to put into words.
const JUDGED_EVERY: u64 = 8;
const JUDGED_WITH_NEWS: u64 = 4;
const JUDGED_FIRST: u64 = 16;

impl Episode {
    pub(crate) fn new(key: Key, id: Option<u64>, now: u64, carried: u64, stretch: u64) -> Self {
        let subject = match key {
            Key::LongPoll(op) => Subject::Poll(poll::Polls::new(op)),
            Key::Pool(_) | Key::Jobs(_) => Subject::Pool(pool::Calls::default()),
            Key::Wait(op) => Subject::Wait(wait::Waits::new(op)),
            _ => Subject::Other(other::Other::default()),
        };
        Self {
            key,
            id,
            opened: now,
            began: now,
            seen: now,
            subject,
            stretch,
            turned: now,
            latest: None,
            period: None,
            delay: 0,
            calls: 0,
            looks: 0,
            news: false,
            reports: 0,
            reported_delay: 0,
            reported_as: None,
            carried,
            captures: Captures::default(),
            groups: Arc::new([]),
        }
    }

    pub(crate) fn is_reported(&self) -> bool {
        self.id.is_some()
    }

    /// How many polls, calls or waits are part of it.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    /// Episodes of this kind come at this period.
    pub(crate) fn recurs(&mut self, period: Option<u64>) {
        self.period = period.or(self.period);
    }

    /// What it is found to be, as far as it is.
    pub(crate) fn cause(&self) -> Option<crate::cause::Cause> {
        self.latest.as_ref().map(|(_, verdict)| verdict.cause)
    }

    /// A look shows the episode. `fresh` is what each op of the sample has counted since the look before.
    pub(crate) fn see(&mut self, sample: &Sample, fresh: &[Counted], facts: &Facts) {
        self.seen = sample.now;
        self.looks += 1;
        let turns = sample.now.saturating_sub(self.turned) >= self.stretch;
        if turns {
            self.turned = sample.now;
        }
        self.take_stacks(sample);
        let look = Look { key: self.key, sample, fresh, facts, captures: &self.captures, turns };
        let toll = match &mut self.subject {
            Subject::Poll(polls) => polls.see(&look),
            Subject::Pool(calls) => calls.see(&look),
            Subject::Wait(waits) => waits.see(&look),
            Subject::Other(other) => other.see(&look),
        };
        // What waits may leave uncounted, aborted or shorter than it ran: the totals do not shrink for that.
        self.calls = self.calls.max(toll.calls);
        self.delay = self.delay.max(toll.delay);
        self.news |= toll.news;
        let every = if self.news { JUDGED_WITH_NEWS } else { JUDGED_EVERY };
        if self.looks <= JUDGED_FIRST || self.looks.is_multiple_of(every) {
            self.news = false;
            self.judge(sample, fresh, facts);
        }
        if self.reports == 0 {
            // The delay of the first look is that of the oldest, or of what has ended: an average has to do.
            let average = self.delay / self.calls.max(1);
            self.began = self.seen.saturating_sub(average.max(toll.longest));
        }
    }

    /// Something has ended that has not been judged.
    pub(crate) fn has_news(&self) -> bool {
        self.news
    }

    /// What it has left behind shows only now, and so may stacks of its threads.
    pub(crate) fn judge_again(&mut self, sample: &Sample, fresh: &[Counted], facts: &Facts) {
        self.news = false;
        self.take_stacks(sample);
        self.judge(sample, fresh, facts);
    }

    /// Judges what has been seen lately.
    fn judge(&mut self, sample: &Sample, fresh: &[Counted], facts: &Facts) {
        let look = Look { key: self.key, sample, fresh, facts, captures: &self.captures, turns: false };
        self.latest = match &self.subject {
            Subject::Poll(polls) => polls.judge(&look, self.calls),
            Subject::Pool(calls) => calls.judge(&look),
            Subject::Wait(waits) => waits.judge(&look, self.calls),
            Subject::Other(other) => other.judge(&look),
        }
        .or(self.latest.take());
        let index_of = |culprit: &Culprit| {
            let is_it = |op: &&OpSample| op.site.name == culprit.op && op.site.location == culprit.location;
            sample.ops.iter().find(is_it).map(|op| op.site.index)
        };
        for culprit in self.latest.iter_mut().flat_map(|(_, verdict)| &mut verdict.culprits) {
            culprit.stack = index_of(culprit).and_then(|op| self.captures.lines(op));
        }
    }

    /// Takes in the stacks of its threads that have come since the last look.
    fn take_stacks(&mut self, sample: &Sample) {
        let of_it = |taken: &&Taken| concerns(self.key, taken.place, sample);
        let mut any = false;
        for taken in sample.stacks.iter().filter(of_it) {
            self.captures.add(taken);
            any = true;
        }
        if any {
            self.groups = self.captures.groups(|op| sample.op(op).map(|op| op.site.name)).into();
            self.news = true;
        }
    }

    /// What there is to report now: the opening, or that it has become twice as bad or clearer.
    pub(crate) fn report(
        &mut self,
        facts: &Facts,
        started: u64,
        others: &[crate::cause::Cause],
    ) -> Option<IncidentChange> {
        let judged = self.latest.as_ref().map(|(_, verdict)| (verdict.cause, verdict.detail));
        let twice = self.delay >= self.reported_delay.saturating_mul(2) && self.delay > 0;
        if self.reports > 0 && !twice && judged == self.reported_as {
            return None;
        }
        let first = self.reports == 0;
        self.reports += 1;
        self.reported_delay = self.delay;
        self.reported_as = judged;
        let incident = self.id.and_then(|_| self.incident(facts, started, State::Open, others))?;
        Some(if first { IncidentChange::Opened(incident) } else { IncidentChange::Updated(incident) })
    }

    /// The runtime that the episode is about.
    fn runtime(&self, site: Option<&Site>) -> Option<runtime::Id> {
        match self.key {
            Key::Pool(runtime) | Key::Workers(runtime) | Key::Overload(runtime) => Some(runtime),
            Key::Process | Key::Machine => None,
            _ => site.and_then(|site| site.runtime),
        }
    }

    /// The episode as a report has it, without an id where it is not reported. `others` are the causes of the other open
    /// ones.
    pub(crate) fn incident(
        &self,
        facts: &Facts,
        started: u64,
        state: State,
        others: &[crate::cause::Cause],
    ) -> Option<Arc<Incident>> {
        let id = self.id.unwrap_or(UNREPORTED);
        let (site, verdict) = self.latest.as_ref()?;
        let runtime = self.runtime(site.as_ref());
        let mut verdict = verdict.clone();
        verdict.period = verdict.period.or(self.period.map(nanos));
        let harmless = verdict.harmless;
        // Calls are made on a pool, polls on workers: of the same runtime, where it is known.
        let scope = Scope { facts, runtime, convicted: (verdict.cause, &verdict.evidence), others };
        let (suspects, phases) = (table::suspects(&scope), table::phases(&facts.counted(runtime)));
        let diagnosis = verdict.told(nanos(facts.elapsed()), suspects, phases);
        Some(Arc::new(Incident {
            id,
            state,
            opened_after: Duration::from_nanos(self.opened.saturating_sub(started)),
            duration: Duration::from_nanos(self.seen.saturating_sub(self.began)),
            cause: diagnosis.cause,
            detail: diagnosis.detail,
            op: site.map(|site| site.name),
            location: site.map(|site| site.location),
            runtime: runtime.and_then(crate::op::runtime_number),
            calls: self.calls,
            delay: Duration::from_nanos(self.delay),
            suppressed: self.carried + self.calls.saturating_sub(1),
            harmless,
            stacks: Arc::clone(&self.groups),
            no_stack: self.captures.failed(),
            diagnosis,
        }))
    }
}

/// Whether a thread that is stuck there is part of what an episode is about.
pub(crate) fn concerns(key: Key, place: Place, sample: &Sample) -> bool {
    let runtime_of = |op: u32| sample.op(op).and_then(|op| op.site.runtime);
    match (key, place) {
        (Key::LongPoll(of), Place::Poll(op)) => of == op,
        (Key::Pool(of), Place::Execution(op)) => runtime_of(op) == Some(of),
        (Key::Jobs(of) | Key::Lost(of), Place::Execution(op)) => of == op,
        (Key::Nested(inner), Place::Execution(op)) => sample.op(inner).is_some_and(|inner| inner.nested_in == Some(op)),
        (Key::Workers(of), Place::Worker(runtime)) | (Key::Pool(of), Place::Pool(runtime)) => of == runtime,
        _ => false,
    }
}

/// How many of an op there are, and the age of the oldest.
fn oldest_of(held: &[Held], op: u32, now: u64) -> (u64, u64) {
    held.iter()
        .filter(|held| held.op == op)
        .fold((0, 0), |(count, age), held| (count + 1, age.max(now.saturating_sub(held.since))))
}

fn culprit(site: &Site, role: &'static str, count: u64, oldest: u64, share: Option<f64>) -> Culprit {
    Culprit { op: site.name, location: site.location, role, count, oldest: nanos(oldest), share, stack: None }
}

fn victim(site: &Site, calls: u64, delay: u64) -> Victim {
    Victim { op: site.name, location: site.location, calls, delay: nanos(delay) }
}
