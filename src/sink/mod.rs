//! Where reports go. Each sink has a thread and a bounded queue of its own, so that one that hangs holds up nobody: not
//! the observer, not the other sinks, least of all the program.

pub(crate) mod channel;
pub(crate) mod line;
pub(crate) mod spans;

use crate::incident::IncidentChange;

/// Takes reports, on a thread of its own. See [`Builder::sink`](crate::Builder::sink).
///
/// It may block for as long as it likes: its queue holds [`SINK_CAPACITY`] reports, and what comes on top is dropped
/// and counted ([`ObserverSnapshot::dropped_reports`](crate::ObserverSnapshot::dropped_reports)). A panic in it is
/// counted, too, and the next report is given to it all the same.
///
/// Every `FnMut(&IncidentChange) + Send + 'static` is one.
pub trait Sink: Send + 'static {
    /// An incident has opened, got worse or ended.
    fn report(&mut self, change: &IncidentChange);
}

impl<F: FnMut(&IncidentChange) + Send + 'static> Sink for F {
    fn report(&mut self, change: &IncidentChange) {
        self(change);
    }
}

/// How many reports can wait for a sink, or for a subscriber.
pub const SINK_CAPACITY: usize = 256;
