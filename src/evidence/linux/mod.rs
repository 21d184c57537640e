//! Linux: everything is read from `/proc` and the control groups' files.

mod calls;
mod cgroup;
mod host;
mod process;
#[cfg(target_env = "gnu")]
mod pthread;
mod shape;
mod thread;
mod trials;
mod witness;

pub(crate) use host::host;
pub(crate) use process::{process, thread_limits, usage};
pub(crate) use shape::Shapes;
#[cfg(feature = "stacks")]
pub(crate) use thread::thread_name;
pub(crate) use thread::{
    cpu_sums, cpu_time, doing, is_runnable, own_stack, stack_size, thread_counters, thread_id, threads,
};
pub(crate) use witness::Witness;

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// No file that is read here is longer on any machine; what is longer is cut off.
const LONGEST: u64 = 1 << 20;

/// The text of a file: 2 to 4 us if it is short. Names of threads may be cut in the middle of a character, so it need not be
/// all text.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut bytes = Vec::with_capacity(1_024);
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// The number that a line begins with, after its `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([':', ' ', '\t']))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The kernel's unit of the CPU times that it counts in ticks, in nanoseconds.
fn tick() -> Option<u64> {
    1_000_000_000_u64.checked_div(rustix::param::clock_ticks_per_second())
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "nr_periods 12\nnr_periods_more 13\nThreads:\t7\nuser x\n";
        assert_eq!(field(text, "nr_periods"), Some(12));
        assert_eq!(field(text, "nr_periods_more"), Some(13));
        assert_eq!(field(text, "Threads"), Some(7));
        assert_eq!([field(text, "nr"), field(text, "user"), field(text, "periods")], [None; 3]);
    }

    #[test]
    fn what_is_not_there_is_not_told() {
        assert_eq!(read("/proc/self/no such file"), None);
        assert_eq!(read("/proc"), None);
        assert!(read("/proc/self/stat").is_some());
    }
}
