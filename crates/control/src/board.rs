//! The board: memory that all programs on a machine share, to keep unreliable senders
//! from drowning receivers.
//!
//! Nothing acknowledges an unreliable packet, so its sender would never know that the
//! socket it is meant for is full. On one machine there is a simpler way to know: each
//! slot has an entry here, in which senders say how much they put in and the
//! receiver says how much it took out. It is advice: a wrong number costs speed or
//! packets, never more.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// Bytes of one slot's entry: a cache line for the receiver, one for senders.
pub const BOARD_ENTRY: usize = 128;
/// Bytes of the whole board.
pub const BOARD_SIZE: usize = 256 * BOARD_ENTRY;

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// The shared memory of the board.
#[derive(Debug)]
pub struct Board(OwnedFd);

impl Board {
    /// A new board, all zero, whose size nobody can change any more.
    pub fn new() -> io::Result<Board> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("ferroce-board", flags)?;
        rustix::fs::ftruncate(&fd, BOARD_SIZE as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok(Board(fd))
    }

    /// A board that somebody has handed over: it must be as [`Board::new`] makes them, or
    /// whoever maps it could be harmed.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Board> {
        let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS);
        let size = rustix::fs::fstat(&fd)?.st_size;
        if !sealed || size != BOARD_SIZE as i64 {
            let what = "what was handed over is no board of ferroced";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Board(fd))
    }

    /// Forgets what a slot's entry said.
    pub fn clear(&self, slot: u8) -> io::Result<()> {
        let at = usize::from(slot) * BOARD_ENTRY;
        rustix::io::pwrite(&self.0, &[0; BOARD_ENTRY], at as u64)?;
        Ok(())
    }

    /// A second handle to the same board.
    pub fn try_clone(&self) -> io::Result<Board> {
        Ok(Board(self.0.try_clone()?))
    }
}

impl AsFd for Board {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_survives_being_handed_over() {
        let board = Board::new().unwrap();
        rustix::io::pwrite(board.as_fd(), &[1; 2 * BOARD_ENTRY], 0).unwrap();
        let again = Board::from_fd(board.as_fd().try_clone_to_owned().unwrap()).unwrap();
        again.clear(0).unwrap();
        let mut bytes = [9; 2 * BOARD_ENTRY];
        rustix::io::pread(board.as_fd(), &mut bytes[..], 0).unwrap();
        assert_eq!(bytes[BOARD_ENTRY - 1..=BOARD_ENTRY], [0, 1]);
    }

    #[test]
    fn what_could_shrink_under_its_users_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let open = rustix::fs::memfd_create("open", flags).unwrap();
        rustix::fs::ftruncate(&open, BOARD_SIZE as u64).unwrap();
        assert!(Board::from_fd(open).is_err());
        let file = std::fs::File::open("/proc/version").unwrap();
        assert!(Board::from_fd(file.into()).is_err());
    }
}
