//! The observer's figures about itself.

use crate::clock;
use crate::figures::count;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The observer's figures about itself.
#[derive(Debug, Default)]
pub(crate) struct ObserverFigures {
    pub(crate) looks: AtomicU64,
    pub(crate) late_looks: AtomicU64,
    pub(crate) lateness: AtomicU64,
    pub(crate) longest_lateness: AtomicU64,
    pub(crate) cpu: AtomicU64,
    pub(crate) cpu_known: AtomicBool,
    pub(crate) unopened: AtomicU64,
    pub(crate) muted: AtomicU64,
    pub(crate) dropped_reports: AtomicU64,
    pub(crate) failed_reports: AtomicU64,
    pub(crate) stacks_taken: AtomicU64,
    pub(crate) stacks_refused: AtomicU64,
    pub(crate) stacks_left_out: AtomicU64,
    pub(crate) stacks_failed: AtomicU64,
}

impl ObserverFigures {
    /// A look came `lateness` after its time.
    pub(crate) fn looked(&self, lateness: u64, late: bool) {
        count(&self.looks, 1);
        count(&self.lateness, lateness);
        self.longest_lateness.fetch_max(lateness, Ordering::Relaxed);
        if late {
            count(&self.late_looks, 1);
        }
        if let Some(cpu) = clock::thread_cpu() {
            self.cpu.store(cpu, Ordering::Relaxed);
            self.cpu_known.store(true, Ordering::Relaxed);
        }
    }
}
