use super::{Record, Verdict, false_accusations, judge};
use crate::case::Expected;
use serde_json::{Value, json};

const FAULT: Expected = Expected::fault(&["pool_saturated"])
    .detail(&["io"])
    .culprit(&["model_call"])
    .victim("page")
    .actions(&["raise_pool", "go_async"])
    .effects(&["abandoned_work"])
    .period_ms(1_000)
    .pool_at_least(20)
    .suspects(1)
    .incidents(&[("pool_saturated", "model_call")]);

/// The answer that is right in all points.
fn right() -> Value {
    json!({
        "cause": "pool_saturated",
        "detail": "io",
        "culprits": [{"op": "model_call"}, {"op": "other"}],
        "victims": [{"op": "other"}, {"op": "page"}],
        "effects": ["abandoned_work"],
        "period_us": 1_040_000,
        "suspects": [{"cause": "slow_work", "ruling": "cleared", "evidence": "4.6 s as ever"}],
        "advice": {"action": "raise_pool", "text": "From 8 to 40 threads"},
    })
}

fn healthy() -> Value {
    json!({"cause": "healthy", "detail": null, "culprits": [], "advice": {"action": "none", "text": ""}})
}

/// A record of these answers, and of one incident that says the same as each.
fn record(answers: &[Value]) -> Record {
    let mut record = Record::default();
    for (at, answer) in (0..).zip(answers) {
        record.add(at, answer.clone(), String::new);
        if answer["cause"] != "healthy" {
            let op = &answer["culprits"][0]["op"];
            record.incidents.push(json!({"id": at, "cause": answer["cause"], "op": op, "diagnosis": answer}));
        }
    }
    record
}

fn verdict(expected: &Expected, answers: &[Value]) -> Verdict {
    judge(expected, &record(answers)).0
}

#[test]
fn the_last_answer_to_a_fault_decides() {
    assert_eq!(judge(&FAULT, &record(&[right()])), (Verdict::Right, Vec::new()));
    assert_eq!(verdict(&FAULT, &[healthy(), right()]), Verdict::Right);
    assert_eq!(verdict(&FAULT, &[right(), healthy()]), Verdict::Missed);
    assert_eq!(verdict(&FAULT, &[right(), json!({"cause": "undetermined"})]), Verdict::Undetermined);
}

#[test]
fn each_part_of_an_answer_can_be_wrong() {
    for (part, value) in [
        ("cause", json!("pool_leak")),
        ("detail", json!("cpu")),
        ("detail", Value::Null),
        ("culprits", json!([{"op": "page"}])),
        ("culprits", json!([])),
        ("victims", json!([{"op": "other"}])),
        ("period_us", json!(1_060_000)),
        ("suspects", json!([{"cause": "slow_work", "ruling": "cleared", "evidence": ""}])),
        ("advice", json!({"action": "bound_cpu_pool", "text": "40"})),
        ("advice", json!({"action": "raise_pool", "text": "From 8 to 16 threads"})),
        ("advice", json!({"action": "raise_pool", "text": "More threads"})),
    ] {
        let mut answer = right();
        answer[part] = value;
        let (verdict, why) = judge(&FAULT, &record(&[right(), answer]));
        assert_eq!(verdict, Verdict::Wrong, "{part}");
        assert_eq!(why.len(), 1, "{why:?}");
    }
}

#[test]
fn what_is_not_said_is_not_wrong() {
    for part in ["effects", "period_us", "victims"] {
        let mut answer = right();
        answer[part] = if part == "period_us" { Value::Null } else { json!([]) };
        let (verdict, why) = judge(&FAULT, &record(&[right(), answer.clone()]));
        assert_eq!((verdict, why.len()), (Verdict::Incomplete, 1), "{part}");
        answer["detail"] = json!("cpu");
        assert_eq!(judge(&FAULT, &record(&[right(), answer])).0, Verdict::Wrong, "{part}");
    }
    let mut without_incident = record(&[right()]);
    without_incident.incidents.clear();
    assert_eq!(judge(&FAULT, &without_incident).0, Verdict::Incomplete);
}

#[test]
fn an_unknown_detail_is_no_wrong_one() {
    let mut answer = right();
    answer["detail"] = json!("unknown");
    assert_eq!(verdict(&FAULT, &[answer.clone()]), Verdict::Undetermined);
    answer["culprits"] = json!([{"op": "page"}]);
    assert_eq!(verdict(&FAULT, &[answer]), Verdict::Wrong);
}

#[test]
fn effects_may_be_words_or_objects() {
    let mut answer = right();
    answer["effects"] = json!([{"effect": "abandoned_work", "op": "page"}]);
    assert_eq!(verdict(&FAULT, &[answer]), Verdict::Right);
}

#[test]
fn every_answer_about_a_healthy_program_counts() {
    let silence = Expected::healthy(&["healthy", "process_paused"]);
    let paused = json!({"cause": "process_paused", "culprits": []});
    assert_eq!(verdict(&silence, &[healthy(), paused.clone(), healthy()]), Verdict::Right);
    assert_eq!(verdict(&silence, &[right(), healthy()]), Verdict::Wrong);
    assert_eq!(verdict(&silence, &[json!({"cause": "undetermined"}), healthy()]), Verdict::Undetermined);
    assert_eq!(verdict(&silence, &[json!({"cause": "undetermined"}), right(), healthy()]), Verdict::Wrong);

    let mut blaming = paused;
    blaming["culprits"] = json!([{"op": "page"}]);
    assert_eq!(verdict(&silence, &[blaming, healthy()]), Verdict::Wrong);

    let mut told_only_as_incident = record(&[healthy()]);
    told_only_as_incident.incidents = record(&[right()]).incidents;
    assert_eq!(judge(&silence, &told_only_as_incident).0, Verdict::Wrong);
}

#[test]
fn what_may_be_said_on_the_way_may_not_be_said_in_the_end() {
    let silence = Expected::healthy(&["healthy"]).meanwhile(&[("pool_saturated", "model_call")]);
    assert_eq!(verdict(&silence, &[right(), healthy()]), Verdict::Right);
    assert_eq!(verdict(&silence, &[right()]), Verdict::Wrong);
}

#[test]
fn accusations_of_the_innocent_are_found_whenever_they_were_made() {
    let mut other = right();
    other["culprits"] = json!([{"op": "page"}]);
    assert!(false_accusations(&FAULT, &record(&[right(), healthy()])).is_empty());
    // Once as an answer and once as an incident.
    assert_eq!(false_accusations(&FAULT, &record(&[other.clone(), right()])).len(), 2);
    other["cause"] = json!("undetermined");
    assert!(false_accusations(&FAULT, &record(&[other, right()])).is_empty());
}
