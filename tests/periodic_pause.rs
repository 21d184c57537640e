//! The example that stops a server evenly: it ends by itself, blames no code, and its table divides as it should.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/example.rs"]
mod example;

use std::process::Command;

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(example::built("periodic_pause", "serde")).args(args).output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), stdout, stderr)
}

#[test]
fn dividing_a_process_divides_what_one_pause_touches() {
    let (code, text, error) = run(&["--processes", "5", "--period", "500", "--pause", "200", "--pauses", "4"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(!text.contains("diagnosis: long_poll"), "code was blamed for a stop of the process: {text}");
    assert!(text.contains("diagnosis: process_paused (stopped)"), "{text}");
    assert_eq!(text.matches("diagnosis: ").count(), 2, "{text}");
    assert!(text.contains("100.0 % of traffic") && text.contains("20.0 % of traffic"), "{text}");
}

#[test]
fn a_fleet_that_cannot_be_is_refused() {
    for args in [&["--processes", "0"][..], &["--pause", "900", "--period", "1000"], &["--pauses"], &["--pses", "1"]] {
        let (code, _, error) = run(args);
        assert_ne!(code, Some(0), "{args:?}");
        assert!(error.contains("Error"), "{args:?}: {error}");
    }
}
