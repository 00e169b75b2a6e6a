//! Captures of streams: passes bytes to the taps of streams, and their segments to the process.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use ferroce_shard::Process;

use super::tap::{Segment, StreamDirection, StreamTap};
use super::{Stream, StreamCore};

/// A process that observes the segments of streams.
pub(crate) trait Observer: Process {
    /// Returns true while captures run. The flight recorder alone has no segments: they would cost
    /// too much.
    fn captures(&self) -> bool;

    /// Takes a segment of a queue pair's stream.
    fn segment(&mut self, qpn: u32, segment: &Segment<'_>);
}

impl StreamCore {
    /// Begins to show all streams, because a capture has begun.
    pub(crate) fn observe(&mut self, is_observed: bool) {
        self.is_observed = is_observed;
        for stream in self.streams.values_mut() {
            stream.tap = None;
        }
    }

    /// Creates the tap of a stream, if it is to be observed and has none.
    #[inline]
    pub(super) fn begin_tap(&mut self, process: &mut impl Observer, qpn: u32) {
        if self.is_observed {
            self.create_tap(process, qpn);
        }
    }

    #[cold]
    fn create_tap(&mut self, process: &mut impl Observer, qpn: u32) {
        if !process.captures() {
            // The reader of the last capture has ended.
            return self.observe(false);
        }
        let Some(stream) = self.streams.get_mut(&qpn) else {
            return;
        };
        if stream.tap.is_some() {
            return;
        }
        let (Some(left), Some((local, peer))) =
            (self.engine.left_of_fpdus(qpn), addresses(&stream.socket))
        else {
            return;
        };
        let mut tap = StreamTap::new(local, peer, left);
        let Stream { role, frames, .. } = stream;
        let emit = &mut |segment: Segment<'_>| process.segment(qpn, &segment);
        tap.begin(*role, &frames.0, &frames.1, emit);
        stream.tap = Some(Box::new(tap));
    }

    /// Calls `work` with the tap of a stream, if it has one.
    #[inline]
    pub(super) fn tap(
        &mut self,
        process: &mut impl Observer,
        qpn: u32,
        work: impl FnOnce(&mut StreamTap, &mut dyn FnMut(Segment<'_>)),
    ) {
        if !self.is_observed {
            return;
        }
        if let Some(tap) = self.streams.get_mut(&qpn).and_then(|s| s.tap.as_mut()) {
            work(tap, &mut |segment| process.segment(qpn, &segment));
        }
    }

    /// Shows bytes of a stream.
    pub(super) fn pass(
        &mut self,
        process: &mut impl Observer,
        qpn: u32,
        direction: StreamDirection,
        bytes: &[u8],
    ) {
        self.tap(process, qpn, |tap, emit| tap.pass(direction, bytes, emit));
    }

    /// Shows the first bytes of the receive buffer.
    #[inline]
    pub(super) fn pass_received(&mut self, process: &mut impl Observer, qpn: u32, length: usize) {
        if self.is_observed {
            let buffer = core::mem::take(&mut self.buffer);
            self.pass(process, qpn, StreamDirection::Received, &buffer[..length]);
            self.buffer = buffer;
        }
    }

    /// Shows the sent bytes that were copied.
    pub(super) fn pass_sent(&mut self, process: &mut impl Observer, qpn: u32) {
        let copied = core::mem::take(&mut self.copied);
        self.pass(process, qpn, StreamDirection::Sent, &copied);
        self.copied = copied;
    }
}

/// Returns both addresses of a connection; IPv4 addresses as such.
fn addresses(socket: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    Some((plain(local), plain(peer)))
}
