//! The spans of calls and futures, and the warnings of a process that runs no detector.
//!
//! With no subscriber, or one that does not want them, nothing here is built: a call carries a null pointer. What is
//! built is built by the subscriber of the thread that makes the call, also on the pool's thread.

use crate::ledger::Ledger;
use crate::op::Op;
use crate::timing::{CallTiming, Outcome};
use crate::wire::micros;
use std::panic::Location;
use std::sync::OnceLock;
use std::time::Duration;
use tracing::field::Empty;
use tracing::{Dispatch, Level, Span, dispatcher};

/// Closes a span under its own subscriber: a registry looks for the parents of what it closes at the thread's, which may
/// be another one, or none.
fn close(span: Span) {
    match span.with_subscriber(|(_, dispatch)| dispatch.clone()) {
        Some(dispatch) => dispatcher::with_default(&dispatch, || drop(span)),
        None => drop(span),
    }
}

/// The spans of one call. Dropped with the call, `resume_delay` first and the call's own last.
#[derive(Debug)]
pub(crate) struct CallTrace {
    resume_delay: OnceLock<Span>,
    call: Span,
}

/// What goes into the closure: its `queue_wait` ends as the closure starts, or is dropped unrun.
#[derive(Debug)]
pub(crate) struct QueuedTrace {
    queue_wait: Span,
    dispatch: Dispatch,
}

impl CallTrace {
    /// Opens a call's spans under the caller's current one; `None` where nobody listens.
    pub(crate) fn open(op: &Op) -> Option<(Box<Self>, Box<QueuedTrace>)> {
        let call = tracing::span!(
            target: "starvation",
            Level::INFO,
            "blocking_call",
            op = op.name,
            location = Empty,
            queue_wait_us = Empty,
            execution_us = Empty,
            cpu_us = Empty,
            resume_delay_us = Empty,
            unclaimed_us = Empty,
            outcome = Empty,
        );
        if call.is_disabled() {
            return None;
        }
        call.record("location", tracing::field::display(op.location));
        let queue_wait = tracing::span!(target: "starvation", parent: &call, Level::DEBUG, "queue_wait");
        let dispatch = dispatcher::get_default(Clone::clone);
        Some((Box::new(Self { resume_delay: OnceLock::new(), call }), Box::new(QueuedTrace { queue_wait, dispatch })))
    }

    /// The closure has ended; where a task waits for it, its `resume_delay` begins.
    pub(crate) fn finished(&self, timing: &CallTiming, awaited: bool) {
        self.call.record("queue_wait_us", micros(timing.queue_wait));
        if matches!(timing.outcome, Outcome::Returned | Outcome::Panicked) {
            self.call.record("execution_us", micros(timing.execution));
        }
        if let Some(cpu) = timing.cpu {
            self.call.record("cpu_us", micros(cpu));
        }
        self.call.record("outcome", timing.outcome.name());
        if awaited {
            let span = tracing::span!(target: "starvation", parent: &self.call, Level::DEBUG, "resume_delay");
            // Set once per call: there is one end.
            let _ = self.resume_delay.set(span);
        }
    }

    /// The result was taken.
    pub(crate) fn claimed(&self, timing: &CallTiming, awaited: bool) {
        if awaited {
            self.call.record("resume_delay_us", micros(timing.resume_delay));
        } else {
            self.call.record("unclaimed_us", micros(timing.unclaimed));
        }
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        self.resume_delay.take().into_iter().for_each(close);
        close(std::mem::replace(&mut self.call, Span::none()));
    }
}

impl QueuedTrace {
    /// Runs `f` on the pool's thread as the caller's `execution`.
    pub(crate) fn execute<R>(self, trace: Option<&CallTrace>, f: impl FnOnce() -> R) -> R {
        let Self { queue_wait, dispatch } = self;
        dispatcher::with_default(&dispatch, || {
            drop(queue_wait);
            let parent = trace.and_then(|trace| trace.call.id());
            tracing::span!(target: "starvation", parent: parent, Level::DEBUG, "execution").in_scope(f)
        })
    }

    /// Runs `f`, which ends the call without its closure having run, with the caller's subscriber.
    pub(crate) fn discard<R>(self, f: impl FnOnce() -> R) -> R {
        let Self { queue_wait, dispatch } = self;
        dispatcher::with_default(&dispatch, || {
            drop(queue_wait);
            f()
        })
    }
}

/// The span of one future.
#[derive(Debug)]
pub(crate) struct FutureTrace {
    span: Span,
}

impl FutureTrace {
    /// Opens a future's span under the caller's current one; `None` where nobody listens.
    pub(crate) fn open(op: &'static str, location: &Location<'_>) -> Option<Box<Self>> {
        let span = tracing::span!(
            target: "starvation",
            Level::INFO,
            "future",
            op,
            location = Empty,
            polling_us = Empty,
            scheduled_us = Empty,
            blocking_queue_us = Empty,
            blocking_execution_us = Empty,
            waiting_us = Empty,
            other_us = Empty,
            total_us = Empty,
            polls = Empty,
            longest_poll_us = Empty,
        );
        (!span.is_disabled()).then(|| {
            span.record("location", tracing::field::display(location));
            Box::new(Self { span })
        })
    }

    /// A poll of the future: what it emits stands inside its span.
    pub(crate) fn enter(&self) -> tracing::span::Entered<'_> {
        self.span.enter()
    }

    /// The future has ended with this account.
    pub(crate) fn end(mut self, ledger: &Ledger) {
        for (field, duration) in [
            ("polling_us", ledger.polling),
            ("scheduled_us", ledger.scheduled),
            ("blocking_queue_us", ledger.blocking_queue),
            ("blocking_execution_us", ledger.blocking_execution),
            ("waiting_us", ledger.waiting),
            ("other_us", ledger.other),
            ("total_us", ledger.total),
            ("longest_poll_us", ledger.longest_poll),
        ] {
            self.span.record(field, micros(duration));
        }
        self.span.record("polls", i64::try_from(ledger.polls).unwrap_or(i64::MAX));
        close(std::mem::replace(&mut self.span, Span::none()));
    }
}

/// No detector runs, and a poll that was too long has ended.
#[cold]
pub(crate) fn warn_long_poll(op: &Op, took: u64, suppressed: u64) {
    let took = Duration::from_nanos(took);
    tracing::warn!(
        target: "starvation",
        op = op.name,
        location = %op.location,
        poll_duration_us = micros(took),
        suppressed = i64::try_from(suppressed).unwrap_or(i64::MAX),
        "one poll of `{}` took {took:.1?}: everything else on its worker waited that long",
        op.name,
    );
}

/// No detector runs, and a call has ended that waited longer than it ran.
#[cold]
pub(crate) fn warn_queue_wait(op: &Op, waited: u64, ran: u64, suppressed: u64) {
    let (waited, ran) = (Duration::from_nanos(waited), Duration::from_nanos(ran));
    tracing::warn!(
        target: "starvation",
        op = op.name,
        location = %op.location,
        queue_wait_us = micros(waited),
        execution_us = micros(ran),
        suppressed = i64::try_from(suppressed).unwrap_or(i64::MAX),
        "a call of `{}` waited {waited:.1?} for a thread and ran {ran:.1?}: the pool had none free",
        op.name,
    );
}
