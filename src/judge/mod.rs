//! From what was seen to a verdict: one judge for each kind of thing that can be at fault, and the table in which every
//! suspect is ruled on. Pure: no clock, nothing read.

pub(crate) mod calm;
pub(crate) mod machine;
pub(crate) mod poll;
pub(crate) mod pool;
pub(crate) mod table;
pub(crate) mod wait;
pub(crate) mod workers;

use crate::cause::{Action, Cause, Effect};
use crate::facts::Facts;
use crate::incident::{Advice, Culprit, Diagnosis, Incident, Phases, State, Suspect, Victim};
use std::sync::Arc;
use std::time::Duration;
use table::Scope;

/// The deciding figure was read.
pub(crate) const SURE: f64 = 0.95;
/// The figures point there, and one that would decide is not known.
pub(crate) const LIKELY: f64 = 0.75;
/// It may still turn out otherwise.
pub(crate) const OPEN: f64 = 0.5;

/// What a judge has found.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) cause: Cause,
    pub(crate) detail: Option<&'static str>,
    pub(crate) confidence: f64,
    pub(crate) culprits: Vec<Culprit>,
    pub(crate) victims: Vec<Victim>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) evidence: String,
    pub(crate) action: Action,
    pub(crate) advice: String,
    /// How many threads it speaks of.
    pub(crate) pool: Option<u64>,
    pub(crate) period: Option<Duration>,
    /// Nobody was seen to wait because of it.
    pub(crate) harmless: bool,
}

impl Verdict {
    pub(crate) fn new(cause: Cause, confidence: f64, evidence: String) -> Self {
        Self {
            cause,
            detail: None,
            confidence,
            culprits: Vec::new(),
            victims: Vec::new(),
            effects: Vec::new(),
            evidence,
            action: Action::None,
            advice: String::new(),
            pool: None,
            period: None,
            harmless: false,
        }
    }

    /// There are symptoms; `missing` is what would decide.
    pub(crate) fn undetermined(missing: &'static str, evidence: String, advice: String) -> Self {
        Self::new(Cause::Undetermined, OPEN, evidence).detail(missing).advise(Action::None, advice)
    }

    pub(crate) fn detail(mut self, detail: &'static str) -> Self {
        self.detail = Some(detail);
        self
    }

    pub(crate) fn advise(mut self, action: Action, advice: String) -> Self {
        (self.action, self.advice) = (action, advice);
        self
    }

    pub(crate) fn effect(mut self, effect: Effect, is_there: bool) -> Self {
        if is_there && !self.effects.contains(&effect) {
            self.effects.push(effect);
        }
        self
    }

    /// As it is told, with how all suspects came out.
    pub(crate) fn told(self, window: Duration, suspects: Vec<Suspect>, phases: Option<Phases>) -> Diagnosis {
        Diagnosis {
            cause: self.cause,
            detail: self.detail,
            confidence: self.confidence,
            window,
            period: self.period,
            culprits: self.culprits,
            victims: self.victims,
            effects: self.effects,
            suspects,
            evidence: self.evidence,
            phases,
            advice: Advice { action: self.action, text: self.advice, pool: self.pool },
        }
    }
}

/// The period in which things recur, from their beginnings: the usual distance of one to the next, where nearly all are
/// that far apart. At least four distances make a period.
pub(crate) fn period_of(beginnings: impl IntoIterator<Item = u64>) -> Option<u64> {
    /// So far from the usual one a distance may be, in percent.
    const EVEN: u64 = 12;
    const LEAST: usize = 4;
    let beginnings: Vec<u64> = beginnings.into_iter().collect();
    let mut distances: Vec<u64> = beginnings.windows(2).map(|two| two[1].saturating_sub(two[0])).collect();
    if distances.len() < LEAST {
        return None;
    }
    distances.sort_unstable();
    let usual = distances[distances.len() / 2];
    let is_even = |distance: &u64| distance.abs_diff(usual).saturating_mul(100) <= usual.saturating_mul(EVEN);
    let even: Vec<u64> = distances.iter().copied().filter(is_even).collect();
    // One that was missed, or came in between, does not hide the others.
    let mean = || even.iter().fold(0, |sum: u64, distance| sum.saturating_add(*distance)) / even.len() as u64;
    (even.len() * 5 >= distances.len() * 4 && usual > 0).then(mean)
}

/// Whether two incidents are of the same cause and op.
fn alike(a: &Incident, b: &Incident) -> bool {
    (a.cause, a.op, a.location, a.runtime) == (b.cause, b.op, b.location, b.runtime)
}

/// What there is to say: of what is [`worst`], or, where nothing harms anybody, of the figures alone.
pub(crate) fn diagnose(incidents: &[Arc<Incident>], facts: impl FnOnce() -> Facts) -> Diagnosis {
    answer(incidents).unwrap_or_else(|| {
        let facts = facts();
        let verdict = calm::judge(&facts, incidents);
        let scope = Scope { facts: &facts, runtime: None, convicted: (verdict.cause, &verdict.evidence), others: &[] };
        let (suspects, phases) = (table::suspects(&scope), table::phases(&facts.counted(None)));
        verdict.told(nanos(facts.elapsed()), suspects, phases)
    })
}

/// The diagnosis of what is [`worst`], with what all the incidents like it did to others and how often they come: what the
/// latest does may show only when it is over.
fn answer(incidents: &[Arc<Incident>]) -> Option<Diagnosis> {
    let worst = worst(incidents)?;
    // What the latest does may not be known yet, where it is known of one before it.
    let sure = incidents.iter().filter(|other| alike(worst, other) && other.diagnosis.confidence >= LIKELY);
    let told = sure.max_by_key(|other| other.opened_after).filter(|_| worst.diagnosis.confidence < LIKELY);
    let worst = told.unwrap_or(worst);
    let mut answer = worst.diagnosis.clone();
    for other in incidents.iter().filter(|other| !Arc::ptr_eq(other, worst) && alike(worst, other)).rev() {
        // One that came at another time does not hide that they come evenly.
        answer.period = answer.period.or(other.diagnosis.period);
        for effect in &other.diagnosis.effects {
            if !answer.effects.contains(effect) {
                answer.effects.push(*effect);
            }
        }
        for victim in &other.diagnosis.victims {
            let same = |known: &&mut Victim| (known.op, known.location) == (victim.op, victim.location);
            match answer.victims.iter_mut().find(same) {
                Some(known) => (known.calls, known.delay) = (known.calls + victim.calls, known.delay + victim.delay),
                None => answer.victims.push(victim.clone()),
            }
        }
    }
    answer.victims.sort_by_key(|victim| std::cmp::Reverse(victim.delay));
    Some(answer)
}

/// Of the incidents that make up the largest delay, all of the same cause and op taken together, the latest.
fn worst(incidents: &[Arc<Incident>]) -> Option<&Arc<Incident>> {
    let delay =
        |of: &Incident| incidents.iter().filter(|other| alike(of, other)).map(|other| other.delay).sum::<Duration>();
    // What goes on may still come to harm somebody.
    let harmless = |incident: &Incident| incident.harmless && incident.state == State::Closed;
    let harmful = || incidents.iter().filter(|incident| !harmless(incident));
    // What is determined says more. Of equal delays the last one is taken.
    let weight = |incident: &Incident| delay(incident) / if incident.cause == Cause::Undetermined { 4 } else { 1 };
    harmful().max_by_key(|incident| (weight(incident), incident.opened_after))
}

/// A number and its noun, in one or in many.
pub(crate) fn so_many(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

pub(crate) fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_comes_evenly_has_a_period_and_what_does_not_has_none() {
        assert_eq!(period_of([0, 100, 201, 299, 400]), Some(100));
        assert_eq!(period_of([0, 100, 200, 300]), None);
        assert_eq!(period_of([0, 100, 150, 390, 400, 700]), None);
        // One in six was missed.
        assert_eq!(period_of([0, 100, 200, 400, 500, 600, 700]), Some(100));
    }
}
