//! The parcel: how every program keeps the whole socket group alive.
//!
//! The kernel steers packets by a socket's place in its SO_REUSEPORT group, and
//! closing one socket moves another into its place. So no socket may close while any
//! program uses the group, not even when ferroced is killed. ferroced holds them all,
//! and so that its death changes nothing, each program holds them all as well, at the
//! price of two descriptors: a unix socket pair in whose queue lie, unread, duplicates
//! of every socket of the group, and of the pages with the counters of each slot.
//!
//! There is one parcel for the life of a group; everybody has duplicates of the same
//! pair. When the group grows, ferroced puts the new sockets into the queue, and all
//! holders hold them from then on. A new ferroced that is handed the parcel looks
//! without taking (MSG_PEEK), and goes on where the other one stopped.
//!
//! Whoever holds the parcel could take the sockets out: programs served by one
//! ferroced trust each other as far as that, which is why it asks who they are.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::counters::CounterPage;
use crate::{packet, sockopt};

/// Room for one message for each of 256 slots, kernel bookkeeping included.
const QUEUE_BYTES: usize = 512 << 10;

/// Keeps a socket group alive. Closing it (and ferroced, and all other programs)
/// ends the group.
#[derive(Debug)]
pub struct Parcel {
    /// Where the queue is.
    rx: OwnedFd,
    /// Where more can be put in.
    tx: OwnedFd,
}

/// What a parcel holds for one slot.
#[derive(Debug)]
pub struct SlotFds {
    /// The slot.
    pub slot: u8,
    /// Its IPv4 socket.
    pub v4: OwnedFd,
    /// Its IPv6 socket, where the kernel has IPv6.
    pub v6: Option<OwnedFd>,
    /// Its counters.
    pub counters: CounterPage,
}

impl Parcel {
    /// An empty parcel.
    pub fn new() -> io::Result<Parcel> {
        let (rx, tx) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::sockopt::set_socket_send_buffer_size(&tx, QUEUE_BYTES)?;
        Ok(Parcel { rx, tx })
    }

    /// The parcel from the descriptors that [`Parcel::fds`] gave.
    pub fn from_fds(fds: [OwnedFd; 2]) -> Parcel {
        let [rx, tx] = fds;
        Parcel { rx, tx }
    }

    /// Its descriptors, to be sent to somebody.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.rx.as_fd(), self.tx.as_fd()]
    }

    /// Puts one more slot in. All who hold the parcel hold it from now on.
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

    /// Looks at everything inside, in slot order, and leaves it there.
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
            // Nobody has the other end any more.
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

    /// Whether two are the same parcel, and not only alike.
    pub fn is_same(&self, other: &Parcel) -> io::Result<bool> {
        let (mine, theirs) = (rustix::fs::fstat(&self.rx)?, rustix::fs::fstat(&other.rx)?);
        Ok((mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino))
    }

    /// A second handle to the same parcel.
    pub fn try_clone(&self) -> io::Result<Parcel> {
        Ok(Parcel {
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
        "the sockets handed back are not a whole group",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a slot with other sockets in; the inode of the first.
    fn append(parcel: &Parcel, slot: u8, v6: bool) -> u64 {
        let (one, two) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let counters = CounterPage::new().unwrap();
        let sockets = (one.as_fd(), v6.then_some(two.as_fd()));
        parcel.append(slot, sockets, &counters).unwrap();
        rustix::fs::fstat(&one).unwrap().st_ino
    }

    #[test]
    fn looking_takes_nothing_out() {
        let parcel = Parcel::new().unwrap();
        let inodes: Vec<u64> = (0..4).map(|k| append(&parcel, k, k != 2)).collect();
        for _ in 0..3 {
            let contents = parcel.contents().unwrap();
            let seen: Vec<u64> = contents
                .iter()
                .map(|s| rustix::fs::fstat(&s.v4).unwrap().st_ino)
                .collect();
            assert_eq!(seen, inodes, "the same sockets");
            assert!(contents[2].v6.is_none() && contents[3].v6.is_some());
        }
    }

    #[test]
    fn every_holder_sees_what_is_added_later() {
        let parcel = Parcel::new().unwrap();
        let program = parcel.try_clone().unwrap();
        assert!(program.is_same(&parcel).unwrap());
        append(&parcel, 0, true);
        drop(parcel);
        append(&program, 1, true);
        assert_eq!(program.contents().unwrap().len(), 2);
        assert!(!program.is_same(&Parcel::new().unwrap()).unwrap());
    }

    #[test]
    fn a_full_machine_fits() {
        let parcel = Parcel::new().unwrap();
        for k in 0..=255 {
            append(&parcel, k, true);
        }
        assert_eq!(parcel.contents().unwrap().len(), 256);
    }

    #[test]
    fn counter_page_of_another_version_is_refused() {
        let parcel = Parcel::new().unwrap();
        let (one, _two) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let counters = CounterPage::new().unwrap();
        rustix::io::pwrite(counters.as_fd(), &77_u64.to_ne_bytes(), 8).unwrap();
        parcel.append(0, (one.as_fd(), None), &counters).unwrap();
        let error = parcel.contents().unwrap_err().to_string();
        assert!(error.contains("the counter page of slot 0"), "{error}");
        assert!(error.contains("control protocol 77"), "{error}");
    }

    #[test]
    fn a_parcel_with_a_gap_is_refused() {
        let parcel = Parcel::new().unwrap();
        append(&parcel, 1, true);
        assert!(parcel.contents().is_err());
    }
}
