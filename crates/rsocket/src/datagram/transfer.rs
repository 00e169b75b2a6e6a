//! Sending and receiving datagrams, and the exchange of queue pair numbers.

use std::net::{IpAddr, SocketAddr};

use rustix::net::{RecvFlags, SendFlags};

use super::local::MAX_MESSAGE;
use super::state::State;
use super::{Datagram, udp};
use crate::wire::{AddressHeader, DatagramHeader, MAX_DATAGRAM_HEADER};
use crate::{Errno, Result};

impl Datagram {
    /// Sends a datagram to an address, or to the connected peer. Knows the flag DONTWAIT.
    ///
    /// # Errors
    ///
    /// EDESTADDRREQ without an address; EMSGSIZE, EHOSTUNREACH, ENODEV. EAGAIN if a
    /// non-blocking call would wait, also for the queue pair of its source address: the socket
    /// is writable when that is open.
    pub fn send(&self, data: &[u8], to: Option<SocketAddr>, flags: SendFlags) -> Result<usize> {
        let nonblocking = self.nonblocking() || flags.contains(SendFlags::DONTWAIT);
        let to = loop {
            let source = {
                let mut state = self.lock();
                let to = to.or(state.connected).ok_or(Errno::DESTADDRREQ)?;
                let peer = state.peers.get(&to);
                if peer.is_some_and(|peer| peer.route.is_some()) {
                    break to;
                }
                self.step(&mut state);
                match self.introduce(&mut state, to)? {
                    None => break to,
                    Some(source) => source,
                }
            };
            self.open_for_sender(source, nonblocking)?;
        };
        self.wait(nonblocking, |state| match self.try_send(state, data, to) {
            Err(Errno::AGAIN) => None,
            result => Some(result),
        })?;
        Ok(data.len())
    }

    fn try_send(&self, state: &mut State, data: &[u8], to: SocketAddr) -> Result<()> {
        let peer = state.peers.get(&to).ok_or(Errno::HOSTUNREACH)?;
        let local = &mut state.locals[peer.local];
        let port = udp::local_addr(&self.udp).map_or(0, |addr| addr.port());
        let (address, length) = AddressHeader(SocketAddr::new(local.ip, port)).encode();
        local.check_length(length.saturating_add(data.len()))?;
        let Some(route) = &peer.route else {
            let header = DatagramHeader {
                data: true,
                qpn: local.queue.number(),
                to: to.ip(),
            };
            return self.send_udp(&header, data, to);
        };
        local.send(&[&address[..length], data], route)
    }

    fn send_udp(&self, header: &DatagramHeader, data: &[u8], to: SocketAddr) -> Result<()> {
        let (bytes, length) = header.encode();
        let mut datagram = Vec::with_capacity(MAX_DATAGRAM_HEADER + data.len());
        datagram.extend_from_slice(&bytes[..length]);
        datagram.extend_from_slice(data);
        let sent = match self.is_connected_to(to) {
            true => rustix::net::send(&self.udp, &datagram, SendFlags::empty()),
            false => rustix::net::sendto(&self.udp, &datagram, SendFlags::empty(), &to),
        };
        sent.map(|_| ())
    }

    /// True if the UDP socket is connected to this peer: then `sendto` fails with EISCONN.
    fn is_connected_to(&self, to: SocketAddr) -> bool {
        let peer = rustix::net::getpeername(&self.udp).ok().flatten();
        peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(to)
    }

    /// Adds an unknown peer, with the queue pair of the source address for it. Returns the
    /// source address if its queue pair is not open.
    fn introduce(&self, state: &mut State, to: SocketAddr) -> Result<Option<IpAddr>> {
        if state.peers.contains_key(&to) {
            return Ok(None);
        }
        let mut bound = udp::local_addr(&self.udp);
        if bound.is_none_or(|bound| bound.port() == 0) {
            // Each header carries the port, so the first datagram needs it.
            let any: IpAddr = match to {
                SocketAddr::V4(_) => [0; 4].into(),
                SocketAddr::V6(_) => [0; 16].into(),
            };
            rustix::net::bind(&self.udp, &SocketAddr::new(any, 0))?;
            bound = udp::local_addr(&self.udp);
        }
        let source = match bound {
            Some(bound) if !bound.ip().is_unspecified() => bound.ip(),
            _ => udp::source_for(&to)?.ip(),
        };
        let Some(local) = state.local(source) else {
            return Ok(Some(source));
        };
        state.peer(to, local)?;
        Ok(None)
    }

    /// Hands the oldest datagram and its sender to `take`, and returns the result. Knows the
    /// flags DONTWAIT and PEEK.
    ///
    /// # Errors
    ///
    /// EAGAIN if the socket is non-blocking and there is no datagram; EBADF if it is closed.
    pub fn receive(
        &self,
        flags: RecvFlags,
        mut take: impl FnMut(SocketAddr, &[u8]) -> usize,
    ) -> Result<usize> {
        let nonblocking = self.nonblocking() || flags.contains(RecvFlags::DONTWAIT);
        self.wait(nonblocking, |state| {
            let (from, bytes) = state.received.front()?;
            let taken = take(*from, bytes);
            if !flags.contains(RecvFlags::PEEK) {
                state.received.pop_front();
            }
            Some(Ok(taken))
        })
    }

    /// Takes completions, and datagrams of the UDP socket.
    pub(super) fn step(&self, state: &mut State) {
        state.progress();
        let mut buffer = [0; MAX_MESSAGE + MAX_DATAGRAM_HEADER];
        loop {
            let got = rustix::net::recvfrom(&self.udp, &mut buffer, RecvFlags::DONTWAIT);
            let Ok((length, _, Some(from))) = got else {
                return;
            };
            let Ok(from) = SocketAddr::try_from(from) else {
                continue;
            };
            match DatagramHeader::decode(&buffer[..length]) {
                Err(error) => tracing::debug!("a datagram of {from} is dropped: {}", error.0),
                Ok((header, data)) => {
                    if let Err(errno) = self.introduced(state, from, &header) {
                        tracing::debug!("no route to the queue pair of {from}: {errno}");
                    }
                    if header.data {
                        state.deliver(from, data);
                    }
                }
            }
        }
    }

    /// Stores the peer's queue pair number, and answers a data message with ours. If we have
    /// no queue pair yet, a later message is answered: until then the peer uses UDP.
    fn introduced(
        &self,
        state: &mut State,
        from: SocketAddr,
        header: &DatagramHeader,
    ) -> Result<()> {
        let local = match state.peers.get(&from) {
            Some(peer) => peer.local,
            None => match state.local(header.to) {
                Some(local) => local,
                None => {
                    self.open_for_peer(state, header.to);
                    return Ok(());
                }
            },
        };
        let number = state.locals[local].queue.number();
        let route = state.locals[local].route(from.ip(), header.qpn)?;
        let peer = state.peer(from, local)?;
        if peer
            .route
            .as_ref()
            .is_none_or(|known| known.qpn != route.qpn)
        {
            peer.route = Some(route);
        }
        if header.data {
            let answer = DatagramHeader {
                data: false,
                qpn: number,
                to: from.ip(),
            };
            return self.send_udp(&answer, &[], from);
        }
        Ok(())
    }
}
