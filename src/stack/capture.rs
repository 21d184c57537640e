//! What is taken of a thread: its registers and a copy of a piece of its stack.

#![cfg_attr(
    any(not(target_os = "linux"), starvation_elsewhere, starvation_loom),
    allow(dead_code, reason = "none is taken there")
)]

use std::fmt;

/// How many registers the unwinding tables of any supported machine speak of: 17 on x86_64, and 33 on aarch64, where the
/// last stands for the instruction pointer.
pub(crate) const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 33 } else { 17 };

/// Registers by the numbers that DWARF gives them; `None` where it is not known what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registers(pub(crate) [Option<u64>; REGISTERS]);

/// By which way a stack was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Read from outside while the thread slept in a system call: only stack and instruction pointer are known.
    Asleep,
    /// Copied by the thread itself, in a signal handler: all registers are known.
    Signal,
}

/// A moment of a thread.
#[derive(Debug, Clone)]
pub(crate) struct Capture {
    pub(crate) registers: Registers,
    /// The address of the first byte of `stack`: at the stack pointer, or the red zone below it.
    pub(crate) base: u64,
    /// What lay there. It may end before the stack does.
    pub(crate) stack: Vec<u8>,
    /// The address of the futex that it waited at, if it did.
    pub(crate) futex: Option<u64>,
    pub(crate) way: Way,
}

/// Why the stack of a thread was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CannotCapture {
    /// Stacks are taken on Linux, on x86_64 and aarch64.
    NotSupported,
    /// The thread has ended, or is not known.
    Gone,
    /// It was computing, and signals were not to be used.
    Computing,
    /// It moved on at each try: it sleeps and wakes too often to be read from outside, and no signal was to be used or the
    /// signal found it asleep.
    Restless,
    /// What it was stuck in was over before its stack was taken: it would have told of something else.
    Over,
    /// The system does not show where the thread is: the process is not dumpable, or `/proc` is not there.
    NotVisible,
    /// The system does not let this process read its own memory from outside, as under some seccomp filters.
    NotReadable,
    /// The thread did not take the signal in time: it masks it, or has had no CPU.
    NoAnswer,
    /// The system refused to send the signal.
    NotSent,
    /// So many have been taken lately that this one was left out.
    TooMany,
}

impl CannotCapture {
    /// The same as its `Display`.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::NotSupported => "stacks are not supported here: they are on Linux, on x86_64 and aarch64",
            Self::Gone => "the thread has ended",
            Self::Computing => "the thread computes, and only a signal could take its stack: signals are off",
            Self::Restless => "the thread moved on at each try",
            Self::Over => "what the thread was stuck in was over before its stack was taken",
            Self::NotVisible => {
                "the system does not show where the thread is: the process is not dumpable, or /proc is missing"
            }
            Self::NotReadable => {
                "the system does not let the process read its own memory: a seccomp filter may forbid it"
            }
            Self::NoAnswer => "the thread did not take the signal in time: it masks SIGURG, or has had no CPU",
            Self::NotSent => "the system refused to send the signal",
            Self::TooMany => "so many stacks were taken in the last minute that this one was left out",
        }
    }
}

impl fmt::Display for CannotCapture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for CannotCapture {}
