//! Sending runs of packets.
//!
//! A run of equal packets is one system call, by UDP_SEGMENT. Over IPv4 its packets
//! travel under the identifications 0, 1, 2, ..., which their ICRCs must have been
//! computed for. Where the kernel cannot segment, each packet is a datagram of its
//! own, under identification 0: [`Sender::ids_in_run`] tells beforehand which it
//! will be. Some ways cannot be segmented although the kernel can (IPsec); those
//! packets get new ICRCs here.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use ferroce_transport::{Path, RunLimits};

use crate::features::{self, Features};
use crate::send_error::{PartialSend, SendError};
use crate::steering::SLOT_MASK;
use crate::syscall::{self, MAX_MESSAGES, Outgoing};
use crate::tx_message::Way;
use crate::tx_ports::{TxPort, TxPorts};

/// The longest run that one segmented send takes, on every kernel that has UDP_SEGMENT,
/// and the slot that all its packets are for.
pub const RUN_LIMITS: RunLimits = RunLimits {
    packets: 64,
    bytes: 65_000,
    qpn_mask: SLOT_MASK,
};

/// Sockets per IP family, unless said otherwise.
const PORT_LIMIT: usize = 64;

/// Sends packets to port 4791 of other machines, or of this one.
pub struct Sender {
    gso: bool,
    mmsg: bool,
    v4: TxPorts,
    v6: TxPorts,
}

/// A run to be sent: packets one behind the other.
#[derive(Copy, Clone, Debug)]
pub struct TxRun<'a> {
    /// The way. The source port must be one that [`Sender::bind`] returned.
    pub path: &'a Path,
    /// Bytes of each packet but perhaps the last, which may be shorter.
    pub segment: usize,
    /// The packets, ICRCs included.
    pub bytes: &'a [u8],
    /// The interface to leave by. A must for multicast and link-local addresses; a
    /// wish for others.
    pub ifindex: Option<u32>,
}

impl Sender {
    /// A sender with no sockets yet.
    pub fn new() -> Sender {
        Sender::with_features(&features::probe(), PORT_LIMIT)
    }

    /// As [`Sender::new`], with less than the kernel offers, and with up to
    /// `ports` sockets per IP family.
    pub fn with_features(features: &Features, ports: usize) -> Sender {
        Sender {
            gso: features.gso,
            mmsg: features.mmsg,
            v4: TxPorts::new(false, ports),
            v6: TxPorts::new(true, ports),
        }
    }

    /// Opens a socket on a UDP source port and returns the port to use: another
    /// one if this is taken, or shared with others if there are many already. The
    /// same question has the same answer, at the cost of an array access.
    ///
    /// # Errors
    /// If no socket can be had.
    pub fn bind(&mut self, want: u16, v6: bool) -> io::Result<u16> {
        let ports = if v6 { &mut self.v6 } else { &mut self.v4 };
        ports.bind(want, None)
    }

    /// As [`Sender::bind`], for flows from one address, which need not say so with each
    /// packet if the socket can be bound to it. It may serve others all the same.
    ///
    /// # Errors
    /// If no socket can be had.
    pub fn bind_from(&mut self, want: u16, source: IpAddr) -> io::Result<u16> {
        match source.to_canonical() {
            // The kernel checks the source of each packet, wherever it is said.
            IpAddr::V4(source) => self.v4.bind(want, Some(source)),
            // Here it checks only what is said with the packet.
            IpAddr::V6(_) => self.v6.bind(want, None),
        }
    }

    /// Whether the packets of a run travel over IPv4 under identifications 0, 1,
    /// 2, ... If not, all do under 0. Compute the ICRCs accordingly.
    pub fn ids_in_run(&self) -> bool {
        self.gso
    }

    /// The descriptor to wait on after [`SendError::WouldBlock`].
    pub fn fd(&self, path: &Path) -> Option<RawFd> {
        Some(self.port(path).ok()?.socket.as_raw_fd())
    }

    /// Sends a run.
    ///
    /// # Errors
    /// If none of it was sent. Where the kernel cannot segment, and refuses a
    /// packet in the middle, the rest counts as lost.
    pub fn send_run(
        &self,
        path: &Path,
        segment: usize,
        bytes: &[u8],
        ifindex: Option<u32>,
    ) -> Result<(), SendError> {
        let run = TxRun {
            path,
            segment,
            bytes,
            ifindex,
        };
        let port = self.port(path)?;
        let way = Way::new(path, ifindex, port.source);
        let single = bytes.len() <= segment;
        if !single && !self.gso {
            return self.send_each(&port.socket, &run, &way, false);
        }
        let (socket, plain) = (&port.socket, way.is_plain());
        let sent = match port.segments.to_say(socket, run.segmented(), plain) {
            None if plain => syscall::send_plainly(socket, way.name(), bytes),
            segment => syscall::send(socket, &way.message(bytes, segment)),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(error) => self.retry(port, &run, &way, error),
        }
    }

    /// Sends several runs, in order, with as few system calls as possible: one if
    /// they all have the same source port.
    ///
    /// # Errors
    /// If one was not sent; says how many were before it.
    pub fn send_runs(&self, runs: &[TxRun<'_>]) -> Result<(), PartialSend> {
        let mut sent = 0;
        while sent < runs.len() {
            let rest = &runs[sent..];
            let together = self.sendable_together(rest);
            let result = match together {
                0 | 1 => {
                    let run = &rest[0];
                    self.send_run(run.path, run.segment, run.bytes, run.ifindex)
                        .map(|()| 1)
                }
                _ => self.send_together(&rest[..together]),
            };
            sent += result.map_err(|error| PartialSend { sent, error })?;
        }
        Ok(())
    }

    /// How many of the first runs leave from one socket as one message each.
    fn sendable_together(&self, runs: &[TxRun<'_>]) -> usize {
        let first = runs[0].path.flow;
        runs.iter()
            .take(MAX_MESSAGES)
            .take_while(|run| {
                let flow = &run.path.flow;
                flow.source_port == first.source_port
                    && flow.is_ipv4() == first.is_ipv4()
                    && (self.gso || run.bytes.len() <= run.segment)
            })
            .count()
    }

    /// Sends runs from one socket; says how many left. If the first did not, it
    /// is tried again by itself.
    fn send_together(&self, runs: &[TxRun<'_>]) -> Result<usize, SendError> {
        let port = self.port(runs[0].path)?;
        let (socket, source) = (&port.socket, port.source);
        port.segments.forget(socket);
        let mut messages = [Outgoing::EMPTY; MAX_MESSAGES];
        for (message, run) in messages.iter_mut().zip(runs) {
            *message = Way::new(run.path, run.ifindex, source).message(run.bytes, run.segmented());
        }
        match syscall::send_many(socket, &messages[..runs.len()], self.mmsg) {
            Ok(sent) => Ok(sent),
            Err(error) => {
                let run = &runs[0];
                let way = Way::new(run.path, run.ifindex, source);
                self.retry(port, run, &way, error).map(|()| 1)
            }
        }
    }

    /// What can be done about an error: another interface, or no segmentation.
    #[cold]
    fn retry(
        &self,
        port: &TxPort,
        run: &TxRun<'_>,
        way: &Way,
        error: io::Error,
    ) -> Result<(), SendError> {
        let socket = &port.socket;
        let (mut way, mut error) = (*way, error);
        if error.kind() != io::ErrorKind::WouldBlock && port.segments.forget(socket) {
            // What the socket had been told may not do on this way.
            match syscall::send(socket, &way.message(run.bytes, run.segmented())) {
                Ok(()) => return Ok(()),
                Err(e) => error = e,
            }
        }
        let code = error.raw_os_error();
        let unroutable = [
            libc::ENETUNREACH,
            libc::EHOSTUNREACH,
            libc::EINVAL,
            libc::ENODEV,
        ];
        if code.is_some_and(|code| unroutable.contains(&code))
            && let Some(other) = way.any_interface()
        {
            way = other;
            match syscall::send(socket, &way.message(run.bytes, run.segmented())) {
                Ok(()) => return Ok(()),
                Err(e) => error = e,
            }
        }
        // EIO: not on this way. EINVAL: that too, or what each packet will tell.
        let segmentation = [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP];
        let code = error.raw_os_error();
        if run.segmented().is_some() && code.is_some_and(|code| segmentation.contains(&code)) {
            return self.send_each(socket, run, &way, true);
        }
        Err(way.explain(error, run.segment))
    }

    /// Sends each packet by itself. `numbered`: their ICRCs are for the
    /// identifications of a segmented run.
    #[cold]
    fn send_each(
        &self,
        socket: &OwnedFd,
        run: &TxRun<'_>,
        way: &Way,
        numbered: bool,
    ) -> Result<(), SendError> {
        let mut messages = [Outgoing::EMPTY; MAX_MESSAGES];
        let mut gone = 0;
        let packets: usize = run.bytes.len().div_ceil(run.segment.max(1));
        while gone < packets {
            let rest = run.bytes[gone * run.segment..].chunks(run.segment);
            let mut count = 0;
            for (message, packet) in messages.iter_mut().zip(rest) {
                *message = way.message(packet, None);
                let ip_id = if numbered { gone + count } else { 0 };
                if let Some((body, trailer)) = run.path.clear_ip_id(ip_id as u16, packet) {
                    message.body = body;
                    message.tail = trailer;
                    message.tail_len = trailer.len();
                }
                count += 1;
            }
            match syscall::send_many(socket, &messages[..count], self.mmsg) {
                Ok(sent) => gone += sent,
                // The first ones cannot be taken back, and must not be sent twice.
                Err(_) if gone > 0 => return Ok(()),
                Err(error) => match way.any_interface() {
                    Some(way) => return self.send_each(socket, run, &way, numbered),
                    None => return Err(way.explain(error, run.segment)),
                },
            }
        }
        Ok(())
    }

    fn port(&self, path: &Path) -> Result<&TxPort, SendError> {
        let ports = if path.flow.is_ipv4() {
            &self.v4
        } else {
            &self.v6
        };
        let port = path.flow.source_port;
        ports.port(port).ok_or(SendError::NotBound(port))
    }
}

impl Default for Sender {
    fn default() -> Sender {
        Sender::new()
    }
}

impl TxRun<'_> {
    /// The segment size to tell the kernel, if there is more than one.
    fn segmented(&self) -> Option<u16> {
        debug_assert!(self.bytes.len() <= self.segment * RUN_LIMITS.packets);
        (self.bytes.len() > self.segment).then_some(self.segment as u16)
    }
}
