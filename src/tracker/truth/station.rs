//! Where callers queue: a pool of threads, or something that is handed out. First come, first served.

use super::timeline::{CPUS, MS, NEVER};
use crate::sample::{Held, OpSample};
use std::collections::VecDeque;

/// What a call does with its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It wants a CPU for so many milliseconds. Where more threads do so than there are CPUs it takes longer.
    Computes(u64),
    /// It sleeps for so many milliseconds.
    Sleeps(u64),
    /// It computes for so many milliseconds, and then sleeps.
    Both(u64, u64),
    /// It comes back from its sleep again and again, and never ends.
    Loops,
    /// It makes a call of this op that sleeps for so many milliseconds on the same pool, and waits for it.
    WaitsFor(usize, u64),
}

/// Who queues.
#[derive(Debug, Clone, Copy)]
struct Caller {
    /// The op of the call or of the wait; none where nobody wrapped it.
    op: Option<usize>,
    work: Work,
    since: u64,
    /// It calls again as soon as its call has ended.
    again: bool,
    /// The call that waits for this one, by the time it was started.
    outer: Option<(usize, u64)>,
    /// The op of the task that waits.
    task: Option<usize>,
    canary: bool,
}

/// Who has been served, and has not ended.
#[derive(Debug, Clone, Copy)]
struct Served {
    caller: Caller,
    since: u64,
    ends: u64,
    cpu: u64,
}

/// The observer's own calls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Canary {
    sent: u64,
    /// For how long nothing went on since.
    stopped: u64,
    pub(super) pending: Option<u64>,
    /// How long the last one waited, and when the last one was sent that did not have to.
    pub(super) last: Option<u64>,
    pub(super) passed: Option<u64>,
}

/// A place to queue.
#[derive(Debug)]
pub(super) struct Station {
    /// The runtime whose pool it is, by its number in the timeline.
    pub(super) runtime: Option<usize>,
    /// Who holds what is handed out here does not execute.
    hands_out: bool,
    /// Who waits for a call of its own pool did not make it.
    pub(super) made_outside: bool,
    size: usize,
    queue: VecDeque<Caller>,
    served: Vec<Served>,
    pub(super) canary: Canary,
    /// For so many percent of the time its threads are ready to run and have no CPU, beside what they take from each other.
    pub(super) without_cpu: u64,
}

impl Station {
    pub(super) fn pool(size: usize, runtime: Option<usize>) -> Self {
        let (queue, served, canary) = (VecDeque::new(), Vec::new(), Canary::default());
        Self { runtime, hands_out: false, made_outside: false, size, queue, served, canary, without_cpu: 0 }
    }

    pub(super) fn handing_out(size: usize) -> Self {
        Self { hands_out: true, ..Self::pool(size, None) }
    }

    /// A task waits for its turn, with the wait `op`, and then keeps what it got for as long as `work` says.
    pub(super) fn ask(&mut self, op: Option<usize>, task: Option<usize>, work: Work, at: u64, again: bool) {
        self.queue.push_back(Caller { op, work, since: at, again, outer: None, task, canary: false });
    }

    /// What happens up to `now`, in its order.
    pub(super) fn run(&mut self, now: u64, ops: &mut [OpSample]) {
        self.send_canary(now);
        loop {
            self.serve(ops);
            let next = (0..self.served.len()).min_by_key(|&at| self.served[at].ends);
            let Some(next) = next.filter(|&at| self.served[at].ends <= now) else { break };
            let served = self.served.swap_remove(next);
            self.end(served, ops);
        }
    }

    fn send_canary(&mut self, now: u64) {
        let calls = self.runtime.is_some() && !(self.queue.is_empty() && self.served.is_empty());
        if calls && self.canary.pending.is_none() && now >= self.canary.sent + 100 * MS {
            (self.canary.sent, self.canary.pending, self.canary.stopped) = (now, Some(now), 0);
            let (op, work, outer, task) = (None, Work::Sleeps(0), None, None);
            self.queue.push_back(Caller { op, work, since: now, again: false, outer, task, canary: true });
        }
    }

    /// Serves those in front as long as there is room. Whoever came when there was room was served then.
    fn serve(&mut self, ops: &mut [OpSample]) {
        while self.served.len() < self.size {
            let Some(caller) = self.queue.pop_front() else { return };
            self.start(caller, caller.since, ops);
        }
    }

    fn start(&mut self, caller: Caller, at: u64, ops: &mut [OpSample]) {
        let computing = self.served.iter().filter(|served| served.cpu > 0).count() as u64 + 1;
        let share = computing.max(CPUS) * MS / CPUS;
        let (wall, cpu) = match caller.work {
            Work::Computes(cpu) => (cpu * share, cpu * MS),
            Work::Sleeps(wall) => (wall * MS, 0),
            Work::Both(cpu, wall) => (wall * MS + cpu * share, cpu * MS),
            Work::Loops | Work::WaitsFor(..) => (NEVER, 0),
        };
        if let (Work::WaitsFor(inner, takes), Some(op)) = (caller.work, caller.op) {
            let (op_inner, outer) = (Some(inner), Some((op, at)));
            let (work, task) = (Work::Sleeps(takes), None);
            self.queue.push_back(Caller { op: op_inner, work, since: at, again: false, outer, task, canary: false });
            ops[inner].counted.nested += 1;
            (ops[inner].nested_in, ops[inner].nested_made) = (Some(op as u32), !self.made_outside);
        }
        let waited = at - caller.since;
        if caller.canary {
            self.canary.pending = None;
            let waited = waited.saturating_sub(self.canary.stopped);
            self.canary.last = Some(waited);
            if waited <= 10 * MS {
                self.canary.passed = Some(caller.since);
            }
        }
        if let Some(op) = caller.op.map(|op| &mut ops[op]) {
            if self.hands_out {
                let long = waited >= op.queue_wait_limit;
                op.counted.wait_time += waited;
                op.counted.long_waits += u64::from(long);
                op.counted.long_wait_time += if long { waited } else { 0 };
                op.holder = caller.task.map(|task| task as u32).or(op.holder);
            } else {
                op.counted.started += 1;
                op.counted.queue_wait += waited;
            }
        }
        self.served.push(Served { caller, since: at, ends: at.saturating_add(wall), cpu });
    }

    fn end(&mut self, served: Served, ops: &mut [OpSample]) {
        let Served { caller, since, ends, cpu } = served;
        if let Some(op) = caller.op.filter(|_| !self.hands_out).map(|op| &mut ops[op]) {
            let (waited, ran) = (since - caller.since, ends - since);
            let counted = &mut op.counted;
            (counted.ended, counted.execution_time) = (counted.ended + 1, counted.execution_time + ran);
            (counted.cpu, counted.cpu_known_execution) = (counted.cpu + cpu, counted.cpu_known_execution + ran);
            if waited >= op.queue_wait_limit && waited > ran {
                (counted.dominated, counted.dominated_wait) = (counted.dominated + 1, counted.dominated_wait + waited);
            }
        }
        if let Some(outer) = caller.outer {
            let waits = |served: &&mut Served| served.caller.op == Some(outer.0) && served.since == outer.1;
            if let Some(waits) = self.served.iter_mut().filter(waits).find(|served| served.ends == NEVER) {
                waits.ends = ends;
            }
        }
        if caller.again {
            self.queue.push_back(Caller { since: ends, ..caller });
        }
        // The place is given at the very moment at which it becomes free.
        if let Some(next) = self.queue.pop_front() {
            self.start(next, ends.max(next.since), ops);
        }
    }

    /// Nothing went on for so long.
    pub(super) fn stop(&mut self, so_long: u64) {
        for served in &mut self.served {
            served.ends = served.ends.saturating_add(so_long);
        }
        // What it waited meanwhile does not count.
        self.canary.stopped += so_long;
    }

    pub(super) fn show(&self, ops: &mut [OpSample], executions: &mut Vec<Held>) {
        for caller in &self.queue {
            let Some(op) = caller.op.map(|op| &mut ops[op]) else { continue };
            if self.hands_out {
                op.waits += 1;
                op.oldest_wait = Some(op.oldest_wait.map_or(caller.since, |oldest| oldest.min(caller.since)));
                op.waiter = caller.task.map(|task| task as u32);
            } else {
                op.queued += 1;
                op.oldest_queued = Some(op.oldest_queued.map_or(caller.since, |oldest| oldest.min(caller.since)));
                op.nested_now += u64::from(caller.outer.is_some());
            }
        }
        for served in self.served.iter().filter(|_| !self.hands_out) {
            let Some(op) = served.caller.op else { continue };
            ops[op].executing += 1;
            ops[op].nested_now += u64::from(served.caller.outer.is_some());
            executions.push(Held::new(op as u32, served.since));
        }
    }

    /// Of each op that holds its threads: what the first of them does, of so much time on a CPU and of so much without one,
    /// in percent.
    pub(super) fn sharing(&self) -> Vec<(usize, u64, u64)> {
        let mut first: Vec<&Served> = self.served.iter().filter(|_| !self.hands_out).collect();
        first.sort_by_key(|served| (served.caller.op, served.since));
        first.dedup_by_key(|served| served.caller.op);
        let told = |served: &Served| {
            let op = served.caller.op?;
            if served.ends == NEVER || served.cpu == 0 {
                return Some((op, 0, self.without_cpu));
            }
            let ran = (served.ends - served.since).max(1);
            let on_cpu = served.cpu * 100 / ran;
            Some((
                op,
                on_cpu,
                if matches!(served.caller.work, Work::Computes(_)) { 100 - on_cpu } else { self.without_cpu },
            ))
        };
        first.into_iter().filter_map(told).collect()
    }

    pub(super) fn has_queue(&self) -> bool {
        self.queue.iter().any(|caller| caller.op.is_some())
    }
}
