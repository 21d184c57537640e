//! Runs one case under a detector, and asks it all the while from a thread that nobody in the case can hold up.

use crate::case::{Case, Expected};
use crate::host;
use crate::verdict::{self, Record};
use serde_json::{Value, json};
use starvation::Detector;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// How often a person on call looks.
const ASKED_EVERY: Duration = Duration::from_millis(50);
/// For how long a case may run that does not say so itself. Most take seconds, but the memory of a machine can be slow to come.
const LONGEST: Duration = Duration::from_secs(90);

/// Where a case runs: it makes the runtimes, and the detector watches each of them.
#[derive(Debug)]
pub(crate) struct Ward {
    case: &'static Case,
    detector: OnceLock<Detector>,
    /// Held while a detector is started or attached.
    attaching: Mutex<()>,
    /// What the case expects where it could not do to the host what it was to do.
    instead: OnceLock<Expected>,
}

impl Ward {
    /// A runtime of so many workers, with a pool of so many threads. It lives as long as the process: the answers are
    /// asked for while it is there.
    pub(crate) fn runtime(&self, workers: usize, pool: usize) -> &'static Runtime {
        self.build(Builder::new_multi_thread().worker_threads(workers).max_blocking_threads(pool))
    }

    pub(crate) fn current_thread(&self, pool: usize) -> &'static Runtime {
        self.build(Builder::new_current_thread().max_blocking_threads(pool))
    }

    pub(crate) fn build(&self, builder: &mut Builder) -> &'static Runtime {
        if self.case.hooks {
            starvation::hooks(builder);
        }
        let runtime = Box::leak(Box::new(builder.enable_all().build().unwrap()));
        let _attaching = self.attaching.lock().unwrap_or_else(PoisonError::into_inner);
        match self.detector.get() {
            Some(detector) => detector.attach(runtime.handle()).unwrap(),
            None => {
                let mut detector = Detector::builder().attach(runtime.handle());
                #[cfg(feature = "stacks")]
                {
                    detector = detector.stacks(starvation::Stacks::WithSignals);
                }
                if let Some(window) = self.case.window {
                    detector = detector.window(window);
                }
                self.detector.set(detector.start().unwrap()).unwrap();
            }
        }
        runtime
    }

    /// Another answer is right, as this machine does not allow what the case is about.
    pub(crate) fn expect_instead(&self, expected: Expected) {
        self.instead.set(expected).unwrap();
    }

    /// Asks once.
    fn ask(&self, start: Instant, record: &mut Record) {
        let Some(detector) = self.detector.get() else { return };
        let diagnosis = detector.diagnose();
        let at = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        record.add(at, serde_json::to_value(&diagnosis).unwrap(), || diagnosis.to_string());
    }

    fn incidents(&self) -> Vec<(String, Value)> {
        let incidents = self.detector.get().map(Detector::incidents).unwrap_or_default();
        incidents.iter().map(|one| (one.to_string(), serde_json::to_value(&**one).unwrap())).collect()
    }
}

/// What came out.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The one-line summary of `--json`.
    pub(crate) json: Value,
    /// The same for a person.
    pub(crate) text: String,
}

/// Runs a case until it has ended or is to be judged, and judges the answers.
pub(crate) fn run(case: &'static Case) -> Result<Outcome, String> {
    let ward = Ward { case, detector: OnceLock::new(), attaching: Mutex::new(()), instead: OnceLock::new() };
    let ward: &'static Ward = Box::leak(Box::new(ward));
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(ward)));
        let _ = ended.send(result.is_ok());
    });

    let start = Instant::now();
    let until = start + case.judged_after.unwrap_or(LONGEST);
    let mut record = Record::default();
    let mut failed = None;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match end.recv_timeout(left.min(ASKED_EVERY)) {
            Ok(true) => break,
            Ok(false) | Err(RecvTimeoutError::Disconnected) => {
                failed = Some(format!("{}: the case itself panicked", case.name));
                break;
            }
            Err(RecvTimeoutError::Timeout) if left.is_zero() && case.judged_after.is_none() => {
                failed = Some(format!("{}: the case hangs and does not say that it does", case.name));
                break;
            }
            Err(RecvTimeoutError::Timeout) if left.is_zero() => break,
            Err(RecvTimeoutError::Timeout) => ward.ask(start, &mut record),
        }
    }
    ward.ask(start, &mut record);
    let incidents = ward.incidents();
    host::tidy_up();
    match failed {
        Some(failed) => Err(failed),
        None => Ok(outcome(case, *ward.instead.get().unwrap_or(&case.expected), record, incidents)),
    }
}

fn outcome(case: &Case, expected: Expected, mut record: Record, incidents: Vec<(String, Value)>) -> Outcome {
    let (texts, incidents): (Vec<_>, Vec<_>) = incidents.into_iter().unzip();
    record.incidents = incidents;
    let (verdict, why) = verdict::judge(&expected, &record);
    let early_wrong = verdict::false_accusations(&expected, &record);
    let last = record.answers.iter().find(|answer| answer.diagnosis == record.last);
    let mut text = format!("{}: {}\n\n", case.name, case.about);
    text += &format!("diagnosis: {}\n", last.map_or("none", |answer| &answer.text));
    for incident in &texts {
        text += &format!("incident:  {incident}\n");
    }
    text += &format!("\nexpected:  {}\nverdict:   {}\n", expected.causes.join(" or "), verdict.name());
    why.iter().for_each(|why| text += &format!("           {why}\n"));
    early_wrong.iter().for_each(|early| text += &format!("accused:   {early}\n"));
    let json = json!({
        "case": case.name,
        "right": verdict.name(),
        "why": why,
        "early_wrong": early_wrong,
        "expected": expected.to_json(),
        "given": record.last,
        "answers": record.answers_json(),
        "incidents": record.incidents,
    });
    Outcome { json, text }
}
