//! `instrument_job`: a call for a pool that is not Tokio's.

use crate::call;
use crate::op;
use std::panic::Location;

/// Wraps a closure that a pool other than Tokio's will run later (rayon, a channel to a thread): enqueued now, started
/// when the returned closure is called, ended when it returns.
///
/// Its queue wait and execution are accounted for as those of [`instrument_blocking`](crate::instrument_blocking),
/// with the same span; there is no resume delay, since how the result travels back is not this crate's to see. If the
/// returned closure is dropped without being called, the call ends as
/// [`Outcome::Cancelled`](crate::Outcome::Cancelled). Watched futures in whose polls it is made count it as a blocking
/// call of theirs until it ends: make jobs that nobody waits for outside of them.
///
/// # Performance
///
/// One allocation, two system calls for the thread's CPU time, a dozen counters.
///
/// # Examples
///
/// ```
/// let (sender, receiver) = std::sync::mpsc::channel();
/// rayon::spawn(starvation::instrument_job("resize", move || sender.send(6 * 7).unwrap_or(())));
/// assert_eq!(receiver.recv(), Ok(42));
/// ```
#[track_caller]
pub fn instrument_job<F, R>(op: &'static str, f: F) -> impl FnOnce() -> R
where
    F: FnOnce() -> R,
{
    let (queued, _) = call::enqueue(op::intern(op, Location::caller(), None));
    move || queued.run(f)
}
