//! Sending and receiving.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, PoisonError};

use ferroce_device::Buffer;
use rustix::net::{RecvFlags, SendFlags};

use super::state::{Phase, State};
use super::{Stream, Waited};
use crate::buffer::{copy_in, copy_out};
use crate::flow::{Chunk, MAX_TRANSFER, Pieces};
use crate::{Errno, Result};

/// Before a chunk below this size is cut, completions are taken: they may free more room.
const SMALL: u32 = 16 * 1024;

impl Stream {
    /// Sends bytes and returns how many were taken: all of them, unless the socket is
    /// non-blocking or the connection ends. Knows the flag DONTWAIT.
    ///
    /// # Errors
    ///
    /// EAGAIN, EPIPE, ECONNRESET, ENOTCONN, ETIMEDOUT if the peer is dead.
    pub fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize> {
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.nonblocking() || flags.contains(SendFlags::DONTWAIT);
        let mut done = 0;
        loop {
            let left = &bytes[done..];
            let part = &left[..left.len().min(MAX_TRANSFER as usize)];
            match self.send_once(part, nonblocking) {
                Ok(sent) => done += sent as usize,
                // The bytes before the error count; the next call reports the error.
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            }
            if done >= bytes.len() {
                return Ok(done);
            }
        }
    }

    /// Sends several slices one after another, as [`Stream::send`] does.
    ///
    /// # Errors
    ///
    /// As [`Stream::send`].
    pub fn send_vectored(&self, parts: &[IoSlice<'_>], flags: SendFlags) -> Result<usize> {
        let mut total = 0;
        for part in parts {
            match self.send(part, flags) {
                Ok(sent) if sent == part.len() => total += sent,
                Ok(sent) => return Ok(total + sent),
                Err(errno) if total == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(total)
    }

    /// Sends the start of a slice of up to [`MAX_TRANSFER`] bytes.
    fn send_once(&self, bytes: &[u8], nonblocking: bool) -> Result<u32> {
        let want = bytes.len() as u32;
        self.make_room(want);
        let (chunk, buffer) = self.wait(nonblocking, |state| state.sendable(want))?;
        if chunk.length == 0 {
            return Ok(0);
        }
        let bytes = &bytes[..chunk.length as usize];
        let mut state = self.lock();
        let inline = chunk.length <= state.inline();
        if !inline {
            drop(state);
            // Without the lock: only the sender whose turn it is writes to this range.
            copy_in(&buffer, &chunk.pieces, bytes);
            state = self.lock();
        }
        if !state.writable {
            return Err(state.not_writable());
        }
        let connection = state.connection.as_mut().ok_or(Errno::NOTCONN)?;
        let posted = match inline {
            true => connection.send_inline(&chunk, bytes),
            false => connection.send_chunk(&chunk),
        };
        if let Err(errno) = posted {
            state.close(Some(Errno::CONNRESET));
            return Err(errno);
        }
        Ok(chunk.length)
    }

    /// Takes completions if the next chunk would be small without them.
    fn make_room(&self, want: u32) {
        let mut state = self.lock();
        let connection = state.connection.as_ref();
        let chunk = connection.and_then(|connection| connection.chunk(want.max(1)));
        if chunk.is_some_and(|chunk| chunk.length < want.min(SMALL)) {
            state.step(&self.id, false);
        }
    }

    /// Receives bytes and returns how many: 0 at the end of the stream. Knows the flags
    /// DONTWAIT, PEEK and WAITALL.
    ///
    /// # Errors
    ///
    /// EAGAIN, ECONNRESET, ENOTCONN, ETIMEDOUT if the peer is dead.
    pub fn receive(&self, bytes: &mut [u8], flags: RecvFlags) -> Result<usize> {
        let _turn = self
            .receiving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.nonblocking() || flags.contains(RecvFlags::DONTWAIT);
        let peek = flags.contains(RecvFlags::PEEK);
        let all = flags.contains(RecvFlags::WAITALL);
        let mut done = 0;
        loop {
            // After the first bytes, only WAITALL waits for more.
            let nonblocking = nonblocking || (done > 0 && !all);
            match self.receive_once(&mut bytes[done..], nonblocking, peek) {
                Ok(0) => return Ok(done),
                Ok(received) => done += received as usize,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            }
            if done >= bytes.len() || peek || !all {
                return Ok(done);
            }
        }
    }

    /// Receives into several slices one after another, as [`Stream::receive`] does. Waits
    /// only for the first bytes, unless WAITALL is set.
    ///
    /// # Errors
    ///
    /// As [`Stream::receive`].
    pub fn receive_vectored(
        &self,
        parts: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize> {
        self.receive_each(parts.iter_mut().map(|part| &mut **part), flags)
    }

    /// As [`Stream::receive_vectored`]. Uses one slice at a time: the next is taken when the
    /// last one is no longer used.
    ///
    /// # Errors
    ///
    /// As [`Stream::receive`].
    pub fn receive_each<'a>(
        &self,
        parts: impl Iterator<Item = &'a mut [u8]>,
        flags: RecvFlags,
    ) -> Result<usize> {
        let mut total = 0;
        for part in parts.filter(|part| !part.is_empty()) {
            let mut flags = flags;
            if total > 0 && !flags.contains(RecvFlags::WAITALL) {
                flags |= RecvFlags::DONTWAIT;
            }
            match self.receive(part, flags) {
                Ok(got) if got == part.len() && !flags.contains(RecvFlags::PEEK) => total += got,
                Ok(got) => return Ok(total + got),
                Err(errno) if total == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(total)
    }

    fn receive_once(&self, bytes: &mut [u8], nonblocking: bool, peek: bool) -> Result<u32> {
        let want = bytes.len().min(u32::MAX as usize) as u32;
        let found = self.wait(nonblocking, |state| state.receivable(want))?;
        let Some((pieces, buffer)) = found else {
            return Ok(0);
        };
        // Without the lock: only the receiver whose turn it is gives this range back.
        copy_out(&buffer, &pieces, bytes);
        if !peek && pieces.total() > 0 {
            self.lock().consumed(pieces.total());
        }
        Ok(pieces.total())
    }
}

impl State {
    /// Returns the part of `want` bytes that can be sent now, and the send ring.
    fn sendable(&mut self, want: u32) -> Waited<(Chunk, Arc<Buffer>)> {
        match self.phase {
            Phase::New | Phase::Listening => return Some(Err(Errno::NOTCONN)),
            Phase::Open if self.writable => {}
            Phase::Open | Phase::Closed => return Some(Err(self.not_writable())),
            _ => return None,
        }
        if let Err(errno) = self.announce_iomaps() {
            return (errno != Errno::AGAIN).then_some(Err(errno));
        }
        let connection = self.connection.as_ref()?;
        let chunk = match connection.chunk(want.max(1)) {
            // A send of 0 bytes succeeds when one of 1 byte would.
            Some(chunk) if want == 0 => Chunk { length: 0, ..chunk },
            None if want == 0 => return None,
            chunk => chunk?,
        };
        Some(Ok((chunk, connection.send.clone())))
    }

    /// Returns the error of a send on a socket that is not writable.
    pub(super) fn not_writable(&mut self) -> Errno {
        match self.error.take() {
            Some(errno) => errno,
            None if !self.was_open => Errno::NOTCONN,
            None if self.shut_by_us => Errno::PIPE,
            None => Errno::CONNRESET,
        }
    }

    /// Returns the place of up to `want` received bytes; `None` at the end of the stream.
    fn receivable(&mut self, want: u32) -> Waited<Option<(Pieces, Arc<Buffer>)>> {
        match self.phase {
            Phase::New | Phase::Listening => return Some(Err(Errno::NOTCONN)),
            Phase::Open | Phase::Closed => {}
            _ => return None,
        }
        if let Some(connection) = &self.connection
            && let Some(pieces) = connection.readable(want)
        {
            return Some(Ok(Some((pieces, connection.receive.clone()))));
        }
        if self.readable {
            return None;
        }
        match self.error.take() {
            Some(errno) => Some(Err(errno)),
            None if !self.was_open => Some(Err(Errno::NOTCONN)),
            None => Some(Ok(None)),
        }
    }

    fn consumed(&mut self, length: u32) {
        let open = self.phase == Phase::Open;
        if let Some(connection) = &mut self.connection
            && let Err(errno) = connection.consume(length, open)
        {
            tracing::debug!("cannot send credits to the peer of an rsocket: {errno}");
            self.close(Some(Errno::CONNRESET));
        }
    }

    fn inline(&self) -> u32 {
        let connection = self.connection.as_ref();
        connection.map_or(0, |connection| connection.queue.sizes.inline)
    }
}
