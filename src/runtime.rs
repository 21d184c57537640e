//! What Tokio itself tells of a runtime, on any build of it.

use std::time::Duration;
use tokio::runtime::Handle;

/// The figures that Tokio tells of one runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RuntimeSnapshot {
    /// Tokio's own number of the runtime.
    pub runtime: Option<u64>,
    /// Its worker threads.
    pub workers: usize,
    /// Tasks that have not ended; blocking calls are not among them.
    pub alive_tasks: usize,
    /// Tasks in the queue that all workers share, waiting for any of them.
    pub global_queue_depth: usize,
    /// How long each worker has been busy since the runtime's start. Tokio does not move it during a long poll.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub busy: Vec<Duration>,
}

impl RuntimeSnapshot {
    pub(crate) fn of(handle: &Handle) -> Self {
        let metrics = handle.metrics();
        let workers = metrics.num_workers();
        Self {
            runtime: crate::op::runtime_number(handle.id()),
            workers,
            // One of them is the detector's own.
            alive_tasks: metrics.num_alive_tasks().saturating_sub(1),
            global_queue_depth: metrics.global_queue_depth(),
            busy: busy(&metrics, workers),
        }
    }
}

#[cfg(target_has_atomic = "64")]
fn busy(metrics: &tokio::runtime::RuntimeMetrics, workers: usize) -> Vec<Duration> {
    (0..workers).map(|worker| metrics.worker_total_busy_duration(worker)).collect()
}

#[cfg(not(target_has_atomic = "64"))]
fn busy(_: &tokio::runtime::RuntimeMetrics, _: usize) -> Vec<Duration> {
    Vec::new()
}
