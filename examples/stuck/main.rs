//! Threads that are stuck in twenty-one ways, and the function that a thread dump finds each of them in.
//!
//! ```text
//! cargo run --example stuck --features stacks
//! ```
//!
//! How many are found depends on what the compiler leaves of names: `tests/profiles.rs` builds and runs this in each of the
//! usual ways.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

#[cfg(target_os = "linux")]
mod scenarios;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("stacks are taken on Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    use starvation::{Detector, Stacks};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let detector = Detector::builder().stacks(Stacks::WithSignals).attach(runtime.handle()).start().unwrap();
    let mut tally = Tally::default();
    for scenario in scenarios::ALL {
        tally.add(scenario, &examine(&detector, scenario));
    }
    println!("found {} of {}, by the very name {}, with the line {}", tally.found, tally.all, tally.exact, tally.lines);
    // Most of the threads never end.
    std::process::exit(0);
}

/// What was found.
#[cfg(target_os = "linux")]
#[derive(Default)]
struct Tally {
    all: usize,
    found: usize,
    exact: usize,
    lines: usize,
}

#[cfg(target_os = "linux")]
impl Tally {
    fn add(&mut self, scenario: &scenarios::Scenario, found: &Result<starvation::Frame, String>) {
        self.all += 1;
        let frame = match found {
            Ok(frame) => frame,
            Err(why) => return println!("{:16} -      {why}", scenario.name),
        };
        let name = frame.function.as_deref().map(scenarios::tail).unwrap_or_default();
        let own_module = frame.function.as_deref().is_some_and(|name| name.contains(&format!("{}::", scenario.name)));
        let line =
            frame.line.is_some() && frame.file.as_deref().is_some_and(|file| file.ends_with("stuck/scenarios.rs"));
        let exact = name == scenario.culprit;
        self.exact += usize::from(exact);
        self.lines += usize::from(line);
        self.found += usize::from(exact || own_module || line);
        let mark = if exact {
            "exact"
        } else if own_module || line {
            "found"
        } else {
            "wrong"
        };
        println!("{:16} {mark}  {frame}", scenario.name);
    }
}

/// Gets a thread stuck, and asks where it is.
#[cfg(target_os = "linux")]
fn examine(detector: &starvation::Detector, scenario: &scenarios::Scenario) -> Result<starvation::Frame, String> {
    /// A thread that has no CPU for a while gives no answer.
    const TRIES: usize = 20;
    let gate = std::sync::Arc::new(scenarios::Gate::default());
    (scenario.start)(std::sync::Arc::clone(&gate));
    let tid = gate.tid();
    let mut answer = Err("no stack was taken".to_owned());
    for _ in 0..TRIES {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let dump = detector.stacks().map_err(|error| error.to_string())?;
        let is_it = |thread: &starvation::WatchedThread| i64::from(thread.tid) == i64::from(tid);
        let group = dump.groups.iter().find(|group| group.threads.iter().any(is_it));
        if let Some((_, why)) = dump.refused.iter().find(|(thread, _)| is_it(thread)) {
            answer = Err(why.to_string());
        }
        // One that has announced itself a moment ago may still be on its way.
        if let Some(group) = group.filter(|group| group.asleep != scenario.computes) {
            let frame = group.stack.culprit.and_then(|at| group.stack.frames.get(at));
            answer = frame.cloned().ok_or_else(|| format!("no function of the program's:\n{}", group.stack));
            break;
        }
    }
    gate.release();
    answer
}
