//! Instructions that `instrument_future` adds to a poll, next to what tokio-metrics adds, counted by callgrind through
//! gungraun.
//!
//! One task yields 1000 and then 11,000 times on a `current_thread` runtime, bare and with either wrapper. The difference
//! between the two over 10,000 is the instructions of one poll, free of what setting up costs. Ours is counted without a
//! detector and with one; callgrind counts the polling thread only.
//!
//! How the clock counts. Valgrind hides the vDSO, so a reading of the system's clock is a system call under it, whose
//! kernel side is not counted: some thirty instructions a reading less than in reality, to the advantage of whoever reads it
//! more often. `rdtsc` counts as one instruction, though it takes as long as a few dozen: read the nanoseconds that `poll`
//! prints next to these figures.
//!
//! ```text
//! cargo install gungraun-runner --version '^0.20' --locked
//! cargo bench --bench instructions
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::HashMap;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{Budgets, Scale};

const FEW: u32 = 1_000;
const MANY: u32 = 11_000;
const HAND_OVER: &str = "STARVATION_BENCH_HAND_OVER";

fn main() {
    // The driver starts this program once more to hand the benchmarks to the runner, which starts it under valgrind.
    let counted = std::env::args().nth(1).is_some_and(|arg| arg == "--gungraun-run");
    if counted || std::env::var_os(HAND_OVER).is_some() {
        callgrind::run();
    } else {
        drive(Scale::from_args());
    }
}

fn drive(scale: Scale) {
    for (program, how) in [
        ("valgrind", "install the package `valgrind` of your system"),
        ("gungraun-runner", "cargo install gungraun-runner --version '^0.20' --locked"),
    ] {
        let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if there.is_err() {
            println!("Nothing counted: `{program}` is missing. To have it: {how}");
            return;
        }
    }
    if scale == Scale::Smoke {
        return;
    }

    let output = Command::new(std::env::current_exe().unwrap())
        .env("GUNGRAUN_OUTPUT_FORMAT", "json")
        .env(HAND_OVER, "1")
        .arg("--bench")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    if !output.status.success() {
        println!("The runner failed, see above. What it had counted until then:");
    }
    report(&counts(&String::from_utf8(output.stdout).unwrap()), scale);
}

/// Instructions by the id of the benchmark, from one JSON object a line.
fn counts(lines: &str) -> HashMap<String, f64> {
    let summaries = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let count = |summary: Value| {
        let instructions = summary.pointer("/profiles/0/data/total/metrics/Ir/values/new")?.as_f64()?;
        Some((summary["id"].as_str()?.to_owned(), instructions))
    };
    summaries.filter_map(count).collect()
}

fn report(counts: &HashMap<String, f64>, scale: Scale) {
    let per_poll = |variant: &str| {
        let of = |amount: &str| counts.get(&format!("{variant}_{amount}")).copied().unwrap_or(f64::NAN);
        (of("many") - of("few")) / f64::from(MANY - FEW)
    };
    let [bare, alone, observed, tokio_metrics] = ["bare", "alone", "observed", "tokio_metrics"].map(per_poll);
    println!("instructions per poll");
    println!("  bare future                                  {bare:.1}");
    println!("  instrument_future adds without a detector    {:.1}", alone - bare);
    println!("  instrument_future adds with a detector       {:.1}", observed - bare);
    println!("  tokio-metrics adds                           {:.1}", tokio_metrics - bare);

    let mut budgets = Budgets::default();
    for (name, ours) in [("no detector", alone), ("detector running", observed)] {
        let ratio = (ours - bare) / (tokio_metrics - bare);
        budgets.promise(format!("{name}: instrument_future"), ratio, 0.40, "x");
    }
    budgets.print("Instructions added per poll, as a multiple of what tokio-metrics adds", scale);
}

/// The counted functions and the `main` that gungraun makes for them.
mod callgrind {
    use std::future::Future;

    use gungraun::{library_benchmark, library_benchmark_group};
    use tokio::runtime::{Builder, Runtime};
    use tokio_metrics::TaskMonitor;

    use super::support::{Yields, start_detector};
    use super::{FEW, MANY};

    pub(super) fn run() {
        main();
    }

    struct Prepared<F> {
        runtime: Runtime,
        task: F,
        _detector: Option<starvation::Detector>,
    }

    fn bare(yields: u32) -> Prepared<impl Task> {
        Prepared { runtime: runtime(), task: Yields(yields), _detector: None }
    }

    fn alone(yields: u32) -> Prepared<impl Task> {
        let task = starvation::instrument_future("yields", Yields(yields));
        Prepared { runtime: runtime(), task, _detector: None }
    }

    fn observed(yields: u32) -> Prepared<impl Task> {
        let runtime = runtime();
        let detector = start_detector(&runtime);
        let task = starvation::instrument_future("yields", Yields(yields));
        Prepared { runtime, task, _detector: Some(detector) }
    }

    fn tokio_metrics(yields: u32) -> Prepared<impl Task> {
        Prepared { runtime: runtime(), task: TaskMonitor::new().instrument(Yields(yields)), _detector: None }
    }

    trait Task: Future<Output = ()> + Send + 'static {}

    impl<F: Future<Output = ()> + Send + 'static> Task for F {}

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[library_benchmark]
    #[bench::bare_few(bare(FEW))]
    #[bench::bare_many(bare(MANY))]
    #[bench::alone_few(alone(FEW))]
    #[bench::alone_many(alone(MANY))]
    #[bench::tokio_metrics_few(tokio_metrics(FEW))]
    #[bench::tokio_metrics_many(tokio_metrics(MANY))]
    #[bench::observed_few(observed(FEW))]
    #[bench::observed_many(observed(MANY))]
    fn polls<F: Task>(prepared: Prepared<F>) -> Prepared<()> {
        let Prepared { runtime, task, _detector } = prepared;
        runtime.block_on(runtime.spawn(task)).unwrap();
        Prepared { runtime, task: (), _detector }
    }

    library_benchmark_group!(name = group; benchmarks = polls);
    gungraun::main!(library_benchmark_groups = group);
}
