//! The interface between a shard and the network: [`Wire`].
//!
//! A shard receives runs of datagrams from its wire, and sends runs of packets on it. The
//! wire of a program is [`UdpWire`](crate::UdpWire). The simulator has another one. A
//! wrapper over any wire can count, drop or record packets.
//!
//! All calls are statically dispatched: a wire costs no indirect call per packet.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use ferroce_roce::{Path, RunLimits};

use crate::{IncomingRun, SendError};

/// The network, as one shard uses it. No call blocks.
pub trait Wire {
    /// The sending half.
    type Sender: WireSender;

    /// Takes the sending half, so that one thread can send while another receives. A shard
    /// calls it once.
    fn take_sender(&mut self) -> Self::Sender;

    /// Receives waiting datagrams and passes them to `each`, one run at a time. Stops when
    /// no datagram waits, or after `max` datagrams; the last run is always passed whole.
    /// Returns the number of datagrams.
    ///
    /// # Errors
    /// If the kernel reports an error other than an empty queue.
    fn receive(
        &mut self,
        scope: Scope,
        max: usize,
        each: impl FnMut(&IncomingRun<'_>),
    ) -> io::Result<usize>;

    /// Looks for a datagram, which the next [`Wire::receive`] with the same scope passes on. Returns false
    /// if none waits. A call takes less time than [`Wire::receive`], and most calls of a program that
    /// polls find nothing. A wire that cannot tell returns true.
    ///
    /// # Errors
    /// As [`Wire::receive`].
    fn look(&mut self, _scope: Scope) -> io::Result<bool> {
        Ok(true)
    }

    /// Returns duplicates of the descriptors that become readable when a datagram waits.
    ///
    /// # Errors
    /// If the process has too many open files.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>>;

    /// Joins a multicast group. A second call for the same group has no effect.
    ///
    /// # Errors
    /// If the wire cannot join the group.
    fn join_multicast(&mut self, group: IpAddr) -> io::Result<()>;

    /// Leaves a multicast group. Without a membership the call has no effect.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn leave_multicast(&mut self, group: IpAddr) -> io::Result<()>;

    /// Chooses whether received datagrams have their hop limit; without, it is 0.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn report_hop_limits(&mut self, report: bool) -> io::Result<()>;

    /// Returns true if the last packets came through memory that is shared with a process of
    /// this host, and not from a socket.
    fn is_memory_busy(&self) -> bool {
        false
    }

    /// Returns true if a packet waits in such memory.
    fn has_packet_in_memory(&self) -> bool {
        false
    }

    /// Returns the constant properties of the wire.
    fn properties(&self) -> Properties;
}

/// The sending half of a [`Wire`]. No call blocks.
pub trait WireSender {
    /// Sends a run: packets of `segment` bytes one behind the other in `bytes`, of which
    /// only the last may be shorter. The source port of `path` is one that
    /// [`WireSender::bind`] returned. The ICRCs follow the rule in [`Properties::ip_ids`].
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] if the wire has no room: send the run again later. After
    /// any other error the run is lost.
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8]) -> Result<(), SendError>;

    /// Ends the wait for a receiver that has had no room for a long time: until it makes room,
    /// runs to it are lost at once.
    fn give_up(&mut self, _path: &Path, _bytes: &[u8]) {}

    /// Prepares to send from a UDP source port, `want` if possible. Returns the port to use.
    ///
    /// # Errors
    /// If no port is available.
    fn bind(&mut self, want: u16, source: Source) -> io::Result<u16>;
}

/// The queues that one call of [`Wire::receive`] looks at. A UDP wire has a queue per IP
/// family, and looking at a queue costs a system call. Packets in shared memory, if the wire
/// has any, are part of every scope. Only the first two scopes can find that no datagram
/// waits at all.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Both IP families.
    AllFamilies,
    /// The IP family of the last datagram, and the other one if that has no datagram. This
    /// saves the second system call in most turns. It must alternate with
    /// [`Scope::AllFamilies`], or a flood over one family would hold up the other.
    EitherFamily,
    /// The IP family of the last datagram, until its queue is empty.
    LastFamily,
    /// The IP family of the last datagram, and in light traffic only its oldest message.
    OneMessage,
    /// Packets in shared memory only.
    Memory,
}

/// The source of packets that leave from one port.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// One address: that of a connected queue pair.
    Address(IpAddr),
    /// Any address of either IP family: each packet's path names its own.
    Any,
}

/// The constant properties of a wire.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Properties {
    /// Number of the slot whose packets arrive here: the top byte of their destination QPN.
    pub slot: u8,
    /// Bytes that the receive queue of one IP family holds, as the kernel counts them.
    pub receive_buffer: usize,
    /// IPv4 identifications of the packets of a run, which the ICRC covers.
    pub ip_ids: IpIds,
    /// The longest run, in UDP payload, and the packets that may share one.
    pub run_limits: RunLimits,
}

/// The IPv4 identifications of the packets of a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum IpIds {
    /// 0, 1, 2, ...: the kernel numbers the segments of a run.
    Numbered,
    /// 0 for every packet.
    Zero,
}
