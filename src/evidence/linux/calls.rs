//! The system calls that threads are found asleep in, by name.

use super::super::{Futex, SystemCall};

/// In place of the number of a call that one of the two machines does not have.
const NONE: u64 = u64::MAX;

/// Name, number on x86_64, number on aarch64: the interface of the kernel, which never changes.
const CALLS: [(&str, u64, u64); 118] = [
    ("read", 0, 63),
    ("write", 1, 64),
    ("open", 2, NONE),
    ("close", 3, 57),
    ("stat", 4, NONE),
    ("fstat", 5, 80),
    ("lstat", 6, NONE),
    ("poll", 7, NONE),
    ("lseek", 8, 62),
    ("mmap", 9, 222),
    ("mprotect", 10, 226),
    ("munmap", 11, 215),
    ("ioctl", 16, 29),
    ("pread64", 17, 67),
    ("pwrite64", 18, 68),
    ("readv", 19, 65),
    ("writev", 20, 66),
    ("preadv", 295, 69),
    ("pwritev", 296, 70),
    ("preadv2", 327, 286),
    ("pwritev2", 328, 287),
    ("access", 21, NONE),
    ("select", 23, NONE),
    ("sched_yield", 24, 124),
    ("mremap", 25, 216),
    ("msync", 26, 227),
    ("madvise", 28, 233),
    ("nanosleep", 35, 101),
    ("sendfile", 40, 71),
    ("connect", 42, 203),
    ("accept", 43, 202),
    ("accept4", 288, 242),
    ("sendto", 44, 206),
    ("recvfrom", 45, 207),
    ("sendmsg", 46, 211),
    ("recvmsg", 47, 212),
    ("sendmmsg", 307, 269),
    ("recvmmsg", 299, 243),
    ("clone", 56, 220),
    ("fork", 57, NONE),
    ("vfork", 58, NONE),
    ("execve", 59, 221),
    ("execveat", 322, 281),
    ("wait4", 61, 260),
    ("fcntl", 72, 25),
    ("flock", 73, 32),
    ("fsync", 74, 82),
    ("fdatasync", 75, 83),
    ("sync", 162, 81),
    ("syncfs", 306, 267),
    ("sync_file_range", 277, 84),
    ("truncate", 76, 45),
    ("ftruncate", 77, 46),
    ("fallocate", 285, 47),
    ("getdents64", 217, 61),
    ("rename", 82, NONE),
    ("mkdir", 83, NONE),
    ("rmdir", 84, NONE),
    ("creat", 85, NONE),
    ("link", 86, NONE),
    ("unlink", 87, NONE),
    ("symlink", 88, NONE),
    ("readlink", 89, NONE),
    ("chmod", 90, NONE),
    ("statfs", 137, 43),
    ("mount", 165, 40),
    ("umount2", 166, 39),
    ("pause", 34, NONE),
    ("semop", 65, 193),
    ("semtimedop", 220, 192),
    ("msgrcv", 70, 188),
    ("msgsnd", 69, 189),
    ("rt_sigsuspend", 130, 133),
    ("rt_sigtimedwait", 128, 137),
    ("futex", 202, 98),
    ("futex_waitv", 449, 449),
    ("io_getevents", 208, 4),
    ("restart_syscall", 219, 128),
    ("clock_nanosleep", 230, 115),
    ("epoll_wait", 232, NONE),
    ("epoll_pwait", 281, 22),
    ("epoll_pwait2", 441, 441),
    ("waitid", 247, 95),
    ("openat", 257, 56),
    ("openat2", 437, 437),
    ("mkdirat", 258, 34),
    ("newfstatat", 262, 79),
    ("unlinkat", 263, 35),
    ("renameat", 264, 38),
    ("renameat2", 316, 276),
    ("linkat", 265, 37),
    ("symlinkat", 266, 36),
    ("readlinkat", 267, 78),
    ("faccessat", 269, 48),
    ("faccessat2", 439, 439),
    ("pselect6", 270, 72),
    ("ppoll", 271, 73),
    ("splice", 275, 76),
    ("tee", 276, 77),
    ("vmsplice", 278, 75),
    ("copy_file_range", 326, 285),
    ("mq_timedreceive", 243, 183),
    ("mq_timedsend", 242, 182),
    ("statx", 332, 291),
    ("clone3", 435, 435),
    ("io_uring_enter", 426, 426),
    ("io_uring_setup", 425, 425),
    ("getrandom", 318, 278),
    ("process_vm_readv", 310, 270),
    ("memfd_create", 319, 279),
    ("userfaultfd", 323, 282),
    ("membarrier", 324, 283),
    ("brk", 12, 214),
    ("exit", 60, 93),
    ("exit_group", 231, 94),
    ("shutdown", 48, 210),
    ("socket", 41, 198),
    ("bind", 49, 200),
];

/// The name of a call on this machine; `None` for one that is not in the table.
pub(super) fn name(number: u64) -> Option<&'static str> {
    let is_it = |(_, x86_64, aarch64): &&(&str, u64, u64)| {
        let own = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
            *x86_64
        } else if cfg!(target_arch = "aarch64") {
            *aarch64
        } else {
            NONE
        };
        own == number && number != NONE
    };
    CALLS.iter().find(is_it).map(|(name, ..)| *name)
}

/// What of a futex operation is its command; the rest are flags.
const COMMAND: u32 = 0x7f;
const WAIT: u32 = 0;
const LOCK_PI: u32 = 6;
const WAIT_BITSET: u32 = 9;
const LOCK_PI2: u32 = 13;

impl SystemCall {
    /// The arguments, if it is a wait at a futex. Those that are 32 bits wide have anything in their upper half.
    pub(crate) fn futex(&self) -> Option<Futex> {
        let [address, operation, value, timeout, ..] = self.arguments;
        let futex = Futex { address, operation: operation as u32, value: value as u32, timeout: timeout != 0 };
        let waits = self.name == Some("futex") && matches!(futex.command(), WAIT | WAIT_BITSET | LOCK_PI | LOCK_PI2);
        waits.then_some(futex)
    }
}

impl Futex {
    fn command(&self) -> u32 {
        self.operation & COMMAND
    }

    /// A lock that hands its priority on. The kernel itself knows these to be locks.
    pub(super) fn is_lock_of_the_kernel(&self) -> bool {
        matches!(self.command(), LOCK_PI | LOCK_PI2)
    }
}

#[cfg(all(test, target_arch = "x86_64", target_pointer_width = "64", not(starvation_loom)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_numbers_are_those_of_the_c_library() {
        for (number, known) in [
            (libc::SYS_read, "read"),
            (libc::SYS_open, "open"),
            (libc::SYS_openat, "openat"),
            (libc::SYS_poll, "poll"),
            (libc::SYS_pread64, "pread64"),
            (libc::SYS_futex, "futex"),
            (libc::SYS_futex_waitv, "futex_waitv"),
            (libc::SYS_clock_nanosleep, "clock_nanosleep"),
            (libc::SYS_epoll_wait, "epoll_wait"),
            (libc::SYS_epoll_pwait, "epoll_pwait"),
            (libc::SYS_epoll_pwait2, "epoll_pwait2"),
            (libc::SYS_recvfrom, "recvfrom"),
            (libc::SYS_accept4, "accept4"),
            (libc::SYS_fsync, "fsync"),
            (libc::SYS_flock, "flock"),
            (libc::SYS_wait4, "wait4"),
            (libc::SYS_vfork, "vfork"),
            (libc::SYS_clone3, "clone3"),
            (libc::SYS_madvise, "madvise"),
            (libc::SYS_munmap, "munmap"),
            (libc::SYS_io_uring_enter, "io_uring_enter"),
            (libc::SYS_getdents64, "getdents64"),
            (libc::SYS_newfstatat, "newfstatat"),
            (libc::SYS_statx, "statx"),
            (libc::SYS_rename, "rename"),
            (libc::SYS_restart_syscall, "restart_syscall"),
        ] {
            assert_eq!(name(number as u64), Some(known));
        }
        assert_eq!([name(NONE), name(9_999)], [None, None]);
    }

    #[test]
    fn no_two_calls_have_the_same_name_or_number() {
        let distinct = |numbers: Vec<u64>| {
            let there: Vec<_> = numbers.into_iter().filter(|number| *number != NONE).collect();
            there.iter().collect::<HashSet<_>>().len() == there.len()
        };
        assert!(distinct(CALLS.iter().map(|(_, number, _)| *number).collect()));
        assert!(distinct(CALLS.iter().map(|(.., number)| *number).collect()));
        assert_eq!(CALLS.iter().map(|(name, ..)| *name).collect::<HashSet<_>>().len(), CALLS.len());
    }
}
