//! What the benchmarks share: how long to run, interleaved rounds, medians, and the table of budgets.

#![allow(dead_code, reason = "each benchmark uses its own part of this")]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use starvation::Detector;
use tokio::runtime::Runtime;

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// `cargo bench`: long enough for steady figures.
    Full,
    /// `cargo bench` with `--quick` or `STARVATION_BENCH_QUICK=1`: seconds, rough figures.
    Quick,
    /// `cargo test --benches` or `cargo bench -- --test`: does it run at all?
    Smoke,
}

impl Scale {
    /// Cargo passes `--bench` to a benchmark when it is run as one.
    pub(crate) fn from_args() -> Self {
        let has = |flag: &str| std::env::args().any(|arg| arg == flag);
        if has("--test") || !has("--bench") {
            Self::Smoke
        } else if has("--quick") || std::env::var_os("STARVATION_BENCH_QUICK").is_some_and(|v| v != "0") {
            Self::Quick
        } else {
            Self::Full
        }
    }

    pub(crate) fn pick<T>(self, full: T, quick: T, smoke: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Smoke => smoke,
        }
    }
}

/// Runs every variant once a round and returns one column of measurements for each variant.
///
/// Variants of one round stand next to each other in time, so a machine that speeds up or slows down moves them
/// together. Each round has its own order, so that none always runs first or after the same other.
pub(crate) fn interleave<const N: usize>(rounds: usize, mut measure: impl FnMut(usize) -> f64) -> [Vec<f64>; N] {
    let mut columns = [(); N].map(|()| Vec::with_capacity(rounds));
    let mut order: [usize; N] = std::array::from_fn(|variant| variant);
    let mut random = 1_u64;
    for _ in 0..rounds {
        for last in (1..N).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            order.swap(last, (random >> 33) as usize % (last + 1));
        }
        for variant in order {
            columns[variant].push(measure(variant));
        }
    }
    columns
}

/// The value below which the share `p` of `values` lies.
pub(crate) fn quantile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => sorted[((n - 1) as f64 * p).round() as usize],
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// What each round of `variant` took more than the same round of `base`.
pub(crate) fn added(variant: &[f64], base: &[f64]) -> Vec<f64> {
    variant.iter().zip(base).map(|(v, b)| v - b).collect()
}

/// The median, and between what it lies with a probability of 95 % (by order statistics, whatever the distribution).
pub(crate) fn spread(values: &[f64], unit: &str) -> String {
    let margin = 0.98 / (values.len() as f64).sqrt();
    let [low, mid, high] = [0.5 - margin, 0.5, 0.5 + margin].map(|p| quantile(values, p.clamp(0.0, 1.0)));
    format!("{mid:.1} {unit} ({low:.1} to {high:.1})")
}

/// The table that ends a benchmark: what was measured against what was promised.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    what: String,
    measured: f64,
    at_most: Option<f64>,
    unit: &'static str,
}

impl Budgets {
    pub(crate) fn promise(&mut self, what: impl Into<String>, measured: f64, at_most: f64, unit: &'static str) {
        self.lines.push(Line { what: what.into(), measured, at_most: Some(at_most), unit });
    }

    /// A figure that nothing is promised about.
    pub(crate) fn note(&mut self, what: impl Into<String>, measured: f64, unit: &'static str) {
        self.lines.push(Line { what: what.into(), measured, at_most: None, unit });
    }

    pub(crate) fn print(&self, title: &str, scale: Scale) {
        println!("\n{title}");
        if scale != Scale::Full {
            println!("  ({scale:?} run: too short for figures to rely on)");
        }
        let width = self.lines.iter().map(|line| line.what.len()).max().unwrap_or(0);
        println!("  {:<width$} {:>12} {:>12}  verdict", "what", "measured", "at most");
        for line in &self.lines {
            let at_most = line.at_most.map_or("-".into(), |b| format!("{} {}", figure(b), line.unit));
            let measured = format!("{} {}", figure(line.measured), line.unit);
            let verdict = if scale == Scale::Smoke { String::new() } else { line.verdict() };
            println!("  {:<width$} {measured:>12} {at_most:>12}  {verdict}", line.what);
        }
    }
}

impl Line {
    fn verdict(&self) -> String {
        match self.at_most {
            None => String::new(),
            Some(_) if self.measured.is_nan() => "UNKNOWN".into(),
            Some(at_most) if self.measured <= at_most => "HOLDS".into(),
            Some(at_most) => format!("MISSED by {} {}", figure(self.measured - at_most), self.unit),
        }
    }
}

/// A number with as many decimals as it needs.
fn figure(value: f64) -> String {
    let value = value + 0.0; // minus zero becomes zero
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A detector that watches `runtime` and has finished what it does at its start, as calibrating its clock.
pub(crate) fn start_detector(runtime: &Runtime) -> Detector {
    let detector = {
        let _guard = runtime.enter();
        Detector::start().unwrap()
    };
    std::thread::sleep(Duration::from_millis(500));
    detector
}

/// CPU time of all threads of this process that are alive, where the kernel tells.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let of = |thread: std::fs::DirEntry| schedstat(&thread.path());
    Some(threads.flatten().filter_map(of).sum())
}

/// CPU time of the thread of that name, where the kernel tells.
#[cfg(target_os = "linux")]
pub(crate) fn cpu_time_of(name: &str) -> Option<Duration> {
    let mut threads = std::fs::read_dir("/proc/self/task").ok()?.flatten().map(|thread| thread.path());
    let named = |thread: &std::path::PathBuf| {
        std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    schedstat(&threads.find(named)?)
}

#[cfg(target_os = "linux")]
fn schedstat(thread: &std::path::Path) -> Option<Duration> {
    let schedstat = std::fs::read_to_string(thread.join("schedstat")).ok()?;
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_time() -> Option<Duration> {
    None
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cpu_time_of(_: &str) -> Option<Duration> {
    None
}

/// A future that yields so many times and is ready then: it wakes itself and is pending.
#[derive(Debug)]
pub(crate) struct Yields(pub(crate) u32);

impl Future for Yields {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The cost of one of `count` equal things, in nanoseconds.
pub(crate) fn nanos_each(elapsed: Duration, count: u32) -> f64 {
    elapsed.as_nanos() as f64 / f64::from(count)
}
