//! The wire of a stream: its TCP connection, or a channel in shared memory beside it.
//!
//! The initiator of a connection chooses the wire, because it sends first. The responder has
//! offered a channel before it accepts. The initiator asks ferroced for the channel, and sends
//! through it once the responder has announced itself there; otherwise it sends over TCP:
//!
//! ```text
//!   initiator:  Tcp or Memory
//!   responder:  Tcp, or Offered --channel--> Either --first bytes through memory--> Memory
//!                          '------------------'--first bytes over TCP--> Tcp
//! ```
//!
//! A responder that sends before it has a channel uses TCP. Once it has announced itself on a
//! channel, it waits for the initiator's choice. The initiator makes that within a second: it waits up to half a
//! second for ferroced, and as long for the responder.
//!
//! In memory, the TCP connection reports the end of the stream: bytes that were written before are
//! in the ring when the end of the connection is seen, and they are read first.

use core::mem;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_iwarp::{Output, Piece};
use ferroce_net::local::{Doorbell, End, MAX_STREAM_RECORD, Readiness, StreamEnd};
use ferroce_roce::{MemRef, Memory};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::io as sockets;
use crate::fork;
use crate::local::Channel;

/// The addresses of a connection: that of this end, and that of the other end.
pub(crate) type Addresses = (SocketAddr, SocketAddr);

/// The wire of a stream.
#[derive(Debug)]
pub(crate) enum Wire {
    /// The TCP connection.
    Tcp,
    /// The TCP connection, unless ferroced introduces the peer before the first byte.
    Offered(Addresses),
    /// The initiator's first bytes choose.
    Either(Box<MemoryStream>),
    /// Shared memory.
    Memory(Box<MemoryStream>),
}

/// A stream through shared memory.
#[derive(Debug)]
pub(crate) struct MemoryStream {
    stream: StreamEnd,
    /// The channel, whose descriptors a forked child does not keep.
    channel: Channel,
    /// A chunk that is partly read.
    rest: Vec<u8>,
    /// Output that is gathered for the ring.
    gathered: Vec<u8>,
    /// The end of the TCP connection, once it was seen.
    ended: Option<Ended>,
    /// True until the bell of the peer was looked for.
    seeks_bell: bool,
}

/// The end of a connection.
#[derive(Copy, Clone, Debug)]
enum Ended {
    InOrder,
    Reset,
}

impl MemoryStream {
    pub(crate) fn new(channel: Channel) -> MemoryStream {
        MemoryStream {
            stream: StreamEnd::new(Arc::clone(&channel.end), fork::counter()),
            channel,
            rest: Vec::new(),
            gathered: Vec::new(),
            ended: None,
            seeks_bell: true,
        }
    }

    pub(super) fn end(&self) -> &Arc<End> {
        &self.channel.end
    }

    /// Returns true if a call of [`MemoryStream::receive`] returns bytes, or the end.
    #[inline]
    pub(super) fn has_bytes(&self) -> bool {
        self.stream.has_bytes() || self.ended.is_some() || !self.rest.is_empty()
    }

    /// Returns true if the peer has read something since the ring was full.
    #[inline]
    pub(super) fn has_made_room(&self) -> bool {
        self.stream.has_made_room()
    }

    /// Lets threads sleep although bytes wait, or no longer.
    pub(super) fn pause(&self, pauses: bool) {
        match pauses {
            true => self.stream.pause(),
            false => self.stream.end_read(),
        }
    }

    /// Ends a series of calls of [`MemoryStream::receive`]. The first one takes the bell of the
    /// peer, which a program that never sleeps would not look for.
    pub(super) fn end_receive(&mut self, doorbell: &Doorbell) {
        self.stream.end_read();
        if core::mem::take(&mut self.seeks_bell) {
            self.stream.take_bell(doorbell);
        }
    }

    /// Returns true if the last call of [`MemoryStream::send`] found no room.
    pub(super) fn is_full(&self) -> bool {
        self.stream.is_full()
    }

    /// Ends the wait for room: nothing is left to send.
    pub(super) fn stop_waiting(&self) {
        self.stream.stop_waiting();
    }

    /// Writes a chunk without the engine. Returns false if there is no room.
    #[cfg(test)]
    pub(super) fn fill(&mut self, chunk: &[u8]) -> bool {
        self.stream.write(chunk).expect("a correct peer")
    }

    /// Looks for the end of the TCP connection.
    pub(super) fn look_at(&mut self, socket: &OwnedFd) {
        if self.ended.is_some() {
            return;
        }
        let mut byte = [0];
        self.ended = match rustix::net::recv(socket, &mut byte[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Ok((0, _)) => Some(Ended::InOrder),
            Ok(_) => {
                tracing::warn!("bytes over TCP on a connection that uses shared memory");
                Some(Ended::Reset)
            }
            Err(_) => Some(Ended::Reset),
        };
    }

    /// Receives as from a socket: bytes, 0 at the end of the stream, or `WouldBlock`.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            let fits = buffer.len() >= MAX_STREAM_RECORD;
            let read = match fits {
                true => self.stream.read(buffer),
                false => {
                    self.rest.resize(MAX_STREAM_RECORD, 0);
                    let read = self.stream.read(&mut self.rest);
                    let length = read.ok().flatten().unwrap_or(0);
                    self.rest.truncate(length);
                    read
                }
            };
            match read {
                Ok(Some(length)) if fits => return Ok(length),
                Ok(Some(_)) => {}
                Ok(None) => {
                    return match self.ended {
                        None => Err(ErrorKind::WouldBlock.into()),
                        Some(Ended::InOrder) => Ok(0),
                        Some(Ended::Reset) => Err(ErrorKind::ConnectionReset.into()),
                    };
                }
                Err(_broken) => return Err(broken()),
            }
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest[..length]);
        self.rest.drain(..length);
        Ok(length)
    }

    /// Sends the front of an output, as [`sockets::send`] does.
    fn send(&mut self, output: &Output, memory: &dyn Memory) -> io::Result<(usize, bool)> {
        let mut pieces = output.pieces();
        let bytes = match (pieces.next(), pieces.next()) {
            (Some(Piece::Bytes(bytes)), None) => &bytes[..bytes.len().min(MAX_STREAM_RECORD)],
            _ => {
                self.gathered.clear();
                output
                    .copy_to(memory, MAX_STREAM_RECORD, &mut self.gathered)
                    .map_err(|_fault| io::Error::from_raw_os_error(libc::EFAULT))?;
                &self.gathered
            }
        };
        match self.stream.write(bytes) {
            Ok(true) => Ok((bytes.len(), true)),
            Ok(false) => Err(ErrorKind::WouldBlock.into()),
            Err(_broken) => Err(broken()),
        }
    }
}

impl Wire {
    /// Returns the stream through memory, also one that the initiator may not choose.
    #[inline]
    pub(super) fn memory(&self) -> Option<&MemoryStream> {
        match self {
            Wire::Memory(memory) | Wire::Either(memory) => Some(memory),
            Wire::Tcp | Wire::Offered(_) => None,
        }
    }

    /// Returns memory that is not used any more to the kernel. Returns true if some is left.
    pub(super) fn shrink(&mut self) -> bool {
        match self {
            Wire::Memory(memory) => memory.stream.shrink(),
            _ => false,
        }
    }

    /// Returns true if all bytes go through memory.
    #[inline]
    pub(super) fn is_memory(&self) -> bool {
        matches!(self, Wire::Memory(_))
    }

    /// Returns the number of bytes that wait for the peer; none over TCP.
    pub(super) fn unread(&self) -> Option<usize> {
        match self {
            Wire::Memory(memory) => Some(memory.stream.unread()),
            _ => None,
        }
    }

    /// Takes a channel for a connection that was offered. Returns false if the wire is chosen.
    pub(super) fn introduce(&mut self, memory: MemoryStream) -> bool {
        let is_open = matches!(self, Wire::Offered(_));
        if is_open {
            *self = Wire::Either(Box::new(memory));
        }
        is_open
    }

    /// Chooses a wire for the last bytes of a responder that waits no longer: memory, unless the initiator has closed
    /// the channel. Returns false if the wire is chosen.
    pub(super) fn end_wait(&mut self) -> bool {
        let is_given_up = |memory: &MemoryStream| {
            !memory.has_bytes() && memory.end().readiness() == Readiness::Closed
        };
        match self {
            Wire::Either(memory) if is_given_up(memory) => {
                self.choose_tcp();
                true
            }
            _ => self.choose_memory(),
        }
    }

    /// Chooses memory. Returns false if the wire is chosen.
    pub(super) fn choose_memory(&mut self) -> bool {
        let is_either = matches!(self, Wire::Either(_));
        *self = match mem::replace(self, Wire::Tcp) {
            Wire::Either(memory) => Wire::Memory(memory),
            other => other,
        };
        is_either
    }

    /// Receives bytes: into `places` and then into `buffer` from a socket, into `buffer` from
    /// memory. Returns 0 at the end of the stream.
    ///
    /// # Safety
    ///
    /// As for [`sockets::receive`].
    ///
    /// # Errors
    /// As for [`sockets::receive`].
    pub(super) unsafe fn receive(
        &mut self,
        socket: &OwnedFd,
        places: &[(MemRef, u32)],
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        let is_either = match self {
            Wire::Memory(memory) => return memory.receive(buffer),
            Wire::Either(_) => true,
            Wire::Tcp | Wire::Offered(_) => false,
        };
        if is_either && self.has_first_bytes() {
            self.choose_memory();
            // SAFETY: as for this function.
            return unsafe { self.receive(socket, places, buffer) };
        }
        // SAFETY: as for this function.
        let received = unsafe { sockets::receive(socket, places, buffer) };
        match &received {
            Err(error) if is_pause(error) => {}
            // The initiator has chosen memory, and the connection has ended since.
            Ok(0) | Err(_) if is_either && self.has_first_bytes() => {
                self.choose_memory();
                if let Wire::Memory(memory) = self {
                    memory.ended = Some(match received {
                        Ok(_) => Ended::InOrder,
                        Err(_) => Ended::Reset,
                    });
                    return memory.receive(buffer);
                }
            }
            _ if !matches!(self, Wire::Tcp) => self.choose_tcp(),
            _ => {}
        }
        received
    }

    fn has_first_bytes(&self) -> bool {
        self.memory()
            .is_some_and(|memory| memory.stream.has_bytes())
    }

    /// Sends the front of an output. Returns the number of bytes, and whether they were all bytes
    /// of the call.
    ///
    /// # Errors
    /// As for [`sockets::send`].
    pub(super) fn send(
        &mut self,
        socket: &OwnedFd,
        output: &Output,
        memory: &dyn Memory,
    ) -> io::Result<(usize, bool)> {
        match self {
            Wire::Memory(stream) => return stream.send(output, memory),
            Wire::Either(_) => return Err(ErrorKind::WouldBlock.into()),
            Wire::Offered(_) => self.choose_tcp(),
            Wire::Tcp => {}
        }
        sockets::send(socket, output, memory)
    }

    fn choose_tcp(&mut self) {
        if let Some(memory) = self.memory() {
            memory.end().close();
        }
        *self = Wire::Tcp;
    }
}

/// Returns true if a call found nothing, and the connection goes on.
fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::EFAULT)
}

fn broken() -> io::Error {
    let what = "the peer has broken the memory that it shares with this program";
    tracing::warn!("{what}: the connection is reset");
    io::Error::new(ErrorKind::InvalidData, what)
}
