//! The way from the observer to one sink: a bounded queue, and a thread that empties it.

use super::{SINK_CAPACITY, Sink};
use crate::figures::count;
use crate::incident::IncidentChange;
use crate::sample::ObserverFigures;
use crossbeam_queue::ArrayQueue;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// A sink at work.
#[derive(Debug)]
pub(crate) struct Line {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
    /// Hangs up when the thread is about to end.
    ended: Receiver<()>,
}

#[derive(Debug)]
struct Shared {
    reports: ArrayQueue<IncidentChange>,
    closing: AtomicBool,
}

impl Line {
    pub(crate) fn start(mut sink: Box<dyn Sink>, figures: Arc<ObserverFigures>) -> io::Result<Self> {
        let shared = Arc::new(Shared { reports: ArrayQueue::new(SINK_CAPACITY), closing: AtomicBool::new(false) });
        let (alive, ended) = mpsc::channel::<()>();
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("starvation-sink".to_owned()).spawn(move || {
            // First in, so last to go: who waits for the end also waits for the sink's own drop.
            let _alive = alive;
            of_thread.empty(&mut *sink, &figures);
            // A panic in the sink's drop must not be printed as one of ours.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(sink)));
        })?;
        Ok(Self { shared, thread, ended })
    }

    /// Hands a report over, without waiting. Tells whether there was room.
    pub(crate) fn send(&self, change: IncidentChange) -> bool {
        let sent = self.shared.reports.push(change).is_ok();
        self.thread.thread().unpark();
        sent
    }

    /// The last report has been sent.
    pub(crate) fn close(&self) {
        // Release: pairs with the Acquire in `empty`; who sees it sees the last report.
        self.shared.closing.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    /// Waits until the sink has taken all reports, or until the deadline: a sink that hangs is left to itself.
    pub(crate) fn wait(self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(mpsc::RecvTimeoutError::Disconnected) = self.ended.recv_timeout(left) {
            let _ = self.thread.join();
        }
    }
}

impl Shared {
    fn empty(&self, sink: &mut dyn Sink, figures: &ObserverFigures) {
        loop {
            // Acquire: pairs with the Release in `close`. Read before the queue: what came before it is still taken.
            let closing = self.closing.load(Ordering::Acquire);
            while let Some(change) = self.reports.pop() {
                if catch_unwind(AssertUnwindSafe(|| sink.report(&change))).is_err() {
                    count(&figures.failed_reports, 1);
                }
            }
            if closing {
                return;
            }
            thread::park();
        }
    }
}
