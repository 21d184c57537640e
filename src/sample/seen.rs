//! What is seen at a look beside what was wrapped: of a runtime, of the machine, of the process as a whole.

use super::{Held, OpSample, Sample};
use crate::conduct::Conduct;
use crate::evidence::ThreadLimits;
use crate::lately::Plus;
use crate::owner::Whom;
use crate::trips::Trips;

/// What is seen of one runtime without anybody wrapping anything; see `sight`.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuntimeSample {
    pub(crate) runtime: Option<tokio::runtime::Id>,
    /// Its worker runs on the thread that calls `block_on`: while nobody does, it looks stuck.
    pub(crate) current_thread: bool,
    pub(crate) workers: u64,
    pub(crate) parked: u64,
    /// Workers that are neither parked nor publish anything.
    pub(crate) frozen: Vec<Frozen>,
    /// The pool's largest number of threads, where it is known.
    pub(crate) cap: Option<u64>,
    /// By how much its timers were late at the worst since the last look; none where that is not known.
    pub(crate) beat_late: Option<u64>,
    /// How long the observer's own call waited for a thread of its pool, or has been waiting.
    pub(crate) canary: Option<u64>,
    /// One is waiting now, and when that was sent. When the last was sent that did not have to.
    pub(crate) canary_waits: bool,
    #[cfg_attr(not(feature = "stacks"), allow(dead_code, reason = "only who takes stacks asks"))]
    pub(crate) canary_sent: Option<u64>,
    pub(crate) canary_passed: Option<u64>,
    /// The same of an empty task, where one was sent.
    pub(crate) probe: Option<u64>,
    /// Tasks in the queue that all workers share.
    pub(crate) depth: u64,
    /// Threads of its pool, and how many of them have nothing to do.
    pub(crate) pool_threads: Option<u64>,
    pub(crate) pool_idle: Option<u64>,
    /// How many small trips its threads made since that was last told, where it is.
    pub(crate) trips: Option<Trips>,
    /// The system refused a thread when it was asked for one, under these limits.
    pub(crate) refused: Option<ThreadLimits>,
}

impl RuntimeSample {
    /// Whether all of its workers are at work. The one of a current-thread runtime looks so, too, while nobody drives it: then
    /// it publishes nothing.
    pub(crate) fn is_full(&self) -> bool {
        let driven = !self.current_thread || self.frozen.is_empty();
        self.workers > 0 && self.parked == 0 && driven
    }
}

impl Sample {
    /// Whether the stall of a thread goes on that began then.
    pub(crate) fn is_stuck(&self, tid: u32, began: u64) -> bool {
        let of_it = |whom: Option<Whom>, since: u64| whom.is_some_and(|whom| whom.tid == tid) && since == began;
        let frozen = || self.runtimes.iter().flat_map(|runtime| &runtime.frozen);
        self.overdue.iter().chain(&self.executions).any(|held| of_it(held.whom, held.began))
            || frozen().any(|frozen| of_it(frozen.whom, frozen.seen_since))
    }

    /// How much of the wait for a thread of a call of this op a lack of CPUs can explain. Where watched calls hold all the
    /// threads that the pool may have a call waits for those in the first place, and that only makes it somewhat longer.
    pub(crate) fn most_lost(&self, op: &OpSample) -> u64 {
        let runtime = op.site.runtime;
        let seen = self.runtimes.iter().find(|seen| runtime.is_some() && seen.runtime == runtime);
        let held = || self.ops.iter().filter(|op| op.site.runtime == runtime).map(|op| op.executing).sum::<u64>();
        let is_full = seen.and_then(|seen| seen.cap).is_some_and(|cap| held() >= cap);
        if is_full { op.queue_wait_limit } else { u64::MAX }
    }

    /// Of the workers of a runtime that are stuck, those that are so in what nobody wrapped. Workers are looked at a moment
    /// before polls are, and one of these may have ended in between.
    pub(crate) fn stuck_unwrapped<'a>(
        &self,
        seen: &'a RuntimeSample,
        is_stuck: impl Fn(&Frozen) -> bool,
    ) -> Vec<&'a Frozen> {
        let mut stuck: Vec<&Frozen> = seen.frozen.iter().filter(|frozen| is_stuck(frozen)).collect();
        let on_it = |held: &&Held| self.op(held.op).is_some_and(|op| op.site.runtime == seen.runtime);
        let polls = |all: &[InPoll]| all.iter().filter(|poll| Some(poll.runtime) == seen.runtime).count();
        let overdue = self.overdue.iter().filter(on_it).count();
        let wrapped = overdue.max(polls(&self.in_poll)).max(polls(&self.was_in_poll));
        let all = stuck.len();
        let in_poll = |tid: u32| self.in_poll.iter().chain(&self.was_in_poll).any(|poll| poll.tid == Some(tid));
        stuck.retain(|frozen| !frozen.whom.is_some_and(|whom| in_poll(whom.tid)));
        // Which of the others the rest of the polls hold is not known. Of what is left nothing is said that may be untrue.
        let others = wrapped.saturating_sub(all - stuck.len()).min(stuck.len());
        stuck.sort_by_key(|frozen| frozen.since);
        stuck.split_off(others)
    }
}

/// A thread that is in a watched poll of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InPoll {
    pub(crate) runtime: tokio::runtime::Id,
    pub(crate) tid: Option<u32>,
}

/// A worker that stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frozen {
    pub(crate) worker: u64,
    /// Without the time in which its thread had no CPU; and the first look that saw it so, as it is.
    pub(crate) since: u64,
    pub(crate) seen_since: u64,
    /// It has done something before. Otherwise it may as well not have begun.
    pub(crate) started: bool,
    /// Since when it has been in one and the same poll, where the runtime's own callbacks tell.
    pub(crate) one_poll: Option<u64>,
    /// Since when its thread has been seen to sleep without a break, if it does.
    pub(crate) one_sleep: Option<u64>,
    /// What its thread has done since the last look, where the thread is known.
    pub(crate) conduct: Option<Conduct>,
    #[cfg_attr(not(feature = "stacks"), allow(dead_code, reason = "only who takes stacks asks"))]
    /// Its thread, where it is known.
    pub(crate) whom: Option<Whom>,
}

/// What the kernel tells of the process and its machine over a stretch of time, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Machine {
    pub(crate) of: u64,
    /// How many CPUs the process may use by its quota.
    pub(crate) quota: Option<f64>,
    /// How long its threads were held back for having used that up.
    pub(crate) throttled: Option<u64>,
    /// Time that the machine's CPUs were taken from it, over all CPUs.
    pub(crate) steal: Option<u64>,
    /// CPU time of this process.
    pub(crate) own: Option<u64>,
    /// Time that the machine's CPUs had nothing to do, over all CPUs.
    pub(crate) idle: Option<u64>,
    pub(crate) major_faults: Option<u64>,
    pub(crate) memory_pressure: Option<u64>,
}

impl Plus for Machine {
    fn plus(self, more: Self) -> Self {
        let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
        Self {
            of: self.of + more.of,
            quota: more.quota.or(self.quota),
            throttled: sum(self.throttled, more.throttled),
            steal: sum(self.steal, more.steal),
            own: sum(self.own, more.own),
            idle: sum(self.idle, more.idle),
            major_faults: sum(self.major_faults, more.major_faults),
            memory_pressure: sum(self.memory_pressure, more.memory_pressure),
        }
    }
}

/// The process did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The CPU time that the process had meanwhile, and its page faults.
    pub(crate) cpu: Option<u64>,
    pub(crate) major_faults: Option<u64>,
    /// The longest that any thread meanwhile wanted a CPU and had none: who is stopped wants none.
    pub(crate) wanted: Option<u64>,
}
