//! What runs on the thread that was sent the signal.
//!
//! It may have been interrupted anywhere: in the allocator, the loader, an unwinder, another handler, with hardly any stack
//! left. So nothing here but system calls by their numbers, atomics and stores into memory that was there before.

use super::asleep::STACK;
use super::cell::answer_all;
use crate::stack::capture::REGISTERS;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a signal of ours brings, above the sequence number: for telling it from those of the program, if it comes late.
const MARK: u64 = 0x5354_4152_5641_5449;

/// What a signal of ours brings.
pub(super) fn value(sequence: u32) -> u64 {
    MARK & !u64::from(u32::MAX) | u64::from(sequence)
}

/// How often a signal of ours came when nobody waited for it any longer.
pub(super) static LATE: AtomicU32 = AtomicU32::new(0);

/// Answers what was asked of this thread. Whether the signal was ours: if not, it is to be passed on.
///
/// Of several signals of one kind that a thread has masked the kernel keeps the first, and forgets the others or what they
/// bring. So any signal answers what was asked, and none is passed on that is ours, however late.
///
/// # Safety
///
/// The pointers are what the kernel gave to the handler.
pub(super) unsafe fn run(info: *const siginfo_t, context: *const c_void) -> bool {
    // SAFETY: the place of the calling thread's `errno`, which is always there.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: as the caller promises.
    let (is_own, registers) = unsafe { (is_own(info), registers(&*context.cast::<ucontext_t>())) };
    // SAFETY: no pointers.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    let is_late = Cell::new(true);
    answer_all(tid, &registers, registers[STACK], |word| {
        is_late.set(false);
        wake(word);
    });
    if is_own && is_late.get() {
        // Relaxed: a figure.
        LATE.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: as above.
    unsafe { *errno = before };
    is_own
}

/// # Safety
///
/// The pointer is to what the kernel tells of a signal.
unsafe fn is_own(info: *const siginfo_t) -> bool {
    // SAFETY: as the caller promises; these fields are there for signals that were queued, and are otherwise any number.
    unsafe {
        (*info).si_code == libc::SI_QUEUE
            && libc::c_long::from((*info).si_pid()) == libc::syscall(libc::SYS_getpid)
            && (*info).si_value().sival_ptr.addr() as u64 >> 32 == MARK >> 32
    }
}

fn wake(word: &AtomicU32) {
    let operation: c_int = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a place that is never freed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1 as c_int) };
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &ucontext_t) -> [u64; REGISTERS] {
    /// In the order of DWARF's numbers.
    const ORDER: [c_int; REGISTERS] = [
        libc::REG_RAX,
        libc::REG_RDX,
        libc::REG_RCX,
        libc::REG_RBX,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_RBP,
        libc::REG_RSP,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
        libc::REG_RIP,
    ];
    ORDER.map(|register| context.uc_mcontext.gregs[register as usize].cast_unsigned())
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &ucontext_t) -> [u64; REGISTERS] {
    let mut registers = [0; REGISTERS];
    let (general, rest) = registers.split_at_mut(STACK);
    general.copy_from_slice(&context.uc_mcontext.regs);
    rest.copy_from_slice(&[context.uc_mcontext.sp, context.uc_mcontext.pc]);
    registers
}
