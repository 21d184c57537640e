//! What a report says: one episode of starvation, from opened to closed.

use crate::cause::{Action, Cause};
use std::fmt;
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
    /// for (by name; who holds it nobody tells). Where it is not known who holds the threads, the op that waits longest.
    pub op: &'static str,
    /// Where that op is.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::location"))]
    pub location: &'static Location<'static>,
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
    /// Those at fault, the worst first.
    pub culprits: Vec<Culprit>,
    /// Those that wait, the one with the largest delay first.
    pub victims: Vec<Victim>,
    /// The numbers that the judgement rests on.
    pub evidence: String,
    /// What to do.
    pub advice: Advice,
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
    /// What it does: `occupant` of pool threads, `poller` that blocks a worker, or `resource` that is waited for.
    pub role: &'static str,
    /// How many threads it holds; of a resource, how many wait for it.
    pub count: u64,
    /// How long the oldest of those has been going on.
    #[cfg_attr(feature = "serde", serde(rename = "oldest_us", serialize_with = "crate::wire::us"))]
    pub oldest: Duration,
    /// Its share of the threads that watched ops hold, from 0 to 1; `None` where that is no question.
    pub share: Option<f64>,
}

/// An op that waits.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Victim {
    /// Its name.
    pub op: &'static str,
    /// Where it is.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::wire::location"))]
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

/// One line: which incident, what has happened to it, and the incident.
impl fmt::Display for IncidentChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, incident) = match self {
            Self::Opened(incident) => ("opened", incident),
            Self::Updated(incident) => ("updated", incident),
            Self::Closed(incident) => ("closed", incident),
        };
        write!(f, "incident {} {what}: {incident}", incident.id)
    }
}

/// For a person on call: what happens, and what to do about it.
impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.finding(), self.diagnosis.advice.text)
    }
}

impl Incident {
    /// What happens, without the advice.
    pub(crate) fn finding(&self) -> String {
        let Self { duration, calls, delay, .. } = self;
        match self.state {
            State::Open => self.diagnosis.finding(),
            State::Closed => format!(
                "over after {duration:.1?}, {calls} affected for {delay:.1?} in all: {}",
                self.diagnosis.finding()
            ),
        }
    }
}

/// For a person on call: what happens, and what to do about it.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}", self.finding(), self.advice.text)
    }
}

impl Diagnosis {
    fn finding(&self) -> String {
        match self.detail {
            Some(detail) => format!("{} ({detail}): {}", self.cause, self.evidence),
            None => format!("{}: {}", self.cause, self.evidence),
        }
    }
}
