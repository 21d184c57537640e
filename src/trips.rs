//! How many small trips the threads of a pool make, for calls that nobody wrapped: each wakes one of them once.

use crate::evidence;
use crate::lately::Plus;
use crate::threads::{self, Role};
use std::collections::HashMap;

/// So many threads are asked after, once in so long.
const THREADS: usize = 8;
const EVERY: u64 = 1_000_000_000;
/// A thread that wakes so often in a second does little each time.
const OFTEN: u64 = 1_000;

/// Trips of some of a pool's threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Trips {
    pub(crate) count: u64,
    /// How long the threads were on a CPU for them, in nanoseconds.
    pub(crate) on_cpu: u64,
}

impl Plus for Trips {
    fn plus(self, more: Self) -> Self {
        Self { count: self.count + more.count, on_cpu: self.on_cpu + more.on_cpu }
    }
}

/// Counts them, once a second.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// By thread: how often it had slept, and for how long it had been on a CPU.
    last: HashMap<u32, (u64, u64)>,
    counted_at: u64,
}

impl Counter {
    /// Those since it was last counted; none where it is not time to. Some 20 us a thread.
    pub(crate) fn count(&mut self, runtime: Option<u64>, now: u64) -> Option<Trips> {
        if now.saturating_sub(self.counted_at) < EVERY {
            return None;
        }
        let elapsed = now - self.counted_at;
        self.counted_at = now;
        let own = runtime.into_iter().flat_map(threads::threads);
        let of_pool = own.filter(|thread| thread.role == Role::Pool).filter_map(|thread| thread.tid());
        let last = std::mem::take(&mut self.last);
        self.last = of_pool.take(THREADS).filter_map(|tid| Some((tid, slept(tid)?))).collect();
        let fresh = self.last.iter().filter_map(|(tid, now)| {
            let before = last.get(tid)?;
            let trips = Trips { count: now.0.checked_sub(before.0)?, on_cpu: now.1.saturating_sub(before.1) };
            // What wakes less often may do much in between, asleep.
            (trips.count * EVERY >= OFTEN * elapsed).then_some(trips)
        });
        Some(fresh.fold(Trips::default(), Trips::plus))
    }
}

fn slept(tid: u32) -> Option<(u64, u64)> {
    Some((evidence::thread_counters(tid)?.voluntary_switches?, evidence::cpu_time(tid)?.on_cpu))
}

#[cfg(all(test, target_os = "linux", not(any(starvation_elsewhere, starvation_loom))))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn each_time_that_a_thread_of_the_pool_wakes_is_a_trip() {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { panic!("it needs nothing") };
        let number = crate::op::runtime_number(runtime.handle().id());
        let (sender, receiver) = mpsc::sync_channel::<()>(0);
        let (ready, is_ready) = mpsc::channel();
        let worker = runtime.handle().spawn_blocking(move || {
            threads::learn(number, Role::Pool);
            let _ = ready.send(());
            while receiver.recv().is_ok() {}
        });
        assert!(is_ready.recv().is_ok());
        let mut counter = Counter::default();
        assert_eq!(counter.count(number, EVERY), Some(Trips::default()));
        for _ in 0..20_000 {
            assert!(sender.send(()).is_ok());
            std::thread::yield_now();
        }
        assert_eq!(counter.count(number, EVERY + 1), None, "it is not time yet");
        let Some(trips) = counter.count(number, 2 * EVERY) else { panic!("a second is over") };
        assert!((1_000..=60_000).contains(&trips.count), "{trips:?}");
        drop(sender);
        assert!(runtime.block_on(worker).is_ok());
    }
}
