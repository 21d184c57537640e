//! `instrument_future`: a future that accounts for all of its wall time, and whose polls are watched.

use crate::activity::{Activity, Kind};
use crate::clock;
use crate::figures::{PollFigures, count};
use crate::ledger::{Ledger, Tally};
use crate::op::{self, Op};
use crate::rouse;
use crate::scope::{self, Moved, Watch};
use crate::slot;
use crate::trace::{self, FutureTrace};
use pin_project_lite::pin_project;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use tokio::runtime;

/// Watches a future: names whoever blocks its worker while it does, and accounts for all of its wall time.
///
/// Every poll is timed and, with a [`Detector`](crate::Detector) running, watched: one that takes too long is reported
/// while it still runs. Time in the future's drop counts as polling. Calls and waits made in its polls report to it by
/// themselves; see [`Ledger`]. When the future ends its account goes into the span `future`, opened here under the
/// current span and entered in each poll.
///
/// The account begins here. What passes before the first poll counts as scheduled where the future is polled by another
/// task than the one that made it, as a spawned future is, and as other where nobody had asked for it yet.
///
/// # Performance
///
/// Three clock readings and a dozen instructions' worth of counters a poll, on memory of the polling thread and of the
/// future alone. No allocation per poll; one per future, at its first poll. See the benchmarks `poll` and
/// `instructions`. The future grows by about 300 bytes.
///
/// # Cancel safety
///
/// That of the wrapped future; dropping it ends the account.
///
/// # Panics
///
/// Only when polled after completion. A panic of the wrapped future passes through, and its poll is counted.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tokio::task::JoinError> {
/// let request = async { starvation::instrument_blocking("hash", || 6 * 7).await };
/// let (answer, ledger) = tokio::spawn(starvation::instrument_future("request", request).timed()).await?;
/// assert_eq!(answer?, 42);
/// let sum = ledger.polling + ledger.scheduled + ledger.blocking_queue + ledger.blocking_execution
///     + ledger.waiting + ledger.other;
/// assert_eq!(sum, ledger.total);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn instrument_future<F: Future>(op: &'static str, future: F) -> Instrumented<F> {
    let (op, location) = (op::shown(op), Location::caller());
    Instrumented {
        inner: Some(future),
        account: Account {
            name: op,
            location,
            tally: Tally::new(clock::now()),
            maker: tokio::task::try_id(),
            begun: None,
            trace: FutureTrace::open(op, location),
            completed: false,
        },
    }
}

pin_project! {
    /// A watched future. Made by [`instrument_future`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Instrumented<F> {
        // Empty once it has completed, so that its drop is part of the last poll.
        #[pin]
        inner: Option<F>,
        account: Account,
    }

    impl<F> PinnedDrop for Instrumented<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.inner.is_some() {
                this.account.watched(Waker::noop(), Turn::Drop, |_| this.inner.set(None));
            }
            this.account.close();
        }
    }
}

impl<F> std::fmt::Debug for Instrumented<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instrumented")
            .field("op", &self.account.name)
            .field("location", &format_args!("{}", self.account.location))
            .field("ledger", &self.account.tally.ledger())
            .finish_non_exhaustive()
    }
}

/// All that an [`Instrumented`] knows beside the future itself.
#[derive(Debug)]
struct Account {
    name: &'static str,
    location: &'static Location<'static>,
    tally: Tally,
    /// The task that made the future.
    maker: Option<tokio::task::Id>,
    begun: Option<Begun>,
    trace: Option<Box<FutureTrace>>,
    completed: bool,
}

/// What is known from the first poll on.
#[derive(Debug)]
struct Begun {
    op: &'static Op,
    watch: Arc<Watch>,
    /// What the wrapped future is given to wake.
    waker: Waker,
    /// What its polls are shown as: those of a task, or of no task.
    kind: Kind,
    /// The task's own waker, where it is not the one that polled first.
    moved_to: Option<Waker>,
    /// The thread that polled last, and the op's figures there.
    last: Option<(slot::Own, &'static PollFigures)>,
}

/// What the future's thread does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Poll,
    Drop,
}

/// The runtime that the calling thread works for.
pub(crate) fn current_runtime() -> Option<runtime::Id> {
    runtime::Handle::try_current().ok().map(|handle| handle.id())
}

impl Begun {
    fn new(account: &Account, waker: &Waker) -> Self {
        let watch = Watch::new(waker.clone());
        Self {
            op: op::intern(account.name, account.location, current_runtime()),
            waker: Waker::from(Arc::clone(&watch)),
            watch,
            kind: if tokio::task::try_id().is_some() { Kind::Poll } else { Kind::Root },
            moved_to: None,
            last: None,
        }
    }

    /// The op's figures on the calling thread.
    #[inline]
    fn figures(&mut self, own: slot::Own) -> &'static PollFigures {
        match self.last {
            Some((last, figures)) if last.is(own) => figures,
            _ => self.figures_elsewhere(own),
        }
    }

    #[cold]
    fn figures_elsewhere(&mut self, own: slot::Own) -> &'static PollFigures {
        let figures = own.figures(self.op.index);
        self.last = Some((own, figures));
        figures
    }

    /// Sees to it that whoever polls now is the one to be woken.
    #[inline]
    fn wake_to(&mut self, waker: &Waker) {
        let same = match &self.moved_to {
            None => self.watch.will_wake(waker),
            Some(moved_to) => moved_to.will_wake(waker),
        };
        if !same {
            self.move_to(waker);
        }
    }

    #[cold]
    fn move_to(&mut self, waker: &Waker) {
        if self.watch.will_wake(waker) {
            self.waker = Waker::from(Arc::clone(&self.watch));
            self.moved_to = None;
        } else {
            self.waker = Moved::waker(&self.watch, waker.clone());
            self.moved_to = Some(waker.clone());
        }
    }
}

impl Account {
    /// Runs one turn of the future: times it, shows it in the thread's slot, makes it the scope of what is made inside.
    #[inline]
    fn watched<R>(&mut self, waker: &Waker, turn: Turn, f: impl FnOnce(&Waker) -> R) -> R {
        let start = clock::now();
        let (latency, begun) = match &mut self.begun {
            Some(begun) => {
                if turn == Turn::Poll {
                    begun.wake_to(waker);
                }
                (self.tally.begin(start, begun.watch.gap.take_woken(), &begun.watch.gap), begun)
            }
            None => {
                let begun = Begun::new(self, waker);
                let spawned = turn == Turn::Poll && self.maker != tokio::task::try_id();
                let waited = self.tally.begin_first(start, spawned, &begun.watch.gap);
                (if spawned { waited } else { 0 }, self.begun.insert(begun))
            }
        };
        let own = slot::own().map(|own| (own, begun.figures(own)));
        if let Some((own, figures)) = own
            && latency != 0
        {
            figures.schedule_latency.record(latency);
            if latency >= LATE {
                late_poll(begun.op, own, start, latency);
            }
        }
        let _entered = self.trace.as_ref().map(|trace| trace.enter());
        let depth = own.map_or(0, |(own, _)| own.enter(Activity::new(begun.kind, begun.op.index, start)));
        rouse::rouse();
        let mut timed = Timed { tally: &mut self.tally, begun, own, depth, start, turn };
        let result = scope::within(&timed.begun.watch, || f(&timed.begun.waker));
        // Here, where it is inlined; the drop is for panics.
        timed.end();
        std::mem::forget(timed);
        result
    }

    /// The future is gone: its account goes into its span.
    fn close(&mut self) {
        if let Some(begun) = &self.begun {
            let op = begun.op;
            count(if self.completed { &op.futures_completed } else { &op.futures_dropped }, 1);
        }
        if let Some(trace) = self.trace.take() {
            trace.end(&self.tally.ledger());
        }
    }
}

/// One turn under way. Ends it when dropped, also when the future panics.
struct Timed<'a> {
    tally: &'a mut Tally,
    begun: &'a Begun,
    own: Option<(slot::Own, &'static PollFigures)>,
    depth: usize,
    start: u64,
    turn: Turn,
}

impl Drop for Timed<'_> {
    #[cold]
    fn drop(&mut self) {
        self.end();
    }
}

impl Timed<'_> {
    #[inline(always)]
    fn end(&mut self) {
        let end = clock::now();
        let took = match self.turn {
            Turn::Poll => self.tally.end(end, &self.begun.watch.gap),
            Turn::Drop => self.tally.end_drop(end),
        };
        let Some((own, figures)) = self.own else { return };
        figures.poll_duration.record(took);
        if took >= self.begun.op.long_poll_limit() {
            long_poll(self.begun.op, own, self.depth, self.start, end);
        }
        own.leave(self.depth);
    }
}

/// What comes sooner after its waking is not looked at any closer; no threshold is lower than it makes sense.
const LATE: u64 = 10_000_000;

/// A poll began so long after its waking. If a long poll of this thread lies between the two, it waited behind that one.
#[cold]
fn late_poll(op: &Op, own: slot::Own, start: u64, latency: u64) {
    /// Between the end of a long poll and the next on its worker lies no more than this.
    const NEXT: u64 = 1_000_000;
    if latency < op.long_poll_limit() {
        return;
    }
    count(&op.late_polls, 1);
    count(&op.late_poll_time, latency);
    let (culprit, from, to) = own.last_long_poll();
    if to.saturating_add(NEXT) >= start && from < start && to > start.saturating_sub(latency) {
        op::note(&op.late_behind, culprit);
    } else {
        op::forget(&op.late_behind);
    }
}

/// A poll was over its threshold. It is counted for the innermost that was, unless it could not hold up a worker: on a
/// thread of the runtime's own blocking pool. (In a call that runs another runtime it holds up that one's worker.)
#[cold]
fn long_poll(op: &'static Op, own: slot::Own, depth: usize, start: u64, end: u64) {
    let in_pool = |execution| op::get(execution).is_some_and(|execution| execution.runtime == op.runtime);
    if own.executions_around(depth).any(in_pool) {
        return;
    }
    let took = own.blame(depth, start, end);
    if took < op.long_poll_limit() {
        return;
    }
    count(&op.long_polls, 1);
    count(&op.long_poll_time, took);
    own.note_long_poll(op.index, start, end);
    if !op::is_observed()
        && let Some(suppressed) = op.may_warn(end, crate::defaults::WARNING_INTERVAL_NANOS)
    {
        trace::warn_long_poll(op, took, suppressed);
    }
}

impl<F: Future> Instrumented<F> {
    /// The same future, as a future of its output and its [`Ledger`].
    ///
    /// # Cancel safety
    ///
    /// As for the future itself.
    pub fn timed(self) -> Timing<F> {
        Timing { future: self }
    }
}

impl<F: Future> Future for Instrumented<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let account = this.account;
        let polled = account.watched(context.waker(), Turn::Poll, |waker| {
            let inner = this.inner.as_mut().as_pin_mut();
            #[allow(clippy::expect_used, reason = "the contract of Future: not to be polled after completion")]
            let inner = inner.expect("a future that has completed was polled again");
            let polled = inner.poll(&mut Context::from_waker(waker));
            if polled.is_ready() {
                this.inner.set(None);
            }
            polled
        });
        if polled.is_ready() {
            account.completed = true;
        }
        polled
    }
}

pin_project! {
    /// A watched future and its ledger. Made by [`Instrumented::timed`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Timing<F> {
        #[pin]
        future: Instrumented<F>,
    }
}

impl<F: Future> Future for Timing<F> {
    type Output = (F::Output, Ledger);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut future = self.project().future;
        let output = ready!(future.as_mut().poll(context));
        let ledger = future.account.tally.ledger();
        Poll::Ready((output, ledger))
    }
}
