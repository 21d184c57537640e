//! The files of one thread in `/proc`, each opened once: they stay with that very thread, whoever gets its id later.

use crate::stack::CannotCapture;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

/// The number of a system call, six arguments, stack and instruction.
const LONGEST_CALL: usize = 256;
/// `status` grows with the number of CPUs and memory nodes that a kernel is built for.
const LONGEST_STATUS: usize = 8 << 10;

/// One thread.
pub(super) struct Task {
    tid: u32,
    directory: OwnedFd,
    syscall: Result<File, CannotCapture>,
    schedstat: Option<File>,
}

/// Where a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// On a CPU, or ready for one.
    Running,
    /// Asleep.
    At {
        stack: u64,
        instruction: u64,
        /// In a system call. The other way to sleep is a page fault, which can strike anywhere.
        in_call: bool,
        /// The address of the futex that it waits at, if it does.
        futex: Option<u64>,
    },
}

/// What `syscall` said, to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    bytes: [u8; LONGEST_CALL],
    length: usize,
}

/// What is to be known of a thread before it is sent a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// How often it went to sleep.
    pub(super) sleeps: u64,
    /// It has SIGURG masked.
    pub(super) masks: bool,
    /// A seccomp filter looks at its system calls.
    pub(super) filtered: bool,
}

impl Task {
    /// Some 10 us.
    pub(super) fn open(tid: u32) -> Result<Self, CannotCapture> {
        let mut path = [0; 40];
        // No allocation: a watched thread may have been put aside while it holds the allocator's lock.
        let _ = write!(&mut path[..], "/proc/self/task/{tid}\0");
        let path = CStr::from_bytes_until_nul(&path).map_err(|_| CannotCapture::NotVisible)?;
        let directory = open_at(libc::AT_FDCWD, path, libc::O_PATH | libc::O_DIRECTORY).map_err(|error| {
            // Without `/proc` nothing is there.
            let is_there = || open_at(libc::AT_FDCWD, c"/proc/self/task", libc::O_PATH).is_ok();
            if error.kind() == ErrorKind::NotFound && is_there() { CannotCapture::Gone } else { refusal(&error) }
        })?;
        let open = |name| open_at(directory.as_raw_fd(), name, libc::O_RDONLY).map(File::from);
        let syscall = match open(c"syscall") {
            Ok(file) => Ok(file),
            // Of a thread that has ended, the directory may be left with nothing in it.
            Err(_) if open(c"stat").is_err() => return Err(CannotCapture::Gone),
            Err(error) => Err(refusal(&error)),
        };
        let schedstat = open(c"schedstat").ok();
        Ok(Self { tid, directory, syscall, schedstat })
    }

    /// Some 1 to 2 us.
    pub(super) fn position(&self) -> Result<(Position, Text), CannotCapture> {
        let mut text = Text { bytes: [0; LONGEST_CALL], length: 0 };
        match &self.syscall {
            Ok(file) => {
                text.length = file.read_at(&mut text.bytes, 0).map_err(|error| refusal(&error))?;
                Ok((text.position()?, text))
            }
            // Whether it runs is shown to everybody: it is enough to know that a signal would not wake it.
            Err(_) if self.runs()? => Ok((Position::Running, text)),
            Err(reason) => Err(*reason),
        }
    }

    /// A number that grows whenever the thread runs after it has slept.
    pub(super) fn turns(&self) -> Result<u64, CannotCapture> {
        if let Some(file) = &self.schedstat {
            let mut bytes = [0; 80];
            let length = file.read_at(&mut bytes, 0).map_err(|error| refusal(&error))?;
            let mut numbers = bytes[..length].split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
            // A kernel that does not count says 0.
            if let Some(turns) = numbers.nth(2).and_then(decimal).filter(|turns| *turns > 0) {
                return Ok(turns);
            }
        }
        Ok(self.standing()?.sleeps)
    }

    /// Some 10 us.
    pub(super) fn standing(&self) -> Result<Standing, CannotCapture> {
        let mut bytes = [0; LONGEST_STATUS];
        let text = self.read(c"status", &mut bytes)?;
        standing(text).ok_or(CannotCapture::NotVisible)
    }

    /// How long it has been on a CPU, in nanoseconds, up to this moment: what `schedstat` tells may be a tick old. 0.3 us.
    /// The only figure that is asked for by its id: of another thread it would be of no consequence.
    pub(super) fn computed(&self) -> Result<u64, CannotCapture> {
        /// What tells a clock of one thread's time on a CPU from all others, in the bits below the id's complement.
        const OF_THREAD: libc::clockid_t = 0b110;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is valid for what the call stores.
        if unsafe { libc::clock_gettime(!self.tid.cast_signed() << 3 | OF_THREAD, &mut time) } != 0 {
            // It says the same of a thread that has ended.
            return Err(self.position().err().unwrap_or(CannotCapture::NotVisible));
        }
        Ok(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
    }

    fn runs(&self) -> Result<bool, CannotCapture> {
        let mut bytes = [0; 1_024];
        let text = self.read(c"stat", &mut bytes)?;
        // The name in parentheses may hold anything.
        let end = text.iter().rposition(|byte| *byte == b')').ok_or(CannotCapture::NotVisible)?;
        Ok(text.get(end + 2) == Some(&b'R'))
    }

    fn read<'a>(&self, name: &CStr, bytes: &'a mut [u8]) -> Result<&'a [u8], CannotCapture> {
        let file = open_at(self.directory.as_raw_fd(), name, libc::O_RDONLY).map(File::from);
        let length = file.and_then(|file| file.read_at(bytes, 0)).map_err(|error| match error.kind() {
            // Every thread has these files: nothing is found in the directory of one that has ended.
            ErrorKind::NotFound => CannotCapture::Gone,
            _ => refusal(&error),
        })?;
        Ok(&bytes[..length])
    }
}

impl Text {
    fn position(&self) -> Result<Position, CannotCapture> {
        let text = self.bytes[..self.length].trim_ascii();
        if text == b"running" {
            return Ok(Position::Running);
        }
        let mut fields = text.split(|byte| *byte == b' ');
        let call = fields.next();
        let in_call = call != Some(b"-1");
        let waits = call.and_then(decimal).is_some_and(|call| i64::try_from(call) == Ok(libc::SYS_futex));
        let futex = if waits { fields.next().and_then(hexadecimal) } else { None };
        let (instruction, stack) = (fields.next_back().and_then(hexadecimal), fields.next_back().and_then(hexadecimal));
        match (stack, instruction) {
            // It has given back what it ran on.
            (Some(0), _) => Err(CannotCapture::Gone),
            (Some(stack), Some(instruction)) => Ok(Position::At { stack, instruction, in_call, futex }),
            _ => Err(CannotCapture::NotVisible),
        }
    }
}

/// Whether a seccomp filter looks at what the calling thread does; if it cannot be told, it may be so.
pub(in crate::stack::machine) fn is_filtered() -> bool {
    let mut bytes = [0; LONGEST_STATUS];
    let file = open_at(libc::AT_FDCWD, c"/proc/thread-self/status", libc::O_RDONLY).map(File::from);
    let length = file.and_then(|file| file.read_at(&mut bytes, 0)).unwrap_or(0);
    standing(&bytes[..length]).is_none_or(|standing| standing.filtered)
}

/// Opens a file without allocating.
pub(in crate::stack::machine) fn open_at(directory: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: the path ends with a zero byte, and the call keeps nothing of it.
    let descriptor = unsafe { libc::openat(directory, path.as_ptr(), flags | libc::O_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// What a file of a thread that cannot be opened or read means.
fn refusal(error: &io::Error) -> CannotCapture {
    match error.raw_os_error() {
        Some(libc::ESRCH) => CannotCapture::Gone,
        _ => CannotCapture::NotVisible,
    }
}

fn standing(status: &[u8]) -> Option<Standing> {
    let field = |name: &[u8]| {
        let line = status.split(|byte| *byte == b'\n').find(|line| line.starts_with(name))?;
        Some(line.get(name.len()..)?.trim_ascii())
    };
    let urgent = 1 << (libc::SIGURG - 1);
    Some(Standing {
        sleeps: decimal(field(b"voluntary_ctxt_switches:")?)?,
        masks: hexadecimal(field(b"SigBlk:")?)? & urgent != 0,
        // Kernels that cannot filter do not name it.
        filtered: field(b"Seccomp:").is_some_and(|mode| mode != b"0"),
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(digits.strip_prefix(b"0x").unwrap_or(digits)).ok()?, 16).ok()
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn position(text: &str) -> Result<Position, CannotCapture> {
        let mut bytes = [0; LONGEST_CALL];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Text { bytes, length: text.len() }.position()
    }

    #[test]
    fn what_the_kernel_says_of_a_thread_is_told_apart() {
        assert_eq!(position("running\n"), Ok(Position::Running));
        let at = |in_call, futex| Ok(Position::At { stack: 0x7ffc_1000, instruction: 0x401_000, in_call, futex });
        let futex = |text: &str| position(&format!("{}{text}", libc::SYS_futex));
        assert_eq!(futex(" 0x1 0x89 0x2 0x0 0x0 0x0 0x7ffc1000 0x401000\n"), at(true, Some(1)));
        assert_eq!(position("0 0x1 0x89 0x2 0x0 0x0 0x0 0x7ffc1000 0x401000\n"), at(true, None));
        assert_eq!(position("-1 0x7ffc1000 0x401000\n"), at(false, None));
        assert_eq!(position("-1 0x0 0x0\n"), Err(CannotCapture::Gone));
        for text in ["", "\n", "202", "-1 0x7ffc1000", "-1 x y"] {
            assert_eq!(position(text), Err(CannotCapture::NotVisible), "{text:?}");
        }
    }

    #[test]
    fn the_standing_of_a_thread_is_read_off_its_status() {
        let text = "Name:\tvoluntary_ctxt_switches: 7\nSigBlk:\t0000000000400000\nSeccomp:\t2\nSeccomp_filters:\t1\n\
                    voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(standing(text.as_bytes()), Some(Standing { sleeps: 12, masks: true, filtered: true }));
        let text = "SigBlk:\t00000000003fffff\nvoluntary_ctxt_switches:\t0\n";
        assert_eq!(standing(text.as_bytes()), Some(Standing { sleeps: 0, masks: false, filtered: false }));
        assert_eq!(standing(b"SigBlk:\t0\n"), None);
        assert_eq!(standing(b""), None);
    }

    #[test]
    fn own_files_are_read_and_those_of_nobody_are_not_there() {
        let tid = crate::evidence::thread_id().unwrap();
        let task = Task::open(tid).unwrap();
        // A thread that asks for itself is in the call that asks.
        assert!(matches!(task.position().unwrap().0, Position::At { in_call: true, .. }));
        assert!(task.runs().unwrap());
        assert!(task.turns().unwrap() > 0);
        let before = task.computed().unwrap();
        while task.computed().unwrap() - before < 1_000 {}
        assert!(!task.standing().unwrap().masks);
        assert_eq!(Task::open(u32::MAX).err(), Some(CannotCapture::Gone));
    }

    #[test]
    fn open_files_stay_with_a_thread_that_has_ended() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(crate::evidence::thread_id().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let task = Task::open(receiver.recv().unwrap()).unwrap();
        assert!(task.position().is_ok());
        drop(end);
        thread.join().unwrap();
        // To be joined is not yet to be gone.
        let gone = loop {
            if let Err(reason) = task.position() {
                break reason;
            }
            std::thread::yield_now();
        };
        assert_eq!(gone, CannotCapture::Gone);
        assert_eq!(task.computed(), Err(CannotCapture::Gone));
        assert_eq!(task.standing(), Err(CannotCapture::Gone));
        assert_eq!(task.turns(), Err(CannotCapture::Gone));
    }
}
