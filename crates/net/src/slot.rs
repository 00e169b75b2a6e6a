//! The sockets of a slot.
//!
//! A slot is one index in two groups of sockets, IPv4 and IPv6, all bound to the wildcard
//! address and port 4791 with SO_REUSEPORT. The kernel numbers the members of a group in
//! the order they were bound, and the group's BPF program returns that number. So slots
//! are created in order. Closing a socket would move the last one of the group into its
//! place. So ferroced keeps all sockets, and parks those that no program uses.
//!
//! All members of a group are created by one user. Processes of other users may receive
//! descriptors of them.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use ferroce_wire::ROCE_PORT;
use socket2::{Domain, Socket};

use crate::bind_error::{BindError, Holder};
use crate::features::{self, Features};
use crate::recv_ring::RecvRing;
use crate::{multicast, port_table, socket, steering};

/// The sockets of one slot.
#[derive(Debug)]
pub struct SlotSockets {
    /// The IPv4 socket.
    pub v4: OwnedFd,
    /// The IPv6 socket, if the kernel has IPv6.
    pub v6: Option<OwnedFd>,
}

/// Creates the sockets of a slot. In this network namespace all lower slots must exist,
/// and no higher one.
///
/// # Errors
/// If another process has the port, or the slot is not the next one.
pub fn create_slot(slot: u8) -> Result<SlotSockets, BindError> {
    create_slot_with(slot, &features::probe())
}

/// Like [`create_slot`], with only some of the kernel's features.
///
/// # Errors
/// If another process has the port, or the slot is not the next one.
pub fn create_slot_with(slot: u8, features: &Features) -> Result<SlotSockets, BindError> {
    let v4 = Member { slot, v6: false }.create(features)?;
    let v6 = match features.ipv6 {
        true => Some(Member { slot, v6: true }.create(features)?),
        false => None,
    };
    Ok(SlotSockets { v4, v6 })
}

impl SlotSockets {
    /// Duplicates the descriptors.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn try_clone(&self) -> io::Result<SlotSockets> {
        Ok(SlotSockets {
            v4: self.v4.try_clone()?,
            v6: self.v6.as_ref().map(OwnedFd::try_clone).transpose()?,
        })
    }

    /// Parks a slot: leaves its multicast groups, discards the received datagrams and
    /// drops all later ones. The sockets keep their places in the group. Slot 0 is always
    /// in use and is never parked.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn park(&self) -> io::Result<()> {
        for fd in self.each() {
            steering::drop_all(fd)?;
        }
        multicast::leave_all(self);
        let mut ring = RecvRing::new();
        let mmsg = features::probe().mmsg;
        for fd in self.each() {
            while ring.fill(fd, usize::MAX, mmsg)? > 0 {}
        }
        Ok(())
    }

    /// Ends [`SlotSockets::park`]: the sockets receive packets again.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn unpark(&self) -> io::Result<()> {
        self.each().try_for_each(steering::drop_none)
    }

    /// Returns how many datagrams the kernel has dropped at these sockets since they were
    /// created, because the receive buffer was full or because the slot was parked. The
    /// count wraps around. It is 0 before Linux 4.12.
    pub fn dropped(&self) -> u32 {
        self.each().map(socket::dropped).fold(0, u32::wrapping_add)
    }

    fn each(&self) -> impl Iterator<Item = &OwnedFd> {
        std::iter::once(&self.v4).chain(&self.v6)
    }
}

/// A socket to be created, as a member of its group.
struct Member {
    slot: u8,
    v6: bool,
}

impl Member {
    fn create(&self, features: &Features) -> Result<OwnedFd, BindError> {
        let domain = if self.v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = socket::udp(domain).map_err(|e| self.error(e))?;
        self.prepare(&socket, features).map_err(|e| self.error(e))?;
        self.bind(&socket)?;
        self.check_place(&socket)?;
        // The program belongs to the group: the first member attaches it, others replace
        // it with the same.
        steering::steer_by_slot(&socket).map_err(BindError::NoSteering)?;
        Ok(socket.into())
    }

    /// Checks that the socket's index in its group is the slot's number. The index differs
    /// if programs still hold the group of an earlier ferroced. Closing the new socket
    /// then moves no other, because it is the last member.
    ///
    /// The kernel's table is not a snapshot: while other sockets are opened and closed, a read
    /// can miss lines. Members of the group stay, so this collects them over up to 50 reads.
    fn check_place(&self, socket: &Socket) -> Result<(), BindError> {
        const READS: usize = 50;
        let mut others = BTreeSet::new();
        for _ in 0..READS {
            match self.others_in_group(socket) {
                Ok(read) => others.extend(read),
                Err(error) => {
                    tracing::debug!(%error, "cannot count the sockets of the group");
                    return Ok(());
                }
            }
            if others.len() == usize::from(self.slot) {
                return Ok(());
            }
        }
        let found = others.len();
        Err(BindError::WrongPlace {
            slot: self.slot,
            found,
            family: self.family(),
            holder: self.holder_of_group(socket),
        })
    }

    /// Finds a process that has another socket of the group open.
    fn holder_of_group(&self, socket: &Socket) -> Option<(u32, String)> {
        let others = self.others_in_group(socket).ok()?;
        others.into_iter().find_map(port_table::process_with)
    }

    /// Returns the inodes of the group's other sockets, as the kernel's table shows them.
    fn others_in_group(&self, socket: &Socket) -> io::Result<BTreeSet<u64>> {
        let own = rustix::fs::fstat(socket)?.st_ino;
        let uid = rustix::process::geteuid().as_raw();
        let others = port_table::sockets_on(ROCE_PORT, self.v6)?;
        let others = others
            .iter()
            .filter(|other| other.wildcard && other.uid == uid && other.inode != own);
        Ok(others.map(|other| other.inode).collect())
    }

    /// Sets all options that must be set before the first datagram arrives.
    fn prepare(&self, socket: &Socket, features: &Features) -> io::Result<()> {
        socket.set_reuse_port(true)?;
        let on = |level, option| socket::set_number(socket, level, option, 1);
        let off = |level, option| socket::set_number(socket, level, option, 0);
        if self.v6 {
            socket.set_only_v6(true)?;
            // rxe and NICs send no UDP checksum, because RoCEv2 has a CRC of its own.
            on(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX)?;
            on(libc::SOL_IPV6, libc::IPV6_RECVPKTINFO)?;
            on(libc::SOL_IPV6, libc::IPV6_RECVTCLASS)?;
            on(libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT)?;
            // Receive only groups that this socket has joined. Before Linux 4.20 the
            // option does not exist, and the transport drops other groups.
            let _ = off(libc::SOL_IPV6, libc::IPV6_MULTICAST_ALL);
        } else {
            on(libc::SOL_IP, libc::IP_PKTINFO)?;
            on(libc::SOL_IP, libc::IP_RECVTOS)?;
            on(libc::SOL_IP, libc::IP_RECVTTL)?;
            if self.slot == 0 {
                multicast::match_all_groups(socket)?;
            } else {
                off(libc::SOL_IP, libc::IP_MULTICAST_ALL)?;
            }
        }
        if features.gro {
            on(libc::SOL_UDP, libc::UDP_GRO)?;
        }
        socket::raise_receive_buffer(socket);
        Ok(())
    }

    fn bind(&self, socket: &Socket) -> Result<(), BindError> {
        match socket.bind(&self.address().into()) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(BindError::PortTaken {
                holder: Holder::find(self.v6),
            }),
            result => result.map_err(|e| self.error(e)),
        }
    }

    fn address(&self) -> SocketAddr {
        match self.v6 {
            true => (Ipv6Addr::UNSPECIFIED, ROCE_PORT).into(),
            false => (Ipv4Addr::UNSPECIFIED, ROCE_PORT).into(),
        }
    }

    fn family(&self) -> &'static str {
        if self.v6 { "IPv6" } else { "IPv4" }
    }

    fn error(&self, error: io::Error) -> BindError {
        BindError::Socket {
            slot: self.slot,
            family: self.family(),
            error,
        }
    }
}
