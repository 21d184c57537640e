//! The callbacks of a runtime that tell the detector of its threads.

use crate::slot;
use crate::threads::{Settings, Teller};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::runtime::Builder;

/// Prepares a runtime before it is built, so that the detector knows its threads: which are workers, when they park, and
/// how many the blocking pool may have.
///
/// Optional. Call it last on a builder, since it reads what was set before: a limit of the pool that is set later shows only
/// when a call has waited for a second, as without it. It takes the builder's `on_thread_start`,
/// `on_thread_park` and `on_thread_unpark` callbacks, replacing those that were set before; callbacks of yours that are set
/// afterwards replace these, which costs the detector what they would have told it and does no other harm. Under
/// `--cfg tokio_unstable` it takes `on_before_task_poll`, too, to tell one long poll from a row of short ones.
///
/// # Performance
///
/// A few nanoseconds a park and an unpark, and nothing in a poll; under `--cfg tokio_unstable` about a nanosecond a poll.
///
/// # Examples
///
/// ```
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// starvation::hooks(builder.worker_threads(2).enable_all());
/// let runtime = builder.build()?;
/// # drop(runtime);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn hooks(builder: &mut Builder) -> &mut Builder {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let teller = Teller { number: NEXT.fetch_add(1, Ordering::Relaxed), settings: settings_of(builder) };
    let started = move || {
        // The slot itself is for the thread to find later.
        let _ = slot::own();
        teller.started();
    };
    #[cfg(tokio_unstable)]
    builder.on_before_task_poll(move |_| teller.polls());
    builder.on_thread_start(started).on_thread_park(move || teller.parked()).on_thread_unpark(move || teller.unparked())
}

/// What a builder shows of its settings as text, which is the only way it does.
fn settings_of(builder: &Builder) -> Settings {
    // The runtime's name is text of the user's.
    let shown = without_strings(&format!("{builder:?}"));
    let number = |before: &str| {
        let digits = shown.split_once(before)?.1;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    };
    Settings {
        max_blocking_threads: number(" max_blocking_threads: "),
        worker_threads: number(" worker_threads: Some("),
    }
}

fn without_strings(shown: &str) -> String {
    let mut escaped = false;
    let mut quoted = false;
    let outside = |c: &char| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        quoted ^= ends;
        !quoted && !ends
    };
    shown.chars().filter(outside).collect()
}

#[cfg(all(test, not(starvation_loom)))]
mod tests;
