//! The protocol of a ring: records of bytes from one writer to one reader in another process.
//!
//! ```text
//!   writer: tail = number of bytes written      reader: head = number of bytes read
//!      copy the record, then publish tail  -->  read tail, copy the record out, publish head
//!      reader sleeps?  wake it             <--  about to sleep: say so, then look once more
//!      no room: say so, then look once more -->  after reading: writer waits?  wake it
//! ```
//!
//! The other process may be malicious, and may stop between any two instructions. So each end
//! keeps its own position in private memory, and reads from shared memory only the position
//! of the other end and records. A position is read once and checked before use. A record is
//! copied out before any byte of it is used. A position or a length that no correct process
//! writes breaks the ring: [`Broken`].
//!
//! A writer that reaches the end of the ring's *front* ([`RingMemory::FRONT`]), and finds that the reader has
//! read everything, *returns* to the start: it moves its position to the start of the lap after the next one, and publishes
//! it together with the next record. So two programs that exchange short messages use the same few pages. No other
//! step of a writer passes a whole lap, and so the reader knows it without a mark in memory. The writer does not return
//! again before the reader has followed.
//!
//! A flag and a position are in a race of the kind "store, then load what the other stored": a
//! writer publishes `tail` and loads the sleeper's flag, a reader sets the flag and loads
//! `tail`. A sequentially consistent fence between the two on both sides makes one of them see
//! the other: one of the two fences is first, and the thread of the second one sees all that
//! the thread of the first one has stored before its fence. `loom/` checks all interleavings.

use super::bugs::{Bug, Injected};
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a record before its payload, the length included.
pub const HEADER: usize = 40;
/// Records begin at multiples of a cache line. So a header never wraps around.
pub const ALIGNMENT: usize = 64;

/// The header of a record. Its first four bytes are the length of the payload, and belong to
/// the ring.
pub type Header = [u8; HEADER];

/// Bytes of a header that the ring does not use itself.
pub const HEADER_REST: core::ops::Range<usize> = 4..HEADER;

/// The memory of a ring, which the two processes share. The other process may change every
/// byte at any time.
pub trait RingMemory {
    /// Bytes for records, a multiple of [`ALIGNMENT`].
    const CAPACITY: usize;
    /// Bytes at the start, which a ring keeps to while its reader keeps up.
    const FRONT: usize;

    /// Returns the number of bytes written so far.
    fn tail(&self) -> &AtomicU64;
    /// Returns the number of bytes read so far.
    fn head(&self) -> &AtomicU64;
    /// Returns the flag of a reader that sleeps.
    fn reader_sleeps(&self) -> &AtomicU32;
    /// Returns the flag of a writer that waits for room.
    fn writer_waits(&self) -> &AtomicU32;
    /// Copies into the ring. `at + bytes.len()` is at most [`RingMemory::CAPACITY`].
    fn copy_in(&self, at: usize, bytes: &[u8]);
    /// Copies out of the ring. `at + bytes.len()` is at most [`RingMemory::CAPACITY`].
    fn copy_out(&self, at: usize, bytes: &mut [u8]);
    /// Notes that records lie behind the front.
    fn extend(&self) {}
    /// Discards all bytes behind the front. No record lies there.
    fn shrink(&self) {}
}

/// The other process has written what no correct process writes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Broken;

/// The result of writing a record.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Written {
    /// The record is in the ring, and the reader is awake.
    Quiet,
    /// The record is in the ring. The reader sleeps: the caller must wake it.
    WakeReader,
    /// The ring has no room now. The reader will report room.
    Full,
}

/// The writing end. There is one per ring.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    tail: u64,
    /// Position up to which there is room within the front, as far as is known.
    limit: u64,
    /// Position of the first record that was not read at the last look.
    unread_from: u64,
    /// The reader's position at the last look, as it has published it.
    head: u64,
    /// Position from which the writer has last returned to the start.
    returned_from: Option<u64>,
    /// Position from which on the writer looks again whether the ring is empty.
    next_look: u64,
    /// True if bytes behind the front are in use since they were last discarded.
    is_extended: bool,
    /// True if a record lay behind the front since the last call of [`Writer::shrink`].
    leaves_front: bool,
    injected: Injected,
}

/// The reading end. There is one per ring.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    head: u64,
    /// The tail at the last look.
    tail: u64,
    injected: Injected,
}

/// Returns the bytes that a record takes in the ring.
pub const fn record_size(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(ALIGNMENT)
}

impl<M: RingMemory> Writer<M> {
    /// Returns the writing end of a ring that no process has written to.
    pub fn new(memory: M) -> Writer<M> {
        Writer {
            memory,
            tail: 0,
            limit: 0,
            unread_from: 0,
            head: 0,
            returned_from: None,
            next_look: 0,
            is_extended: false,
            leaves_front: false,
            injected: Injected::default(),
        }
    }

    /// Enables one injected bug.
    #[cfg(feature = "bugs")]
    pub fn inject(&mut self, injected: Injected) {
        self.injected = injected;
    }

    /// Returns the memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the position of the reader at the last look, as it has published it.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Returns the bytes of records that the reader has not read. A reader that reports an
    /// impossible position has read nothing since the last look.
    pub fn unread(&self) -> usize {
        let head = self.memory.head().load(Ordering::Acquire);
        let head = match self.first_unread(head) {
            head if checked::<M>(head, self.tail).is_ok() => head,
            _ => self.unread_from,
        };
        self.tail.wrapping_sub(head) as usize
    }

    /// Writes a record. The ring sets the first four bytes of the header.
    ///
    /// # Errors
    /// [`Broken`] if the reader's position is impossible, or the record would not fit an empty
    /// ring.
    pub fn write(&mut self, mut header: Header, payload: &[u8]) -> Result<Written, Broken> {
        let size = record_size(payload.len());
        if size > M::CAPACITY {
            return Err(Broken);
        }
        if (self.limit.wrapping_sub(self.tail) as usize) < size && !self.find_room(size)? {
            return Ok(Written::Full);
        }
        header[..4].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        if self.injected.has(Bug::PublishBeforeCopy) {
            let tail = self.tail.wrapping_add(size as u64);
            self.memory.tail().store(tail, Ordering::Release);
        }
        let at = place::<M>(self.tail);
        self.memory.copy_in(at, &header);
        let at = at + HEADER;
        let first = payload.len().min(M::CAPACITY - at);
        self.memory.copy_in(at, &payload[..first]);
        if first < payload.len() {
            self.memory.copy_in(0, &payload[first..]);
        }
        self.tail = self.tail.wrapping_add(size as u64);
        self.memory.tail().store(self.tail, Ordering::Release);
        Ok(match take_sleeper(&self.memory) {
            true => Written::WakeReader,
            false => Written::Quiet,
        })
    }

    /// Clears the flag of a writer that waits for room: it has nothing to write any more, or the record has
    /// found room. For writers whose reader looks by [`Reader::is_writer_waiting`].
    pub fn stop_waiting(&self) {
        self.memory.writer_waits().store(0, Ordering::Relaxed);
    }

    /// Returns true if the ring has room for `size` bytes, at its start if the record would end behind the front and
    /// the ring is empty.
    #[inline(never)]
    fn find_room(&mut self, size: usize) -> Result<bool, Broken> {
        if place::<M>(self.tail) + size > M::FRONT {
            self.leave_front(size)?;
        }
        let has_room = self.has_room(size)?;
        let in_front = M::FRONT.saturating_sub(place::<M>(self.tail));
        self.limit = self.tail.wrapping_add(match has_room {
            true => self.room().min(in_front.max(size)) as u64,
            false => 0,
        });
        Ok(has_room)
    }

    /// Returns true if the ring has room for `size` bytes. Otherwise sets the flag for which
    /// the reader looks.
    fn has_room(&mut self, size: usize) -> Result<bool, Broken> {
        if self.room() >= size {
            return Ok(true);
        }
        self.look()?;
        if self.room() >= size {
            return Ok(true);
        }
        self.memory.writer_waits().swap(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.look()?;
        Ok(self.room() >= size)
    }

    fn room(&self) -> usize {
        let capacity = match self.injected.has(Bug::OverfillRing) {
            true => M::CAPACITY + ALIGNMENT,
            false => M::CAPACITY,
        };
        capacity - self.tail.wrapping_sub(self.unread_from) as usize
    }

    /// Reads the position of the reader.
    fn look(&mut self) -> Result<(), Broken> {
        let published = self.memory.head().load(Ordering::Acquire);
        let unread_from = self.first_unread(published);
        if !self.injected.has(Bug::TrustReaderPosition) && !self.injected.has(Bug::OverfillRing) {
            checked::<M>(unread_from, self.tail)?;
        }
        (self.unread_from, self.head) = (unread_from, published);
        Ok(())
    }

    /// Returns the position of the first record that a reader with this position has not read: the
    /// reader follows a return only when it reads the next record.
    fn first_unread(&self, published_head: u64) -> u64 {
        match self.returned_from == Some(published_head) {
            true => start_after_return::<M>(published_head),
            false => published_head,
        }
    }

    /// Returns to the start of the ring if it is empty, before a record that would end behind the front. The
    /// reader's position is in the cache of another processor: the writer looks at it once in a sixteenth of
    /// the front.
    fn leave_front(&mut self, size: usize) -> Result<(), Broken> {
        if self.tail >= self.next_look && place::<M>(self.tail) > 0 {
            self.look()?;
            if self.unread_from == self.tail || self.injected.has(Bug::ReturnBeforeRead) {
                self.returned_from = Some(self.tail);
                self.tail = start_after_return::<M>(self.tail);
                self.unread_from = self.tail;
            } else {
                self.next_look = self.tail.wrapping_add(M::FRONT as u64 / 16);
            }
        }
        if place::<M>(self.tail) + size > M::FRONT {
            self.leaves_front = true;
            if !self.is_extended {
                self.is_extended = true;
                self.memory.extend();
            }
        }
        Ok(())
    }

    /// Discards the bytes behind the front if the ring is empty, and if no record lay there since the last
    /// call. Returns true if bytes are left there: call it again later.
    pub fn shrink(&mut self) -> bool {
        if core::mem::take(&mut self.leaves_front) || !self.is_extended {
            return self.is_extended;
        }
        // The next write reports a position that is impossible.
        let is_empty = self.look().is_ok() && self.unread_from == self.tail;
        if !is_empty && !self.injected.has(Bug::DiscardUnread) {
            return true;
        }
        // The next record begins at the start of the ring.
        self.next_look = self.tail;
        self.is_extended = false;
        self.memory.shrink();
        false
    }
}

impl<M: RingMemory> Reader<M> {
    /// Returns the reading end of a ring that no process has read from.
    pub fn new(memory: M) -> Reader<M> {
        Reader {
            memory,
            head: 0,
            tail: 0,
            injected: Injected::default(),
        }
    }

    /// Enables one injected bug.
    #[cfg(feature = "bugs")]
    pub fn inject(&mut self, injected: Injected) {
        self.injected = injected;
    }

    /// Returns the memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the number of bytes read.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Copies the oldest record out: its payload to the front of `payload`, whose length is the
    /// longest payload. Returns its header and the length of its payload; none if the ring is
    /// empty.
    ///
    /// # Errors
    /// [`Broken`] if the writer's position or the record is impossible.
    pub fn read(&mut self, payload: &mut [u8]) -> Result<Option<(Header, usize)>, Broken> {
        if self.head == self.tail {
            let tail = self.memory.tail().load(Ordering::Acquire);
            if self.head == tail {
                return Ok(None);
            }
            if checked::<M>(self.head, tail).is_err() {
                self.follow_return(tail)?;
            }
            self.tail = tail;
        }
        let written = self.tail.wrapping_sub(self.head) as usize;
        let mut header = [0; HEADER];
        let at = place::<M>(self.head);
        self.memory.copy_out(at, &mut header);
        let [a, b, c, d, ..] = header;
        let length = u32::from_ne_bytes([a, b, c, d]) as usize;
        let payload = payload.get_mut(..length).ok_or(Broken)?;
        let size = record_size(length);
        if size > written {
            return Err(Broken);
        }
        let length = match self.injected.has(Bug::ReadLengthTwice) {
            true => self.read_length_again(at),
            false => length,
        };
        let at = at + HEADER;
        let first = length.min(M::CAPACITY - at);
        self.memory.copy_out(at, &mut payload[..first]);
        if first < length {
            self.memory.copy_out(0, &mut payload[first..]);
        }
        self.head = self.head.wrapping_add(size as u64);
        self.memory.head().store(self.head, Ordering::Release);
        Ok(Some((header, length)))
    }

    /// Follows a writer that has returned to the start of the ring.
    #[cold]
    fn follow_return(&mut self, tail: u64) -> Result<(), Broken> {
        let head = start_after_return::<M>(self.head);
        if !self.injected.has(Bug::TrustWriterPosition) {
            // No writer returns without a record.
            if head == tail {
                return Err(Broken);
            }
            checked::<M>(head, tail)?;
        }
        self.head = head;
        Ok(())
    }

    /// Reads the length of a record from shared memory, for an injected bug.
    #[cold]
    fn read_length_again(&self, at: usize) -> usize {
        let mut length = [0; 4];
        self.memory.copy_out(at, &mut length);
        u32::from_ne_bytes(length) as usize
    }

    /// Returns true if the writer waits for room, which the records read before have made. The caller wakes it if
    /// it sleeps. The flag stays until the record fits: the writer may have set it after the last of these records
    /// was read, and then does not try again before the next one.
    pub fn is_writer_waiting(&self) -> bool {
        fence(Ordering::SeqCst);
        self.memory.writer_waits().load(Ordering::Relaxed) != 0
    }

    /// Returns true if the writer waited for room, which the records read before have made, and clears its flag. The
    /// caller wakes it if it sleeps. For writers that try again after each wakeup, and after a while.
    pub fn take_waiting_writer(&self) -> bool {
        fence(Ordering::SeqCst);
        let flag = self.memory.writer_waits();
        flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::AcqRel) != 0
    }
}

/// Returns true if the reader of a ring sleeps, and clears its flag: the caller must wake it.
pub fn take_sleeper(memory: &impl RingMemory) -> bool {
    fence(Ordering::SeqCst);
    let flag = memory.reader_sleeps();
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::AcqRel) != 0
}

/// Sets the flag of a sleeping reader. Then [`has_record`] decides whether it may sleep.
pub fn arm(memory: &impl RingMemory) {
    memory.reader_sleeps().swap(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
}

/// Returns true if no writer has cleared the flag of a sleeping reader.
pub fn is_armed(memory: &impl RingMemory) -> bool {
    memory.reader_sleeps().load(Ordering::Relaxed) != 0
}

/// Clears the flag of a sleeping reader.
pub fn disarm(memory: &impl RingMemory) {
    memory.reader_sleeps().swap(0, Ordering::AcqRel);
}

/// Returns true if a record waits behind the position `head`, or the ring is broken.
pub fn has_record(memory: &impl RingMemory, head: u64) -> bool {
    memory.tail().load(Ordering::Acquire) != head
}

/// Returns the place of a position in the ring.
fn place<M: RingMemory>(position: u64) -> usize {
    (position % M::CAPACITY as u64) as usize
}

/// Returns the position to which a writer moves from `position` when it returns to the start of the ring: more than a
/// whole ring behind it.
fn start_after_return<M: RingMemory>(position: u64) -> u64 {
    let lap = M::CAPACITY as u64;
    (position / lap).wrapping_add(2).wrapping_mul(lap)
}

/// Checks the positions of both ends.
fn checked<M: RingMemory>(head: u64, tail: u64) -> Result<(), Broken> {
    let bytes = tail.wrapping_sub(head);
    let fits = bytes <= M::CAPACITY as u64 && bytes.is_multiple_of(ALIGNMENT as u64);
    fits.then_some(()).ok_or(Broken)
}
