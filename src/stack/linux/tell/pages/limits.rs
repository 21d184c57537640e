//! How far and how deep debug info may lead whoever reads it.

use gimli::Error;
use std::arch::asm;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How far whoever reads debug info may go, which damage can lead in circles or ever deeper.
#[derive(Debug)]
pub(super) struct Limits {
    /// Nothing is read for a caller whose stack has grown down to here.
    deepest: AtomicUsize,
    /// How often may be read still.
    reads: AtomicU64,
}

/// Functions that were inlined into each other are followed by recursion: some kilobytes for each, and there are tens of them.
pub(super) const DEEPEST: usize = 512 << 10;
/// More than the info of any one unit has been seen to need; seconds.
const MOST_READS: u64 = 64 << 20;

impl Limits {
    pub(super) fn none() -> Self {
        Self { deepest: AtomicUsize::new(0), reads: AtomicU64::new(u64::MAX) }
    }

    /// From here on, for the calling thread.
    pub(super) fn start(&self) {
        self.set(stack_pointer().saturating_sub(DEEPEST), MOST_READS);
    }

    pub(super) fn stop(&self) {
        self.set(0, u64::MAX);
    }

    // Relaxed, here and below: the thread that reads is the one that has set them.
    pub(super) fn set(&self, deepest: usize, reads: u64) {
        self.deepest.store(deepest, Ordering::Relaxed);
        self.reads.store(reads, Ordering::Relaxed);
    }

    pub(super) fn step(&self) -> gimli::Result<()> {
        let left = self.reads.load(Ordering::Relaxed);
        if left == 0 || stack_pointer() < self.deepest.load(Ordering::Relaxed) {
            return Err(Error::Io);
        }
        self.reads.store(left - 1, Ordering::Relaxed);
        Ok(())
    }
}

/// Not the address of a local variable, which a sanitizer may have put elsewhere.
fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: copies a register.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    // SAFETY: copies a register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}
