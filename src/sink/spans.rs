//! Incidents as tracing spans: one from opened to closed, with an event for each change inside it.

use super::Sink;
use crate::incident::{Incident, IncidentChange};
use crate::wire::micros;
use std::collections::HashMap;
use tracing::field::Empty;
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Level, Span, dispatcher};

/// Reports to the subscriber of the thread that started the detector, or to the process's own where that one had none.
#[derive(Debug)]
pub(crate) struct Spans {
    dispatch: Option<Dispatch>,
    open: HashMap<u64, Span>,
}

impl Spans {
    /// To be made on the thread that starts the detector.
    pub(crate) fn new() -> Self {
        let dispatch = dispatcher::get_default(Clone::clone);
        // A subscriber that the program sets later is found then.
        Self { dispatch: (!dispatch.is::<NoSubscriber>()).then_some(dispatch), open: HashMap::new() }
    }

    fn emit(&mut self, change: &IncidentChange) {
        let incident = change.incident();
        match change {
            IncidentChange::Opened(_) => {
                let span = open(incident);
                event(&span, incident, "opened");
                self.open.insert(incident.id, span);
            }
            IncidentChange::Updated(_) => {
                let span = self.open.entry(incident.id).or_insert_with(|| open(incident));
                event(span, incident, "updated");
            }
            IncidentChange::Closed(_) => {
                // Its opening may have been dropped where the queue was full: then it opens late.
                let span = self.open.remove(&incident.id).unwrap_or_else(|| open(incident));
                span.record("cause", incident.cause.name());
                span.record("op", incident.op);
                span.record("detail", incident.detail);
                span.record("location", incident.location.map(tracing::field::display));
                span.record("duration_us", micros(incident.duration));
                span.record("delay_us", micros(incident.delay));
                span.record("calls", number(incident.calls));
                span.record("suppressed", number(incident.suppressed));
                event(&span, incident, "closed");
            }
        }
    }
}

impl Sink for Spans {
    fn report(&mut self, change: &IncidentChange) {
        match self.dispatch.clone() {
            Some(dispatch) => dispatcher::with_default(&dispatch, || self.emit(change)),
            None => self.emit(change),
        }
    }
}

fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn open(incident: &Incident) -> Span {
    tracing::span!(
        target: "starvation::incident",
        parent: None,
        Level::WARN,
        "incident",
        incident = number(incident.id),
        // All that can change while it is open is recorded at its end: a backend may keep both of two values.
        cause = Empty,
        detail = Empty,
        op = Empty,
        location = Empty,
        runtime = incident.runtime.map(number),
        opened_after_us = micros(incident.opened_after),
        duration_us = Empty,
        delay_us = Empty,
        calls = Empty,
        suppressed = Empty,
    )
}

/// Emits one event inside the incident's span, at the level that fits the state.
fn event(span: &Span, incident: &Incident, state: &'static str) {
    macro_rules! emit {
        ($level:ident) => {
            tracing::$level!(
                target: "starvation::incident",
                incident = number(incident.id),
                state,
                cause = incident.cause.name(),
                detail = incident.detail,
                op = incident.op,
                location = incident.location.map(tracing::field::display),
                evidence = incident.diagnosis.evidence,
                action = incident.diagnosis.advice.action.name(),
                advice = incident.diagnosis.advice.text,
                opened_after_us = micros(incident.opened_after),
                duration_us = micros(incident.duration),
                calls = number(incident.calls),
                delay_us = micros(incident.delay),
                suppressed = number(incident.suppressed),
                "{state}: {}",
                incident.finding(),
            )
        };
    }
    span.in_scope(|| if state == "closed" || incident.harmless { emit!(info) } else { emit!(warn) });
}
