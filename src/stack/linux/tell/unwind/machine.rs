//! What differs between the supported machines, by the numbers that unwinding tables give to registers.

pub(crate) use of_this_machine::*;

#[cfg(not(target_arch = "aarch64"))]
mod of_this_machine {
    pub(crate) const FRAME_POINTER: usize = 6;
    pub(crate) const STACK_POINTER: usize = 7;
    pub(crate) const INSTRUCTION_POINTER: usize = 16;
    /// A call puts the return address onto the stack.
    pub(crate) const CALLS_PUSH: bool = true;
    /// `mov rax, 15; syscall`: where a signal handler returns to.
    pub(crate) const SIGNAL_RETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
    /// Where above the stack pointer the kernel has put the registers of before the signal, and which.
    pub(crate) const SAVED: (u64, &[usize]) = (40, &[8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16]);

    /// An address as it is meant.
    pub(crate) fn plain(address: u64) -> u64 {
        address
    }
}

#[cfg(target_arch = "aarch64")]
mod of_this_machine {
    pub(crate) const FRAME_POINTER: usize = 29;
    pub(crate) const STACK_POINTER: usize = 31;
    pub(crate) const INSTRUCTION_POINTER: usize = 32;
    /// A call puts the return address into a register.
    pub(crate) const CALLS_PUSH: bool = false;
    /// `mov x8, #139; svc #0`: where a signal handler returns to.
    pub(crate) const SIGNAL_RETURN: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
    /// Where above the stack pointer the kernel has put the registers of before the signal, and which.
    pub(crate) const SAVED: (u64, &[usize]) = (
        312,
        &[
            0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
            29, 30, 31, 32,
        ],
    );

    /// An address as it is meant: return addresses may be signed in the bits that addresses do not use.
    pub(crate) fn plain(address: u64) -> u64 {
        address & 0x0000_ffff_ffff_ffff
    }
}
