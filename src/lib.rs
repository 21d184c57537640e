//! An in-process starvation detector for Tokio.
//!
//! Every nanosecond of a blocking call or a watched future is accounted for, whoever is stuck is named while stuck, and
//! each report says which numbers it rests on.
mod age;
mod blocking;
mod builder;
mod call;
mod cause;
mod clock;
mod defaults;
mod detector;
mod episode;
mod figures;
mod future;
mod incident;
mod job;
mod judge;
mod ledger;
mod op;
mod runtime;
mod sample;
mod scope;
mod sink;
mod slot;
mod snapshot;
mod sync;
mod timing;
mod trace;
mod tracker;
mod wait;
mod watchdog;
mod wire;

pub use blocking::{BlockingCall, TimedCall, instrument_blocking, instrument_blocking_on};
pub use builder::{Builder, StartError};
pub use cause::{Action, Cause};
pub use defaults::{
    DEFAULT_LONG_POLL, DEFAULT_QUEUE_WAIT, DEFAULT_TICK, DEFAULT_WARM_UP, DEFAULT_WARNING_INTERVAL, DEFAULT_WINDOW,
};
pub use detector::{AttachError, Detector};
pub use future::{Instrumented, Timing, instrument_future};
pub use incident::{Advice, Culprit, Diagnosis, Incident, IncidentChange, State, Victim};
pub use job::instrument_job;
pub use ledger::Ledger;
pub use runtime::{RuntimeSnapshot, hooks};
pub use sink::channel::Subscription;
pub use sink::{SINK_CAPACITY, Sink};
pub use snapshot::{Distribution, ObserverSnapshot, OpSnapshot, Outcomes, Snapshot};
pub use timing::{CallTiming, Outcome};
pub use wait::{InstrumentedWait, instrument_wait};
