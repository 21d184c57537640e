//! The worker whose time nobody could find: a real incident, replayed at 1:100.
//!
//! A background worker has a language model answer its jobs. The client library looks async and makes a synchronous
//! call on the runtime's blocking pool. Every step that was measured was fast, and yet a job took fifteen times as long
//! as its call: it stood in line for a thread. Three runs:
//!
//! | run | jobs at once | pool | a job waits for a thread |
//! |---|---|---|---|
//! | the incident | 121 | 8 | 113 / 121 = 93 % of its time |
//! | the worker's own cap | 20 | 8 | 12 / 20 = 60 % |
//! | the fix | 20 | 40 | not at all |
//!
//! Then the diagnosis clears the story's other suspects, each with a number, and advises a pool; and the runs that stood
//! in line are run again with it.
//!
//! The model is a real HTTP server on loopback, called through a real synchronous client.
//!
//! ```text
//! cargo run --release --example llm_worker
//! cargo run --release --example llm_worker -- --pool 16 --concurrency 20
//! cargo run --release --example llm_worker -- --json
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it found")]

mod advice;
mod args;
mod model;
mod report;
mod worker;

use advice::Proof;
use args::{Args, USAGE};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(error) => {
            eprintln!("error: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match &args {
        Args { help: true, .. } => {
            println!("{USAGE}");
            Ok(())
        }
        Args { json: true, .. } => run_as_json(&args),
        _ => run_for_a_person(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_as_json(args: &Args) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut outcomes = Vec::new();
    for plan in &args.plans {
        let outcome = worker::run(*plan, |_| {})?;
        println!("{}", report::to_json(&outcome));
        outcomes.push(outcome);
    }
    for outcome in outcomes.iter().filter(|_| args.advice) {
        if let Some(proof) = Proof::of(outcome)? {
            println!("{}", proof.to_json(outcome));
        }
    }
    Ok(())
}

fn run_for_a_person(args: &Args) -> Result<(), Box<dyn Error + Send + Sync>> {
    report::print_intro();
    let mut outcomes = Vec::new();
    for plan in &args.plans {
        report::print_plan(plan);
        let outcome = worker::run(*plan, report::incident_printer())?;
        report::print_outcome(&outcome);
        outcomes.push(outcome);
    }
    report::print_comparison(&outcomes);
    if let Some(first) = outcomes.first() {
        advice::print_suspects(first);
    }
    advice::print_proofs(&outcomes)
}
