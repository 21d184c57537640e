//! The machine, as far as this process is shown it.

use super::{read, tick};
use crate::evidence::{Host, Stall};

/// Some 6 us on two CPUs; the kernel writes out every interrupt of every CPU, so it grows with the machine.
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

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::super::thread::tests::any_text;
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "cpu  10 2 3 100 5 1 1 7 4 0\ncpu0 5 1 1 50 2 0 0 3 2 0\ncpu1 5 1 2 50 3 1 1 4 2 0\nintr 9\n";
    const PRESSURE: &str = "some avg10=0.13 avg60=0.16 avg300=0.16 total=67010729\nfull avg10=0.10 avg60=0.11 avg300=0.13 total=26863266\n";

    #[test]
    fn a_machines_time_is_busy_idle_or_stolen() {
        let host = Host { busy: Some(170), idle: Some(1_050), steal: Some(70), cpus: Some(2) };
        assert_eq!(parse_stat(STAT, 10), Some(host));
        // An old kernel, or a container's own idea of the file.
        let short = Host { busy: None, idle: None, steal: None, cpus: None };
        assert_eq!(parse_stat("cpu  10 2 3", 10), Some(short));
        assert_eq!(parse_stat("cpu0 1 2 3\n", 10), None);
        let huge = format!("cpu  {max} {max} 1 1 1 1 1 1", max = u64::MAX);
        assert_eq!(parse_stat(&huge, 10).map(|host| (host.busy, host.idle)), Some((None, Some(20))));
    }

    #[test]
    fn pressure_is_in_nanoseconds() {
        let both = Stall { some: Some(67_010_729_000), full: Some(26_863_266_000) };
        assert_eq!(parse_pressure(PRESSURE), both);
        assert_eq!(parse_pressure("some avg10=0.00 total=5\n"), Stall { some: Some(5_000), full: None });
        assert_eq!(parse_pressure("something total=5\nfull total=x\n"), Stall::default());
    }

    #[test]
    fn this_machine_tells_of_its_cpus() {
        let Some(host) = host() else { panic!("it has the file") };
        assert!(host.busy.is_some() && host.idle.is_some() && host.cpus >= Some(1), "{host:?}");
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(stat in any_text(STAT), pressure in any_text(PRESSURE), tick in any::<u64>()) {
            let _ = (parse_stat(&stat, tick), parse_pressure(&pressure));
        }
    }
}
