//! What the runs look like: for a person, and as JSON.

use crate::args::Plan;
use crate::worker::Outcome;
use serde_json::{Value, json};
use starvation::IncidentChange;
use std::time::{Duration, Instant};

/// A bar of this many cells is 100 %.
const BAR: f64 = 40.0;

impl Outcome {
    /// The share of all jobs' time that was spent waiting for a thread of the pool, from 0 to 1.
    pub(crate) fn queue_share(&self) -> f64 {
        share(self.ledger.blocking_queue, self.ledger.total)
    }

    fn jobs_per_second(&self) -> f64 {
        self.plan.jobs as f64 / self.took.as_secs_f64()
    }
}

pub(crate) fn print_intro() {
    println!(
        "A worker whose jobs call a language model through a client that is async outside and blocks inside.\n\
         All times are a hundredth of the story's: its 69 s are 0.69 s here."
    );
}

pub(crate) fn print_plan(plan: &Plan) {
    let Plan { title, pool, concurrency, jobs, model } = plan;
    println!(
        "\n=== {title}: {concurrency} jobs at once, {pool} pool threads, {jobs} jobs, model answers in {model:?}\n"
    );
}

/// Prints incidents as they come: the opening, a change of the judgement, the end.
pub(crate) fn incident_printer() -> impl FnMut(&IncidentChange) {
    let start = Instant::now();
    let mut judged = None;
    move |change| {
        let incident = change.incident();
        let what = match change {
            IncidentChange::Opened(_) => "opened",
            IncidentChange::Closed(_) => "closed",
            // It is also told that the delay has doubled: the next line of a log, and too many for a screen.
            _ if judged == Some((incident.id, incident.cause, incident.detail)) => return,
            _ => "is now",
        };
        judged = Some((incident.id, incident.cause, incident.detail));
        println!("  +{:.2} s  incident {} {what}: {incident}", start.elapsed().as_secs_f64(), incident.id);
    }
}

pub(crate) fn print_outcome(outcome: &Outcome) {
    if outcome.incidents.is_empty() {
        println!("  no incident");
    }
    print_ledger(outcome);
    print_phases(outcome);
    println!("\n  => {:.0} % of the jobs' time was queue wait", 100.0 * outcome.queue_share());
}

fn print_ledger(outcome: &Outcome) {
    let ledger = &outcome.ledger;
    println!("\n  {:<26}{:>12}{:>12}{:>10}", "where the time went", "all jobs", "one job", "share");
    for (class, time) in [
        ("queued for a pool thread", ledger.blocking_queue),
        ("executing on one", ledger.blocking_execution),
        ("woken, not yet polled", ledger.scheduled),
        ("being polled", ledger.polling),
        ("in an instrumented wait", ledger.waiting),
        ("other", ledger.other),
        ("total", ledger.total),
    ] {
        let share = share(time, ledger.total);
        let all = format!("{:.2} s", time.as_secs_f64());
        let one = millis(time.as_secs_f64() / outcome.plan.jobs as f64);
        let bar = "█".repeat((BAR * share).round() as usize);
        let row = format!("  {class:<26}{all:>12}{one:>12}{:>8.1} %  {bar}", 100.0 * share);
        println!("{}", row.trim_end());
    }
}

fn print_phases(outcome: &Outcome) {
    let calls = &outcome.calls;
    println!("\n  {:<26}{:>12}{:>12}{:>10}", format!("phases of `{}`", calls.op), "mean", "p50", "p99");
    for (phase, times) in
        [("queue wait", &calls.queue_wait), ("execution", &calls.execution), ("resume delay", &calls.resume_delay)]
    {
        let mean = millis(times.sum.as_secs_f64() / times.count as f64);
        let [p50, p99] = [times.p50, times.p99].map(|p| millis(p.unwrap_or_default().as_secs_f64()));
        println!("  {phase:<26}{mean:>12}{p50:>12}{p99:>10}");
    }
    println!("  made at {}", calls.location);
}

/// The runs next to each other, as the story's last table has them.
pub(crate) fn print_comparison(outcomes: &[Outcome]) {
    println!("\n=== side by side\n");
    let row = |name: &str, cell: &dyn Fn(&Outcome) -> String, story: &str| {
        let cells: String = outcomes.iter().map(|outcome| format!("{:>21}", cell(outcome))).collect();
        println!("  {}", format!("{name:<20}{cells}    {story}").trim_end());
    };
    row("", &|o| o.plan.title.to_owned(), "the story, before -> after");
    row("pool threads", &|o| o.plan.pool.to_string(), "6-8 -> 40");
    row("jobs at once", &|o| o.plan.concurrency.to_string(), "up to 20; with those queued 121");
    row("stalls", &|o| o.incidents.len().to_string(), "7 -> 0");
    row("longest job", &|o| millis(o.longest_job.as_secs_f64()), "50 s -> 19 s");
    row("share of queue wait", &|o| format!("{:.0} %", 100.0 * o.queue_share()), "93 % before");
    row("jobs per second", &|o| format!("{:.0}", o.jobs_per_second()), "");
}

/// One run as JSON.
pub(crate) fn to_json(outcome: &Outcome) -> Value {
    let ledger = &outcome.ledger;
    let incidents: Vec<Value> = outcome
        .incidents
        .iter()
        .map(|incident| {
            json!({
                "id": incident.id,
                "cause": incident.cause.name(),
                "op": incident.op,
                "opened_after_us": micros(incident.opened_after),
                "duration_us": micros(incident.duration),
            })
        })
        .collect();
    json!({
        "pool": outcome.plan.pool,
        "concurrency": outcome.plan.concurrency,
        "jobs": outcome.plan.jobs,
        "longest_job_us": micros(outcome.longest_job),
        "stalls": incidents.len(),
        "ledger": {
            "polling_us": micros(ledger.polling),
            "scheduled_us": micros(ledger.scheduled),
            "blocking_queue_us": micros(ledger.blocking_queue),
            "blocking_execution_us": micros(ledger.blocking_execution),
            "waiting_us": micros(ledger.waiting),
            "other_us": micros(ledger.other),
            "total_us": micros(ledger.total),
        },
        "incidents": incidents,
    })
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

pub(crate) fn millis(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
