//! Receives on the sockets of one slot.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use ferroce_roce::Counters;

use crate::features::{self, Features};
use crate::incoming::IncomingRun;
use crate::recv_ring::{BUFFERS, RecvRing};
use crate::slot::SlotSockets;
use crate::sorter::Sorter;
use crate::{multicast, socket};

/// Messages per system call in light traffic, and in a stream of large messages: so their
/// bytes are still in the cache when the caller reads them.
const FEW: usize = 2;
/// Bytes of a large message. Fast streams arrive as merged datagrams of this size.
const LARGE: usize = 1 << 14;

/// Polls in a row that find a message, from which on traffic is not light.
const STREAK: u8 = 3;

/// The receiving end of one slot.
///
/// It never blocks. [`Receiver::fds`] are for `epoll`, level-triggered.
pub struct Receiver {
    sockets: SlotSockets,
    ring: RecvRing,
    sorter: Sorter,
    mmsg: bool,
    /// True if the last message came over IPv6.
    busy_v6: bool,
    /// True if the last system call returned several messages and no large ones.
    many_small: bool,
    /// Calls in a row in which [`Receiver::receive_busy`] found a message.
    streak: u8,
    /// Messages in the ring that [`Receiver::look`] has found, of the IP family of the last message.
    found: usize,
    /// Datagrams that the kernel had dropped at the sockets before.
    dropped_before: u32,
}

/// Counts of a receiver, besides the datagrams that it returned.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct ReceiveStats {
    /// Packets of other slots that arrived in merged buffers and were forwarded.
    pub forwarded: u64,
    /// Packets of other slots that could not be forwarded.
    pub forward_failed: u64,
    /// Packets that another slot received and forwarded to this one. They are among the
    /// returned datagrams.
    pub adopted: u64,
    /// Datagrams dropped because they were empty, longer than a buffer, or forwarded to
    /// the wrong slot.
    pub discarded: u64,
    /// Datagrams that the kernel dropped because the socket buffer was full. Merged
    /// datagrams count as one.
    pub overflowed: u64,
}

impl Receiver {
    /// Returns a receiver for the sockets of `slot`.
    pub fn new(slot: u8, sockets: SlotSockets) -> Receiver {
        Receiver::with_features(slot, sockets, &features::probe())
    }

    /// Like [`Receiver::new`], with only some of the kernel's features.
    pub fn with_features(slot: u8, sockets: SlotSockets, features: &Features) -> Receiver {
        Receiver {
            dropped_before: sockets.dropped(),
            sockets,
            ring: RecvRing::new(),
            sorter: Sorter::new(slot, features.gso),
            mmsg: features.mmsg,
            busy_v6: false,
            many_small: false,
            streak: 0,
            found: 0,
        }
    }

    /// Returns the descriptors to wait on: IPv4 and, if there is one, IPv6.
    pub fn fds(&self) -> (RawFd, Option<RawFd>) {
        let v6 = self.sockets.v6.as_ref();
        (self.sockets.v4.as_raw_fd(), v6.map(AsRawFd::as_raw_fd))
    }

    /// Returns the slot.
    pub fn slot(&self) -> u8 {
        self.sorter.slot()
    }

    /// Returns the size of the socket's receive buffer, as the kernel counts it: packets
    /// are charged with the kernel's bookkeeping.
    pub fn buffer(&self) -> usize {
        socket::receive_buffer(&self.sockets.v4)
    }

    /// Switches reporting of hop limits on or off. At first it is on. While it is off,
    /// datagrams have a hop limit of 0, and receiving is cheaper.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn show_hop_limits(&self, show: bool) -> io::Result<()> {
        let show = i32::from(show);
        let v4 = &self.sockets.v4;
        socket::set_number(v4, libc::SOL_IP, libc::IP_RECVTTL, show)?;
        let v6 = self.sockets.v6.as_ref();
        v6.map_or(Ok(()), |v6| {
            socket::set_number(v6, libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT, show)
        })
    }

    /// Returns the sockets.
    pub fn sockets(&self) -> &SlotSockets {
        &self.sockets
    }

    /// Passes received datagrams to `each`, until the sockets are empty or `max` datagrams
    /// are delivered; the last buffer is always finished, so it may be some more. Returns
    /// the number of datagrams delivered.
    ///
    /// # Errors
    /// If a system call fails. An empty socket is no error.
    pub fn receive(
        &mut self,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let first = self.busy_v6;
        let count = self.drain(first, max, &mut each)?;
        // The other family gets its turn even if the first one is a flood.
        let rest = max.saturating_sub(count).max(max.min(1));
        Ok(count + self.drain(!first, rest, &mut each)?)
    }

    /// Like [`Receiver::receive`], but reads the second IP family only if the family of the
    /// last datagram has none. The caller must now and then read both families.
    ///
    /// # Errors
    /// If a system call fails. An empty socket is no error.
    pub fn receive_either(
        &mut self,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let first = self.busy_v6;
        match self.drain(first, max, &mut each)? {
            0 => self.drain(!first, max, &mut each),
            count => Ok(count),
        }
    }

    /// Like [`Receiver::receive`], but reads only the IP family of the last datagram: for
    /// callers that expect more of a stream.
    ///
    /// # Errors
    /// If a system call fails. An empty socket is no error.
    pub fn receive_more(
        &mut self,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        self.drain(self.busy_v6, max, &mut each)
    }

    /// Like [`Receiver::receive`], but reads only the IP family of the last datagram. That
    /// saves a caller that polls in a loop one of two system calls. The caller must now and
    /// then read both families. In light traffic this reads one message and does not check
    /// for another.
    ///
    /// # Errors
    /// If a system call fails. An empty socket is no error.
    pub fn receive_busy(
        &mut self,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let most = if self.streak < STREAK { 1 } else { max };
        let count = self.drain(self.busy_v6, most, &mut each)?;
        self.streak = match count {
            0 => 0,
            _ => self.streak.saturating_add(1),
        };
        Ok(count)
    }

    /// Looks for the message that [`Receiver::receive_busy`] would receive, which then receives it without
    /// another system call. Returns false if there is none.
    ///
    /// # Errors
    /// If a system call fails. An empty socket is no error.
    #[inline]
    pub fn look(&mut self) -> io::Result<bool> {
        // In a streak one call receives several messages.
        if self.found > 0 || self.streak >= STREAK {
            return Ok(true);
        }
        let fd = match (self.busy_v6, &self.sockets.v6) {
            (true, Some(v6)) => v6,
            _ => &self.sockets.v4,
        };
        self.found = self.ring.fill(fd, 1, self.mmsg)?;
        if self.found == 0 {
            self.streak = 0;
        }
        Ok(self.found > 0)
    }

    /// Counts in `counters` as well from now on. Overflows are not among these counts: the
    /// kernel counts them. `counters` must have no other writer while this receiver receives.
    pub fn report_to(&mut self, counters: Arc<Counters>) {
        self.sorter.report_to(counters);
    }

    /// Returns the counts. This makes a system call per socket.
    pub fn stats(&self) -> ReceiveStats {
        let overflowed = self.sockets.dropped().wrapping_sub(self.dropped_before);
        ReceiveStats {
            overflowed: overflowed.into(),
            ..self.sorter.stats()
        }
    }

    /// Joins a multicast group on an interface. Joining a second time changes nothing.
    ///
    /// # Errors
    /// If there is no such interface or group, or the socket is a member of as many groups
    /// as the system allows, or this is slot 0.
    pub fn join_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        if self.sorter.slot() == 0 {
            let why = "slot 0 belongs to ferroced and joins no multicast groups";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        multicast::join(&self.sockets, group, ifindex)
    }

    /// Ends [`Receiver::join_multicast`].
    ///
    /// # Errors
    /// If a system call fails. Leaving a group without being a member is no error.
    pub fn leave_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        multicast::leave(&self.sockets, group, ifindex)
    }

    /// Reads one socket until it is empty or about `max` datagrams are delivered.
    fn drain(
        &mut self,
        v6: bool,
        max: usize,
        each: &mut impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let fd = match v6 {
            false => &self.sockets.v4,
            true => match &self.sockets.v6 {
                Some(fd) => fd,
                None => return Ok(0),
            },
        };
        let mut count = 0;
        // Counts discarded messages too, so that a flood of them cannot hold the caller.
        let mut seen = 0;
        while seen < max {
            let want = if self.many_small { BUFFERS } else { FEW };
            let want = (max - seen).min(want);
            let got = match core::mem::take(&mut self.found) {
                0 => self.ring.fill(fd, want, self.mmsg)?,
                found => found,
            };
            if got == 0 {
                break;
            }
            self.busy_v6 = v6;
            let mut bytes = 0;
            for index in 0..got {
                let message = self.ring.message(index);
                bytes += message.data.len();
                let ours = self.sorter.sort(message, &self.sockets.v4, each);
                count += ours;
                seen += ours.max(1);
            }
            self.many_small = got >= FEW && bytes < got * LARGE;
            if got < want && self.mmsg {
                break;
            }
        }
        Ok(count)
    }
}
