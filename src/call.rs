//! The life of one call, whichever pool runs it: enqueued, started, ended, claimed.
//!
//! A call is one shared record. The closure holds it by a guard that sees exactly one of: started, dropped unrun. The
//! handle, where there is one, holds it to claim the result or to give it up. What either does is told at once to all
//! who keep count: the op, the thread's slot, the watched futures around the call, the spans.
//!
//! # Invariants
//!
//! 1. `flags` only gains bits, by read-modify-writes of one atomic. So of two events that race (the start and the giving
//!    up, the end and the first poll) exactly one sees the other, and each consequence happens once.
//! 2. A time is written before the bit that announces it.

use crate::activity::{Activity, Kind};
use crate::clock;
use crate::figures::{CallFigures, count};
use crate::gap::Change;
use crate::op::{self, Op};
use crate::rouse;
use crate::scope::{self, Enclosing};
use crate::slot;
use crate::timing::{CallTiming, Marks, Outcome};
use crate::trace::{self, CallTrace, QueuedTrace};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::Waker;

const STARTED: u32 = 1;
const ENDED: u32 = 1 << 1;
/// A task waits for the result.
const AWAITED: u32 = 1 << 2;
/// The handle is gone, or the result taken: the call works for nobody any more.
const RELEASED: u32 = 1 << 3;
const PANICKED: u32 = 1 << 4;
const REJECTED: u32 = 1 << 5;
/// It waited for too long, and whether for longer than it runs is to be seen.
const UNJUDGED: u32 = 1 << 6;

/// `cpu` where it is not known.
const UNKNOWN: u64 = u64::MAX;

thread_local! {
    /// The call that this thread is handing to its pool. Only compared with, never followed.
    static SUBMITTING: Cell<*const Call> = const { Cell::new(std::ptr::null()) };
}

/// The record that the closure and the handle share.
#[derive(Debug)]
pub(crate) struct Call {
    op: &'static Op,
    enqueued: u64,
    /// 0 until then; so is `ended`.
    started: AtomicU64,
    ended: AtomicU64,
    cpu: AtomicU64,
    flags: AtomicU32,
    /// It was made on a thread of its own pool.
    made_inside: bool,
    enclosing: Enclosing,
    trace: Option<Box<CallTrace>>,
}

/// The closure's hold on its call. Dropped without [`start`](Self::start), it ends the call unrun.
#[derive(Debug)]
pub(crate) struct Queued {
    call: Option<Arc<Call>>,
    trace: Option<Box<QueuedTrace>>,
}

/// The handle's hold on its call, until the result is taken. Dropped without [`claim`](Self::claim), it gives the call
/// up.
#[derive(Debug)]
pub(crate) struct Claim {
    call: Option<Arc<Call>>,
    /// Once a task has asked: whether that was before the end.
    awaited: Option<bool>,
    /// Whoever asks does so on a thread of the call's own pool, which waits meanwhile.
    nested: bool,
}

/// A call of `op` is made, and its closure's guard with it.
pub(crate) fn enqueue(op: &'static Op) -> (Queued, Arc<Call>) {
    let (trace, queued_trace) = CallTrace::open(op).unzip();
    let enclosing = Enclosing::current();
    let enqueued = clock::now();
    op.queued.enter(enqueued);
    rouse::rouse();
    enclosing.change(Change { queued: 1, ..Change::default() }, enqueued);
    let made_inside = executing_on(op.runtime).is_some();
    if made_inside {
        count(&op.calls().made_inside, 1);
    }
    if let Some(caller) = slot::own().and_then(slot::Own::innermost) {
        op::note(&op.calls().caller, caller);
    }
    let call = Arc::new(Call {
        op,
        enqueued,
        started: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        cpu: AtomicU64::new(UNKNOWN),
        flags: AtomicU32::new(0),
        made_inside,
        enclosing,
        trace,
    });
    (Queued { call: Some(Arc::clone(&call)), trace: queued_trace }, call)
}

impl Call {
    fn calls(&self) -> &CallFigures {
        self.op.calls()
    }

    /// AcqRel throughout: what was written before a bit is visible to whoever sees the bit (invariant 2).
    fn flag(&self, bits: u32) -> u32 {
        self.flags.fetch_or(bits, Ordering::AcqRel)
    }

    fn start(&self) {
        let now = clock::now().max(self.enqueued);
        // Relaxed: published by the flag.
        self.started.store(now, Ordering::Relaxed);
        let before = self.flag(STARTED);
        self.op.queued.leave(self.enqueued);
        let calls = self.calls();
        count(&calls.started, 1);
        let waited = now - self.enqueued;
        calls.queue_wait.record(waited);
        if waited >= self.op.queue_wait_limit() {
            // Judged now, not at the end, which may be long after all that the wait was a part of; but of an op's first
            // calls nobody knows yet how long they run.
            match calls.usual_execution() {
                Some(usual) if waited > usual => self.starved(waited),
                Some(_) => {}
                None => _ = self.flag(UNJUDGED),
            }
        }
        if before & RELEASED == 0 {
            self.enclosing.change(Change { queued: -1, executing: 1, waits: 0 }, now);
        } else {
            count(&calls.abandoned, 1);
        }
    }

    /// The execution has ended. `cpu` is its thread's CPU time since the start.
    fn end(&self, cpu: Option<u64>, panicked: bool) {
        let started = self.started.load(Ordering::Relaxed);
        let now = clock::now().max(started);
        let calls = self.calls();
        let (waited, ran) = (started - self.enqueued, now - started);
        calls.execution.record(ran);
        count(if panicked { &calls.panicked } else { &calls.returned }, 1);
        if let Some(cpu) = cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
            // The CPU clock ticks on its own grid: no more than the wall's.
            count(&calls.cpu, cpu.min(ran));
            count(&calls.cpu_known_execution, ran);
        }
        if waited >= self.op.queue_wait_limit() && waited > ran {
            self.warn(waited, ran, now);
            if self.flags.load(Ordering::Acquire) & UNJUDGED != 0 {
                self.starved(waited);
            }
        }
        self.finish(now, if panicked { PANICKED } else { 0 }, Change { executing: -1, ..Change::default() });
    }

    /// The closure was dropped unrun.
    fn discard(&self) {
        let now = clock::now().max(self.enqueued);
        self.op.queued.leave(self.enqueued);
        // Dropped by the very thread that is handing it over: the runtime had shut down before.
        let rejected = SUBMITTING.with(|submitting| std::ptr::eq(submitting.get(), self));
        let calls = self.calls();
        count(if rejected { &calls.rejected } else { &calls.cancelled }, 1);
        self.finish(now, if rejected { REJECTED } else { 0 }, Change { queued: -1, ..Change::default() });
    }

    fn finish(&self, now: u64, bits: u32, change: Change) {
        self.ended.store(now, Ordering::Relaxed);
        let before = self.flag(ENDED | bits);
        if before & RELEASED == 0 {
            self.enclosing.change(change, now);
        }
        if let Some(trace) = &self.trace {
            let awaited = before & AWAITED != 0 && before & RELEASED == 0;
            trace.finished(&self.timing(now, awaited), awaited);
        }
    }

    /// Its wait was over the floor, and longer than its execution is, or was.
    #[cold]
    fn starved(&self, waited: u64) {
        count(&self.calls().dominated, 1);
        count(&self.calls().dominated_wait, waited);
    }

    #[cold]
    fn warn(&self, waited: u64, ran: u64, now: u64) {
        if op::is_observed() {
            return;
        }
        if let Some(suppressed) = self.op.may_warn(now, crate::defaults::WARNING_INTERVAL_NANOS) {
            trace::warn_queue_wait(self.op, waited, ran, suppressed);
        }
    }

    /// The timing of an ended call whose result was taken at `resumed`, by a task that was waiting at the end or not.
    fn timing(&self, resumed: u64, awaited: bool) -> CallTiming {
        let flags = self.flags.load(Ordering::Acquire);
        let started = (flags & STARTED != 0).then(|| self.started.load(Ordering::Relaxed));
        let cpu = self.cpu.load(Ordering::Relaxed);
        let outcome = match () {
            () if flags & REJECTED != 0 => Outcome::Rejected,
            () if started.is_none() => Outcome::Cancelled,
            () if flags & PANICKED != 0 => Outcome::Panicked,
            () => Outcome::Returned,
        };
        CallTiming::new(Marks {
            enqueued: self.enqueued,
            started,
            // A call that has not ended cannot be claimed; should it be, it ends now.
            finished: match self.ended.load(Ordering::Relaxed) {
                0 => resumed,
                ended => ended,
            },
            resumed,
            awaited,
            cpu: (cpu != UNKNOWN).then_some(cpu),
            outcome,
        })
    }
}

impl Queued {
    /// Runs the call's closure on the thread that its pool has given it.
    pub(crate) fn run<R>(mut self, f: impl FnOnce() -> R) -> R {
        let Some(call) = self.call.take() else { return f() };
        call.start();
        match self.trace.take() {
            None => execute(call, f),
            Some(trace) => {
                let parent = Arc::clone(&call);
                trace.execute(parent.trace.as_deref(), || execute(call, f))
            }
        }
    }
}

/// The execution itself: from here to the end of `f` the thread's slot names the call's op.
fn execute<R>(call: Arc<Call>, f: impl FnOnce() -> R) -> R {
    /// Ends the execution, also when the closure panics.
    struct Execution {
        call: Arc<Call>,
        own: Option<(slot::Own, usize)>,
        cpu: Option<u64>,
        returned: bool,
    }

    impl Drop for Execution {
        fn drop(&mut self) {
            let cpu =
                self.cpu.and_then(|from| Some((from, clock::thread_cpu()?))).map(|(from, to)| to.saturating_sub(from));
            if let Some((own, depth)) = self.own {
                own.leave(depth);
            }
            self.call.end(cpu, !self.returned);
        }
    }

    let own = slot::own().map(|own| {
        let started = call.started.load(Ordering::Relaxed);
        (own, own.enter(Activity::new(Kind::Execution, call.op.index, started)))
    });
    let cpu = call.calls().asks_for_cpu().then(clock::thread_cpu).flatten();
    let mut execution = Execution { call, own, cpu, returned: false };
    let result = f();
    execution.returned = true;
    drop(execution);
    result
}

impl Drop for Queued {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        match self.trace.take() {
            None => call.discard(),
            Some(trace) => trace.discard(|| call.discard()),
        }
    }
}

impl Claim {
    pub(crate) fn new(call: Arc<Call>) -> Self {
        Self { call: Some(call), awaited: None, nested: false }
    }

    /// Hands the call's closure to its pool by `submit`.
    pub(crate) fn submitting<R>(&self, submit: impl FnOnce() -> R) -> R {
        /// Puts the outer call back, also when `submit` panics.
        struct Restore(*const Call);

        impl Drop for Restore {
            fn drop(&mut self) {
                SUBMITTING.with(|submitting| submitting.set(self.0));
            }
        }

        let call = self.call.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
        let _restore = Restore(SUBMITTING.with(|submitting| submitting.replace(call)));
        submit()
    }

    /// A task is about to ask for the result.
    #[inline]
    pub(crate) fn ask(&mut self, waker: &Waker) {
        if let (Some(call), None) = (&self.call, self.awaited) {
            if scope::is_by_hand(waker)
                && let Some(own) = slot::own()
            {
                own.note_by_hand(clock::now());
            }
            // The same flags decide here and in `finish`, so both agree on who came first (invariant 1).
            let awaited = call.flag(AWAITED) & ENDED == 0;
            self.awaited = Some(awaited);
            if awaited && let Some(outer) = executing_on(call.op.runtime) {
                self.nested = true;
                let calls = call.calls();
                count(&calls.nested, 1);
                count(&calls.nested_now, 1);
                if call.made_inside {
                    count(&calls.nested_made, 1);
                }
                op::note(&calls.nested_in, outer);
            }
        }
    }

    /// The task has the result.
    pub(crate) fn claim(&mut self) -> CallTiming {
        self.leave_nest();
        let Some(call) = self.call.take() else {
            // A result is handed out once, and whoever asks again does not get here: the handle panics before.
            return CallTiming::nothing();
        };
        let awaited = self.awaited == Some(true);
        let timing = call.timing(clock::now(), awaited);
        if awaited {
            call.calls().resume_delay.record(clock::nanos(timing.resume_delay));
        }
        if let Some(trace) = &call.trace {
            trace.claimed(&timing, awaited);
        }
        timing
    }
}

impl Claim {
    /// The thread that waits, or would, does so no longer.
    fn leave_nest(&mut self) {
        if let (true, Some(call)) = (std::mem::take(&mut self.nested), &self.call) {
            // Relaxed: a gauge.
            call.calls().nested_now.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The op that the calling thread executes a call of, on the pool of this runtime.
fn executing_on(runtime: Option<tokio::runtime::Id>) -> Option<u32> {
    let own = slot::own()?;
    let depth = own.depth();
    if depth == 0 || runtime.is_none() {
        return None;
    }
    own.executions_around(depth).find(|&outer| op::get(outer).is_some_and(|outer| outer.runtime == runtime))
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.leave_nest();
        let Some(call) = self.call.take() else { return };
        let before = call.flag(RELEASED);
        if before & ENDED != 0 {
            return;
        }
        let change = if before & STARTED != 0 {
            count(&call.calls().abandoned, 1);
            Change { executing: -1, ..Change::default() }
        } else {
            Change { queued: -1, ..Change::default() }
        };
        call.enclosing.change(change, clock::now());
    }
}
