//! `instrument_wait`: waiting for something that is handed out: a permit, a pooled connection, a lock.

use crate::clock;
use crate::figures::count;
use crate::future::current_runtime;
use crate::gap::Change;
use crate::op::{self, Op};
use crate::rouse;
use crate::scope::{self, Enclosing};
use crate::slot;
use pin_project_lite::pin_project;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Watches a future that waits for a resource, such as `semaphore.acquire()` or `pool.get()`.
///
/// While it is pending the watched futures around it count the time as
/// [`Ledger::waiting`](crate::Ledger::waiting), and a detector watches its age as it watches a queued call's. What
/// happens once the resource is there is not part of it.
///
/// # Performance
///
/// Two clock readings, a handful of counters and one allocation a wait, for its waker; one more where watched futures are
/// nested.
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

/// Tells when a pending wait is woken: what it waits for is probably there then, and it is whoever polls the wait that is
/// late.
#[derive(Debug)]
struct Bell {
    op: &'static Op,
    since: u64,
    /// [`PENDING`], when it was woken, or [`SILENT`]. Whoever moves it on from a value does what that value's end means.
    rung: AtomicU64,
    /// Of the task.
    waker: Waker,
}

/// It is counted among those that are pending.
const PENDING: u64 = 0;
/// It is being polled, or gone: counted nowhere.
const SILENT: u64 = u64::MAX;

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let (waits, now) = (self.op.waits(), clock::now());
        // First counted, so that whoever finds it rung finds it counted, too.
        waits.woken.enter(now);
        // AcqRel: who silences it sees what was counted before.
        match self.rung.compare_exchange(PENDING, now, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => waits.pending.leave(self.since),
            Err(_) => waits.woken.leave(now),
        }
        self.waker.wake_by_ref();
    }
}

impl Bell {
    fn new(op: &'static Op, since: u64, waker: &Waker) -> Arc<Self> {
        Arc::new(Self { op, since, rung: AtomicU64::new(SILENT), waker: waker.clone() })
    }

    /// It is pending from here on.
    fn hang(&self) {
        self.op.waits().pending.enter(self.since);
        // Release: pairs with the exchange of `wake_by_ref`.
        self.rung.store(PENDING, Ordering::Release);
    }

    /// It is not pending any more, or for now. Returns when it was rung, if it was.
    fn silence(&self) -> Option<u64> {
        let waits = self.op.waits();
        match self.rung.swap(SILENT, Ordering::AcqRel) {
            SILENT => return None,
            PENDING => waits.pending.leave(self.since),
            rung => {
                waits.woken.leave(rung);
                return Some(rung);
            }
        }
        None
    }
}

/// A wait that has been polled. Ends it when dropped.
#[derive(Debug)]
struct Pending {
    op: &'static Op,
    since: u64,
    bell: Arc<Bell>,
    /// What the wrapped future is given to wake.
    waker: Waker,
    /// When it was woken for the poll that ends it: what it waited for was there from then on.
    woken: Option<u64>,
    /// Those that wait, once it has been pending.
    enclosing: Option<Enclosing>,
    /// What it waits for is there.
    ready: bool,
}

impl Pending {
    fn new(op: &'static Op, since: u64, waker: &Waker) -> Self {
        let bell = Bell::new(op, since, waker);
        let waker = Waker::from(Arc::clone(&bell));
        Self { op, since, bell, waker, woken: None, enclosing: None, ready: false }
    }

    /// The task that is about to poll it is the one to be woken.
    fn wake_to(&mut self, waker: &Waker) {
        self.woken = self.bell.silence();
        if !self.bell.waker.will_wake(waker) {
            self.bell = Bell::new(self.op, self.since, waker);
            self.waker = Waker::from(Arc::clone(&self.bell));
        }
    }

    /// It is pending.
    fn wait(&mut self) {
        self.woken = None;
        self.bell.hang();
        if self.enclosing.is_some() {
            return;
        }
        let enclosing = Enclosing::current();
        if let Some(waiter) = current_op() {
            op::note(&self.op.waits().waiter, waiter);
        }
        rouse::rouse();
        enclosing.change(Change { waits: 1, ..Change::default() }, self.since);
        self.enclosing = Some(enclosing);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let now = clock::now();
        // One that is dropped before it is polled again has been woken all the same.
        let woken = self.bell.silence().or(self.woken).unwrap_or(now);
        let waits = self.op.waits();
        if let Some(enclosing) = &self.enclosing {
            enclosing.change(Change { waits: -1, ..Change::default() }, now);
        }
        let (took, for_resource) = (now.saturating_sub(self.since), woken.saturating_sub(self.since));
        waits.ended(took, for_resource.min(took), self.op.queue_wait_limit());
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
        let pending = this.pending.get_or_insert_with(|| {
            let now = clock::now();
            if scope::is_by_hand(context.waker())
                && let Some(own) = slot::own()
            {
                own.note_by_hand(now);
            }
            Pending::new(op, now, context.waker())
        });
        pending.wake_to(context.waker());
        let polled = this.inner.poll(&mut Context::from_waker(&pending.waker));
        if polled.is_pending() {
            pending.wait();
        } else if let Some(mut pending) = this.pending.take() {
            pending.ready = true;
            if let Some(holder) = current_op() {
                op::note(&op.waits().holder, holder);
            }
        }
        polled
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    /// For how long a wait is said to have waited for what was given after `until_there` and asked after later by
    /// `until_asked`, if that is over the limit; and how long it took in all.
    fn told(name: &'static str, [until_there, until_asked]: [Duration; 2], asks: bool) -> [Duration; 2] {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut wait = Box::pin(instrument_wait(name, receiver));
        let mut context = Context::from_waker(Waker::noop());
        // Twice: a poll that nobody woke it for changes nothing.
        assert!(wait.as_mut().poll(&mut context).is_pending() && wait.as_mut().poll(&mut context).is_pending());
        std::thread::sleep(until_there);
        assert_eq!(sender.send(1), Ok(()));
        std::thread::sleep(until_asked);
        assert!(!asks || wait.as_mut().poll(&mut context) == Poll::Ready(Ok(1)));
        drop(wait);
        let Some(op) = op::all().find(|op| op.name == name) else { panic!("it has waited") };
        [op.waits().long_time.load(Ordering::Relaxed), op.waits().duration.sum()].map(Duration::from_nanos)
    }

    #[test]
    fn what_was_there_long_before_anybody_asked_was_not_waited_for() {
        let (none, long) = (Duration::ZERO, Duration::from_secs(2));
        for (name, asks) in [("wait::tests::there", true), ("wait::tests::dropped", false)] {
            let [waited, took] = told(name, [none, long], asks);
            // On a busy machine it may have been given a little late.
            assert!(waited < long / 2 && took >= long, "{name}: {waited:?} of {took:?}");
        }
        let [waited, took] = told("wait::tests::not_there", [long, none], true);
        assert!(waited >= long && took >= waited, "{waited:?} of {took:?}");
    }
}
