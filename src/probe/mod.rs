//! What is tried out in a runtime, to see how it fares: a timer that beats by itself, an empty job for the blocking pool,
//! and, only once there is a suspicion, an empty task.
//!
//! The first rule is to heal nothing that it looks at. A task that is spawned from outside wakes a parked worker, and
//! that worker takes over the driver that a blocked one has left: a detector that spawned tasks to measure would mask the
//! very stall that it is there to find. So the heartbeat is woken by the runtime's own timer alone, the job wakes no
//! worker, and the task is spawned only when no worker is parked that it could wake.

pub(crate) mod canary;
pub(crate) mod errand;
pub(crate) mod heartbeat;
pub(crate) mod spawned;
pub(crate) mod timer;

/// What is submitted to a runtime is none of the subscriber's business: with Tokio's own tracing on, every spawn emits a
/// span, and what a subscriber does then may take any time.
fn unseen<T>(submit: impl FnOnce() -> T) -> T {
    if cfg!(tokio_unstable) { tracing::dispatcher::with_default(&tracing::Dispatch::none(), submit) } else { submit() }
}
