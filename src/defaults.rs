//! Every default, public and in one place.

use std::time::Duration;

pub(crate) const LONG_POLL_NANOS: u64 = 25_000_000;
pub(crate) const QUEUE_WAIT_NANOS: u64 = 50_000_000;
pub(crate) const WARNING_INTERVAL_NANOS: u64 = 10_000_000_000;

/// How long one poll may take: 25 ms. See [`Builder::long_poll`](crate::Builder::long_poll).
pub const DEFAULT_LONG_POLL: Duration = Duration::from_nanos(LONG_POLL_NANOS);

/// How long a call may wait for a thread, or a wait may stay pending: 50 ms. See
/// [`Builder::queue_wait`](crate::Builder::queue_wait).
pub const DEFAULT_QUEUE_WAIT: Duration = Duration::from_nanos(QUEUE_WAIT_NANOS);

/// How often the observer looks while anything is in flight: 5 ms. See [`Builder::tick`](crate::Builder::tick).
pub const DEFAULT_TICK: Duration = Duration::from_millis(5);

/// How long after the start nothing is reported: 0. See [`Builder::warm_up`](crate::Builder::warm_up).
pub const DEFAULT_WARM_UP: Duration = Duration::ZERO;

/// How much of the past a judgement rests on: 10 s. See [`Builder::window`](crate::Builder::window).
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(10);

/// Where no detector runs: how much time lies between two warnings about the same op, 10 s.
pub const DEFAULT_WARNING_INTERVAL: Duration = Duration::from_nanos(WARNING_INTERVAL_NANOS);
