//! Receiving on one slot: batches in, one run of datagrams at a time out.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use ferroce_transport::Counters;

use crate::features::{self, Features};
use crate::incoming::IncomingRun;
use crate::recv_ring::{BUFFERS, RecvRing};
use crate::slot::SlotSockets;
use crate::sorter::Sorter;
use crate::{multicast, socket};

/// Messages asked for in light traffic, and of large ones: their bytes shall still be in
/// the cache when they are handed over.
const FEW: usize = 2;
/// Bytes of a large message: merged datagrams, as they come in a fast stream.
const LARGE: usize = 1 << 14;

/// So many messages, each found when one looked, are not light traffic.
const STREAK: u8 = 3;

/// Reads the sockets of one slot.
///
/// It does not block. [`Receiver::fds`] are for `epoll`, level-triggered.
pub struct Receiver {
    sockets: SlotSockets,
    ring: RecvRing,
    sorter: Sorter,
    mmsg: bool,
    /// The family that spoke last.
    busy_v6: bool,
    /// Several messages came at a time, last time, and no large ones.
    many_small: bool,
    /// How often in a row [`Receiver::receive_busy`] found something.
    streak: u8,
    /// What the sockets had lost when they came here.
    dropped_before: u32,
}

/// What a receiver has counted besides the datagrams it handed over.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct ReceiveStats {
    /// Packets of other slots, found in merged buffers and passed on.
    pub forwarded: u64,
    /// Such packets that could not be passed on.
    pub forward_failed: u64,
    /// Our packets that another slot found and passed on to us; they are among
    /// those handed over.
    pub adopted: u64,
    /// Datagrams thrown away because they made no sense: longer than a
    /// buffer, or passed on to the wrong slot.
    pub discarded: u64,
    /// Datagrams, merged ones counted as one, that the kernel dropped because the
    /// socket's buffer was full.
    pub overflowed: u64,
}

impl Receiver {
    /// Reads the sockets of `slot`.
    pub fn new(slot: u8, sockets: SlotSockets) -> Receiver {
        Receiver::with_features(slot, sockets, &features::probe())
    }

    /// As [`Receiver::new`], with less than the kernel offers.
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
        }
    }

    /// The descriptors to wait on: IPv4 and, where there is one, IPv6.
    pub fn fds(&self) -> (RawFd, Option<RawFd>) {
        let v6 = self.sockets.v6.as_ref();
        (self.sockets.v4.as_raw_fd(), v6.map(AsRawFd::as_raw_fd))
    }

    /// Whose packets it reads.
    pub fn slot(&self) -> u8 {
        self.sorter.slot()
    }

    /// Bytes that wait in a socket before it drops more, as the kernel counts them:
    /// with what it needs itself.
    pub fn buffer(&self) -> usize {
        socket::receive_buffer(&self.sockets.v4)
    }

    /// Has the kernel show hop limits, as it does at first, or spares it that: then all
    /// are 0.
    ///
    /// # Errors
    /// If the kernel refuses, which it has no reason to.
    pub fn show_hop_limits(&self, show: bool) -> io::Result<()> {
        let show = i32::from(show);
        let v4 = &self.sockets.v4;
        socket::set_number(v4, libc::SOL_IP, libc::IP_RECVTTL, show)?;
        let v6 = self.sockets.v6.as_ref();
        v6.map_or(Ok(()), |v6| {
            socket::set_number(v6, libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT, show)
        })
    }

    /// The sockets themselves.
    pub fn sockets(&self) -> &SlotSockets {
        &self.sockets
    }

    /// Hands over datagrams that wait, until there is none left or `max` have been
    /// handed over (the last buffer is finished, so it may be some more). Returns
    /// how many it were.
    ///
    /// # Errors
    /// If the kernel fails; that nothing waits is no error.
    pub fn receive(
        &mut self,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        let first = self.busy_v6;
        let count = self.drain(first, max, &mut each)?;
        // However much there is of one family, the other has its turn.
        let rest = max.saturating_sub(count).max(max.min(1));
        Ok(count + self.drain(!first, rest, &mut each)?)
    }

    /// As [`Receiver::receive`], but looks only at the IP family that spoke last, for
    /// those who have just received much and expect more.
    ///
    /// # Errors
    /// If the kernel fails; that nothing waits is no error.
    pub fn receive_more(
        &mut self,
        max: usize,
        mut each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize> {
        self.drain(self.busy_v6, max, &mut each)
    }

    /// As [`Receiver::receive`], but looks only at the IP family that spoke last, which
    /// spares those who call it over and over one of two system calls. Zero does not
    /// mean that nothing waits; now and then they must look at both. In light traffic it
    /// takes one message and does not ask whether there is another.
    ///
    /// # Errors
    /// If the kernel fails; that nothing waits is no error.
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

    /// Also counts in `counters` from now on, except overflows: those the kernel counts.
    /// `counters` must have no other writer while this receiver receives.
    pub fn report_to(&mut self, counters: Arc<Counters>) {
        self.sorter.report_to(counters);
    }

    /// What has been counted so far. Asks the kernel, so not after every packet.
    pub fn stats(&self) -> ReceiveStats {
        let overflowed = self.sockets.dropped().wrapping_sub(self.dropped_before);
        ReceiveStats {
            overflowed: overflowed.into(),
            ..self.sorter.stats()
        }
    }

    /// Receives what is sent to a multicast group on an interface. Joining twice
    /// is once.
    ///
    /// # Errors
    /// If there is no such interface or group, or one socket is in as many groups
    /// as the system allows. Slot 0 is in no groups.
    pub fn join_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        if self.sorter.slot() == 0 {
            let why = "slot 0 is the daemon's and joins no multicast groups";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        multicast::join(&self.sockets, group, ifindex)
    }

    /// Ends [`Receiver::join_multicast`].
    ///
    /// # Errors
    /// If the kernel refuses; that it is not in the group is no error.
    pub fn leave_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        multicast::leave(&self.sockets, group, ifindex)
    }

    /// All that waits on one socket, up to about `max`.
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
        // What is not handed over counts here too, lest a flood of it keeps us.
        let mut seen = 0;
        while seen < max {
            let want = if self.many_small { BUFFERS } else { FEW };
            let want = (max - seen).min(want);
            let got = self.ring.fill(fd, want, self.mmsg)?;
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
