//! What a case is: a fault or a healthy program, and the answers that a good detector may give to it.

use crate::ward::Ward;
use serde_json::{Value, json};
use std::time::Duration;

/// A program to examine.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&'static Ward),
    pub(crate) expected: Expected,
    /// The threads of its runtimes are prepared with `starvation::hooks`.
    pub(crate) hooks: bool,
    /// When it is judged, though it goes on or hangs; without this when it has ended.
    pub(crate) judged_after: Option<Duration>,
    /// Another window than the default.
    pub(crate) window: Option<Duration>,
}

impl Case {
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&'static Ward),
        expected: Expected,
    ) -> Self {
        Self { name, about, run, expected, hooks: false, judged_after: None, window: None }
    }

    pub(crate) const fn hooks(mut self) -> Self {
        self.hooks = true;
        self
    }

    pub(crate) const fn judged_after(mut self, millis: u64) -> Self {
        self.judged_after = Some(Duration::from_millis(millis));
        self
    }

    pub(crate) const fn window(mut self, millis: u64) -> Self {
        self.window = Some(Duration::from_millis(millis));
        self
    }
}

type Words = &'static [&'static str];
/// A cause and the op that it is laid at the door of.
type Accusation = (&'static str, &'static str);

/// Whom an answer may name first.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Who {
    /// Anybody or nobody.
    Anybody,
    /// No op at all.
    Nobody,
    OneOf(Words),
    /// Anybody but these, who are innocent.
    AnyBut(Words),
}

/// The right answers to a case. Empty lists mean that it does not matter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) causes: Words,
    pub(crate) details: Words,
    pub(crate) culprit: Who,
    pub(crate) victim: Option<&'static str>,
    pub(crate) actions: Words,
    pub(crate) effects: Words,
    /// At least one of these.
    pub(crate) any_effect: Words,
    pub(crate) period_ms: Option<u64>,
    /// Each of these is an incident of its own.
    pub(crate) incidents: &'static [Accusation],
    /// What may be said on the way, though not in the end.
    pub(crate) meanwhile: &'static [Accusation],
    /// The advice names a number of threads, and it is at least this.
    pub(crate) pool_at_least: Option<u64>,
    /// So many other suspects are ruled on, each with its evidence.
    pub(crate) suspects: usize,
    /// It has not come to the worst yet, and the answer says how sure it is.
    pub(crate) low_confidence: bool,
}

impl Expected {
    const ANYTHING: Self = Self {
        causes: &[],
        details: &[],
        culprit: Who::Anybody,
        victim: None,
        actions: &[],
        effects: &[],
        any_effect: &[],
        period_ms: None,
        incidents: &[],
        meanwhile: &[],
        pool_at_least: None,
        suspects: 0,
        low_confidence: false,
    };

    pub(crate) const fn fault(causes: Words) -> Self {
        Self { causes, ..Self::ANYTHING }
    }

    /// Nothing is wrong; `silence` lists what may be said all the same, beside `healthy`. No op is accused of anything.
    pub(crate) const fn healthy(causes: Words) -> Self {
        Self { causes, culprit: Who::Nobody, ..Self::ANYTHING }
    }

    pub(crate) const fn detail(mut self, details: Words) -> Self {
        self.details = details;
        self
    }

    pub(crate) const fn culprit(mut self, ops: Words) -> Self {
        self.culprit = Who::OneOf(ops);
        self
    }

    pub(crate) const fn nobody(mut self) -> Self {
        self.culprit = Who::Nobody;
        self
    }

    pub(crate) const fn innocent(mut self, ops: Words) -> Self {
        self.culprit = Who::AnyBut(ops);
        self
    }

    pub(crate) const fn victim(mut self, op: &'static str) -> Self {
        self.victim = Some(op);
        self
    }

    pub(crate) const fn actions(mut self, actions: Words) -> Self {
        self.actions = actions;
        self
    }

    pub(crate) const fn effects(mut self, effects: Words) -> Self {
        self.effects = effects;
        self
    }

    pub(crate) const fn any_effect(mut self, effects: Words) -> Self {
        self.any_effect = effects;
        self
    }

    pub(crate) const fn period_ms(mut self, period: u64) -> Self {
        self.period_ms = Some(period);
        self
    }

    pub(crate) const fn incidents(mut self, incidents: &'static [Accusation]) -> Self {
        self.incidents = incidents;
        self
    }

    pub(crate) const fn meanwhile(mut self, meanwhile: &'static [Accusation]) -> Self {
        self.meanwhile = meanwhile;
        self
    }

    pub(crate) const fn pool_at_least(mut self, threads: u64) -> Self {
        self.pool_at_least = Some(threads);
        self
    }

    pub(crate) const fn suspects(mut self, at_least: usize) -> Self {
        self.suspects = at_least;
        self
    }

    pub(crate) const fn low_confidence(mut self) -> Self {
        self.low_confidence = true;
        self
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.causes.contains(&"healthy")
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "causes": self.causes,
            "details": self.details,
            "culprit": match self.culprit {
                Who::Anybody => Value::Null,
                Who::Nobody => json!([]),
                Who::OneOf(ops) => json!(ops),
                Who::AnyBut(ops) => json!({ "any_but": ops }),
            },
            "victim": self.victim,
            "actions": self.actions,
            "effects": self.effects,
            "any_effect": self.any_effect,
            "period_ms": self.period_ms,
            "incidents": self.incidents,
            "meanwhile": self.meanwhile,
            "pool_at_least": self.pool_at_least,
            "suspects": self.suspects,
            "low_confidence": self.low_confidence,
        })
    }
}
