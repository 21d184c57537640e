//! Whether the detector's answers to a case are right. Judged by their JSON, which is what programs see of them.

#[cfg(test)]
mod tests;

use crate::case::{Expected, Who};
use serde_json::{Value, json};

/// Causes that lay something at an op's door.
const CONVICTIONS: [&str; 9] = [
    "pool_saturated",
    "pool_deadlock",
    "pool_leak",
    "dispatch_overhead",
    "long_poll",
    "overloaded",
    "downstream_limit",
    "slow_work",
    "unfair",
];

/// How an answer compares with the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    /// What it says is right, and something is not said: an effect, a period, a victim, a second incident.
    Incomplete,
    /// It says that it does not know.
    Undetermined,
    /// It says that nothing is wrong, and something is.
    Missed,
    Wrong,
}

impl Verdict {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Incomplete => "incomplete",
            Self::Undetermined => "undetermined",
            Self::Missed => "missed",
            Self::Wrong => "wrong",
        }
    }
}

/// One answer that was given, from when on and how often.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) first_ms: u64,
    pub(crate) times: u64,
    pub(crate) diagnosis: Value,
    pub(crate) text: String,
}

/// All that the detector said in a case.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The different answers in the order of their first time.
    pub(crate) answers: Vec<Answer>,
    /// The last one, by which a fault is judged.
    pub(crate) last: Value,
    pub(crate) incidents: Vec<Value>,
}

impl Record {
    /// Adds an answer; one that names the same cause, detail and op as an earlier one counts with that.
    pub(crate) fn add(&mut self, at_ms: u64, diagnosis: Value, text: impl FnOnce() -> String) {
        let same = |answer: &&mut Answer| key(&answer.diagnosis) == key(&diagnosis);
        self.last = diagnosis.clone();
        match self.answers.iter_mut().find(same) {
            Some(known) => {
                known.times += 1;
                known.diagnosis = diagnosis;
            }
            None => self.answers.push(Answer { first_ms: at_ms, times: 1, text: text(), diagnosis }),
        }
    }

    pub(crate) fn answers_json(&self) -> Value {
        let one = |answer: &Answer| {
            let (cause, detail, op) = key(&answer.diagnosis);
            json!({"first_ms": answer.first_ms, "times": answer.times, "cause": cause, "detail": detail, "op": op,
                   "text": answer.text})
        };
        self.answers.iter().map(one).collect()
    }
}

fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The op that a diagnosis names first.
fn accused(diagnosis: &Value) -> &str {
    word(&diagnosis["culprits"][0], "op")
}

fn key(diagnosis: &Value) -> (&str, &str, &str) {
    (word(diagnosis, "cause"), word(diagnosis, "detail"), accused(diagnosis))
}

/// Whether the words or objects of a list contain a name.
fn lists(list: &Value, name: &str) -> bool {
    let is = |item: &Value| {
        item.as_str() == Some(name)
            || item.as_object().is_some_and(|fields| fields.values().any(|field| field.as_str() == Some(name)))
    };
    list.as_array().is_some_and(|items| items.iter().any(is))
}

fn may_be_named(expected: &Expected, diagnosis: &Value) -> bool {
    let op = accused(diagnosis);
    match expected.culprit {
        Who::Anybody => true,
        Who::Nobody => op.is_empty(),
        Who::OneOf(ops) => ops.contains(&op),
        Who::AnyBut(ops) => !ops.contains(&op),
    }
}

/// What is wrong with the last answer to a fault, beside its not being there at all; and whether all of that is what it
/// does not say.
fn mismatches(expected: &Expected, record: &Record) -> (Vec<String>, bool) {
    let last = &record.last;
    let (mut wrong, mut only_missing) = (Vec::new(), true);
    let mut check = |right: bool, what: &str, given: &Value| {
        if !right {
            let nothing = given.is_null() || given.as_array().is_some_and(Vec::is_empty);
            let may_be_missing = what.starts_with("no ") || nothing && matches!(what, "victims" | "period_us");
            only_missing &= may_be_missing;
            wrong.push(format!("{what}: {given}"));
        }
    };
    let one_of = |allowed: &[&str], given: &Value| allowed.is_empty() || allowed.iter().any(|word| given == word);
    check(one_of(expected.causes, &last["cause"]), "cause", &last["cause"]);
    check(one_of(expected.details, &last["detail"]), "detail", &last["detail"]);
    check(may_be_named(expected, last), "culprit", &last["culprits"][0]["op"]);
    check(one_of(expected.actions, &last["advice"]["action"]), "action", &last["advice"]["action"]);
    if let Some(victim) = expected.victim {
        check(lists(&last["victims"], victim), "victims", &names(&last["victims"]));
    }
    for effect in expected.effects {
        check(lists(&last["effects"], effect), &format!("no effect {effect}"), &last["effects"]);
    }
    let any = expected.any_effect.iter().any(|effect| lists(&last["effects"], effect));
    check(expected.any_effect.is_empty() || any, "none of the effects", &last["effects"]);
    if let Some(period) = expected.period_ms {
        let given = last["period_us"].as_f64().unwrap_or(f64::INFINITY) / 1e3;
        check((given / period as f64 - 1.0).abs() < 0.05, "period_us", &last["period_us"]);
    }
    if let Some(threads) = expected.pool_at_least {
        let numbers = word(&last["advice"], "text").split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
        check(numbers.max() >= Some(threads), "the advice's number of threads", &last["advice"]["text"]);
    }
    if expected.suspects > 0 {
        let ruled = |suspect: &&Value| suspect["ruling"].is_string() && !word(suspect, "evidence").is_empty();
        let rulings = last["suspects"].as_array().map_or(0, |suspects| suspects.iter().filter(ruled).count());
        check(rulings >= expected.suspects, "suspects ruled on", &json!(rulings));
    }
    if expected.low_confidence {
        let given = &last["confidence"];
        check(given == "low" || given.as_f64().is_some_and(|sure| sure < 0.5), "confidence", given);
    }
    for (cause, op) in expected.incidents {
        let is = |incident: &&Value| incident["cause"] == *cause && incident["op"] == *op;
        let found = record.incidents.iter().any(|incident| is(&incident));
        check(found, &format!("no incident {cause} of {op}"), &json!(record.incidents.len()));
    }
    (wrong, only_missing)
}

fn names(list: &Value) -> Value {
    list.as_array().map_or(Value::Null, |items| items.iter().map(|item| item["op"].clone()).collect())
}

/// The cause and the op, where a diagnosis lays something at an op's door.
pub(crate) fn convicted(diagnosis: &Value) -> Option<(&str, &str)> {
    let (cause, _, op) = key(diagnosis);
    (CONVICTIONS.contains(&cause) && !op.is_empty()).then_some((cause, op))
}

/// A conviction that is against the truth, as a line for a person.
fn false_accusation(expected: &Expected, diagnosis: &Value) -> Option<String> {
    let (cause, op) = convicted(diagnosis)?;
    let detail = word(diagnosis, "detail");
    let allowed = expected.causes.contains(&cause) && may_be_named(expected, diagnosis)
        || [expected.incidents, expected.meanwhile].concat().contains(&(cause, op));
    (!allowed).then(|| format!("{cause} ({detail}) of {op}"))
}

/// The convictions of an op, at any time or in any incident, that are against the truth.
pub(crate) fn false_accusations(expected: &Expected, record: &Record) -> Vec<String> {
    let in_answers = record.answers.iter().filter_map(|answer| {
        let what = false_accusation(expected, &answer.diagnosis)?;
        Some(format!("{what} from {} ms on, {} times", answer.first_ms, answer.times))
    });
    let in_incidents = record.incidents.iter().filter_map(|incident| {
        Some(format!("incident {}: {}", incident["id"], false_accusation(expected, &incident["diagnosis"])?))
    });
    in_answers.chain(in_incidents).collect()
}

/// Compares what was said with the truth; with the reasons if it was not right.
pub(crate) fn judge(expected: &Expected, record: &Record) -> (Verdict, Vec<String>) {
    if expected.is_healthy() { judge_healthy(expected, record) } else { judge_fault(expected, record) }
}

/// Whether a diagnosis speaks of the machine alone, and of no op. The cases share theirs with others, so that may be true:
/// it counts as not knowing.
fn is_of_machine(diagnosis: &Value) -> bool {
    let (cause, _, op) = key(diagnosis);
    matches!(cause, "process_paused" | "cpu_contention") && op.is_empty()
}

fn judge_fault(expected: &Expected, record: &Record) -> (Verdict, Vec<String>) {
    match word(&record.last, "cause") {
        cause if is_of_machine(&record.last) && !expected.causes.contains(&cause) => {
            (Verdict::Undetermined, vec![format!("said of the machine: {cause}")])
        }
        "healthy" => (Verdict::Missed, vec!["nothing was noticed".to_owned()]),
        "undetermined" => (Verdict::Undetermined, vec![word(&record.last, "detail").to_owned()]),
        _ => {
            let (wrong, only_missing) = mismatches(expected, record);
            let verdict = match &wrong[..] {
                [] => Verdict::Right,
                _ if only_missing => Verdict::Incomplete,
                // That, too, says that it does not know.
                [one] if one == "detail: \"unknown\"" => Verdict::Undetermined,
                _ => Verdict::Wrong,
            };
            (verdict, wrong)
        }
    }
}

/// Of a healthy program every answer and every incident counts.
fn judge_healthy(expected: &Expected, record: &Record) -> (Verdict, Vec<String>) {
    let mut verdict = Verdict::Right;
    let mut why = Vec::new();
    let answers = record.answers.iter().map(|answer| (&answer.diagnosis, false));
    let incidents = record.incidents.iter().map(|incident| (&incident["diagnosis"], false));
    for (diagnosis, is_last) in answers.chain(incidents).chain([(&record.last, true)]) {
        let (cause, detail, op) = key(diagnosis);
        let allowed = expected.causes.contains(&cause) && may_be_named(expected, diagnosis);
        if allowed || (!is_last && expected.meanwhile.contains(&(cause, op))) {
            continue;
        }
        if cause == "undetermined" || is_of_machine(diagnosis) {
            verdict = if verdict == Verdict::Right { Verdict::Undetermined } else { verdict };
        } else {
            verdict = Verdict::Wrong;
        }
        let reason = format!("{cause} ({detail}) {op}");
        if !why.contains(&reason) {
            why.push(reason);
        }
    }
    (verdict, why)
}
