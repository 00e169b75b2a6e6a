//! Sends runs of packets.
//!
//! A run of packets of equal size takes one system call, by UDP_SEGMENT. Over IPv4 the
//! kernel gives the segments the identifications 0, 1, 2, ..., and the trailers of the
//! packets must match. A kernel without UDP_SEGMENT sends each packet as a datagram of its
//! own, with identification 0. [`Sender::ids_in_run`] tells which of the two applies. Some
//! routes do not support segmentation although the kernel does (IPsec). There the sender
//! replaces the trailers by those for identification 0, with [`Path::clear_ip_id`].

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use ferroce_roce::{Path, RunLimits};

use crate::features::{self, Features};
use crate::send_error::{PartialSend, SendError};
use crate::steering::SLOT_MASK;
use crate::syscall::{self, MAX_MESSAGES, Outgoing};
use crate::tx_message::Route;
use crate::tx_ports::{TxPort, TxPorts};

/// The longest run that one segmented send takes, on every kernel that has UDP_SEGMENT,
/// and the slot that all its packets are for.
pub const RUN_LIMITS: RunLimits = RunLimits {
    packets: 64,
    bytes: 65_000,
    qpn_mask: SLOT_MASK,
};

/// Most sockets per IP family, by default.
const PORT_LIMIT: usize = 64;

/// Sends packets to port 4791 of other machines, or of this machine.
pub struct Sender {
    gso: bool,
    mmsg: bool,
    v4: TxPorts,
    v6: TxPorts,
}

/// A run to send.
#[derive(Copy, Clone, Debug)]
pub struct TxRun<'a> {
    /// The path. Its source port must be one that [`Sender::bind`] returned.
    pub path: &'a Path,
    /// Bytes of each packet; the last may be shorter.
    pub segment: usize,
    /// The packets, with their trailers, without gaps.
    pub bytes: &'a [u8],
    /// The outgoing interface. Multicast and link-local addresses need one. For other
    /// addresses the sender falls back to routing.
    pub ifindex: Option<u32>,
}

impl Sender {
    /// Returns a sender without sockets.
    pub fn new() -> Sender {
        Sender::with_features(&features::probe(), PORT_LIMIT)
    }

    /// Like [`Sender::new`], with only some of the kernel's features and at most `ports`
    /// sockets per IP family.
    pub fn with_features(features: &Features, ports: usize) -> Sender {
        Sender {
            gso: features.gso,
            mmsg: features.mmsg,
            v4: TxPorts::new(false, ports),
            v6: TxPorts::new(true, ports),
        }
    }

    /// Opens a socket on UDP source port `want` and returns the port to use. That is another
    /// port if `want` is in use, or a shared one if the limit of sockets is reached. The
    /// same `want` returns the same port again, for the cost of an array access.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn bind(&mut self, want: u16, v6: bool) -> io::Result<u16> {
        let ports = if v6 { &mut self.v6 } else { &mut self.v4 };
        ports.bind(want, None)
    }

    /// Like [`Sender::bind`], for flows from one address. If the socket can be bound to that
    /// address, its messages need no control message with the source. Flows from other
    /// addresses may use the socket too.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn bind_from(&mut self, want: u16, source: IpAddr) -> io::Result<u16> {
        match source.to_canonical() {
            // The kernel checks the source of each packet, bound or in a control message.
            IpAddr::V4(source) => self.v4.bind(want, Some(source)),
            // For IPv6 the kernel checks only a source in a control message.
            IpAddr::V6(_) => self.v6.bind(want, None),
        }
    }

    /// Returns true if the packets of a run have the IPv4 identifications 0, 1, 2, ..., and
    /// false if all have 0. The trailers of the packets must match.
    pub fn ids_in_run(&self) -> bool {
        self.gso
    }

    /// Returns the descriptor to wait on after [`SendError::WouldBlock`].
    pub fn fd(&self, path: &Path) -> Option<RawFd> {
        Some(self.port(path).ok()?.socket.as_raw_fd())
    }

    /// Sends a run.
    ///
    /// # Errors
    /// If no packet was sent. If the kernel does not segment and refuses a packet in the
    /// middle, the rest of the run counts as lost.
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
        let route = Route::new(path, ifindex, port.source);
        let single = bytes.len() <= segment;
        if !single && !self.gso {
            return self.send_each(&port.socket, &run, &route, false);
        }
        let (socket, plain) = (&port.socket, route.is_plain());
        let sent = match port.segments.to_send(socket, run.segmented(), plain) {
            None if plain => syscall::send_to(socket, route.name(), bytes),
            segment => syscall::send(socket, &route.message(bytes, segment)),
        };
        match sent {
            Ok(()) => Ok(()),
            Err(error) => self.retry(port, &run, &route, error),
        }
    }

    /// Sends several runs in order. Runs with the same source port share a system call.
    ///
    /// # Errors
    /// If a run was not sent. The error tells how many were sent before.
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

    /// Returns how many of the first runs use one socket and are one message each.
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

    /// Sends runs from one socket and returns how many were sent. If the first one was not,
    /// this retries it alone.
    fn send_together(&self, runs: &[TxRun<'_>]) -> Result<usize, SendError> {
        let port = self.port(runs[0].path)?;
        let (socket, source) = (&port.socket, port.source);
        port.segments.clear(socket);
        let mut messages = [Outgoing::EMPTY; MAX_MESSAGES];
        for (message, run) in messages.iter_mut().zip(runs) {
            *message =
                Route::new(run.path, run.ifindex, source).message(run.bytes, run.segmented());
        }
        match syscall::send_many(socket, &messages[..runs.len()], self.mmsg) {
            Ok(sent) => Ok(sent),
            Err(error) => {
                let run = &runs[0];
                let route = Route::new(run.path, run.ifindex, source);
                self.retry(port, run, &route, error).map(|()| 1)
            }
        }
    }

    /// Retries after an error: without the segment size option, without the interface, or
    /// without segmentation.
    #[cold]
    fn retry(
        &self,
        port: &TxPort,
        run: &TxRun<'_>,
        route: &Route,
        error: io::Error,
    ) -> Result<(), SendError> {
        let socket = &port.socket;
        let (mut route, mut error) = (*route, error);
        if error.kind() != io::ErrorKind::WouldBlock && port.segments.clear(socket) {
            // The segment size option may not suit this route.
            match syscall::send(socket, &route.message(run.bytes, run.segmented())) {
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
            && let Some(other) = route.any_interface()
        {
            route = other;
            match syscall::send(socket, &route.message(run.bytes, run.segmented())) {
                Ok(()) => return Ok(()),
                Err(e) => error = e,
            }
        }
        // EIO: this route does not support segmentation. EINVAL: the same, or an error that
        // each single packet reports again.
        let segmentation = [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP];
        let code = error.raw_os_error();
        if run.segmented().is_some() && code.is_some_and(|code| segmentation.contains(&code)) {
            return self.send_each(socket, run, &route, true);
        }
        Err(route.explain(error, run.segment))
    }

    /// Sends each packet as a datagram. `numbered` is true if the trailers are those for the
    /// identifications 0, 1, 2, ...
    #[cold]
    fn send_each(
        &self,
        socket: &OwnedFd,
        run: &TxRun<'_>,
        route: &Route,
        numbered: bool,
    ) -> Result<(), SendError> {
        let mut messages = [Outgoing::EMPTY; MAX_MESSAGES];
        let mut gone = 0;
        let packets: usize = run.bytes.len().div_ceil(run.segment.max(1));
        while gone < packets {
            let rest = run.bytes[gone * run.segment..].chunks(run.segment);
            let mut count = 0;
            for (message, packet) in messages.iter_mut().zip(rest) {
                *message = route.message(packet, None);
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
                // The first packets are sent and must not be sent twice.
                Err(_) if gone > 0 => return Ok(()),
                Err(error) => match route.any_interface() {
                    Some(route) => return self.send_each(socket, run, &route, numbered),
                    None => return Err(route.explain(error, run.segment)),
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
    /// Returns the segment size to give to the kernel, if there are several packets.
    fn segmented(&self) -> Option<u16> {
        debug_assert!(self.bytes.len() <= self.segment * RUN_LIMITS.packets);
        (self.bytes.len() > self.segment).then_some(self.segment as u16)
    }
}
