//! The subscribers of incident changes.

use super::{SINK_CAPACITY, Sink};
use crate::figures::count;
use crate::incident::IncidentChange;
use crate::sample::ObserverFigures;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, error::TrySendError};

/// A receiver of incident changes. Made by [`Detector::subscribe`](crate::Detector::subscribe).
///
/// It gets all that is reported from its making on. [`SINK_CAPACITY`] changes wait for it; what comes on top is
/// dropped and counted in [`ObserverSnapshot::dropped_reports`](crate::ObserverSnapshot::dropped_reports). It ends
/// with the detector.
#[derive(Debug)]
pub struct Subscription {
    changes: mpsc::Receiver<IncidentChange>,
}

impl Subscription {
    /// Waits for the next change; `None` once the detector is gone and all has been taken.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Option<IncidentChange> {
        self.changes.recv().await
    }

    /// The next change if there is one.
    pub fn try_recv(&mut self) -> Option<IncidentChange> {
        self.changes.try_recv().ok()
    }

    /// Blocks the thread until the next change; `None` once the detector is gone, or after `timeout`.
    ///
    /// For threads outside of a runtime; on a worker it would block that one.
    pub fn recv_timeout(&mut self, timeout: Duration) -> Option<IncidentChange> {
        let deadline = Instant::now().checked_add(timeout);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut next = pin!(self.changes.recv());
        loop {
            if let Poll::Ready(change) = next.as_mut().poll(&mut Context::from_waker(&waker)) {
                return change;
            }
            match deadline {
                None => thread::park(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    thread::park_timeout(left);
                }
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The subscribers, shared by those who add themselves and the thread that serves them. The observer has no part in
/// it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subscribers {
    senders: Arc<Mutex<Vec<mpsc::Sender<IncidentChange>>>>,
}

impl Subscribers {
    pub(crate) fn add(&self) -> Subscription {
        let (sender, changes) = mpsc::channel(SINK_CAPACITY);
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        Subscription { changes }
    }

    /// The sink that serves them.
    pub(crate) fn courier(&self, figures: Arc<ObserverFigures>) -> Courier {
        Courier { subscribers: self.clone(), figures }
    }
}

/// Hands every change to every subscriber.
#[derive(Debug)]
pub(crate) struct Courier {
    subscribers: Subscribers,
    figures: Arc<ObserverFigures>,
}

impl Sink for Courier {
    fn report(&mut self, change: &IncidentChange) {
        let mut senders = self.subscribers.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|sender| match sender.try_send(change.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                count(&self.figures.dropped_reports, 1);
                true
            }
            Err(TrySendError::Closed(_)) => false,
        });
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        // Without senders the subscriptions end.
        self.subscribers.senders.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
