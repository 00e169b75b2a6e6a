//! Files of shared memory whose size no process can change.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Creates a file of zeros. Pages that nothing was written to take no memory.
pub(crate) fn create(name: &str, size: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&fd, size as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SEALS)?;
    Ok(fd)
}

/// Checks a file that another process passed on. One that could shrink would crash the processes
/// that map it.
pub(crate) fn check(file: impl AsFd, size: usize) -> io::Result<()> {
    let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SEALS);
    if sealed && rustix::fs::fstat(&file)?.st_size == size as i64 {
        return Ok(());
    }
    let what = "the received file is no shared memory of ferroced";
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_can_shrink_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("open", flags).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(check(&open, 4096).is_err());
        let good = create("sealed", 4096).unwrap();
        check(&good, 4096).unwrap();
        assert!(check(&good, 8192).is_err());
    }
}
