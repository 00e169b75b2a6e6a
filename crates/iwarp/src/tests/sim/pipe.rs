//! One direction of a simulated TCP connection.

use std::collections::VecDeque;

/// The bytes under way in one direction.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    bytes: VecDeque<u8>,
    /// Room of the socket buffers together.
    capacity: usize,
    /// The sender has sent a FIN behind the bytes.
    fin: bool,
    /// The FIN, or a reset, has been delivered.
    ended: bool,
    reset: bool,
    /// Steps in which nothing is delivered.
    stalled: u64,
}

/// The next thing that a receiver sees.
pub(super) enum Arrival {
    Nothing,
    Bytes(Vec<u8>),
    EndOfStream,
    Reset,
}

impl Pipe {
    pub(super) fn new(capacity: usize) -> Pipe {
        Pipe {
            capacity,
            ..Pipe::default()
        }
    }

    /// Returns the number of bytes that the sender's socket takes.
    pub(super) fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if !self.fin && !self.reset {
            self.bytes.extend(bytes);
        }
    }

    pub(super) fn shut_down(&mut self) {
        self.fin = true;
    }

    /// Drops all bytes; the receiver sees a reset.
    pub(super) fn reset(&mut self) {
        self.bytes.clear();
        self.reset = true;
    }

    /// Cuts the stream behind the first `length` bytes: the receiver sees a FIN there.
    pub(super) fn cut(&mut self, length: usize) {
        self.bytes.truncate(length);
        self.fin = true;
    }

    pub(super) fn stall(&mut self, steps: u64) {
        self.stalled = self.stalled.max(steps);
    }

    /// Ends a stall, unless it lasts for ever.
    pub(super) fn resume(&mut self) {
        if self.stalled < u64::MAX / 2 {
            self.stalled = 0;
        }
    }

    /// Flips a bit. Returns false if there is no byte to damage.
    pub(super) fn damage(&mut self, at: usize, bit: u8) -> bool {
        match self.bytes.get_mut(at) {
            Some(byte) => {
                *byte ^= 1 << bit;
                true
            }
            None => false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if the receiver has seen all there will ever be, or there is nothing yet.
    pub(super) fn is_quiet(&self) -> bool {
        self.ended || self.bytes.is_empty() && !self.fin && !self.reset
    }

    /// Delivers up to `most` bytes, or the end.
    pub(super) fn deliver(&mut self, most: usize) -> Arrival {
        if self.ended {
            return Arrival::Nothing;
        }
        if self.stalled > 0 && !self.reset {
            self.stalled -= 1;
            return Arrival::Nothing;
        }
        if self.reset {
            self.ended = true;
            return Arrival::Reset;
        }
        if !self.bytes.is_empty() {
            let length = most.min(self.bytes.len());
            return Arrival::Bytes(self.bytes.drain(..length).collect());
        }
        if self.fin {
            self.ended = true;
            return Arrival::EndOfStream;
        }
        Arrival::Nothing
    }
}
