//! Datagrams in and out, and how peers get to know each other's queue pairs.

use core::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::{RecvFlags, SendFlags};

use super::book::Book;
use super::local::MAX_MESSAGE;
use super::{Datagram, udp};
use crate::rsocket::wire::{AddressHeader, DatagramHeader, MAX_DATAGRAM_HEADER};

impl Datagram {
    /// Sends to a peer, or to the one it is connected to.
    pub(crate) fn send(
        &self,
        data: &[u8],
        to: Option<SocketAddr>,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let nonblocking = self.nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let to = {
            let mut book = self.lock();
            let to = to.or(book.connected).ok_or(libc::EDESTADDRREQ)?;
            let known = book.peers.get(&to).is_some_and(|peer| peer.way.is_some());
            if !known {
                self.step(&mut book);
                self.introduce(&mut book, to)?;
            }
            to
        };
        self.wait(nonblocking, |book| match self.try_send(book, data, to) {
            Err(libc::EAGAIN) => None,
            result => Some(result),
        })?;
        Ok(data.len())
    }

    fn try_send(&self, book: &mut Book, data: &[u8], to: SocketAddr) -> Result<(), c_int> {
        let peer = book.peers.get(&to).ok_or(libc::EHOSTUNREACH)?;
        let local = &mut book.locals[peer.local];
        let Some(way) = &peer.way else {
            let header = DatagramHeader {
                data: true,
                qpn: local.queue.number(),
                to: to.ip(),
            };
            return self.send_udp(&header, data, to);
        };
        let port = udp::local(&self.udp).map_or(0, |addr| addr.port());
        let (header, length) = AddressHeader(SocketAddr::new(local.ip, port)).encode();
        local.send(&[&header[..length], data], way)
    }

    fn send_udp(&self, header: &DatagramHeader, data: &[u8], to: SocketAddr) -> Result<(), c_int> {
        let (bytes, length) = header.encode();
        let mut datagram = Vec::with_capacity(MAX_DATAGRAM_HEADER + data.len());
        datagram.extend_from_slice(&bytes[..length]);
        datagram.extend_from_slice(data);
        let sent = match self.is_connected_to(to) {
            true => rustix::net::send(&self.udp, &datagram, SendFlags::empty()),
            false => rustix::net::sendto(&self.udp, &datagram, SendFlags::empty(), &to),
        };
        sent.map(|_| ()).map_err(|error| error.raw_os_error())
    }

    /// Whether the kernel's socket is connected to a peer, and wants no address.
    fn is_connected_to(&self, to: SocketAddr) -> bool {
        let peer = rustix::net::getpeername(&self.udp).ok().flatten();
        peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(to)
    }

    /// Finds out from where a new peer is reached.
    fn introduce(&self, book: &mut Book, to: SocketAddr) -> Result<(), c_int> {
        if book.peers.contains_key(&to) {
            return Ok(());
        }
        let mut bound = udp::local(&self.udp);
        if bound.is_none_or(|bound| bound.port() == 0) {
            // The port is in every header: it must be known before the first.
            let any: IpAddr = match to {
                SocketAddr::V4(_) => [0; 4].into(),
                SocketAddr::V6(_) => [0; 16].into(),
            };
            udp::bind(&self.udp, &SocketAddr::new(any, 0))?;
            bound = udp::local(&self.udp);
        }
        let source = match bound {
            Some(bound) if !bound.ip().is_unspecified() => bound.ip(),
            _ => udp::source_for(&to)?.ip(),
        };
        let local = book.local(source, self.completions.as_fd())?;
        book.peer(to, local).map(|_| ())
    }

    /// The oldest datagram. `peek` leaves it where it is.
    pub(crate) fn receive(
        &self,
        flags: c_int,
        mut take: impl FnMut(SocketAddr, &[u8]) -> usize,
    ) -> Result<usize, c_int> {
        let nonblocking = self.nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        self.wait(nonblocking, |book| {
            let (from, bytes) = book.arrived.front()?;
            let taken = take(*from, bytes);
            if flags & libc::MSG_PEEK == 0 {
                book.arrived.pop_front();
            }
            Some(Ok(taken))
        })
    }

    /// Looks at completions, and at the UDP socket.
    pub(super) fn step(&self, book: &mut Book) {
        book.progress();
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
                Err(error) => tracing::debug!("dropped, from {from}: {}", error.0),
                Ok((header, data)) => {
                    if let Err(errno) = self.introduced(book, from, &header) {
                        tracing::debug!("{from} is reached over UDP only: errno {errno}");
                    }
                    if header.data {
                        book.deliver(from, data);
                    }
                }
            }
        }
    }

    /// A peer has told its queue pair. If it does not know ours, it is told.
    fn introduced(
        &self,
        book: &mut Book,
        from: SocketAddr,
        header: &DatagramHeader,
    ) -> Result<(), c_int> {
        let local = match book.peers.get(&from) {
            Some(peer) => peer.local,
            None => book.local(header.to, self.completions.as_fd())?,
        };
        let number = book.locals[local].queue.number();
        let way = book.locals[local].way(from.ip(), header.qpn)?;
        let peer = book.peer(from, local)?;
        if peer.way.as_ref().is_none_or(|known| known.qpn != way.qpn) {
            peer.way = Some(way);
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
