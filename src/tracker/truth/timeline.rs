//! A process as a test tells it, and what an observer that looks every 5 ms sees of it.
//!
//! Times are in milliseconds from now on, or for how long; time passes only in [`Timeline::pass`] and its like.

use super::poll::{Does, Poll};
use super::station::{Station, Work};
use crate::conduct::{Asleep, Conduct};
use crate::counted::Counted;
use crate::evidence::CpuTime;
use crate::incident::{Diagnosis, IncidentChange, State};
use crate::judge;
use crate::lately::Share;
use crate::pool_thread::OpThread;
use crate::sample::{Frozen, Held, Machine, OpSample, RuntimeSample, Sample, Site, Stop};
use crate::tracker::Tracker;
use std::panic::Location;
use std::sync::LazyLock;
use tokio::runtime;

pub(super) const MS: u64 = 1_000_000;
pub(super) const NEVER: u64 = u64::MAX;
pub(super) const CPUS: u64 = 2;
const LOOK: u64 = 5 * MS;
const WINDOW: u64 = 10_000 * MS;
/// How often the machine is asked.
const WITNESSED: u64 = 1_000 * MS;

pub(super) struct Timeline {
    pub(super) tracker: Tracker,
    pub(super) sample: Sample,
    pub(super) changes: Vec<IncidentChange>,
    pub(super) stations: Vec<Station>,
    /// What a test says of the runtimes beside what follows from their polls and calls.
    pub(super) runtimes: Vec<RuntimeSample>,
    /// No worker of any is ever parked.
    pub(super) crowded: bool,
    /// Workers that have nothing to do have not run so far.
    pub(super) unstarted: bool,
    pub(super) machine: Machine,
    /// A thread that serves what is watched is without a CPU for so many percent of the time.
    pub(super) short: u64,
    polls: Vec<Poll>,
}

/// Tokio has no other way to come by the id of a runtime than to make one; without a driver it needs nothing.
static IDS: LazyLock<[runtime::Id; 3]> = LazyLock::new(|| {
    std::array::from_fn(|_| {
        let Ok(runtime) = runtime::Builder::new_current_thread().build() else { panic!("it needs nothing") };
        runtime.handle().id()
    })
});

/// A worker of which nobody knows anything.
const UNSTARTED: Frozen = Frozen {
    worker: 0,
    since: 0,
    seen_since: 0,
    started: false,
    one_poll: None,
    one_sleep: None,
    conduct: None,
    whom: None,
};

pub(in crate::tracker) fn op_sample(index: u32, name: &'static str, runtime: Option<usize>) -> OpSample {
    OpSample {
        site: Site { index, name, location: Location::caller(), runtime: runtime.map(|at| IDS[at]) },
        long_poll_limit: 25 * MS,
        queue_wait_limit: 50 * MS,
        executing: 0,
        queued: 0,
        oldest_queued: None,
        waits: 0,
        oldest_wait: None,
        oldest_woken: None,
        counted: Counted::default(),
        poll_time: None,
        stirred: 0,
        is_read: true,
        without_cpu: 0,
        behind: 0,
        observed: false,
        ended_conduct: Conduct::default(),
        nested_now: 0,
        nested_in: None,
        nested_made: false,
        caller: None,
        late_behind: None,
        waiter: None,
        holder: None,
    }
}

pub(super) fn runtime_sample(at: usize, workers: u64) -> RuntimeSample {
    let beat_late = Some(0);
    RuntimeSample { runtime: Some(IDS[at]), workers, parked: workers, beat_late, ..RuntimeSample::default() }
}

impl Timeline {
    /// A machine of two CPUs that has little to do.
    pub(super) fn new() -> Self {
        let (long_poll_limit, queue_wait_limit) = (25 * MS, 50 * MS);
        let sample = Sample { now: MS, cpus: CPUS, long_poll_limit, queue_wait_limit, ..Sample::default() };
        let (idle, own) = (Some(WITNESSED * CPUS * 8 / 10), Some(WITNESSED * CPUS / 10));
        Self {
            tracker: Tracker::new(0, 0, LOOK, WINDOW),
            sample,
            changes: Vec::new(),
            stations: Vec::new(),
            runtimes: Vec::new(),
            crowded: false,
            unstarted: false,
            machine: Machine { of: WITNESSED, idle, own, ..Machine::default() },
            short: 0,
            polls: Vec::new(),
        }
    }

    /// A runtime of so many workers; of none, it runs on the thread that calls `block_on`.
    pub(super) fn runtime(&mut self, workers: u64) -> usize {
        let at = self.runtimes.len();
        self.runtimes.push(RuntimeSample { current_thread: workers == 0, ..runtime_sample(at, workers.max(1)) });
        at
    }

    /// Its blocking pool of so many threads. The observer knows that number where `hooks` told it: see `runtimes`.
    pub(super) fn pool(&mut self, runtime: usize, size: usize) -> usize {
        self.stations.push(Station::pool(size, Some(runtime)));
        self.stations.len() - 1
    }

    /// The same, and its size is known.
    pub(super) fn known_pool(&mut self, runtime: usize, size: usize) -> usize {
        self.runtimes[runtime].cap = Some(size as u64);
        self.pool(runtime, size)
    }

    /// Something of which there are so many to be handed out.
    pub(super) fn permits(&mut self, many: usize) -> usize {
        self.stations.push(Station::handing_out(many));
        self.stations.len() - 1
    }

    /// An op of a runtime; of none, a job of somebody else's pool.
    pub(super) fn op(&mut self, name: &'static str, runtime: impl Into<Option<usize>>) -> usize {
        let at = self.sample.ops.len();
        self.sample.ops.push(op_sample(at as u32, name, runtime.into()));
        at
    }

    /// So many calls of an op.
    pub(super) fn calls(&mut self, station: usize, op: usize, many: usize, work: Work) {
        for _ in 0..many {
            self.stations[station].ask(Some(op), None, work, self.sample.now, false);
        }
    }

    /// So many callers that call again whenever their call has ended.
    pub(super) fn keep_calling(&mut self, station: usize, op: usize, many: usize, work: Work) {
        for _ in 0..many {
            self.stations[station].ask(Some(op), None, work, self.sample.now, true);
        }
    }

    /// Calls that nobody wrapped.
    pub(super) fn hidden_calls(&mut self, station: usize, many: usize, work: Work) {
        for _ in 0..many {
            self.stations[station].ask(None, None, work, self.sample.now, true);
        }
    }

    /// A task waits for what is handed out, keeps it for so long and, `again`, asks for it once more.
    pub(super) fn asks(&mut self, station: usize, wait: Option<usize>, task: usize, keeps: u64, again: bool) {
        self.stations[station].ask(wait, Some(task), Work::Sleeps(keeps), self.sample.now, again);
    }

    /// A poll begins that takes so long.
    pub(super) fn poll(&mut self, runtime: usize, op: impl Into<Option<usize>>, millis: u64, does: Does) -> &mut Poll {
        let (since, at) = (self.sample.now, self.polls.len());
        let ends = since.saturating_add(millis.saturating_mul(MS));
        self.polls.push(Poll::new(op.into(), runtime, since, ends, does));
        &mut self.polls[at]
    }

    /// A task was woken and polled only so much later, behind a long poll of `behind`.
    pub(super) fn came_late(&mut self, op: usize, behind: Option<usize>, millis: u64) {
        let op = &mut self.sample.ops[op];
        op.counted.late_polls += 1;
        op.counted.late_poll_time += millis * MS;
        op.late_behind = behind.map(|at| at as u32);
    }

    /// Time passes, and is looked at.
    pub(super) fn pass(&mut self, millis: u64) {
        for _ in 0..millis / 5 {
            self.go_on(LOOK, 0, false);
        }
    }

    /// The observer waits for a CPU while all others go on.
    pub(super) fn be_late(&mut self, millis: u64) {
        let from = self.sample.now;
        self.sample.pauses.add(from, from + millis * MS);
        self.go_on(millis * MS, 0, true);
    }

    /// Nobody looks, as while the observer starts.
    pub(super) fn be_blind(&mut self, millis: u64) {
        self.go_on(millis * MS, 0, false);
    }

    /// The process does not run.
    pub(super) fn stop(&mut self, millis: u64) {
        let (from, to) = (self.sample.now, self.sample.now + millis * MS);
        self.sample.pauses.add(from, to);
        self.sample.stops.add(from, to);
        self.sample.stop.get_or_insert(Stop { from, to, cpu: Some(0), major_faults: Some(0), wanted: Some(0) });
        for station in &mut self.stations {
            station.stop(millis * MS);
        }
        for poll in &mut self.polls {
            poll.ends = poll.ends.saturating_add(millis * MS);
        }
        self.go_on(millis * MS, millis * MS, true);
        self.sample.stop = None;
    }

    /// Goes on for `by`, of which the process was stopped for `stopped`, and looks.
    fn go_on(&mut self, by: u64, stopped: u64, late: bool) {
        let sample = &mut self.sample;
        sample.previous = sample.now;
        sample.now += by;
        sample.late = late;
        sample.machine = None;
        sample.threads.clear();
        if sample.previous / WITNESSED != sample.now / WITNESSED {
            sample.machine = Some(self.machine);
        }
        self.show_shortage();
        self.show_calls(by);
        self.show_polls(by - stopped);
        self.show_runtimes();
        self.look();
    }

    pub(super) fn look(&mut self) {
        self.changes.extend(self.tracker.look(&self.sample));
    }

    fn show_shortage(&mut self) {
        const THREAD: u32 = 1;
        if self.short > 0 {
            let time = CpuTime { on_cpu: 0, waited: self.sample.now * self.short / 100, runnable: false, turns: 0 };
            self.sample.shortage.add(self.sample.now, vec![(THREAD, time)], vec![THREAD]);
        }
    }

    fn show_calls(&mut self, by: u64) {
        let sample = &mut self.sample;
        sample.executions.clear();
        for op in &mut sample.ops {
            (op.executing, op.queued, op.oldest_queued, op.nested_now) = (0, 0, None, 0);
            (op.waits, op.oldest_wait) = (0, None);
        }
        for station in &mut self.stations {
            station.run(sample.now, &mut sample.ops);
            station.show(&mut sample.ops, &mut sample.executions);
            for (op, on_cpu, waited) in station.sharing().into_iter().filter(|_| station.has_queue()) {
                let part = by * waited / 100;
                let conduct = Conduct::new(by, by * on_cpu / 100, part, Some(Asleep::Call("clock_nanosleep")));
                let op = sample.ops[op].site.index;
                sample.threads.push(OpThread { op, without_cpu: Share { part, of: by }, conduct });
            }
        }
        let pauses = &sample.pauses;
        for op in &mut sample.ops {
            for since in [&mut op.oldest_queued, &mut op.oldest_wait].into_iter().flatten() {
                *since = (*since + pauses.since(*since)).min(sample.now);
            }
        }
    }

    fn show_polls(&mut self, ran: u64) {
        let sample = &mut self.sample;
        let now = sample.now;
        sample.given_away.clear();
        sample.overdue.clear();
        for op in &mut sample.ops {
            (op.without_cpu, op.observed, op.ended_conduct) = (0, false, Conduct::default());
        }
        for poll in &mut self.polls {
            let Some(op) = poll.op.map(|op| &mut sample.ops[op]) else { continue };
            let limit = op.long_poll_limit;
            poll.waited += poll.does.without_cpu(ran.min(poll.ends.saturating_sub(sample.previous)));
            if poll.ends <= now {
                let took = poll.ends - poll.since;
                op.poll_time = Some(op.poll_time.unwrap_or(0) + took);
                op.observed |= poll.observed;
                op.without_cpu = op.without_cpu.max(poll.waited + sample.stops.since(poll.since));
                if took >= limit {
                    (op.counted.long_polls, op.counted.long_poll_time) =
                        (op.counted.long_polls + 1, op.counted.long_poll_time + took);
                    op.ended_conduct = poll.does.conduct(poll.ends.saturating_sub(poll.taken));
                }
                continue;
            }
            poll.observed |= now - poll.since >= limit / 4 && poll.does != Does::Unknown;
            // Where the kernel does not tell of the thread it may have fared as the observer did.
            let unknown = poll.does == Does::Unknown;
            let stopped = if unknown { sample.pauses.since(poll.since) } else { sample.stops.since(poll.since) };
            let since = (poll.since + poll.waited + stopped).min(now);
            if now - since < limit {
                continue;
            }
            if poll.given_away {
                sample.given_away.push(op.site.index);
                sample.given_at.insert(op.site.index, sample.now);
                continue;
            }
            let address = if let Does::Locks(address) = poll.does { address } else { 0 };
            let conduct = poll.does.conduct(now - poll.taken);
            poll.taken = now;
            let (steps, by_hand) = (poll.steps, poll.by_hand);
            sample.overdue.push(Held { conduct, address, steps, by_hand, ..Held::new(op.site.index, since) });
        }
        let ended: Vec<Poll> = self.polls.iter().filter(|poll| poll.ends <= now).copied().collect();
        for (op, (delayed, late)) in ended.iter().filter_map(|poll| Some((poll.op, poll.delays?))) {
            self.came_late(delayed, op, late);
        }
        self.polls.retain(|poll| poll.ends > now);
    }

    fn show_runtimes(&mut self) {
        let now = self.sample.now;
        let (stops, pauses) = (&self.sample.stops, &self.sample.pauses);
        let mut told = self.runtimes.clone();
        for (at, runtime) in told.iter_mut().enumerate() {
            let held: Vec<&Poll> = self.polls.iter().filter(|poll| poll.runtime == at && !poll.given_away).collect();
            let age = |poll: &Poll| now - (poll.since + poll.waited + stops.since(poll.since)).min(now);
            let busy = held.len() as u64;
            let free = runtime.workers.saturating_sub(busy);
            runtime.parked = if self.crowded || self.unstarted { 0 } else { free };
            runtime.frozen = (0..runtime.workers)
                .zip(&held)
                .map(|(worker, poll)| {
                    let conduct = (poll.does != Does::Unknown).then(|| poll.does.conduct(LOOK));
                    let since = now - age(poll);
                    let one_sleep = poll.does.sleeps_on().then_some(since);
                    let told = Frozen { worker, since, seen_since: since, started: true, ..UNSTARTED };
                    Frozen { one_sleep, conduct, ..told }
                })
                .collect();
            if self.unstarted {
                let rest = busy..runtime.workers;
                runtime.frozen.extend(rest.map(|worker| Frozen { worker, since: now, seen_since: now, ..UNSTARTED }));
            }
            // With the driver held, or with all workers, nobody sees that a timer is due.
            let holder = held.iter().filter(|poll| poll.holds_driver).map(|poll| age(poll)).max();
            let all = held.iter().map(|poll| age(poll)).min().filter(|_| busy >= runtime.workers);
            runtime.beat_late = runtime.beat_late.map(|late| late.max(holder.or(all).unwrap_or(0)));
            if let Some(pool) = self.stations.iter().find(|station| station.runtime == Some(at)) {
                let waits = pool.canary.pending.map(|sent| (now - sent).saturating_sub(pauses.since(sent)));
                runtime.canary = waits.or(pool.canary.last);
                runtime.canary_sent = pool.canary.pending;
                runtime.canary_waits = waits.is_some_and(|wait| wait >= 10 * MS);
                runtime.canary_passed = pool.canary.passed;
            }
        }
        self.sample.runtimes = told;
    }

    /// What a detector says when it is asked.
    pub(super) fn answer(&self) -> Diagnosis {
        let now = judge::nanos(self.sample.now);
        let mut incidents = self.tracker.incidents();
        incidents.retain(|incident| {
            let over = incident.opened_after + incident.duration + judge::nanos(WINDOW);
            incident.state == State::Open || over >= now
        });
        judge::diagnose(&incidents, || self.tracker.facts().clone())
    }
}
