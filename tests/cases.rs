//! Real programs with a known fault, or with none: what the detector says of each is compared with the truth.
//!
//! Each case is a process of its own, of the example `doctor`. To see what was said: `doctor NAME`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/example.rs"]
mod example;

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{LazyLock, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

/// Cases whose answer is not right yet. One that becomes right fails its test until it is taken off this list, so that
/// it cannot be lost again unnoticed.
const NOT_YET: &[&str] = &[];

/// Cases in which the host is made worse than it is, which may fail to do harm, and those that only a stack could tell from
/// others. Not to know is right enough there; a wrong answer is not.
const MAY_NOT_KNOW: &[&str] = &["neighbours", "preempted", "stopped", "big_fork", "rayon_wait", "circular_oneshot"];

/// Cases that wait more than they compute, and may run beside each other. All others have the CPUs for themselves.
const CALM: &[&str] = &[
    "nested_block_on",
    "endless_loops",
    "hidden_dns",
    "undersized_runtime",
    "foreign_block_on",
    "full_stdout",
    "lock_across_await",
    "permit_holder",
    "few_permits",
    "connections_in_jobs",
    "unwrapped_pool",
    "nested_three_deep",
    "nested_once",
    "circular_oneshot",
    "leak_of_one",
    "leak_of_three",
    "abandoned_calls",
    "thread_limit",
    "wrapped_connection_wait",
    "files_hold_pool",
];

/// No case takes half of it.
const PATIENCE: Duration = Duration::from_secs(120);

macro_rules! cases {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { check(stringify!($name)); })*
    };
}

cases! {
    pool_cpu_trace
    undersized_runtime
    nested_block_on
    endless_loops
    tiny_calls
    hidden_dns
    foreign_block_on
    serialising
    always_ready
    driver_held
    blocking_handler
    fifo_open
    periodic_collector
    full_stdout
    lock_across_await
    lifo_child
    biased_select
    biased_unwrapped
    permit_holder
    few_permits
    connections_in_jobs
    big_fork
    cpu_quota
    neighbours
    long_job
    stopped
    preempted
    short_mutex
    tiny_jobs
    block_in_place
    lone_start_poll
    cpu_jobs
    brisk_permits
    story_a_6
    story_a_8
    story_a_40
    story_a_cpu
    story_a_decoy
    story_b
    unwrapped_pool
    nested_three_deep
    nested_once
    circular_oneshot
    leak_of_one
    leak_of_three
    abandoned_calls
    thread_limit
    hand_off_lost
    rayon_queue
    wrapped_connection_wait
    files_hold_pool
    pool_mixed
    lifo_woken
    driver_blocked
    lock_of_a_thread
    busy_server
    short_blocks
    burst_of_jobs
    join_all_cpu
    slow_write_under_lock
    rayon_wait
    child_output
    blocks_in_drop
    single_thread_hash
    two_faults
    many_small_tasks
    catch_up_burst
}

#[test]
fn no_case_is_without_a_test_and_no_list_names_one_that_is_not_there() {
    let output = doctor(&["--list"]).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let listed: BTreeSet<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, NAMES.iter().copied().collect());
    for name in [NOT_YET, MAY_NOT_KNOW, CALM].concat() {
        assert!(listed.contains(name), "`{name}` is no case");
    }
}

#[test]
fn the_matrix_counts_and_refuses_what_it_does_not_understand() {
    let _quiet = CPUS.write().unwrap_or_else(PoisonError::into_inner);
    let output = doctor(&["--matrix", "--repeat", "2", "long_job"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // The machine may well stop the process in the middle of it, which is then said.
    let counts = text.lines().find(|line| line.starts_with("right ")).unwrap();
    let count = |what: &str| {
        let found = counts.split(", ").find_map(|part| part.strip_prefix(what)?.trim().parse::<u64>().ok());
        found.unwrap_or_else(|| panic!("{what}: {counts}"))
    };
    assert_eq!(count("right") + count("undetermined"), 2, "{text}");
    assert_eq!(count("incomplete") + count("missed") + count("wrong") + count("failed"), 0, "{text}");
    assert!(output.status.success(), "{text}");
    for args in [&["--matrix", "--repeat"][..], &["--matrix", "no_such_case"], &["no_such_case"], &[]] {
        let output = doctor(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn the_soak_serves_and_counts_for_as_long_as_it_is_told() {
    let _quiet = CPUS.write().unwrap_or_else(PoisonError::into_inner);
    let output = output_within(doctor(&["--soak", "3s"]), PATIENCE);
    let text = String::from_utf8(output.stdout).unwrap();
    let (answered, _) = text.lines().find_map(|line| line.split_once(" requests answered in ")).unwrap();
    assert!(answered.parse::<u64>().unwrap() > 0, "{text}");
    let convicted = !text.contains("\n0 incidents that convict an op");
    assert_eq!(output.status.code(), Some(i32::from(convicted)), "{text}");
    for duration in ["", "s", "ten", "3d"] {
        assert_eq!(doctor(&["--soak", duration]).output().unwrap().status.code(), Some(2), "{duration}");
    }
}

/// Shared by calm cases; the others hold it alone.
static CPUS: RwLock<()> = RwLock::new(());

/// So often a case is run in which something is not known: a machine that others use may hide it.
const RUNS: usize = 3;

/// What the detector says of a case must be right, unless one of the lists says otherwise. It is never wrong; not to know, or
/// not to say all, is right enough once and again, but not each time.
fn check(name: &str) {
    let is = |result: &Value, verdict: &str| result["right"] == verdict;
    let mut result = run(name);
    for _ in 1..RUNS {
        let lacks = is(&result, "undetermined") || is(&result, "incomplete");
        if !lacks || MAY_NOT_KNOW.contains(&name) {
            break;
        }
        result = run(name);
    }
    let fine = is(&result, "right") || MAY_NOT_KNOW.contains(&name) && !is(&result, "wrong");
    if NOT_YET.contains(&name) {
        assert!(!fine, "`{name}` is right by now: take it off the list NOT_YET");
    } else {
        assert!(fine, "{}: {}", result["right"], told(&result));
    }
}

fn run(name: &str) -> Value {
    if CALM.contains(&name) {
        let _beside_others = CPUS.read().unwrap_or_else(PoisonError::into_inner);
        result_of(name)
    } else {
        let _alone = CPUS.write().unwrap_or_else(PoisonError::into_inner);
        result_of(name)
    }
}

fn told(result: &Value) -> String {
    let Value::Object(parts) = result else { return result.to_string() };
    let part = |name: &&str| format!("{name}: {:#}", parts.get(*name).unwrap_or(&Value::Null));
    ["case", "why", "early_wrong", "answers", "given", "expected"].iter().map(part).collect::<Vec<_>>().join("\n")
}

fn result_of(name: &str) -> Value {
    let output = output_within(doctor(&[name, "--json"]), PATIENCE);
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{name}, {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// The output of a program that is killed if it does not end.
fn output_within(mut command: Command, patience: Duration) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    // It reads while the child runs: one that finds its pipe full would wait for us.
    let reader = thread::spawn(move || child.wait_with_output().unwrap());
    let start = Instant::now();
    while !reader.is_finished() && start.elapsed() < patience {
        thread::sleep(Duration::from_millis(10));
    }
    if !reader.is_finished() {
        assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    }
    reader.join().unwrap()
}

fn doctor(args: &[&str]) -> Command {
    static DOCTOR: LazyLock<PathBuf> = LazyLock::new(|| example::built("doctor", "serde"));
    let mut command = Command::new(&*DOCTOR);
    command.args(args);
    command
}
