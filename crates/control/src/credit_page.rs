//! The credit page: memory that all programs on a machine share, to pace unreliable senders.
//!
//! No peer acknowledges an unreliable packet, so its sender never learns that the receiving
//! socket is full. On one machine each slot has an entry in this page: senders count what
//! they put in, and the receiver counts what it took out. The counts are advice: a wrong one
//! costs speed or packets, never more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// Bytes of one slot's entry: a cache line for the receiver, one for senders.
pub const CREDIT_ENTRY_SIZE: usize = 128;
/// Bytes of the whole page.
pub const CREDIT_PAGE_SIZE: usize = 256 * CREDIT_ENTRY_SIZE;

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The shared memory of the credit page.
#[derive(Debug)]
pub struct CreditPage(OwnedFd);

impl CreditPage {
    /// Creates a page of zeros, whose size no process can change.
    pub fn new() -> io::Result<CreditPage> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("ferroce-credits", flags)?;
        rustix::fs::ftruncate(&fd, CREDIT_PAGE_SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok(CreditPage(fd))
    }

    /// Takes a page that another process passed on. Refuses a file that is not sealed as
    /// [`CreditPage::new`] seals it: one that shrinks would crash the processes that map it.
    pub fn from_fd(fd: OwnedFd) -> io::Result<CreditPage> {
        let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS);
        let size = rustix::fs::fstat(&fd)?.st_size;
        if !sealed || size != CREDIT_PAGE_SIZE as i64 {
            let what = "the received file is no credit page of ferroced";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(CreditPage(fd))
    }

    /// Sets the entry of a slot to zero.
    pub fn clear(&self, slot: u8) -> io::Result<()> {
        let at = usize::from(slot) * CREDIT_ENTRY_SIZE;
        rustix::io::pwrite(&self.0, &[0; CREDIT_ENTRY_SIZE], at as u64)?;
        Ok(())
    }

    /// Returns a second handle to the same page.
    pub fn try_clone(&self) -> io::Result<CreditPage> {
        Ok(CreditPage(self.0.try_clone()?))
    }
}

impl AsFd for CreditPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_can_be_passed_on() {
        let credits = CreditPage::new().unwrap();
        rustix::io::pwrite(credits.as_fd(), &[1; 2 * CREDIT_ENTRY_SIZE], 0).unwrap();
        let again = CreditPage::from_fd(credits.as_fd().try_clone_to_owned().unwrap()).unwrap();
        again.clear(0).unwrap();
        let mut bytes = [9; 2 * CREDIT_ENTRY_SIZE];
        rustix::io::pread(credits.as_fd(), &mut bytes[..], 0).unwrap();
        assert_eq!(bytes[CREDIT_ENTRY_SIZE - 1..=CREDIT_ENTRY_SIZE], [0, 1]);
    }

    #[test]
    fn file_that_can_shrink_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("open", flags).unwrap();
        rustix::fs::ftruncate(&open, CREDIT_PAGE_SIZE as u64).unwrap();
        assert!(CreditPage::from_fd(open).is_err());
        let file = std::fs::File::open("/proc/version").unwrap();
        assert!(CreditPage::from_fd(file.into()).is_err());
    }
}
