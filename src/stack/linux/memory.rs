//! Reads this process's memory as if from outside: what is not mapped is an answer, and no crash.

use super::take::{is_filtered, open_at};
use crate::stack::CannotCapture;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// A system call reads across pages and ends where the memory does, but it need not: then pages are read singly.
const PAGE: u64 = 4_096;

/// A buffer, and what it was filled with last.
pub(super) struct Memory {
    buffer: Box<[u8]>,
}

/// Which call to read with.
pub(super) enum Source {
    /// `process_vm_readv`: 0.8 us for 8 KiB.
    Call,
    /// `/proc/self/mem`: 4 us for 8 KiB with the opening, and 40 instead of 5 for 64. Not closed before it was read from.
    File(File),
}

impl Source {
    /// Some filters end the process for a call that they do not know, so none is tried under a filter if there is another
    /// way: files under `/proc` are read anyway.
    pub(super) fn find(is_filtered: bool) -> Self {
        if is_filtered { Self::file().unwrap_or(Self::Call) } else { Self::Call }
    }

    fn file() -> Option<Self> {
        Some(Self::File(open_at(libc::AT_FDCWD, c"/proc/self/mem", libc::O_RDONLY).ok()?.into()))
    }

    /// What [`read`] takes.
    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Self::Call => -1,
            Self::File(file) => file.as_raw_fd(),
        }
    }
}

impl Memory {
    pub(super) fn new(length: usize) -> Self {
        Self { buffer: vec![0; length].into_boxed_slice() }
    }

    /// Some of what lies at an address: as much as can be read, up to a length.
    pub(super) fn read(&mut self, address: u64, length: usize) -> Result<&[u8], CannotCapture> {
        let length = length.min(self.buffer.len());
        match read_some(address, &mut self.buffer[..length]) {
            Ok(read) => Ok(&self.buffer[..read]),
            Err(_) => Err(CannotCapture::NotReadable),
        }
    }
}

/// Copies what lies at an address; `None` unless all of it can be read.
pub(super) fn read_all(address: u64, into: &mut [u8]) -> Option<()> {
    (into.is_empty() || read_some(address, into).ok()? == into.len()).then_some(())
}

/// A word of memory.
pub(super) fn word(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read_all(address, &mut bytes)?;
    Some(u64::from_ne_bytes(bytes))
}

/// As much of it as can be read, by the way that there is. It is looked for each time: a filter can come at any time, and by
/// a file that it has inherited a child process would read its parent.
fn read_some(address: u64, into: &mut [u8]) -> io::Result<usize> {
    let source = Source::find(is_filtered());
    let read = read_with(&source, address, into);
    match read {
        Err(error) if matches!(source, Source::Call) && is_refusal(&error) => {
            Source::file().map_or(Err(error), |file| read_with(&file, address, into))
        }
        read => read,
    }
}

fn read_with(source: &Source, address: u64, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: so long is the slice.
    let read = unsafe { read(source.descriptor(), address, into.as_mut_ptr(), into.len()) };
    if read == 0 { Err(io::Error::last_os_error()) } else { Ok(read) }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES))
}

/// Copies what lies at an address, as much as can be read; 0 with the reason in `errno` if nothing can. By the file if
/// there is one. The handler of the signal calls it too: no allocation, no panic, nothing but system calls.
///
/// # Safety
///
/// `into` is valid for writing that many bytes.
pub(super) unsafe fn read(file: RawFd, address: u64, into: *mut u8, length: usize) -> usize {
    let mut done = 0;
    let mut whole = true;
    while done < length {
        let from = address.wrapping_add(done as u64);
        let to_end_of_page = (PAGE - from % PAGE) as usize;
        let rest = length - done;
        let wanted = if whole { rest } else { rest.min(to_end_of_page) };
        // SAFETY: `done` is less than the length, and `wanted` at most what is left of it.
        match unsafe { read_once(file, from, into.wrapping_add(done), wanted) } {
            ..=0 if whole && wanted > to_end_of_page => whole = false,
            ..=0 => break,
            read => done += read as usize,
        }
    }
    done
}

/// # Safety
///
/// `into` is valid for writing that many bytes.
unsafe fn read_once(file: RawFd, address: u64, into: *mut u8, length: usize) -> isize {
    if file >= 0 {
        // SAFETY: the caller promises that so much can be written there.
        return unsafe { libc::pread64(file, into.cast(), length, address.cast_signed()) };
    }
    let local = libc::iovec { iov_base: into.cast(), iov_len: length };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: length };
    // SAFETY: the caller promises that so much can be written there; of what is read, the kernel checks it.
    unsafe {
        let own = libc::syscall(libc::SYS_getpid);
        libc::syscall(libc::SYS_process_vm_readv, own, &raw const local, 1_usize, &raw const remote, 1_usize, 0_usize)
            as isize
    }
}

#[cfg(all(test, not(starvation_loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn both_ways_read_up_to_the_end_of_what_is_mapped() {
        let pages = 4;
        let length = pages * PAGE as usize;
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: within the mapping, whose last page is not used any more.
        unsafe {
            start.cast::<u8>().write_bytes(7, length);
            assert_eq!(libc::munmap(start.wrapping_byte_add(length - PAGE as usize), PAGE as usize), 0);
        }
        let from = start.addr() as u64 + 100;
        let readable = 3 * PAGE as usize - 100;
        let mut memory = Memory::new(length);
        for source in [Source::Call, Source::file().unwrap()] {
            assert_eq!(read_with(&source, from, &mut memory.buffer).unwrap(), readable);
            assert!(memory.buffer[..readable].iter().all(|byte| *byte == 7));
            memory.buffer.fill(0);
            assert!(read_with(&source, from + readable as u64, &mut memory.buffer[..8]).is_err());
            assert!(read_with(&source, 0, &mut memory.buffer[..8]).is_err());
        }
        assert_eq!(memory.read(from, 5).unwrap(), [7; 5]);
        assert_eq!(memory.read(0, 5), Err(CannotCapture::NotReadable));
        let mut all = vec![0; length];
        assert_eq!(read_all(from, &mut all), None, "not all of it is there");
        assert_eq!((read_all(from, &mut all[..readable]), all[readable - 1]), (Some(()), 7));
        assert_eq!(word(from), Some(0x0707_0707_0707_0707));
        assert_eq!((word(8), word(u64::MAX - 3), read_all(8, &mut [])), (None, None, Some(())));
        // SAFETY: what is left of the mapping.
        unsafe { libc::munmap(start, length) };
    }
}
