//! Whether threads of this process want a CPU and get none: who waits for a lock may be waiting for one of those.

use crate::evidence::{self, CpuTime};
use std::collections::HashMap;

/// So many threads are looked at.
const THREADS: usize = 256;
/// Who takes CPUs away does so again soon.
const RECENT: u64 = 2_000_000_000;
/// A look says nothing about less time than this.
const LEAST: u64 = 2_000_000;

/// What the threads were found to do at the look before.
#[derive(Debug, Default)]
pub(crate) struct Starved {
    last: HashMap<u32, CpuTime>,
    looked_at: u64,
    found_at: Option<u64>,
}

impl Starved {
    /// Whether any thread has had next to no CPU since the look before, though it wanted one then and wants one now, or was so
    /// a moment ago. Some 3 us a thread; the first look finds nothing.
    pub(crate) fn look(&mut self, now: u64) -> bool {
        let elapsed = now.saturating_sub(self.looked_at);
        if elapsed < LEAST {
            return self.is_recent(now);
        }
        let own = evidence::thread_id();
        let threads = evidence::threads().unwrap_or_default().into_iter().filter(|tid| Some(*tid) != own).take(THREADS);
        let last = std::mem::take(&mut self.last);
        let wanting = threads.filter(|&tid| evidence::is_runnable(tid) == Some(true));
        self.last = wanting.filter_map(|tid| Some((tid, evidence::cpu_time(tid)?))).collect();
        if self.last.iter().any(|(tid, time)| last.get(tid).is_some_and(|last| is_starved(last, time, elapsed))) {
            self.found_at = Some(now);
        }
        self.looked_at = now;
        self.is_recent(now)
    }

    fn is_recent(&self, now: u64) -> bool {
        self.found_at.is_some_and(|at| now.saturating_sub(at) < RECENT)
    }
}

fn is_starved(last: &CpuTime, now: &CpuTime, elapsed: u64) -> bool {
    last.runnable && now.runnable && now.on_cpu.saturating_sub(last.on_cpu) * 4 < elapsed
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_wants_a_cpu_and_gets_next_to_nothing_is_starved() {
        let time = |on_cpu, runnable| CpuTime { on_cpu, waited: 0, runnable, turns: 0 };
        assert!(is_starved(&time(10, true), &time(11, true), 100));
        assert!(!is_starved(&time(10, true), &time(60, true), 100));
        assert!(!is_starved(&time(10, false), &time(10, true), 100));
        assert!(!is_starved(&time(10, true), &time(10, false), 100));
    }

    #[test]
    fn the_first_look_finds_nothing() {
        assert!(!Starved::default().look(1_000_000_000));
    }
}
