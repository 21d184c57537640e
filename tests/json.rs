//! What snapshots, ledgers, timings and incidents look like as JSON.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::{Value, json};
use std::time::Duration;

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn sorted<const N: usize>(mut keys: [&str; N]) -> [&str; N] {
    keys.sort_unstable();
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_is_reported_can_be_read_by_a_program() {
    let detector = starvation::Detector::builder().start().unwrap();
    let mut changes = detector.subscribe();
    let call = async { starvation::instrument_blocking("json call", || ()).timed().await.1 };
    let (timing, ledger) = tokio::spawn(starvation::instrument_future("json job", call).timed()).await.unwrap();
    tokio::spawn(starvation::instrument_future("json blocker", async {
        std::thread::sleep(Duration::from_millis(400));
    }))
    .await
    .unwrap();

    let timing = serde_json::to_value(timing).unwrap();
    assert_eq!(timing["outcome"], json!("returned"));
    let expected =
        ["cpu_us", "execution_us", "outcome", "queue_wait_us", "resume_delay_us", "total_us", "unclaimed_us"];
    assert_eq!(keys(&timing), expected);

    let ledger = serde_json::to_value(ledger).unwrap();
    assert_eq!(
        keys(&ledger),
        sorted([
            "polling_us",
            "scheduled_us",
            "blocking_queue_us",
            "blocking_execution_us",
            "waiting_us",
            "other_us",
            "total_us",
            "polls",
            "longest_poll_us"
        ])
    );
    assert!(ledger["total_us"].is_i64());

    let incident = loop {
        let change = changes.recv().await.unwrap();
        // Undetermined at first, where threads had no CPU for a moment.
        let told = change.incident();
        if told.op == Some("json blocker") && told.cause != starvation::Cause::Undetermined {
            break serde_json::to_value(&**told).unwrap();
        }
    };
    assert_eq!(
        keys(&incident),
        sorted([
            "id",
            "state",
            "opened_after_us",
            "duration_us",
            "cause",
            "detail",
            "op",
            "location",
            "calls",
            "delay_us",
            "suppressed",
            "diagnosis"
        ])
    );
    assert_eq!((&incident["cause"], &incident["state"]), (&json!("long_poll"), &json!("open")));
    assert!(incident["location"].as_str().unwrap().starts_with("tests/json.rs:"));
    assert_eq!(incident["diagnosis"]["culprits"][0]["role"], json!("poller"));
    assert_eq!(incident["diagnosis"]["culprits"][0]["share"], Value::Null);
    assert_eq!(incident["diagnosis"]["advice"]["action"], json!("offload"));

    let snapshot = serde_json::to_value(detector.snapshot()).unwrap();
    let op = snapshot["ops"].as_array().unwrap().iter().find(|op| op["op"] == "json call").unwrap();
    assert_eq!(op["outcomes"]["returned"], json!(1));
    assert!(op["queue_wait"]["p99_us"].is_f64());
    // What has no figure is null, never 0.
    assert_eq!((&op["oldest_queued_us"], &op["poll_duration"]["p50_us"]), (&Value::Null, &Value::Null));
    assert!(snapshot["observer"]["ticks"].as_u64().unwrap() > 0);
    assert_eq!(snapshot["runtimes"][0]["workers"], json!(2));
}
