//! How incidents and diagnoses read for a person on call: one sentence, where the time went, the suspects, the advice.

use crate::cause::Ruling;
use crate::incident::{Diagnosis, Incident, IncidentChange, Phases, State};
use std::fmt;
use std::time::Duration;

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

/// One line: what happens, and what to do about it. The whole table is in [`Incident::diagnosis`].
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

/// To be pasted into a chat: what happens, in a sentence; where the time went; each suspect, how it came out and the
/// number that says so; what to do.
impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}.", self.finding())?;
        if let Some(period) = self.period {
            writeln!(f, "It comes again every {period:.1?}.")?;
        }
        if !self.effects.is_empty() {
            let effects: Vec<_> = self.effects.iter().map(|effect| effect.name()).collect();
            writeln!(f, "Effects: {}.", effects.join(", "))?;
        }
        for culprit in &self.culprits {
            if let Some(stack) = &culprit.stack {
                writeln!(f, "Where `{}` is: {}.", culprit.op, stack.join(", called by "))?;
            }
        }
        if let Some(phases) = &self.phases {
            writeln!(f, "Where the time of calls went: {phases}.")?;
        }
        if !self.suspects.is_empty() {
            writeln!(f, "Suspects, over the last {:.0?}:", self.window)?;
        }
        for suspect in &self.suspects {
            let mark = match suspect.ruling {
                Ruling::Convicted => "[x]",
                Ruling::Contributing => "[+]",
                Ruling::Cleared => "[ ]",
                Ruling::Unknown => "[?]",
            };
            writeln!(f, "  {mark} {:<12} {:<17} {}", suspect.ruling, suspect.cause, suspect.evidence)?;
        }
        write!(f, "Advice ({}): {}.", self.advice.action, self.advice.text)
    }
}

impl Diagnosis {
    /// What happens, in a sentence without its full stop.
    pub(crate) fn finding(&self) -> String {
        let sure = if self.confidence < 0.7 { ", not certain" } else { "" };
        match self.detail {
            Some(detail) => format!("{} ({detail}{sure}): {}", self.cause, self.evidence),
            None => format!("{}{sure}: {}", self.cause, self.evidence),
        }
    }
}

impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = (self.queue_wait + self.execution + self.resume_delay).as_secs_f64();
        let percent = |part: Duration| if all > 0.0 { part.as_secs_f64() / all * 100.0 } else { 0.0 };
        write!(
            f,
            "{:.1} % waiting for a thread, {:.1} % executing, {:.1} % until the task went on",
            percent(self.queue_wait),
            percent(self.execution),
            percent(self.resume_delay),
        )
    }
}
