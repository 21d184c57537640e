//! What the diagnosis says of a run: the suspects, each with the number that clears it, and the pool that it advises; and
//! whether that is right.

use crate::args::Plan;
use crate::report::{millis, to_json};
use crate::worker::{self, Outcome};
use serde_json::{Value, json};
use starvation::{Cause, Diagnosis};
use std::error::Error;
use std::time::Duration;

/// In the first round all threads have to be started. Among so many it weighs little.
const ROUNDS: usize = 24;
/// With one thread too few one job waits at a time. Among more jobs than these it does not show.
const SHOWS: usize = 50;

/// One suspect of the story, how it came out, and by which number.
type Ruled = (&'static str, String, String);

/// The story's nine suspects, in the order in which they were eliminated.
fn story_suspects(outcome: &Outcome) -> [Ruled; 9] {
    let ruled = |suspect, cause: Cause| {
        let found = outcome.diagnosis.suspects.iter().find(|suspect| suspect.cause == cause);
        match found {
            Some(found) => (suspect, format!("{cause} {}", found.ruling), found.evidence.clone()),
            None => (suspect, "not ruled on".to_owned(), String::new()),
        }
    };
    let counted = |suspect, evidence: String| (suspect, "by its own count".to_owned(), evidence);
    let jobs = outcome.plan.jobs;
    let failed = jobs as u64 - outcome.calls.outcomes.returned.min(jobs as u64);
    let itself = outcome.diagnosis.phases.map_or_else(|| "not known".to_owned(), |phases| phases.to_string());
    [
        ruled("the model is slow", Cause::SlowWork),
        counted("the model rejects", format!("{failed} of {jobs} calls failed")),
        counted("retries pile up", format!("{} requests for {jobs} jobs", outcome.requests)),
        ("the model call itself", "by its phases".to_owned(), itself),
        ruled("CPU shortage", Cause::CpuContention),
        database(outcome, ruled("the database", Cause::DownstreamLimit)),
        ruled("memory, pauses", Cause::ProcessPaused),
        ("the monitoring agent", "by its own count".to_owned(), agent(outcome)),
        ruled("the pool is too small", Cause::PoolSaturated),
    ]
}

/// It is the one thing that the jobs wait for in an `instrument_wait`.
fn database(outcome: &Outcome, (suspect, ruling, _): Ruled) -> Ruled {
    let waits = &outcome.waits.wait;
    let [mean, longest] =
        [waits.sum.as_secs_f64() / waits.count.max(1) as f64, waits.max.unwrap_or_default().as_secs_f64()];
    let evidence = format!("`database` answered after {} on average, {} at most", millis(mean), millis(longest));
    (suspect, ruling, evidence)
}

/// What the detector itself used.
fn agent(outcome: &Outcome) -> String {
    match outcome.detector_cpu {
        Some(cpu) => {
            let share = 100.0 * cpu.as_secs_f64() / outcome.took.as_secs_f64();
            format!("the detector's thread used {share:.1} % of a CPU")
        }
        None => "what the detector used is not known".to_owned(),
    }
}

pub(crate) fn print_suspects(outcome: &Outcome) {
    println!("\n=== the diagnosis of {}\n", outcome.plan.title);
    println!("{}", outcome.diagnosis);
    println!("\n=== the story's suspects\n");
    for (suspect, ruling, evidence) in story_suspects(outcome) {
        println!("  {suspect:<22} {ruling:<25} {evidence}");
    }
}

/// The load of a run again, with the pool that its diagnosis advises, and with one thread fewer.
#[derive(Debug)]
pub(crate) struct Proof {
    pool: u64,
    as_advised: Outcome,
    one_fewer: Option<Outcome>,
}

impl Proof {
    /// None where the diagnosis advises no pool.
    pub(crate) fn of(outcome: &Outcome) -> Result<Option<Self>, Box<dyn Error + Send + Sync>> {
        let Some(pool) = outcome.diagnosis.advice.pool else { return Ok(None) };
        let again = |title, pool: u64| {
            let pool = usize::try_from(pool)?;
            let jobs = outcome.plan.concurrency * ROUNDS;
            worker::run(Plan { title, pool, jobs, ..outcome.plan }, |_| {})
        };
        let as_advised = again("as advised", pool)?;
        let shows = pool > 1 && outcome.plan.concurrency <= SHOWS;
        let one_fewer = shows.then(|| again("one fewer", pool - 1)).transpose()?;
        Ok(Some(Self { pool, as_advised, one_fewer }))
    }

    pub(crate) fn to_json(&self, before: &Outcome) -> Value {
        let Diagnosis { cause, detail, suspects, .. } = &before.diagnosis;
        let suspects: Vec<Value> = suspects
            .iter()
            .map(|s| json!({"cause": s.cause.name(), "ruling": s.ruling.name(), "evidence": s.evidence}))
            .collect();
        let story: Vec<Value> = story_suspects(before)
            .into_iter()
            .map(|(suspect, ruling, evidence)| json!({"suspect": suspect, "ruling": ruling, "evidence": evidence}))
            .collect();
        json!({
            "cause": cause.name(),
            "detail": detail,
            "suspects": suspects,
            "story": story,
            "advised_pool": self.pool,
            "before": to_json(before),
            "as_advised": to_json(&self.as_advised),
            "one_fewer": self.one_fewer.as_ref().map(to_json),
        })
    }
}

/// Runs those again that stood in line, with what their diagnosis advises.
pub(crate) fn print_proofs(outcomes: &[Outcome]) -> Result<(), Box<dyn Error + Send + Sync>> {
    println!("\n=== was the advice right?\n");
    println!(
        "  {:<22}{:>8}{:>9}{:>13}{:>14}{:>12}{:>12}{:>11}",
        "", "jobs", "threads", "queue wait", "longest wait", "one job", "its call", "incidents"
    );
    for outcome in outcomes {
        let Some(proof) = Proof::of(outcome)? else {
            if !outcome.incidents.is_empty() {
                println!(
                    "  {:<22}its diagnosis advises no pool: {}",
                    outcome.plan.title, outcome.diagnosis.advice.text
                );
            }
            continue;
        };
        print_row(outcome);
        print_row(&proof.as_advised);
        proof.one_fewer.iter().for_each(print_row);
    }
    Ok(())
}

fn print_row(outcome: &Outcome) {
    let Outcome { plan, ledger, calls, .. } = outcome;
    let mean = |sum: Duration, of: u64| millis(sum.as_secs_f64() / of.max(1) as f64);
    println!(
        "  {:<22}{:>8}{:>9}{:>11.1} %{:>14}{:>12}{:>12}{:>11}",
        plan.title,
        plan.concurrency,
        plan.pool,
        100.0 * outcome.queue_share(),
        millis(calls.queue_wait.max.unwrap_or_default().as_secs_f64()),
        mean(ledger.total, plan.jobs as u64),
        mean(calls.execution.sum, calls.execution.count),
        outcome.incidents.len(),
    );
}
