//! Runs the examples as a reader would, and holds what they print to what they promise.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use serde_json::{Map, Value, json};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex, PoisonError};

const NAMES: [&str; 3] = ["blocked_worker", "llm_worker", "quickstart"];

/// The story's three runs: enough queueing that nothing else matters, some, none.
#[test]
fn llm_worker_accounts_for_the_incident_the_cap_and_the_fix() {
    let [incident, cap, fix]: [Value; 3] = json_of(&[]).try_into().unwrap();

    assert_eq!([&incident, &cap, &fix].map(shape), [(8, 121), (8, 20), (40, 20)]);
    assert_share(&incident, 0.88..0.96);
    assert_share(&cap, 0.50..0.65);
    assert_share(&fix, 0.0..0.05);

    for run in [&incident, &cap] {
        let incidents = list(run, "incidents");
        assert!(incidents.iter().any(is_of_the_pool), "the pool was not reported: {run}");
        assert!(incidents.iter().all(|incident| opened_during(incident, run)), "reported when all was over: {run}");
    }
    assert_quiet(&fix);
    assert!(number(&incident, "longest_job_us") > number(&cap, "longest_job_us"));
    assert!(number(&cap, "longest_job_us") > number(&fix, "longest_job_us"));
}

/// The pool that the diagnosis advises is enough, and the smallest that is.
#[test]
fn llm_worker_clears_the_suspects_and_proves_its_advice() {
    let lines = stdout(&run("llm_worker", &["--json", "--advice", "--concurrency", "20", "--jobs", "240"]));
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [before, proof] = &lines[..] else { panic!("no advice for a pool of 8 and 20 jobs: {lines:?}") };
    assert_eq!((&proof["before"], &proof["cause"], &proof["detail"]), (before, &json!("pool_saturated"), &json!("io")));

    let suspects = list(proof, "suspects");
    for (cause, ruling) in [
        ("pool_saturated", "convicted"),
        ("slow_work", "cleared"),
        ("downstream_limit", "cleared"),
        ("process_paused", "cleared"),
        ("long_poll", "cleared"),
    ] {
        let suspect = suspects.iter().find(|suspect| suspect["cause"] == cause).unwrap();
        assert!(suspect["ruling"] == ruling || is_of_a_bad_host(suspect), "{suspect}");
        assert!(text(suspect, "evidence").contains(|c: char| c.is_ascii_digit()), "no number: {suspect}");
    }
    let story = list(proof, "story");
    assert_eq!(story.len(), 9, "{story:?}");
    for suspect in story {
        assert!(text(suspect, "evidence").contains(|c: char| c.is_ascii_digit()), "no number: {suspect}");
        assert!(!text(suspect, "ruling").ends_with("unknown"), "{suspect}");
    }
    assert_eq!(text(&story[1], "evidence"), "0 of 240 calls failed");
    assert_eq!(text(&story[2], "evidence"), "240 requests for 240 jobs");
    assert!(text(&story[5], "evidence").contains("database"), "{}", story[5]);
    assert!(text(&story[8], "ruling").ends_with("convicted"), "{}", story[8]);

    let (advised, fewer) = (&proof["as_advised"], &proof["one_fewer"]);
    [before, advised, fewer].into_iter().for_each(assert_form);
    assert_eq!(number(proof, "advised_pool"), 20);
    assert_eq!([advised, fewer].map(shape), [(20, 20), (19, 20)]);
    // A pool that has not one thread to spare may well be reported while a busy machine is slow to start them: that it
    // is quiet shows where it has room.
    let waited = |run: &Value| number(&run["ledger"], "blocking_queue_us") * 1_000 / number(&run["ledger"], "total_us");
    assert!(waited(before) > waited(fewer) && waited(fewer) > waited(advised), "one thread fewer is enough: {proof}");
}

#[test]
fn llm_worker_gives_no_advice_where_nobody_waits() {
    let args = ["--json", "--advice", "--pool", "40", "--concurrency", "4", "--jobs", "20", "--model-ms", "5"];
    assert_eq!(stdout(&run("llm_worker", &args)).lines().count(), 1);
}

#[test]
fn llm_worker_takes_a_run_of_ones_own() {
    let [run]: [Value; 1] =
        json_of(&["--pool", "2", "--concurrency", "3", "--jobs", "9", "--model-ms", "5"]).try_into().unwrap();
    assert_eq!((shape(&run), number(&run, "jobs")), ((2, 3), 9));
}

#[test]
fn llm_worker_tells_a_person_of_the_incident_before_the_account() {
    let output = run("llm_worker", &["--pool", "2", "--concurrency", "12", "--jobs", "24", "--model-ms", "30"]);
    let text = stdout(&output);
    assert_in_order(
        &text,
        &[
            "incident 1 opened",
            "incident 1 closed",
            "queued for a pool thread",
            "phases of `model_call`",
            "side by side",
            "[x] convicted    pool_saturated",
            "[ ] cleared",
            "Advice (raise_pool)",
            "the model is slow",
            "the pool is too small",
            "was the advice right?",
            "as advised",
            "one fewer",
        ],
    );
}

#[test]
fn llm_worker_refuses_what_it_does_not_understand() {
    for (args, complaint) in [
        (&["--pols", "8"][..], "unknown flag `--pols`"),
        (&["--pool", "many"][..], "--pool needs a whole number"),
        (&["--jobs", "0"][..], "--jobs needs a whole number"),
        (&["--json", "--model-ms"][..], "--model-ms needs a number"),
    ] {
        let output = example("llm_worker").args(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(complaint), "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn quickstart_reports_the_pool_and_the_requests() {
    let text = stdout(&run("quickstart", &[]));
    assert_in_order(&text, &["WARN", "opened", "pool", "closed"]);
    assert_eq!(text.matches("a request took").count(), 12, "{text}");
}

#[test]
fn blocked_worker_names_op_and_line_while_the_poll_still_blocks() {
    let text = stdout(&run("blocked_worker", &[]));
    let place = "incident 1 opened: `handle_request` at examples/blocked_worker.rs:";
    // A Windows path has its separators the other way round.
    assert_in_order(&text.replace('\\', "/"), &["begins to block", place, "lets its worker go", "incident 1 closed"]);
}

fn json_of(args: &[&str]) -> Vec<Value> {
    let output = run("llm_worker", &[&["--json"], args].concat());
    let runs: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    runs.iter().for_each(assert_form);
    runs
}

/// The keys, that the counts fit, and that the ledger's classes sum to its total.
fn assert_form(run: &Value) {
    assert_keys(run, &["concurrency", "incidents", "jobs", "ledger", "longest_job_us", "pool", "stalls"]);
    for incident in list(run, "incidents") {
        assert_keys(incident, &["cause", "duration_us", "id", "op", "opened_after_us"]);
    }
    assert_eq!(number(run, "stalls"), list(run, "incidents").len() as u64);

    let classes =
        ["blocking_execution_us", "blocking_queue_us", "other_us", "polling_us", "scheduled_us", "waiting_us"];
    let mut keys = [&classes[..], &["total_us"]].concat();
    keys.sort_unstable();
    assert_keys(&run["ledger"], &keys);
    let sum: u64 = classes.iter().map(|class| number(&run["ledger"], class)).sum();
    let total = number(&run["ledger"], "total_us");
    // The sums are exact; each class is then cut to whole microseconds.
    assert!(sum <= total && total - sum <= classes.len() as u64, "{total} is not the sum of the classes, {sum}: {run}");
}

fn assert_keys(value: &Value, keys: &[&str]) {
    let mut found: Vec<&str> = object(value).keys().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, keys);
}

fn assert_share(run: &Value, expected: std::ops::Range<f64>) {
    let ledger = &run["ledger"];
    let share = number(ledger, "blocking_queue_us") as f64 / number(ledger, "total_us") as f64;
    assert!(expected.contains(&share), "the queue's share is {share:.3}, not within {expected:?}: {run}");
}

fn is_of_the_pool(incident: &Value) -> bool {
    incident["op"] == "model_call" && incident["cause"] == "pool_saturated"
}

fn opened_during(incident: &Value, run: &Value) -> bool {
    // With at most `concurrency` jobs at once the run took at least this long.
    let took = number(&run["ledger"], "total_us") / number(run, "concurrency");
    number(incident, "opened_after_us") < took
}

/// The machine may hold up anything, and then says so.
fn is_of_a_bad_host(suspect: &Value) -> bool {
    let of_the_host =
        ["process_paused", "long_poll", "downstream_limit"].iter().any(|cause| suspect["cause"] == *cause);
    of_the_host && suspect["ruling"] == "contributing"
}

/// Nobody is convicted, and nothing is reported at all but that the machine had no CPU to give.
fn assert_quiet(run: &Value) {
    for incident in list(run, "incidents") {
        let of_the_machine = ["undetermined", "cpu_contention", "process_paused"];
        assert!(of_the_machine.contains(&text(incident, "cause")), "a false alarm: {run}");
    }
}

fn assert_in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let (_, after) = rest.split_once(part).unwrap_or_else(|| panic!("no `{part}` where it should be in:\n{text}"));
        rest = after;
    }
}

fn shape(run: &Value) -> (u64, u64) {
    (number(run, "pool"), number(run, "concurrency"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number `{key}` in {value}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no list `{key}` in {value}"))
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}"))
}

fn run(name: &str, args: &[&str]) -> Output {
    // One at a time: what they say of the machine is not to be about each other.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let output = example(name).args(args).output().unwrap();
    assert!(output.status.success(), "{name} {args:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn example(name: &str) -> Command {
    // All of them at once, and before any runs: a build beside it would take its CPU time away.
    static EXAMPLES: LazyLock<PathBuf> = LazyLock::new(find_examples);
    Command::new(executable(&EXAMPLES, name))
}

/// Where the examples are. `cargo test` builds them before the tests; `cargo test --test examples` does not.
fn find_examples() -> PathBuf {
    // This test is <target>/<profile>/deps/<name>, the examples are <target>/<profile>/examples/<name>.
    let test = env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let examples = profile.join("examples");
    if !NAMES.iter().all(|name| executable(&examples, name).exists()) {
        build_examples(profile);
    }
    examples
}

fn executable(examples: &Path, name: &str) -> PathBuf {
    examples.join(format!("{name}{}", env::consts::EXE_SUFFIX))
}

fn build_examples(profile: &Path) {
    let name = match profile.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        named => named,
    };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--profile", name, "--target-dir"]).arg(profile.parent().unwrap());
    cargo.args(NAMES.iter().flat_map(|name| ["--example", name])).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(cargo.status().unwrap().success(), "the examples do not build");
}
