//! Blocking code in an async function: who holds the worker, and at which line, told while it still does.
//!
//! A sleep that belongs on a thread of its own stands in async code. Nothing else of that worker's gets a turn
//! meanwhile, and the program itself cannot say so: it is stuck. The detector's own thread can.
//!
//! ```text
//! cargo run --example blocked_worker
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it found")]

use starvation::{Detector, Incident, IncidentChange, Subscription};
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

/// Twenty times the default threshold.
const BLOCKED: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let detector = Detector::builder().attach(runtime.handle()).start()?;
    let reports = detector.subscribe();
    let start = Instant::now();
    // A thread outside of the runtime: a task might be behind the very poll that it is to report.
    let reporter = thread::spawn(move || report(reports, start));

    let request = starvation::instrument_future("handle_request", handle_request(start));
    runtime.block_on(async { tokio::spawn(request).await })?;

    // The subscription ends with the detector, and the reporter with the subscription.
    drop(detector);
    reporter.join().map_err(|_| "the reporting thread panicked")?;
    Ok(())
}

async fn handle_request(start: Instant) {
    println!("{} the request begins to block its worker", at(start));
    thread::sleep(BLOCKED);
    println!("{} the request lets its worker go", at(start));
}

fn report(mut reports: Subscription, start: Instant) {
    while let Some(change) = reports.recv_timeout(Duration::MAX) {
        match &change {
            IncidentChange::Opened(incident) => print(start, "opened", incident),
            IncidentChange::Closed(incident) => print(start, "closed", incident),
            // Told again each time the delay has doubled; once is enough here.
            _ => {}
        }
    }
}

fn print(start: Instant, what: &str, incident: &Incident) {
    let (id, op) = (incident.id, incident.op.unwrap_or("what nobody wrapped"));
    let location = incident.location.map(ToString::to_string).unwrap_or_default();
    println!("{} incident {id} {what}: `{op}` at {location}\n          {incident}", at(start));
}

fn at(start: Instant) -> String {
    format!("+{:4} ms:", start.elapsed().as_millis())
}
