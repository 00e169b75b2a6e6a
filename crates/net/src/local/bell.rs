//! The pipe by which other slots wake the threads of a slot.
//!
//! Each end of a channel sends its slot's bell to the other end, over the socket of the channel. A
//! wakeup is then a byte in a pipe, on which the threads sleep directly. **Why not the socket**: a byte through
//! a unix socket behind an epoll takes 1.4 us longer, 3.7 us on one core.
//!
//! Both processes open the pipe a second time. The mode of a descriptor belongs to its open file,
//! so no other process can make our writes or reads block, as it could with an eventfd. With
//! a reader of its own the writer gets no SIGPIPE. Another process of the user can take the bytes out, and
//! so delay our threads, but it could do that with every pipe, through `/proc`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::pipe::{PipeFlags, pipe_with};

/// The bell of a slot.
#[derive(Debug)]
pub(super) struct Bell {
    /// Readable after a wakeup. Only this process has it.
    own: OwnedFd,
    /// The descriptor for other processes, which open the pipe through it.
    shared: OwnedFd,
}

/// The bell of another slot.
#[derive(Debug)]
pub(super) struct PeerBell(OwnedFd);

impl Bell {
    /// Creates a bell.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub(super) fn new() -> io::Result<Bell> {
        let (_reader, shared) = pipe_with(PipeFlags::CLOEXEC)?;
        let own = open_again(shared.as_fd())?;
        Ok(Bell { own, shared })
    }

    /// Returns the descriptor for the other end of a channel.
    pub(super) fn shared(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// Wakes the threads that sleep on this bell.
    pub(super) fn ring(&self) {
        ring(&self.own);
    }

    /// Takes all wakeups. Returns false if there was none.
    pub(super) fn take(&self) -> bool {
        let mut bytes = [0; 256];
        let mut is_rung = false;
        while let Ok(count @ 1..) = rustix::io::read(&self.own, &mut bytes) {
            is_rung = true;
            if count < bytes.len() {
                break;
            }
        }
        is_rung
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

impl PeerBell {
    /// Opens the bell that another process has sent.
    ///
    /// # Errors
    /// If the descriptor is not a pipe, or cannot be opened.
    pub(super) fn open(shared: BorrowedFd<'_>) -> io::Result<PeerBell> {
        // The device of pipes: a FIFO in a file system could make even the open wait.
        let (theirs, ours) = (fstat(shared)?, fstat(pipe_with(PipeFlags::CLOEXEC)?.0)?);
        let is_fifo = FileType::from_raw_mode(theirs.st_mode) == FileType::Fifo;
        if !is_fifo || theirs.st_dev != ours.st_dev {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        open_again(shared).map(PeerBell)
    }

    /// Wakes the threads that sleep on the bell.
    pub(super) fn ring(&self) {
        ring(&self.0);
    }
}

/// Writes a byte. It fails only if earlier wakeups wait there.
fn ring(pipe: &OwnedFd) {
    let _full = rustix::io::write(pipe, &[0]);
}

/// Opens a pipe for reading and writing, never blocking.
fn open_again(pipe: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fcntl_setfl;

    #[test]
    fn wakeups_are_taken_together() {
        let bell = Bell::new().unwrap();
        assert!(!bell.take());
        let peer = PeerBell::open(bell.shared()).unwrap();
        peer.ring();
        peer.ring();
        bell.ring();
        assert!(bell.take());
        assert!(!bell.take());
    }

    #[test]
    fn other_process_can_make_neither_end_block() {
        let bell = Bell::new().unwrap();
        let peer = PeerBell::open(bell.shared()).unwrap();
        // The shared descriptor is the only one that both processes have.
        fcntl_setfl(bell.shared(), OFlags::empty()).unwrap();
        assert!(!bell.take());
        for _ in 0..100_000 {
            peer.ring();
        }
        bell.ring();
        assert!(bell.take());
    }

    #[test]
    fn bell_whose_owner_has_ended_raises_no_sigpipe() {
        let bell = Bell::new().unwrap();
        let peer = PeerBell::open(bell.shared()).unwrap();
        drop(bell);
        assert_eq!(rustix::io::write(&peer.0, &[0]), Ok(1));
    }

    #[test]
    fn descriptor_that_is_no_pipe_is_refused() {
        let file = std::fs::File::open("/proc/version").unwrap();
        assert!(PeerBell::open(file.as_fd()).is_err());
        let path = std::env::temp_dir().join(format!("ferroce-bell-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let fifo = open(&path, flags, Mode::empty()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(PeerBell::open(fifo.as_fd()).is_err(), "a named pipe");
    }
}
