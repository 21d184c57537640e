//! What a report says: one episode of starvation, from opened to closed.

use crate::cause::{Action, Cause, Effect, Ruling};
use crate::stacks::StackGroup;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Whether an episode goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum State {
    /// It goes on.
    Open,
    /// It is over; the figures are its totals.
    Closed,
}

/// One episode of starvation.
///
/// As JSON (feature `serde`) durations are whole microseconds under names that end in `_us`.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Incident {
    /// The same from opened to closed, and never given twice by a process's detector. Counts from 1.
    pub id: u64,
    /// Whether it goes on.
    pub state: State,
    /// From the detector's start to the opening.
    #[cfg_attr(feature = "serde", serde(rename = "opened_after_us", serialize_with = "crate::wire::us"))]
    pub opened_after: Duration,
    /// From the beginning of the oldest delay, before the opening, to the last look that still saw it.
    #[cfg_attr(feature = "serde", serde(rename = "duration_us", serialize_with = "crate::wire::us"))]
    pub duration: Duration,
    /// What is at fault, as far as the evidence goes.
    pub cause: Cause,
    /// The cause more closely, or what is missing to tell it.
    pub detail: Option<&'static str>,
    /// The op that is at fault: who blocks the worker, who holds most of the pool's threads, whose resource is waited
    /// for. Where it is not known who holds the threads, the op that waits longest; `None` where no op is at fault or
    /// nobody wrapped the one that is.
    pub op: Option<&'static str>,
    /// Where that op is.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::maybe_location"))]
    pub location: Option<&'static Location<'static>>,
    /// The runtime that it happens on, by Tokio's own number; `None` outside of any. Not part of the JSON.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub runtime: Option<u64>,
    /// How many polls, calls or waits are part of it so far.
    pub calls: u64,
    /// The delay that they had together: what has ended, and the oldest of what has not.
    #[cfg_attr(feature = "serde", serde(rename = "delay_us", serialize_with = "crate::wire::us"))]
    pub delay: Duration,
    /// How many of `calls` were folded into the report of the first, and how many more came in episodes like this one
    /// that were not reported because there were too many.
    pub suppressed: u64,
    /// Whether nobody was seen to suffer from it so far: then it is information, and no warning. A poll that was too long
    /// while other workers took all that there was to do is so. Not part of the JSON.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub harmless: bool,
    /// The stacks of the threads that it is about, those that most have in common first; empty where none were asked for
    /// with [`Builder::stacks`](crate::Builder::stacks). Not part of the JSON: there the culprits have theirs in short.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub stacks: Arc<[StackGroup]>,
    /// Why no stack could be taken, where stacks were asked for. Not part of the JSON.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub no_stack: Option<&'static str>,
    /// Who is at fault and who waits.
    pub diagnosis: Diagnosis,
}

/// Who is at fault, who waits, and what to do.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Diagnosis {
    /// What is at fault.
    pub cause: Cause,
    /// The cause more closely, or what is missing to tell it.
    pub detail: Option<&'static str>,
    /// How sure that is, from 0 to 1: 0.9 and more where the deciding figure was read, about 0.5 where it can still turn
    /// out otherwise.
    pub confidence: f64,
    /// How much of the past it rests on.
    #[cfg_attr(feature = "serde", serde(rename = "window_us", serialize_with = "crate::wire::us"))]
    pub window: Duration,
    /// From one beginning to the next, where it recurs evenly.
    #[cfg_attr(feature = "serde", serde(rename = "period_us", serialize_with = "crate::wire::maybe_us"))]
    pub period: Option<Duration>,
    /// Those at fault, the worst first.
    pub culprits: Vec<Culprit>,
    /// Those that wait, the one with the largest delay first.
    pub victims: Vec<Victim>,
    /// What the fault does to others.
    pub effects: Vec<Effect>,
    /// Every cause that there could be, and how it came out.
    pub suspects: Vec<Suspect>,
    /// The numbers that the judgement rests on, in a sentence. Not part of the JSON: there they stand with the convicted
    /// suspect.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub evidence: String,
    /// Where the time of the calls went that ended, of this pool or all of them. Not part of the JSON.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub phases: Option<Phases>,
    /// What to do.
    pub advice: Advice,
}

/// Where the time of calls went, summed over many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Phases {
    /// Waiting for a thread.
    pub queue_wait: Duration,
    /// Executing.
    pub execution: Duration,
    /// Ended, and not yet given to the task that waited.
    pub resume_delay: Duration,
}

/// A cause that there could be, and how it came out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Suspect {
    /// Which.
    pub cause: Cause,
    /// How it came out.
    pub ruling: Ruling,
    /// The number that says so.
    pub evidence: String,
}

/// An op at fault.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Culprit {
    /// Its name.
    pub op: &'static str,
    /// Where it is.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::location"))]
    pub location: &'static Location<'static>,
    /// What it does: `occupant` of pool threads, `poller` that blocks a worker, `submitter` of calls that it then waits
    /// for, or `resource` that is waited for.
    pub role: &'static str,
    /// How many threads it holds; of a resource, how many wait for it.
    pub count: u64,
    /// How long the oldest of those has been going on.
    #[cfg_attr(feature = "serde", serde(rename = "oldest_us", serialize_with = "crate::wire::us"))]
    pub oldest: Duration,
    /// Its share of the threads that watched ops hold, from 0 to 1; `None` where that is no question.
    pub share: Option<f64>,
    /// Where in its code it is: the function that it has called, and those of yours around it, the innermost first, as
    /// `function (file:line)`. `None` where no stack was taken. The whole stacks are in [`Incident::stacks`].
    pub stack: Option<Vec<String>>,
}

/// An op that waits.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Victim {
    /// Its name.
    pub op: &'static str,
    /// Where it is. Not part of the JSON.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub location: &'static Location<'static>,
    /// How many of its calls are part of it so far.
    pub calls: u64,
    /// The delay that they had together: what has ended, and the oldest of what has not.
    #[cfg_attr(feature = "serde", serde(rename = "delay_us", serialize_with = "crate::wire::us"))]
    pub delay: Duration,
}

/// What to do.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Advice {
    /// For a program.
    pub action: Action,
    /// For a person.
    pub text: String,
    /// How many threads the pool should have that the action speaks of, where it speaks of one and the number is known:
    /// the smallest that would have let every call start when it came, or one for each CPU. Not part of the JSON: there
    /// the text has it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub pool: Option<u64>,
}

/// What has happened to an incident.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum IncidentChange {
    /// It has begun.
    Opened(Arc<Incident>),
    /// Its delay has doubled since the last report, or its cause has become clear.
    Updated(Arc<Incident>),
    /// It is over.
    Closed(Arc<Incident>),
}

impl IncidentChange {
    /// The incident as it now stands.
    #[must_use]
    pub fn incident(&self) -> &Arc<Incident> {
        match self {
            Self::Opened(incident) | Self::Updated(incident) | Self::Closed(incident) => incident,
        }
    }
}
