//! Copies from the memory of this very process that fail where nothing is mapped, instead of ending the process.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Copies what lies at an address; `None` unless all of it can be read.
pub(crate) fn read(address: u64, into: &mut [u8]) -> Option<()> {
    if into.is_empty() {
        return Some(());
    }
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the kernel writes into `into` alone; it checks the other address itself, which is read and not dereferenced here.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if usize::try_from(copied).is_ok_and(|copied| copied == into.len()) {
        return Some(());
    }
    match (copied, std::io::Error::last_os_error().raw_os_error()) {
        // Some filters of system calls forbid it, where the same may be read as a file. That is opened each time, as a child
        // process would read its parent by a file that it has inherited.
        (-1, Some(libc::EPERM | libc::ENOSYS | libc::EACCES)) => {
            File::open("/proc/self/mem").ok()?.read_exact_at(into, address).ok()
        }
        _ => None,
    }
}

/// A word of memory.
pub(crate) fn word(address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    read(address, &mut bytes)?;
    Some(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_copied_and_what_is_not_is_refused() {
        let value = 0x1234_5678_9abc_def0_u64;
        assert_eq!(word(&raw const value as u64), Some(value));
        assert_eq!(word(8), None);
        assert_eq!(word(u64::MAX - 3), None);
        assert_eq!(read(8, &mut []), Some(()));
    }
}
