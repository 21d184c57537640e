//! What Tokio itself tells of a runtime, on any build of it.

use std::time::Duration;
use tokio::runtime::{Builder, Handle};

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
            alive_tasks: metrics.num_alive_tasks(),
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

/// Prepares the threads of a runtime before it is built: each gets its slot as it starts, not in its first poll.
///
/// Optional. It takes the builder's `on_thread_start` callback, replacing one that was set before; a callback of yours
/// that is set afterwards replaces this one, which does no harm.
///
/// # Examples
///
/// ```
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// starvation::hooks(builder.worker_threads(2).enable_all());
/// let runtime = builder.build()?;
/// # drop(runtime);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn hooks(builder: &mut Builder) -> &mut Builder {
    builder.on_thread_start(|| {
        // The slot itself is for the thread to find later.
        let _ = crate::slot::own();
    })
}
