//! Bytes in and out.

use core::ffi::c_int;
use std::sync::{Arc, PoisonError};

use super::core::{Core, Phase};
use super::{Stream, Waited};
use crate::rsocket::buffer::Buffer;
use crate::rsocket::flow::{Chunk, MAX_TRANSFER, Pieces};

/// Less than this is worth a look at completions first.
const SMALL: u32 = 16 * 1024;

impl Stream {
    /// Sends; how many bytes were taken over.
    ///
    /// # Safety
    ///
    /// `from` can be read for `length` bytes.
    pub(crate) unsafe fn send(
        &self,
        from: *const u8,
        length: usize,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let _turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let mut done = 0;
        loop {
            let want = (length - done).min(MAX_TRANSFER as usize) as u32;
            // SAFETY: `done` is less than `length`, or nothing is sent.
            let sent = unsafe { self.send_once(from.add(done), want, nonblocking) };
            match sent {
                Ok(sent) => done += sent as usize,
                // What was sent before counts; the error will come again.
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            }
            if done >= length {
                return Ok(done);
            }
        }
    }

    /// Sends a part of `want` bytes that follow each other.
    unsafe fn send_once(&self, from: *const u8, want: u32, wait: bool) -> Result<u32, c_int> {
        let mut looked = false;
        let (chunk, buffer) = self.wait(wait, |core| {
            let ready = core.sendable(want);
            if let Some(Ok((chunk, _))) = &ready
                && chunk.length < want.min(SMALL)
                && !looked
            {
                looked = true;
                return None;
            }
            ready
        })?;
        if chunk.length == 0 {
            return Ok(0);
        }
        let mut core = self.lock();
        let inline = core.inline();
        if chunk.length > inline {
            drop(core);
            // SAFETY: the chunk is not longer than `want`; only the sender whose turn it
            // is writes to this part of the ring.
            unsafe { buffer.copy_in(&chunk.pieces, from) };
            core = self.lock();
        }
        if !core.writable {
            return Err(core.not_writable());
        }
        let Some(connection) = &mut core.connection else {
            return Err(libc::ENOTCONN);
        };
        let posted = if chunk.length > inline {
            connection.send_chunk(&chunk)
        } else {
            connection.send_inline(&chunk, from)
        };
        if let Err(errno) = posted {
            core.close(Some(libc::ECONNRESET));
            return Err(errno);
        }
        Ok(chunk.length)
    }

    /// Receives; how many bytes there were. None mean the end.
    ///
    /// # Safety
    ///
    /// `to` can be written to for `length` bytes.
    pub(crate) unsafe fn receive(
        &self,
        to: *mut u8,
        length: usize,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let _turn = self
            .receiving
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let nonblocking = self.nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let peek = flags & libc::MSG_PEEK != 0;
        let mut done = 0;
        loop {
            let want = (length - done).min(u32::MAX as usize) as u32;
            // A second look takes what is there, unless all is wanted.
            let wait = nonblocking || (done > 0 && flags & libc::MSG_WAITALL == 0);
            // SAFETY: `done` is less than `length`, or nothing is received.
            match unsafe { self.receive_once(to.add(done), want, wait, peek) } {
                Ok(0) => return Ok(done),
                Ok(received) => done += received as usize,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            }
            if done >= length || peek || flags & libc::MSG_WAITALL == 0 {
                return Ok(done);
            }
        }
    }

    unsafe fn receive_once(
        &self,
        to: *mut u8,
        want: u32,
        nonblocking: bool,
        peek: bool,
    ) -> Result<u32, c_int> {
        let taken = self.wait(nonblocking, |core| core.receivable(want))?;
        let Some((pieces, buffer)) = taken else {
            return Ok(0);
        };
        // SAFETY: not more than `want`; only the receiver whose turn it is gives this
        // part of the ring back to the peer.
        unsafe { buffer.copy_out(&pieces, to) };
        if !peek && pieces.total() > 0 {
            self.lock().consumed(pieces.total());
        }
        Ok(pieces.total())
    }
}

impl Core {
    /// What could be sent of `want` bytes, and from where.
    fn sendable(&mut self, want: u32) -> Waited<(Chunk, Arc<Buffer>)> {
        match self.phase {
            Phase::New | Phase::Listening => return Some(Err(libc::ENOTCONN)),
            Phase::Open if self.writable => {}
            Phase::Open | Phase::Closed => return Some(Err(self.not_writable())),
            _ => return None,
        }
        if let Err(errno) = self.announce_iomaps() {
            return (errno != libc::EAGAIN).then_some(Err(errno));
        }
        let connection = self.connection.as_ref()?;
        let chunk = match connection.chunk(want.max(1)) {
            // A socket takes nothing at any time.
            Some(chunk) if want == 0 => Chunk { length: 0, ..chunk },
            None if want == 0 => return None,
            chunk => chunk?,
        };
        Some(Ok((chunk, connection.send.clone())))
    }

    pub(super) fn not_writable(&mut self) -> c_int {
        match self.error.take() {
            Some(errno) => errno,
            None if !self.was_open => libc::ENOTCONN,
            None if self.shut_by_us => libc::EPIPE,
            None => libc::ECONNRESET,
        }
    }

    /// Where up to `want` bytes lie; None at the end of the stream.
    fn receivable(&mut self, want: u32) -> Waited<Option<(Pieces, Arc<Buffer>)>> {
        match self.phase {
            Phase::New | Phase::Listening => return Some(Err(libc::ENOTCONN)),
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
            None if !self.was_open => Some(Err(libc::ENOTCONN)),
            None => Some(Ok(None)),
        }
    }

    fn consumed(&mut self, length: u32) {
        let open = self.phase == Phase::Open;
        if let Some(connection) = &mut self.connection
            && let Err(errno) = connection.consume(length, open)
        {
            tracing::debug!("credits could not be given: errno {errno}");
            self.close(Some(libc::ECONNRESET));
        }
    }

    fn inline(&self) -> u32 {
        let connection = self.connection.as_ref();
        connection.map_or(0, |connection| connection.queue.sizes.inline)
    }
}
