//! The truth table: reports of starvation and healthy programs as histories of looks, each with the right answer; and
//! beside each an innocent twin, the same history with the one number changed that decides.

mod arbitrary;
mod host;
mod locks;
mod lone;
mod poll;
mod polls;
mod pools;
mod properties;
mod station;
mod stories;
pub(super) mod timeline;
mod waits;

use crate::cause::{Action, Cause, Effect, Ruling};
use crate::incident::{Diagnosis, Incident};
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use timeline::Timeline;

/// One line of the table.
struct Truth {
    name: &'static str,
    tell: fn() -> Timeline,
    expected: Expected,
}

/// The right answer.
#[derive(Debug, Clone, Copy)]
struct Expected {
    cause: Cause,
    detail: Option<&'static str>,
    action: Action,
    /// All of them, in this order.
    culprits: &'static [&'static str],
    victims: &'static [&'static str],
    effects: &'static [Effect],
    period_ms: Option<u64>,
    /// What else may be said on the way, and of whom.
    meanwhile: &'static [Cause],
    also: &'static [&'static str],
    /// It stands in the evidence or in the advice.
    says: &'static str,
    /// An incident of the same cause of its own names this op.
    named: Option<&'static str>,
    /// So many suspects at least are cleared, each with a number.
    cleared: usize,
    /// It may still turn out otherwise.
    unsure: bool,
}

impl Expected {
    const fn of(cause: Cause, action: Action) -> Self {
        let (culprits, victims, also): (&[&str], &[&str], &[&str]) = (&[], &[], &[]);
        let (effects, meanwhile): (&[Effect], &[Cause]) = (&[], &[]);
        let (detail, period_ms, says, named, cleared, unsure) = (None, None, "", None, 0, false);
        Self {
            cause,
            detail,
            action,
            culprits,
            victims,
            effects,
            period_ms,
            meanwhile,
            also,
            says,
            named,
            cleared,
            unsure,
        }
    }

    const fn healthy() -> Self {
        Self::of(Cause::Healthy, Action::None)
    }

    const fn detail(mut self, detail: &'static str) -> Self {
        self.detail = Some(detail);
        self
    }

    const fn culprits(mut self, culprits: &'static [&'static str]) -> Self {
        self.culprits = culprits;
        self
    }

    const fn victims(mut self, victims: &'static [&'static str]) -> Self {
        self.victims = victims;
        self
    }

    const fn effects(mut self, effects: &'static [Effect]) -> Self {
        self.effects = effects;
        self
    }

    const fn period_ms(mut self, period: u64) -> Self {
        self.period_ms = Some(period);
        self
    }

    const fn meanwhile(mut self, causes: &'static [Cause], ops: &'static [&'static str]) -> Self {
        (self.meanwhile, self.also) = (causes, ops);
        self
    }

    const fn says(mut self, part: &'static str) -> Self {
        self.says = part;
        self
    }

    const fn named(mut self, op: &'static str) -> Self {
        self.named = Some(op);
        self
    }

    const fn cleared(mut self, many: usize) -> Self {
        self.cleared = many;
        self
    }

    const fn unsure(mut self) -> Self {
        self.unsure = true;
        self
    }
}

/// What is wrong with an answer.
struct Faults(Vec<String>);

impl Faults {
    fn same<T: PartialEq + fmt::Debug>(&mut self, what: &str, given: T, expected: T) {
        if given != expected {
            self.0.push(format!("{what}: {given:?} instead of {expected:?}"));
        }
    }
}

impl Truth {
    fn check(&self) -> Faults {
        let mut faults = Faults(Vec::new());
        let (time, expected) = ((self.tell)(), &self.expected);
        let given = time.answer();
        faults.same("cause", given.cause, expected.cause);
        faults.same("detail", given.detail, expected.detail);
        faults.same("action", given.advice.action, expected.action);
        let culprits: Vec<_> = given.culprits.iter().map(|culprit| culprit.op).collect();
        faults.same("culprits", culprits.as_slice(), expected.culprits);
        let victims: Vec<_> = given.victims.iter().map(|victim| victim.op).collect();
        faults.same("victims", victims.as_slice(), expected.victims);
        faults.same("effects", given.effects.as_slice(), expected.effects);
        faults.same("unsure", given.confidence < 0.7, expected.unsure);
        // Within 5 %.
        let period = given.period.map(|period| period.as_millis() as u64);
        let near = period.zip(expected.period_ms).is_some_and(|(given, right)| given.abs_diff(right) * 20 <= right);
        faults.same("period", period.filter(|_| !near), expected.period_ms.filter(|_| !near));
        let said = given.evidence.contains(expected.says) || given.advice.text.contains(expected.says);
        faults.same("says", said, true);
        let cleared = given.suspects.iter().filter(|suspect| suspect.ruling == Ruling::Cleared);
        let numbered = cleared.filter(|suspect| suspect.evidence.contains(|c: char| c.is_ascii_digit())).count();
        faults.same("cleared", numbered.min(expected.cleared), expected.cleared);
        if let Some(fault) = suspects_fault(&given) {
            faults.0.push(fault);
        }
        self.check_others(&time, &mut faults);
        if !faults.0.is_empty() {
            faults.0.push(format!("said: {}", given.evidence));
        }
        faults
    }

    /// Nobody is accused on the way either who has no part in it.
    fn check_others(&self, time: &Timeline, faults: &mut Faults) {
        let expected = &self.expected;
        let changed = time.changes.iter().map(|change| change.incident().clone());
        let all: Vec<_> = changed.chain(time.tracker.incidents()).collect();
        let accuses = |incident: &Incident, op: &str| incident.diagnosis.culprits.iter().any(|it| it.op == op);
        for incident in &all {
            if incident.cause != expected.cause && !expected.meanwhile.contains(&incident.cause) {
                faults.0.push(format!("meanwhile {}", short(incident)));
            }
            let mut ops = incident.diagnosis.culprits.iter().map(|culprit| culprit.op);
            if let Some(op) = ops.find(|op| !expected.culprits.contains(op) && !expected.also.contains(op)) {
                faults.0.push(format!("`{op}` is accused: {}", short(incident)));
            }
        }
        // What is allowed and does not come about would hide what comes about later.
        let unsaid = expected.meanwhile.iter().filter(|cause| all.iter().all(|it| it.cause != **cause));
        faults.0.extend(unsaid.map(|cause| format!("`{cause}` was never said")));
        let unnamed = expected.also.iter().filter(|op| all.iter().all(|it| !accuses(it, op)));
        faults.0.extend(unnamed.map(|op| format!("`{op}` was never accused")));
        faults.0.dedup();
        let named = |op| time.tracker.incidents().iter().any(|it| it.cause == expected.cause && it.op == Some(op));
        faults.same("named", expected.named.filter(|op| named(*op)), expected.named);
    }
}

fn short(incident: &Incident) -> String {
    let Incident { cause, detail, op, .. } = incident;
    format!("{cause} {} of {}: {}", detail.unwrap_or_default(), op.unwrap_or("nobody"), incident.diagnosis.evidence)
}

/// Every suspect is ruled on once, with its number, and the convicted one stands first.
fn suspects_fault(diagnosis: &Diagnosis) -> Option<String> {
    let suspects = &diagnosis.suspects;
    let mut causes: Vec<_> = suspects.iter().map(|suspect| suspect.cause.name()).collect();
    causes.sort_unstable();
    causes.dedup();
    if causes.len() != 12 || suspects.len() != 12 {
        return Some(format!("{} suspects, {} different ones", suspects.len(), causes.len()));
    }
    if suspects.iter().any(|suspect| suspect.evidence.is_empty()) {
        return Some("a suspect without a number".to_owned());
    }
    let sentences = suspects.iter().map(|suspect| &suspect.evidence);
    if let Some(ragged) =
        sentences.chain([&diagnosis.evidence, &diagnosis.advice.text]).find(|text| text.contains("  "))
    {
        return Some(format!("two blanks in a sentence: {ragged}"));
    }
    let convicted: Vec<_> =
        suspects.iter().filter(|suspect| suspect.ruling == Ruling::Convicted).map(|suspect| suspect.cause).collect();
    let open = matches!(diagnosis.cause, Cause::Healthy | Cause::Undetermined);
    let right = if open { convicted.is_empty() } else { convicted == [diagnosis.cause] };
    let first = open || suspects[0].ruling == Ruling::Convicted;
    (!right || !first)
        .then(|| format!("{} stands for {}, convicted are {convicted:?}", suspects[0].cause, diagnosis.cause))
}

/// Each line becomes a test of its name.
macro_rules! truths {
    ($($(#[doc = $about:literal])* $name:ident: $tell:expr => $expected:expr;)+) => {
        pub(super) const TRUTHS: &[crate::tracker::truth::Truth] = &[$(crate::tracker::truth::Truth {
            name: stringify!($name),
            tell: || $tell,
            expected: $expected,
        },)+];

        mod each {
            $(
                $(#[doc = $about])*
                #[test]
                fn $name() {
                    let truth = super::TRUTHS.iter().find(|truth| truth.name == stringify!($name));
                    let Some(truth) = truth else { panic!("it is in the table") };
                    let faults = truth.check().0;
                    assert!(faults.is_empty(), "{faults:#?}");
                }
            )+
        }
    };
}
use truths;

fn all() -> impl Iterator<Item = &'static Truth> {
    [pools::TRUTHS, polls::TRUTHS, waits::TRUTHS, host::TRUTHS, stories::TRUTHS].into_iter().flatten()
}

/// How often each cause was given for each that was right.
#[test]
fn every_cause_is_taken_for_itself() {
    let mut matrix: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for truth in all() {
        let given = (truth.tell)().answer().cause;
        matrix.entry(truth.expected.cause.name()).or_default().entry(given.name()).or_default().push(truth.name);
    }
    let mut told = String::new();
    for (expected, given) in &matrix {
        for (given, names) in given {
            let mark = if expected == given { ' ' } else { '!' };
            let listed = if expected == given { String::new() } else { names.join(", ") };
            assert!(writeln!(told, "{mark} {expected:20} {given:20} {:3} {listed}", names.len()).is_ok());
        }
    }
    let is_diagonal = matrix.iter().all(|(expected, given)| given.len() == 1 && given.contains_key(expected));
    assert!(is_diagonal, "expected, given, how often:\n{told}");
    // All that there are, but what only a pool's own gauges show.
    assert!(matrix.len() >= 13, "{told}");
}
