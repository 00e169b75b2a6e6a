//! The socket escrow, with which every program keeps the whole socket group open.
//!
//! The kernel steers packets by a socket's index in its SO_REUSEPORT group, and closing a
//! socket moves another one to its index. So no socket may close while any program uses
//! the group, even if ferroced is killed. ferroced holds all sockets. Each program holds
//! them too, for the price of two descriptors: a unix socket pair. In its queue lie,
//! unread, duplicates of every socket of the group and of each slot's counter page.
//!
//! A group has one escrow, and all holders have duplicates of the same socket pair. When
//! the group grows, ferroced sends the new sockets into the queue, and so to all holders.
//! A new ferroced receives the escrow from a program, reads the queue without consuming it
//! (MSG_PEEK), and continues with the same group.
//!
//! A holder of the escrow could take the sockets out. So programs of one ferroced must
//! trust each other, and ferroced checks the user of each program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::counters::CounterPage;
use crate::{packet, sockopt};

/// Queue size for one message per slot, with the kernel's bookkeeping.
const QUEUE_BYTES: usize = 512 << 10;

/// Descriptors of a whole socket group, in the queue of a socket pair. The group closes
/// with its last escrow.
#[derive(Debug)]
pub struct SocketEscrow {
    /// The end with the queue.
    rx: OwnedFd,
    /// The end that adds to the queue.
    tx: OwnedFd,
}

/// The descriptors of one slot.
#[derive(Debug)]
pub struct SlotFds {
    /// The slot.
    pub slot: u8,
    /// The IPv4 socket.
    pub v4: OwnedFd,
    /// The IPv6 socket, if the kernel has IPv6.
    pub v6: Option<OwnedFd>,
    /// The page of counters.
    pub counters: CounterPage,
}

impl SocketEscrow {
    /// Creates an empty escrow.
    pub fn new() -> io::Result<SocketEscrow> {
        let (rx, tx) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::sockopt::set_socket_send_buffer_size(&tx, QUEUE_BYTES)?;
        Ok(SocketEscrow { rx, tx })
    }

    /// Returns the escrow of descriptors that another process sent.
    pub fn from_fds(fds: [OwnedFd; 2]) -> SocketEscrow {
        let [rx, tx] = fds;
        SocketEscrow { rx, tx }
    }

    /// Returns the descriptors to send to another process.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.rx.as_fd(), self.tx.as_fd()]
    }

    /// Adds a slot, for all holders of the escrow.
    pub fn append(
        &self,
        slot: u8,
        sockets: (BorrowedFd<'_>, Option<BorrowedFd<'_>>),
        counters: &CounterPage,
    ) -> io::Result<()> {
        let (v4, v6) = sockets;
        let mut fds = vec![v4];
        fds.extend(v6);
        fds.push(counters.as_fd());
        let label = [slot, u8::from(v6.is_some())];
        packet::send(&self.tx, &label, &fds, SendFlags::DONTWAIT)
    }

    /// Returns duplicates of all descriptors, in slot order. The queue keeps its contents.
    ///
    /// # Errors
    /// If the contents are not a whole group, or a counter page has another version.
    pub fn contents(&self) -> io::Result<Vec<SlotFds>> {
        sockopt::set_peek_offset(&self.rx, 0)?;
        let mut slots = Vec::new();
        loop {
            let mut label = [0; 2];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let packet = match packet::receive(&self.rx, &mut label, flags) {
                Ok(packet) => packet,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(slots),
                Err(error) => return Err(error),
            };
            // All descriptors of the other end are closed.
            if packet.len == 0 {
                return Ok(slots);
            }
            let slot = unpack(label, packet)?;
            if usize::from(slot.slot) != slots.len() {
                return Err(damaged());
            }
            slots.push(slot);
        }
    }

    /// Returns true if both are the same socket pair.
    pub fn is_same(&self, other: &SocketEscrow) -> io::Result<bool> {
        let (mine, theirs) = (rustix::fs::fstat(&self.rx)?, rustix::fs::fstat(&other.rx)?);
        Ok((mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino))
    }

    /// Duplicates the descriptors.
    pub fn try_clone(&self) -> io::Result<SocketEscrow> {
        Ok(SocketEscrow {
            rx: self.rx.try_clone()?,
            tx: self.tx.try_clone()?,
        })
    }
}

fn unpack(label: [u8; 2], packet: packet::Packet) -> io::Result<SlotFds> {
    let [slot, v6] = label;
    let expected = 2 + usize::from(v6);
    if packet.len != label.len() || v6 > 1 || packet.fds_lost || packet.fds.len() != expected {
        return Err(damaged());
    }
    let mut fds = packet.fds.into_iter();
    let mut next = || fds.next().ok_or_else(damaged);
    Ok(SlotFds {
        slot,
        v4: next()?,
        v6: if v6 == 1 { Some(next()?) } else { None },
        counters: CounterPage::from_fd(next()?).map_err(|error| {
            let message = format!("the counter page of slot {slot} cannot be used: {error}");
            io::Error::new(io::ErrorKind::InvalidData, message)
        })?,
    })
}

fn damaged() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the escrowed sockets are not a whole group",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a slot with unix sockets. Returns the inode of the first.
    fn append(escrow: &SocketEscrow, slot: u8, v6: bool) -> u64 {
        let (one, two) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let counters = CounterPage::new().unwrap();
        let sockets = (one.as_fd(), v6.then_some(two.as_fd()));
        escrow.append(slot, sockets, &counters).unwrap();
        rustix::fs::fstat(&one).unwrap().st_ino
    }

    #[test]
    fn reading_the_contents_keeps_them() {
        let escrow = SocketEscrow::new().unwrap();
        let inodes: Vec<u64> = (0..4).map(|k| append(&escrow, k, k != 2)).collect();
        for _ in 0..3 {
            let contents = escrow.contents().unwrap();
            let seen: Vec<u64> = contents
                .iter()
                .map(|s| rustix::fs::fstat(&s.v4).unwrap().st_ino)
                .collect();
            assert_eq!(seen, inodes, "the same sockets");
            assert!(contents[2].v6.is_none() && contents[3].v6.is_some());
        }
    }

    #[test]
    fn all_holders_receive_later_slots() {
        let escrow = SocketEscrow::new().unwrap();
        let program = escrow.try_clone().unwrap();
        assert!(program.is_same(&escrow).unwrap());
        append(&escrow, 0, true);
        drop(escrow);
        append(&program, 1, true);
        assert_eq!(program.contents().unwrap().len(), 2);
        assert!(!program.is_same(&SocketEscrow::new().unwrap()).unwrap());
    }

    #[test]
    fn escrow_holds_256_slots() {
        let escrow = SocketEscrow::new().unwrap();
        for k in 0..=255 {
            append(&escrow, k, true);
        }
        assert_eq!(escrow.contents().unwrap().len(), 256);
    }

    #[test]
    fn counter_page_of_another_version_is_refused() {
        let escrow = SocketEscrow::new().unwrap();
        let (one, _two) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let counters = CounterPage::new().unwrap();
        rustix::io::pwrite(counters.as_fd(), &77_u64.to_ne_bytes(), 8).unwrap();
        escrow.append(0, (one.as_fd(), None), &counters).unwrap();
        let error = escrow.contents().unwrap_err().to_string();
        assert!(error.contains("the counter page of slot 0"), "{error}");
        assert!(error.contains("control protocol 77"), "{error}");
    }

    #[test]
    fn escrow_with_a_missing_slot_is_refused() {
        let escrow = SocketEscrow::new().unwrap();
        append(&escrow, 1, true);
        assert!(escrow.contents().is_err());
    }
}
