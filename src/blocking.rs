//! `instrument_blocking`: a call on a runtime's blocking pool that accounts for all of its time.

use crate::call::{self, Claim};
use crate::op;
use crate::timing::CallTiming;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, Id, JoinError, JoinHandle};

/// Runs a closure on the current runtime's blocking pool, like [`tokio::task::spawn_blocking`], and accounts for all
/// of its time: waiting for a thread, executing, and waiting for the task to be polled again.
///
/// The call starts at once, whether or not it is awaited. The closure runs inside the span `blocking_call`, whose
/// parent is the caller's current span, and with the caller's subscriber. `op` names the call in spans, incidents and
/// snapshots; together with the caller's location it is one line there.
///
/// # Performance
///
/// One allocation beside Tokio's own, and about 1 us: a dozen counters, and two system calls for the thread's CPU time
/// (see [`CallTiming::cpu`](crate::CallTiming::cpu)). See the benchmark `call`. With a subscriber that wants the spans its cost comes on top.
///
/// # Cancel safety
///
/// Dropping the [`BlockingCall`] cancels nothing: the closure runs on, and is counted as abandoned.
///
/// # Panics
///
/// When called from outside a runtime, as `spawn_blocking` does; [`instrument_blocking_on`] takes a handle instead.
/// A panic of the closure is not passed on here: it arrives as Tokio's own [`JoinError`].
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio::task::JoinError> {
/// let sum = starvation::instrument_blocking("sum", || (1..=10).sum::<u32>()).await?;
/// assert_eq!(sum, 55);
///
/// let (sum, timing) = starvation::instrument_blocking("sum", || (1..=10).sum::<u32>()).timed().await;
/// assert_eq!(sum?, 55);
/// assert_eq!(timing.queue_wait + timing.execution + timing.resume_delay + timing.unclaimed, timing.total());
/// # Ok(())
/// # }
/// ```
#[track_caller]
#[doc(alias = "spawn_blocking")]
pub fn instrument_blocking<F, R>(op: &'static str, f: F) -> BlockingCall<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    instrument_blocking_on(&Handle::current(), op, f)
}

/// The same on the blocking pool of the runtime that `handle` belongs to. Needs no current runtime.
///
/// See [`instrument_blocking`]. On a runtime that has shut down the closure is dropped at once, and the call ends with
/// [`Outcome::Rejected`](crate::Outcome::Rejected) and Tokio's cancelled [`JoinError`].
#[track_caller]
pub fn instrument_blocking_on<F, R>(handle: &Handle, op: &'static str, f: F) -> BlockingCall<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let (queued, call) = call::enqueue(op::intern(op, Location::caller(), Some(handle.id())));
    // Made before the closure is handed over: whatever happens there, the call is given up by its handle alone.
    let claim = Claim::new(call);
    let handle = claim.submitting(|| handle.spawn_blocking(move || queued.run(f)));
    BlockingCall { handle, claim }
}

/// A blocking call under way, like Tokio's [`JoinHandle`]. Made by [`instrument_blocking`].
///
/// Awaiting it gives what the `JoinHandle` would give. Dropping it lets the call run on for nobody.
#[derive(Debug)]
#[must_use = "a call whose handle is dropped runs on for nobody; await it, or drop it on purpose"]
pub struct BlockingCall<R> {
    handle: JoinHandle<R>,
    claim: Claim,
}

impl<R> BlockingCall<R> {
    /// Drops the closure if it is still queued when its turn comes; does nothing once it runs. See
    /// [`JoinHandle::abort`].
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// A handle that can abort the call from elsewhere. See [`JoinHandle::abort_handle`].
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.handle.abort_handle()
    }

    /// Whether the call has ended, in whichever way. See [`JoinHandle::is_finished`].
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }

    /// The id of the task that Tokio runs the closure as. See [`JoinHandle::id`].
    #[must_use]
    pub fn id(&self) -> Id {
        self.handle.id()
    }

    /// The same call, as a future of its result and its [`CallTiming`].
    ///
    /// # Cancel safety
    ///
    /// As for the call itself: dropping it cancels nothing.
    pub fn timed(self) -> TimedCall<R> {
        TimedCall { call: self }
    }

    fn poll_timed(&mut self, context: &mut Context<'_>) -> Poll<(Result<R, JoinError>, CallTiming)> {
        self.claim.ask(context.waker());
        let result = ready!(Pin::new(&mut self.handle).poll(context));
        Poll::Ready((result, self.claim.claim()))
    }
}

impl<R> Future for BlockingCall<R> {
    type Output = Result<R, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_timed(context).map(|(result, _)| result)
    }
}

/// A blocking call and its timing. Made by [`BlockingCall::timed`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct TimedCall<R> {
    call: BlockingCall<R>,
}

impl<R> Future for TimedCall<R> {
    type Output = (Result<R, JoinError>, CallTiming);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.poll_timed(context)
    }
}
