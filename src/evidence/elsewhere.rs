//! Systems of which this crate knows nothing yet: every answer is "unknown".
//!
//! `--cfg starvation_elsewhere` puts it in place on Linux, too, so that it is compiled and tested.

use super::{Baseline, CpuTime, Doing, Futex, Process, Shape, SystemCall};
use super::{ThreadCounters, ThreadLimits};

pub(crate) fn thread_id() -> Option<u32> {
    None
}

pub(crate) fn is_runnable(_: u32) -> Option<bool> {
    None
}

pub(crate) fn own_stack() -> Option<std::ops::Range<u64>> {
    None
}

pub(crate) fn stack_size() -> Option<u64> {
    None
}

pub(crate) fn cpu_time(_: u32) -> Option<CpuTime> {
    None
}

pub(crate) fn cpu_sums(_: u32) -> Option<CpuTime> {
    None
}

pub(crate) fn doing(_: u32) -> Option<Doing> {
    None
}

pub(crate) fn thread_counters(_: u32) -> Option<ThreadCounters> {
    None
}

pub(crate) fn threads() -> Option<Vec<u32>> {
    None
}

#[cfg(any(feature = "stacks", test))]
pub(crate) fn thread_name(_: u32) -> Option<String> {
    None
}

pub(crate) fn usage() -> Option<Process> {
    None
}

pub(crate) fn thread_limits() -> Option<ThreadLimits> {
    None
}

/// Reads baselines, of nothing but the time.
#[derive(Debug, Default)]
pub(crate) struct Witness;

impl Witness {
    pub(crate) fn baseline(&mut self) -> Baseline {
        Baseline { at: crate::clock::now(), ..Baseline::default() }
    }
}

/// Knows no shapes.
#[derive(Debug, Default)]
pub(crate) struct Shapes;

impl Shapes {
    pub(crate) fn learn() -> Self {
        Self
    }

    pub(crate) fn of(&self, _: u32, _: &SystemCall) -> Shape {
        Shape::Unknown
    }
}

impl SystemCall {
    pub(crate) fn futex(&self) -> Option<Futex> {
        None
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told() {
        assert_eq!((thread_id(), cpu_time(1), doing(1), thread_counters(1)), (None, None, None, None));
        assert_eq!((threads(), thread_name(1), usage()), (None, None, None));
        assert_eq!((thread_limits(), cpu_sums(1)), (None, None));
        let baseline = Witness.baseline();
        assert_eq!(baseline, Baseline { at: baseline.at, ..Baseline::default() });
    }
}
