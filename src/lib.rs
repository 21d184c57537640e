//! An in-process starvation detector for Tokio: it accounts for every nanosecond of a blocking call or a watched future,
//! and names whoever is stuck while it is stuck.
//!
//! A job takes 69 s, every step in it is fast, and 64 s pass before a thread of a pool comes free that nobody knew they
//! were using. This crate makes those seconds visible where they pass, on stable Tokio, without flags.
//!
//! # What to wrap
//!
//! | what | with | what it tells |
//! |---|---|---|
//! | a blocking call | [`instrument_blocking`] instead of `spawn_blocking` | [queue wait, execution, resume delay](CallTiming) |
//! | a request, a job, a task | [`instrument_future`] | [where its wall time went](Ledger), and each poll that is too long |
//! | waiting for a permit, a pooled connection, a lock | [`instrument_wait`] | how long, and who has waited longest |
//! | a job for another pool, such as rayon | [`instrument_job`] | queue wait and execution |
//!
//! All of them work by themselves: calls and futures emit [tracing] spans, and warn of what took too long once it has
//! ended. With a
//! [`Detector`] running in the process what is stuck is reported while it is: as an [`Incident`] that opens, is updated
//! when it has become twice as bad, and closes with its totals.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let detector = starvation::Detector::start()?;
//!
//! let job = async { starvation::instrument_blocking("resize", || "a thumbnail").await };
//! let (result, ledger) = tokio::spawn(starvation::instrument_future("job", job).timed()).await?;
//!
//! assert_eq!(result?, "a thumbnail");
//! println!("{:?} of {:?} were spent waiting for a thread", ledger.blocking_queue, ledger.total);
//! println!("{}", detector.diagnose());
//! # Ok(())
//! # }
//! ```
//!
//! # Spans
//!
//! Numbers are microseconds as `i64`, under names that end in `_us`.
//!
//! | span | level, target | fields |
//! |---|---|---|
//! | `blocking_call` | INFO, `starvation` | `op`, `location`, `queue_wait_us`, `execution_us`, `cpu_us`, `resume_delay_us`, `unclaimed_us`, `outcome` |
//! | its children `queue_wait`, `execution`, `resume_delay` | DEBUG, `starvation` | none: their lengths are the message |
//! | `future` | INFO, `starvation` | `op`, `location`, the fields of [`Ledger`] |
//! | `incident` | WARN, `starvation::incident` | `incident`, `cause`, `detail`, `op`, `location`, `runtime`, and at its end `duration_us`, `delay_us`, `calls`, `suppressed` |
//!
//! Inside `incident` are the events `opened` and `updated` (WARN) and `closed` (INFO), which also carry `evidence`,
//! `action` and `advice`. The call's span is a child of the caller's current span and is never entered; what the closure
//! emits stands inside `execution`.
//!
//! # Features
//!
//! - `serde`: [`Snapshot`], [`Incident`], [`Diagnosis`], [`Ledger`] and [`CallTiming`] can be serialized.
//! - `stacks`: where in the code the threads are that an incident is about, on Linux, if it is asked for on the builder.
//!
//! # What it finds
//!
//! A [`Diagnosis`] convicts one [`Cause`] and rules on all others, each with the number that says so; printed, it is the
//! table of suspects. Its [`Advice`] is for a person and for a program: an [`Action`], and for a pool the size that
//! would have been enough. What one fault does to others are its [`Effect`]s.
//!
//! Some of it shows without wrapping anything: workers that stand still, late timers, a pool that is full of other calls, a
//! runtime with more to do than it can, a process that was stopped or had no CPU. A runtime that is prepared by
//! [`hooks`](fn@hooks) before it is built shows more of it.
//!
//! # What it cannot see
//!
//! Code that nobody wrapped, by name. Workers of current-thread runtimes that stand still. The root future of `block_on`, unless
//! it is wrapped. Timers of runtimes that have none, whose clock is paused, or in programs whose panics abort: there is no
//! heartbeat there. Who holds a lock or a resource: only who waits for it, and who was last given it. What a thread that sleeps
//! waits for, but on Linux. What cannot be read is unknown, `None` or [`Cause::Undetermined`], and never 0.

mod activity;
mod age;
mod blocking;
mod builder;
mod burst;
mod call;
mod cap;
mod cause;
mod clock;
mod conduct;
mod counted;
mod defaults;
mod detector;
mod episode;
mod evidence;
mod facts;
mod figures;
mod frame;
mod future;
mod gap;
mod hooks;
mod incident;
mod job;
mod judge;
mod lately;
mod ledger;
mod op;
mod owner;
mod parity;
mod pause;
mod poller;
mod pool_thread;
mod presence;
mod probe;
mod replay;
mod report;
mod rouse;
mod runtime;
mod runtimes;
mod sample;
mod scope;
mod shortage;
mod sight;
mod sink;
mod slot;
mod snapshot;
#[cfg(feature = "stacks")]
mod stack;
mod stacks;
mod starved;
mod sync;
mod threads;
mod timing;
mod trace;
mod tracker;
mod trips;
mod wait;
mod waits;
mod watchdog;
mod wire;

pub use blocking::{BlockingCall, TimedCall, instrument_blocking, instrument_blocking_on};
#[cfg(feature = "stacks")]
pub use builder::Stacks;
pub use builder::{Builder, StartError};
pub use cause::{Action, Cause, Effect, Ruling};
pub use defaults::{
    DEFAULT_LONG_POLL, DEFAULT_QUEUE_WAIT, DEFAULT_TICK, DEFAULT_WARM_UP, DEFAULT_WARNING_INTERVAL, DEFAULT_WINDOW,
};
#[cfg(feature = "stacks")]
pub use detector::StacksError;
pub use detector::{AttachError, Detector};
pub use frame::{Frame, FrameKind, StackTrace};
pub use future::{Instrumented, Timing, instrument_future};
pub use hooks::hooks;
pub use incident::{Advice, Culprit, Diagnosis, Incident, IncidentChange, Phases, State, Suspect, Victim};
pub use job::instrument_job;
pub use ledger::Ledger;
pub use runtime::RuntimeSnapshot;
pub use sink::channel::Subscription;
pub use sink::{SINK_CAPACITY, Sink};
pub use snapshot::{Distribution, ObserverSnapshot, OpSnapshot, Outcomes, Snapshot};
#[cfg(feature = "stacks")]
pub use stack::CannotCapture;
pub use stacks::{StackBranch, StackGroup};
#[cfg(feature = "stacks")]
pub use stacks::{ThreadDump, ThreadGroup, ThreadRole, WatchedThread};
pub use timing::{CallTiming, Outcome};
pub use wait::{InstrumentedWait, instrument_wait};

/// The README's code is compiled and run, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
