//! What threads do that execute calls, while others wait for theirs: one thread of each op, since ops of one pool may do
//! very different things with theirs.

use crate::conduct::Conduct;
use crate::evidence::{self, CpuTime};
use crate::lately::Share;
use crate::poller::{Sleeps, conduct_since};
use std::collections::HashMap;

/// So many ops are looked at in one look, by turns.
const LOOKED_AT: usize = 2;

/// What a thread did that executes calls of an op.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpThread {
    pub(crate) op: u32,
    /// Of how much time it had no CPU. A wait that has been over several looks is told when it is over, so the part can be
    /// more than the whole of one.
    pub(crate) without_cpu: Share,
    pub(crate) conduct: Conduct,
}

/// The threads that are looked at.
#[derive(Debug, Default)]
pub(crate) struct PoolThreads {
    /// By op: a thread that executes it at this look.
    found: HashMap<u32, u32>,
    /// By op: the thread, what the kernel said of it, and when that was.
    last: HashMap<u32, (u32, CpuTime, u64)>,
    turn: usize,
}

impl PoolThreads {
    pub(crate) fn begin(&mut self) {
        self.found.clear();
    }

    /// A thread executes a call of an op.
    pub(crate) fn found(&mut self, op: u32, tid: Option<u32>) {
        let Some(tid) = tid else { return };
        // The one that was looked at before says more than another.
        let known = self.last.get(&op).is_some_and(|last| last.0 == tid);
        self.found.entry(op).and_modify(|found| *found = if known { tid } else { *found }).or_insert(tid);
    }

    /// Looks at threads of some of these ops. Some 15 us each.
    pub(crate) fn look(&mut self, ops: &[u32], now: u64, sleeps: &Sleeps, told: &mut Vec<OpThread>) {
        self.last.retain(|op, _| ops.contains(op));
        self.turn = self.turn.wrapping_add(LOOKED_AT);
        for at in 0..ops.len().min(LOOKED_AT) {
            let op = ops[self.turn.wrapping_add(at) % ops.len()];
            told.extend(self.look_at(op, now, sleeps));
        }
    }

    fn look_at(&mut self, op: u32, now: u64, sleeps: &Sleeps) -> Option<OpThread> {
        let tid = *self.found.get(&op)?;
        let time = evidence::cpu_time(tid)?;
        let (same, before, at) = self.last.insert(op, (tid, time, now))?;
        if same != tid {
            return None;
        }
        let asleep = if time.runnable { None } else { sleeps.of(tid) };
        let without_cpu = Share { part: time.waited.saturating_sub(before.waited), of: now.saturating_sub(at) };
        Some(OpThread { op, without_cpu, conduct: conduct_since(&before, at, &time, now, asleep) })
    }
}

#[cfg(all(test, target_os = "linux", not(any(starvation_elsewhere, starvation_loom))))]
mod tests {
    use super::*;
    use crate::conduct::Manner;

    /// So long that what the thread really waits for a CPU in between is nothing.
    const S: u64 = 1_000_000_000;

    #[test]
    fn what_is_told_is_of_one_thread_between_two_looks() {
        let (mut threads, own) = (PoolThreads::default(), evidence::thread_id());
        let mut look = |found: &[(u32, Option<u32>)], now| {
            threads.begin();
            found.iter().for_each(|(op, tid)| threads.found(*op, *tid));
            let mut told = Vec::new();
            threads.look(&[3], now, &Sleeps, &mut told);
            told.first().map(|told| (told.op, told.without_cpu.of, told.conduct.manner()))
        };
        assert_eq!(look(&[(3, own)], 100 * S), None);
        assert_eq!(look(&[(3, own)], 500 * S), Some((3, 400 * S, Some(Manner::Computing))));
        // Another that executes it does not take its place.
        assert_eq!(look(&[(3, Some(u32::MAX)), (3, own)], 600 * S), Some((3, 100 * S, Some(Manner::Computing))));
        assert_eq!(look(&[(4, own)], 700 * S), None);
        assert_eq!(look(&[], 800 * S), None);
    }

    #[test]
    fn many_ops_are_looked_at_by_turns() {
        let mut threads = PoolThreads::default();
        let ops = [1, 2, 3, 4, 5];
        let mut seen = std::collections::BTreeSet::new();
        for now in 1..20 {
            threads.begin();
            ops.iter().for_each(|op| threads.found(*op, evidence::thread_id()));
            let mut told = Vec::new();
            threads.look(&ops, now * 1_000, &Sleeps, &mut told);
            assert!(told.len() <= LOOKED_AT);
            seen.extend(told.iter().map(|told| told.op));
        }
        assert_eq!(seen.len(), ops.len());
    }
}
