//! The stack of another thread of this process, taken while it is stuck: nothing of it is run, changed or waited for.
//!
//! A thread that sleeps in a system call is read from outside; only one that keeps computing is sent a signal, whose handler
//! copies and does nothing else. All that follows works on the copy. See `linux/take` and `linux/tell`.

mod capture;
mod capturer;
#[cfg_attr(
    all(
        target_os = "linux",
        target_pointer_width = "64",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(starvation_elsewhere, starvation_loom))
    ),
    path = "linux/mod.rs"
)]
#[cfg_attr(
    not(all(
        target_os = "linux",
        target_pointer_width = "64",
        any(target_arch = "x86_64", target_arch = "aarch64"),
        not(any(starvation_elsewhere, starvation_loom))
    )),
    path = "elsewhere.rs"
)]
mod machine;

/// The rest of it speaks to the kernel, which no model can.
#[cfg(all(test, starvation_loom))]
#[path = "linux/take/word.rs"]
mod word;

pub use capture::CannotCapture;
#[cfg_attr(
    any(not(target_os = "linux"), starvation_elsewhere, starvation_loom),
    allow(unused_imports, reason = "as before")
)]
pub(crate) use capture::{Capture, Registers, Way};
pub(crate) use capturer::Capturer;
