//! The bytes that a queue pair has to send, as pieces that a sender gathers.
//!
//! Headers, pad bytes and CRCs are bytes of the [`Output`] itself. Payload is a reference to
//! the program's memory, so that one `sendmsg` copies it into the socket, without a copy in
//! between. Short payload, inline data and all payload under a CRC are copied: a reference
//! would cost more, or the program could change the bytes after the CRC was computed.

use std::collections::VecDeque;

use ferroce_objects::{Fault, MemRef, Memory};

/// Consumed bytes at the front of the buffer from which on it is worth moving the rest.
const COMPACT_FROM: usize = 64 << 10;

/// A part of the output.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// Bytes of the output.
    Bytes(&'a [u8]),
    /// Bytes of the program's memory. The reference is valid until the next call to the
    /// engine.
    Memory(MemRef, u32),
}

impl Piece<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Memory(_, length) => *length as usize,
        }
    }

    /// True if the piece has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The memory behind a piece.
#[derive(Copy, Clone, Debug)]
enum Source {
    /// The next bytes of the buffer.
    Buffer,
    /// Memory of a work request, which stays valid until the work request completes.
    Request(MemRef),
    /// Memory that the peer reads. When its region ends, the bytes are copied.
    Response(MemRef),
}

#[derive(Copy, Clone, Debug)]
struct Part {
    source: Source,
    length: usize,
}

/// The end of an FPDU.
#[derive(Copy, Clone, Debug)]
struct Mark {
    end: u64,
    ends_message: bool,
}

/// The unsent bytes of a queue pair.
#[derive(Debug, Default)]
pub struct Output {
    buffer: Vec<u8>,
    /// Bytes at the start of `buffer` that have been accepted.
    consumed: usize,
    parts: VecDeque<Part>,
    /// Position in the stream of the first unsent byte.
    accepted: u64,
    /// Position in the stream behind the last byte.
    end: u64,
    marks: VecDeque<Mark>,
    /// Position of the start of the FPDU that holds the first unsent byte.
    fpdu_start: u64,
    /// True if the FPDU before `fpdu_start` did not end its message.
    mid_message: bool,
}

/// The state of an output before an FPDU, to which it can return.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Checkpoint {
    buffer: usize,
    parts: usize,
    last: usize,
    end: u64,
}

impl Output {
    /// Returns the number of unsent bytes.
    pub fn len(&self) -> usize {
        (self.end - self.accepted) as usize
    }

    /// True if nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.end == self.accepted
    }

    /// Returns the unsent bytes in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut at = self.consumed;
        self.parts.iter().map(move |part| match part.source {
            Source::Buffer => {
                at += part.length;
                Piece::Bytes(&self.buffer[at - part.length..at])
            }
            Source::Request(memory) | Source::Response(memory) => {
                Piece::Memory(memory, part.length as u32)
            }
        })
    }

    /// Appends the first `limit` unsent bytes to `out`, for a sender that cannot gather. Fewer, if
    /// memory behind the first part cannot be read: messages before it are sent.
    ///
    /// # Errors
    /// If memory of the first part cannot be read.
    pub fn copy_to(
        &self,
        memory: &dyn Memory,
        limit: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let begin = out.len();
        let end = begin + limit;
        for piece in self.pieces() {
            let (before, room) = (out.len(), end - out.len());
            match piece {
                Piece::Bytes(bytes) => out.extend_from_slice(&bytes[..bytes.len().min(room)]),
                Piece::Memory(at, length) => {
                    if let Err(fault) = read(memory, at, room.min(length as usize), out) {
                        out.truncate(before);
                        return if before > begin { Ok(()) } else { Err(fault) };
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the position in the stream behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the position in the stream of the first unsent byte.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// True if another message can start at the first unsent byte.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.accepted == self.fpdu_start && !self.mid_message
    }

    /// Returns the number of bytes until the end of the FPDU that is partly sent.
    pub(crate) fn left_of_fpdu(&self) -> usize {
        match self.marks.front() {
            Some(mark) if self.accepted > self.fpdu_start => (mark.end - self.accepted) as usize,
            _ => 0,
        }
    }

    /// Returns the first reference to memory as a fault, and whether the peer reads it.
    pub(crate) fn first_memory(&self) -> Option<(Fault, bool)> {
        self.parts.iter().find_map(|part| match part.source {
            Source::Buffer => None,
            Source::Request(at) => Some((Fault { at }, false)),
            Source::Response(at) => Some((Fault { at }, true)),
        })
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            buffer: self.buffer.len(),
            parts: self.parts.len(),
            last: self.parts.back().map_or(0, |part| part.length),
            end: self.end,
        }
    }

    /// Drops all bytes behind the checkpoint, which no call of [`Output::end_fpdu`] followed.
    pub(crate) fn rewind(&mut self, to: Checkpoint) {
        self.buffer.truncate(to.buffer);
        self.parts.truncate(to.parts);
        if let Some(last) = self.parts.back_mut() {
            last.length = to.last;
        }
        self.end = to.end;
    }

    /// Appends bytes that `write` adds to the buffer.
    pub(crate) fn write<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.buffer.len();
        let result = write(&mut self.buffer);
        self.extend(before);
        result
    }

    /// Appends a copy of memory.
    pub(crate) fn copy(
        &mut self,
        memory: &dyn Memory,
        at: MemRef,
        length: usize,
    ) -> Result<(), Fault> {
        self.write(|buffer| read(memory, at, length, buffer))
    }

    /// Appends a reference to memory.
    pub(crate) fn refer(&mut self, at: MemRef, length: usize, response: bool) {
        let source = match response {
            true => Source::Response(at),
            false => Source::Request(at),
        };
        self.parts.push_back(Part { source, length });
        self.end += length as u64;
    }

    /// Returns the bytes of the buffer behind a checkpoint.
    pub(crate) fn bytes_since(&self, checkpoint: Checkpoint) -> &[u8] {
        &self.buffer[checkpoint.buffer..]
    }

    /// Ends an FPDU.
    pub(crate) fn end_fpdu(&mut self, ends_message: bool) {
        self.marks.push_back(Mark {
            end: self.end,
            ends_message,
        });
    }

    fn extend(&mut self, before: usize) {
        let length = self.buffer.len() - before;
        if length == 0 {
            return;
        }
        self.end += length as u64;
        match self.parts.back_mut() {
            Some(part) if matches!(part.source, Source::Buffer) => part.length += length,
            _ => self.parts.push_back(Part {
                source: Source::Buffer,
                length,
            }),
        }
    }

    /// Removes the first `bytes`, which the socket has accepted.
    pub(crate) fn accept(&mut self, mut bytes: usize) {
        debug_assert!(bytes <= self.len());
        self.accepted += bytes as u64;
        while bytes > 0
            && let Some(part) = self.parts.front_mut()
        {
            let now = bytes.min(part.length);
            match &mut part.source {
                Source::Buffer => self.consumed += now,
                Source::Request(at) | Source::Response(at) => *at = at.offset(now as u64),
            }
            part.length -= now;
            bytes -= now;
            if part.length == 0 {
                self.parts.pop_front();
            }
        }
        while let Some(mark) = self.marks.front()
            && mark.end <= self.accepted
        {
            self.mid_message = !mark.ends_message;
            self.fpdu_start = mark.end;
            self.marks.pop_front();
        }
        if self.parts.is_empty() {
            self.buffer.clear();
            self.consumed = 0;
        } else if self.consumed > COMPACT_FROM && self.consumed > self.buffer.len() / 2 {
            self.buffer.drain(..self.consumed);
            self.consumed = 0;
        }
    }

    /// Replaces all references to memory by copies, because a region has ended.
    pub(crate) fn own_all(&mut self, memory: &dyn Memory) -> Result<(), Fault> {
        let is_owned = |part: &Part| matches!(part.source, Source::Buffer);
        if self.parts.iter().all(is_owned) {
            return Ok(());
        }
        let old = core::mem::take(&mut self.buffer);
        let mut at = core::mem::take(&mut self.consumed);
        for part in &mut self.parts {
            match part.source {
                Source::Buffer => {
                    self.buffer.extend_from_slice(&old[at..at + part.length]);
                    at += part.length;
                }
                Source::Request(from) | Source::Response(from) => {
                    read(memory, from, part.length, &mut self.buffer)?;
                    part.source = Source::Buffer;
                }
            }
        }
        Ok(())
    }

    /// Drops all unsent bytes. The caller has checked
    /// [`is_between_messages`](Output::is_between_messages), or sends nothing any more.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.marks.clear();
        self.buffer.clear();
        self.consumed = 0;
        self.end = self.accepted;
    }
}

/// Appends a copy of memory to `out`.
fn read(memory: &dyn Memory, at: MemRef, length: usize, out: &mut Vec<u8>) -> Result<(), Fault> {
    let before = out.len();
    out.resize(before + length, 0);
    memory.read(at, &mut out[before..])
}
