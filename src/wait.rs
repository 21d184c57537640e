//! `instrument_wait`: waiting for something that is handed out: a permit, a pooled connection, a lock.

use crate::clock;
use crate::figures::count;
use crate::future::current_runtime;
use crate::gap::Change;
use crate::op::{self, Op};
use crate::rouse;
use crate::scope::Enclosing;
use crate::slot;
use pin_project_lite::pin_project;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Watches a future that waits for a resource, such as `semaphore.acquire()` or `pool.get()`.
///
/// While it is pending the watched futures around it count the time as
/// [`Ledger::waiting`](crate::Ledger::waiting), and a detector watches its age as it watches a queued call's. What
/// happens once the resource is there is not part of it.
///
/// # Performance
///
/// Two clock readings, and a handful of counters per wait that is not ready at once; no allocation outside of watched
/// futures that are nested.
///
/// # Cancel safety
///
/// That of the wrapped future. A wait that is dropped has ended.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio::sync::AcquireError> {
/// let permits = tokio::sync::Semaphore::new(4);
/// let permit = starvation::instrument_wait("upload permit", permits.acquire()).await?;
/// # drop(permit);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn instrument_wait<F: Future>(op: &'static str, future: F) -> InstrumentedWait<F> {
    let site = Site { name: op, location: Location::caller(), op: None };
    InstrumentedWait { inner: future, site, pending: None }
}

pin_project! {
    /// A future that waits for a resource. Made by [`instrument_wait`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InstrumentedWait<F> {
        #[pin]
        inner: F,
        site: Site,
        pending: Option<Pending>,
    }
}

/// Where a wait is, and its op once it has been polled.
#[derive(Debug)]
struct Site {
    name: &'static str,
    location: &'static Location<'static>,
    op: Option<&'static Op>,
}

impl Site {
    fn intern(&self) -> &'static Op {
        op::intern(self.name, self.location, current_runtime())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.op.is_none() {
            // As a branch of `select!` that never had its turn.
            count(&self.intern().waits().unpolled, 1);
        }
    }
}

/// The op that the calling thread is busy with.
fn current_op() -> Option<u32> {
    slot::own().and_then(slot::Own::innermost)
}

/// A wait that is pending. Ends it when dropped.
#[derive(Debug)]
struct Pending {
    op: &'static Op,
    since: u64,
    enclosing: Enclosing,
    /// What it waits for is there.
    ready: bool,
}

impl Pending {
    fn begin(op: &'static Op, since: u64) -> Self {
        let enclosing = Enclosing::current();
        op.waits().pending.enter(since);
        if let Some(waiter) = current_op() {
            op::note(&op.waits().waiter, waiter);
        }
        rouse::rouse();
        enclosing.change(Change { waits: 1, ..Change::default() }, since);
        Self { op, since, enclosing, ready: false }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let now = clock::now();
        let waits = self.op.waits();
        waits.pending.leave(self.since);
        self.enclosing.change(Change { waits: -1, ..Change::default() }, now);
        waits.ended(now.saturating_sub(self.since), self.op.queue_wait_limit());
        if !self.ready {
            count(&waits.dropped, 1);
        }
    }
}

impl<F: Future> Future for InstrumentedWait<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let op = match this.site.op {
            Some(op) => op,
            None => *this.site.op.insert(this.site.intern()),
        };
        let asked = clock::now();
        let polled = this.inner.poll(context);
        match &polled {
            Poll::Pending if this.pending.is_none() => *this.pending = Some(Pending::begin(op, asked)),
            Poll::Pending => {}
            Poll::Ready(_) => {
                match this.pending.take() {
                    Some(mut pending) => pending.ready = true,
                    None => op.waits().ended(clock::now().saturating_sub(asked), op.queue_wait_limit()),
                }
                if let Some(holder) = current_op() {
                    op::note(&op.waits().holder, holder);
                }
            }
        }
        polled
    }
}
