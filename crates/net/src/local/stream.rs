//! A byte stream through a channel of its own: the bytes of one iWARP connection.
//!
//! A record is a chunk of the stream. Messages may begin and end within chunks: the reader of the
//! stream finds their ends. A full ring is as a full socket: the writer waits for room.
//!
//! The channel does not report the end of the stream. The connection that the channel belongs to
//! does, and the reader reads the ring until it is empty after that. The bytes stay there when
//! the writer's process ends, because the reader has mapped the memory, too.

use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::Arc;

use super::channels::Endpoint;
use super::doorbell::Doorbell;
use super::end::End;
use super::memory::RingView;
use super::ring::{Broken, HEADER, Reader, RingMemory, Writer, Written, has_record, take_sleeper};
use super::this_process::ThisProcess;

/// The longest chunk. The writer gathers it, and the reader copies it out: both copies stay in
/// the caches of a processor.
pub const MAX_STREAM_RECORD: usize = 32 << 10;

/// A process's end of a byte stream through shared memory. In a forked child, which does not
/// have the memory, it is silent and full.
#[derive(Debug)]
pub struct StreamEnd {
    end: Arc<End>,
    reader: Reader<RingView>,
    writer: Writer<RingView>,
    process: ThisProcess,
}

impl StreamEnd {
    /// Returns a stream through a new channel. `forks` counts the forks that led to this process.
    pub fn new(end: Arc<End>, forks: &'static AtomicU32) -> StreamEnd {
        StreamEnd {
            reader: Reader::new(end.incoming().clone()),
            writer: Writer::new(end.outgoing().clone()),
            end,
            process: ThisProcess::new(forks),
        }
    }

    /// Takes the bell of the other end, if it has arrived and was not taken before.
    pub fn take_bell(&self, doorbell: &Doorbell) {
        doorbell.take_bell(&self.end);
    }

    /// Reads a chunk to the front of `buffer`, which has [`MAX_STREAM_RECORD`] bytes or more.
    /// Returns its length; none if the ring is empty.
    ///
    /// # Errors
    /// [`Broken`] if the other process has written what no correct process writes.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Broken> {
        if !self.process.is_current() {
            return Ok(None);
        }
        match self.reader.read(&mut buffer[..MAX_STREAM_RECORD])? {
            // A hostile process could write empty records without end.
            Some((_, 0)) => Err(Broken),
            Some((_, length)) => Ok(Some(length)),
            None => Ok(None),
        }
    }

    /// Ends a series of reads: threads that sleep learn up to where the ring was read, and a
    /// writer that waits for room is woken.
    #[inline]
    pub fn end_read(&self) {
        if !self.process.is_current() {
            return;
        }
        self.end.note_read(self.reader.head());
        if self.reader.is_writer_waiting() && take_sleeper(self.end.outgoing()) {
            self.end.wake();
        }
    }

    /// Lets threads sleep although the ring has bytes, until more arrive: the stream is paused.
    pub fn pause(&self) {
        if self.process.is_current() {
            let tail = self.end.incoming().tail();
            self.end.note_read(tail.load(Ordering::Relaxed));
        }
    }

    /// Writes a chunk of at most [`MAX_STREAM_RECORD`] bytes, and wakes the other end if it
    /// sleeps. Returns false if there is no room. Try again when [`StreamEnd::has_made_room`] returns
    /// true.
    ///
    /// # Errors
    /// [`Broken`] if the other process has written what no correct process writes.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<bool, Broken> {
        debug_assert!(!bytes.is_empty() && bytes.len() <= MAX_STREAM_RECORD);
        if !self.process.is_current() {
            return Ok(false);
        }
        loop {
            match self.writer.write([0; HEADER], bytes)? {
                Written::Quiet => {}
                Written::WakeReader => self.end.wake(),
                Written::Full => {
                    self.end.note_full(Some(self.writer.head()));
                    // The reader may have made room before a thread that goes to sleep sees the
                    // note: then that thread is not woken.
                    fence(Ordering::SeqCst);
                    match self.end.has_made_room() {
                        true => continue,
                        false => return Ok(false),
                    }
                }
            }
            self.stop_waiting();
            return Ok(true);
        }
    }

    /// Ends the wait for room: nothing is left to write.
    #[inline]
    pub fn stop_waiting(&self) {
        if self.end.is_full() && self.process.is_current() {
            self.end.note_full(None);
            self.writer.stop_waiting();
        }
    }

    /// Returns true if a chunk waits to be read, or the ring is broken.
    #[inline]
    pub fn has_bytes(&self) -> bool {
        self.process.is_current() && has_record(self.end.incoming(), self.reader.head())
    }

    /// Returns true if the other end has read something since a write found no room.
    #[inline]
    pub fn has_made_room(&self) -> bool {
        self.process.is_current() && self.end.has_made_room()
    }

    /// Returns true if the last write found no room.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.end.is_full()
    }

    /// Returns the number of bytes that the ring takes up for chunks which the other end has not
    /// read.
    pub fn unread(&self) -> usize {
        match self.process.is_current() {
            true => self.writer.unread(),
            false => 0,
        }
    }

    /// Returns memory of the channel that is not used any more to the kernel. Returns true if some is left: call
    /// it again later.
    pub fn shrink(&mut self) -> bool {
        self.process.is_current() && self.writer.shrink()
    }

    /// Closes the channel. Bytes that were written before can still be read.
    pub fn close(&self) {
        self.end.close();
    }
}
