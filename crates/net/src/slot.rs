//! The sockets of a slot.
//!
//! A slot is one index in two groups of sockets, IPv4 and IPv6, all bound to
//! the wildcard address and port 4791 with SO_REUSEPORT. The kernel numbers the
//! members of a group in the order they were bound, and the group's BPF program
//! returns the number. So slots are created in order, and closing one moves the
//! last socket of the group into its place: whoever created them keeps them and
//! parks those that nobody uses.
//!
//! A group belongs to one user. Members may be passed to processes of others.

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
    /// For IPv4.
    pub v4: OwnedFd,
    /// For IPv6, where the kernel has it.
    pub v6: Option<OwnedFd>,
}

/// Creates the sockets of a slot. All lower slots of this network namespace must
/// exist, and no higher one.
///
/// # Errors
/// If the port is taken, or the slot would not be the next one.
pub fn create_slot(slot: u8) -> Result<SlotSockets, BindError> {
    create_slot_with(slot, &features::probe())
}

/// As [`create_slot`], with less than the kernel offers.
///
/// # Errors
/// If the port is taken, or the slot would not be the next one.
pub fn create_slot_with(slot: u8, features: &Features) -> Result<SlotSockets, BindError> {
    let v4 = Member { slot, v6: false }.create(features)?;
    let v6 = match features.ipv6 {
        true => Some(Member { slot, v6: true }.create(features)?),
        false => None,
    };
    Ok(SlotSockets { v4, v6 })
}

impl SlotSockets {
    /// More descriptors of the same sockets.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn try_clone(&self) -> io::Result<SlotSockets> {
        Ok(SlotSockets {
            v4: self.v4.try_clone()?,
            v6: self.v6.as_ref().map(OwnedFd::try_clone).transpose()?,
        })
    }

    /// Puts a slot out of use: leaves its multicast groups, throws away what has
    /// arrived and what still arrives. The sockets keep their places. Not for slot
    /// 0, which is always in use.
    ///
    /// # Errors
    /// If the kernel refuses, which it has no reason to.
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

    /// Puts a parked slot into use again: from now on packets arrive.
    ///
    /// # Errors
    /// If the kernel refuses, which it has no reason to.
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

/// A member of a group in the making.
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
        // Only the first needs to, the program is the group's; it does no harm.
        steering::steer_by_slot(&socket).map_err(BindError::NoSteering)?;
        Ok(socket.into())
    }

    /// A group of survivors from an earlier life may have taken the new socket in,
    /// at another index than the slot's. As its last member it can leave again
    /// without moving another.
    ///
    /// The kernel's table is no snapshot: a line can be missing, or come twice, while
    /// sockets come and go elsewhere. A wrong number is believed only if it stays.
    fn check_place(&self, socket: &Socket) -> Result<(), BindError> {
        const READS: usize = 50;
        let mut found = 0;
        for _ in 0..READS {
            found = match self.others_in_group(socket) {
                Ok(others) => others.len(),
                Err(error) => {
                    tracing::debug!(%error, "cannot count the sockets of the group");
                    return Ok(());
                }
            };
            if found == usize::from(self.slot) {
                return Ok(());
            }
        }
        Err(BindError::WrongPlace {
            slot: self.slot,
            found,
            family: self.family(),
            holder: self.holder_of_group(socket),
        })
    }

    /// The process that has another socket of the group open.
    fn holder_of_group(&self, socket: &Socket) -> Option<(u32, String)> {
        let others = self.others_in_group(socket).ok()?;
        others.into_iter().find_map(port_table::process_with)
    }

    /// Inodes of the other sockets of the group that the kernel's table shows now.
    fn others_in_group(&self, socket: &Socket) -> io::Result<BTreeSet<u64>> {
        let own = rustix::fs::fstat(socket)?.st_ino;
        let uid = rustix::process::geteuid().as_raw();
        let others = port_table::sockets_on(ROCE_PORT, self.v6)?;
        let others = others
            .iter()
            .filter(|other| other.wildcard && other.uid == uid && other.inode != own);
        Ok(others.map(|other| other.inode).collect())
    }

    /// Everything that must hold before the first datagram arrives.
    fn prepare(&self, socket: &Socket, features: &Features) -> io::Result<()> {
        socket.set_reuse_port(true)?;
        let on = |level, option| socket::set_number(socket, level, option, 1);
        let off = |level, option| socket::set_number(socket, level, option, 0);
        if self.v6 {
            socket.set_only_v6(true)?;
            // rxe and NICs send no UDP checksum; the ICRC covers the rest.
            on(libc::SOL_UDP, libc::UDP_NO_CHECK6_RX)?;
            on(libc::SOL_IPV6, libc::IPV6_RECVPKTINFO)?;
            on(libc::SOL_IPV6, libc::IPV6_RECVTCLASS)?;
            on(libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT)?;
            // Multicast only of the groups this very socket has joined. Before
            // Linux 4.20 the transport ignores what is too much.
            let _ = off(libc::SOL_IPV6, libc::IPV6_MULTICAST_ALL);
        } else {
            on(libc::SOL_IP, libc::IP_PKTINFO)?;
            on(libc::SOL_IP, libc::IP_RECVTOS)?;
            on(libc::SOL_IP, libc::IP_RECVTTL)?;
            if self.slot == 0 {
                multicast::stand_by(socket)?;
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
