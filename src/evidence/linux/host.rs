//! The machine, as far as this process is shown it.

use super::{read, tick};
use crate::evidence::{Host, Stall};

/// Some 60 us on two CPUs; the kernel writes out every interrupt, so it grows with the machine to a millisecond.
pub(crate) fn host() -> Option<Host> {
    parse_stat(&read("/proc/stat")?, tick()?)
}

fn parse_stat(text: &str, tick: u64) -> Option<Host> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user, nice, system, idle, waiting for I/O, interrupts, soft interrupts, steal; guests are counted as users.
    let mut times = [None; 8];
    for (time, word) in times.iter_mut().zip(line.split_ascii_whitespace()) {
        *time = word.parse::<u64>().ok().and_then(|ticks| ticks.checked_mul(tick));
    }
    let sum = |parts: &[usize]| parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(times[*part]?));
    let is_cpu =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let cpus = text.lines().filter(is_cpu).count() as u64;
    Some(Host { busy: sum(&[0, 1, 2, 5, 6]), idle: sum(&[3, 4]), steal: times[7], cpus: (cpus > 0).then_some(cpus) })
}

/// A file of pressure; its totals are microseconds.
pub(super) fn parse_pressure(text: &str) -> Stall {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let total = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
        total.parse::<u64>().ok()?.checked_mul(1_000)
    };
    Stall { some: total("some"), full: total("full") }
}
