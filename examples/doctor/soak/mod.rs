//! A healthy program on a bad host, for as long as one likes: whatever op is convicted is a false alarm.

mod load;

use crate::host::{preempter, spinners, stopper};
use crate::verdict::convicted;
use load::{Dice, POOL};
use serde_json::Value;
use starvation::{Detector, IncidentChange, Subscription};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// Set once the load is to end: the host is left in peace.
static OVER: AtomicBool = AtomicBool::new(false);

/// `90`, `90s`, `10m` or `2h`.
fn parse(duration: &str) -> Option<Duration> {
    let (number, unit) = match duration.strip_suffix(['s', 'm', 'h']) {
        Some(number) => (number, &duration[number.len()..]),
        None => (duration, "s"),
    };
    let seconds = match unit {
        "m" => 60,
        "h" => 3_600,
        _ => 1,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

/// Runs the load and prints every incident. The exit code tells whether an op was convicted.
pub(crate) fn run(duration: &str) -> i32 {
    let Some(duration) = parse(duration) else {
        eprintln!("`{duration}` is no duration: 90s, 10m, 2h");
        return 2;
    };
    let mut builder = Builder::new_multi_thread();
    let runtime = starvation::hooks(builder.worker_threads(2).max_blocking_threads(POOL)).enable_all();
    let runtime = runtime.build().unwrap();
    let detector = Detector::builder().attach(runtime.handle()).start().unwrap();
    let start = Instant::now();
    let changes = detector.subscribe();
    let listener = thread::spawn(move || listen(changes, start));
    let host = thread::spawn(bad_host);
    let answered = runtime.block_on(load::run(duration));

    // Relaxed: nothing else is handed over with it.
    OVER.store(true, Ordering::Relaxed);
    host.join().unwrap();
    runtime.shutdown_background();
    drop(detector);
    let Heard { causes, convictions } = listener.join().unwrap();
    println!("\n{answered} requests answered in {:.0?}", start.elapsed());
    causes.iter().for_each(|(cause, times)| println!("  {times:4} incidents of cause {cause}"));
    println!("{} incidents that convict an op of what it has not done", convictions.len());
    convictions.iter().for_each(|conviction| println!("  {conviction}"));
    i32::from(!convictions.is_empty())
}

/// What was said, by its incident as it last stood.
struct Heard {
    causes: BTreeMap<String, usize>,
    convictions: Vec<String>,
}

fn listen(mut changes: Subscription, start: Instant) -> Heard {
    let mut causes: BTreeMap<u64, String> = BTreeMap::new();
    let mut convictions: BTreeMap<u64, String> = BTreeMap::new();
    while let Some(change) = changes.recv_timeout(Duration::MAX) {
        let incident = change.incident();
        let what = match &change {
            IncidentChange::Opened(_) => "opened",
            IncidentChange::Closed(_) => "closed",
            _ => "updated",
        };
        println!("+{:.1?}: incident {} {what}: {incident}", start.elapsed(), incident.id);
        let json: Value = serde_json::to_value(&**incident).unwrap();
        causes.insert(incident.id, incident.cause.to_string());
        // Said once is said, though it may be taken back later.
        if let Some((cause, op)) = convicted(&json["diagnosis"]) {
            convictions.entry(incident.id).or_insert_with(|| format!("incident {}: {cause} of {op}", incident.id));
        }
    }
    let mut counts = BTreeMap::new();
    causes.into_values().for_each(|cause| *counts.entry(cause).or_default() += 1);
    Heard { causes: counts, convictions: convictions.into_values().collect() }
}

/// Other processes, a thread that goes before ours, stops: each for a while, one after the other, now and then at once.
fn bad_host() {
    let mut dice = Dice::new(7);
    let cpus = thread::available_parallelism().map_or(2, usize::from);
    while !OVER.load(Ordering::Relaxed) {
        quiet(dice.between(2_000, 6_000));
        if OVER.load(Ordering::Relaxed) {
            break;
        }
        let kind = dice.between(0, 4);
        let _spinners = (kind == 0 || kind == 3).then(|| spinners(cpus));
        let _preempter = (kind == 1).then(|| preempter(0, Duration::from_millis(400), Duration::from_millis(100)));
        let mut stops = (kind >= 2).then(|| {
            stopper(dice.between(1, 5), Duration::from_millis(700), Duration::from_millis(dice.between(50, 500)))
        });
        println!("host: {}", ["neighbours", "a thread preempted", "stops", "neighbours and stops"][kind as usize]);
        quiet(dice.between(3_000, 8_000));
        // It must not be left alone: whoever dies between a stop and a continue leaves us stopped.
        if let Some(stops) = &mut stops {
            stops.wait().unwrap();
        }
    }
}

/// Waits for so long, or until it is over.
fn quiet(millis: u64) {
    let until = Instant::now() + Duration::from_millis(millis);
    while Instant::now() < until && !OVER.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(50));
    }
}
