//! Copies between a GPU and pinned memory.

use std::sync::Arc;

use super::Gpu;
use super::driver::{CudaError, CurrentContext, Event, Stream};
use crate::clock;

/// Bytes for data on its way from the GPU: more than a batch of packets has.
const READ_ROOM: usize = 256 << 10;
/// Bytes for data on its way to the GPU. If they are in use, a write waits for the copies
/// before it: 1 MiB takes 27 us.
const WRITE_ROOM: usize = 1 << 20;

/// Time for which a thread keeps its processor while it waits for a copy.
const SPIN_NS: u64 = 50_000;
/// Time after which a copy that has not ended is reported.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Pinned staging memory for copies of a GPU. One thread at a time uses it.
///
/// A copy takes 7 us however short it is, most of which is waiting for its end. So writes are
/// only started, and one wait ends all of them. Reads are announced together, for the same
/// reason.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) gpu: Arc<Gpu>,
    stream: Stream,
    /// Marks the end of the copies that the session waits for.
    event: Event,
    /// `READ_ROOM` bytes, then `WRITE_ROOM` bytes of pinned memory.
    staging: *mut u8,
    /// Ranges of the GPU's memory that are in the staging memory, in the order of reads.
    fetched: Vec<Fetched>,
    /// The range that the last read was from.
    next: usize,
    /// Bytes of the read room in use.
    read_end: usize,
    /// Bytes of the write room in use: their copies have been started.
    write_end: usize,
    /// Set after a failure of the stream. Then the context is unusable.
    broken: Option<CudaError>,
}

// SAFETY: the staging memory belongs to the session, and handles can be used in every thread.
unsafe impl Send for Session {}

/// A range of the GPU's memory in the staging memory.
#[derive(Copy, Clone, Debug)]
struct Fetched {
    start: u64,
    length: usize,
    at: usize,
}

impl Session {
    /// Creates a stream, and allocates staging memory.
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Session, CudaError> {
        let entered = gpu.enter()?;
        Ok(Session {
            stream: gpu.stream(&entered)?,
            event: entered.create_event()?,
            staging: entered.allocate_pinned(READ_ROOM + WRITE_ROOM)?,
            gpu: Arc::clone(gpu),
            fetched: Vec::new(),
            next: 0,
            read_end: 0,
            write_end: 0,
            broken: None,
        })
    }

    /// Returns true if started writes have not been waited for, or may have been lost by a
    /// failure of the stream.
    pub(super) fn has_writes(&self) -> bool {
        self.write_end > 0 || self.is_broken()
    }

    /// Returns true after a failure of the stream.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Starts to write pieces one behind the other. Returns how many were taken before an error.
    pub(super) fn write_run(
        &mut self,
        to: u64,
        pieces: &mut dyn Iterator<Item = &[u8]>,
    ) -> (u32, Result<(), CudaError>) {
        let gpu = Arc::clone(&self.gpu);
        let entered = match gpu.enter() {
            Ok(entered) => entered,
            Err(error) => return (0, Err(error)),
        };
        let (mut to, mut from, mut taken, mut staged) = (to, self.write_end, 0, 0);
        for data in pieces {
            let mut rest = data;
            while !rest.is_empty() {
                if self.write_end == WRITE_ROOM {
                    let written = self
                        .start_write(&entered, to, from)
                        .and_then(|()| self.wait(&entered));
                    if let Err(error) = written {
                        return (taken, Err(error));
                    }
                    (to, from, taken, staged) =
                        (to + (WRITE_ROOM - from) as u64, 0, staged, staged);
                }
                let length = rest.len().min(WRITE_ROOM - self.write_end);
                let (now, later) = rest.split_at(length);
                // SAFETY: the room is the session's, and no copy reads this part of it: all
                // started copies are from parts before `write_end`.
                unsafe {
                    let place = self.staging.add(READ_ROOM + self.write_end);
                    place.copy_from_nonoverlapping(now.as_ptr(), length);
                }
                self.write_end += length;
                rest = later;
            }
            staged += 1;
        }
        match self.start_write(&entered, to, from) {
            Ok(()) => (staged, Ok(())),
            Err(error) => (taken, Err(error)),
        }
    }

    /// Starts to copy the write room from `from` to its end.
    fn start_write(
        &mut self,
        entered: &CurrentContext<'_>,
        to: u64,
        from: usize,
    ) -> Result<(), CudaError> {
        let length = self.write_end - from;
        if length == 0 {
            return Ok(());
        }
        // SAFETY: the range is inside the write room, which is pinned. It is used again only
        // after `wait`.
        unsafe {
            let place = self.staging.add(READ_ROOM + from);
            entered.start_write(to, place, length, self.stream)
        }
    }

    /// Waits until all started writes are in the memory of the GPU.
    pub(super) fn complete_writes(&mut self) -> Result<(), CudaError> {
        if self.write_end == 0 {
            return self.broken.map_or(Ok(()), Err);
        }
        let gpu = Arc::clone(&self.gpu);
        let entered = gpu.enter()?;
        self.wait(&entered)
    }

    /// Waits for all started copies.
    fn wait(&mut self, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        let done = self.await_stream(entered);
        self.write_end = 0;
        if let Err(error) = done {
            self.broken = Some(error);
        }
        self.broken.map_or(Ok(()), Err)
    }

    /// Looks at the stream until the copies that were started so far have ended.
    /// `cuStreamSynchronize` does the same, and would not report a wait without end.
    fn await_stream(&self, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        entered.record(self.event, self.stream)?;
        let since = clock::now();
        let mut reported = false;
        while !entered.has_happened(self.event)? {
            let waited = clock::now().nanos_since(since);
            match waited < SPIN_NS {
                true => core::hint::spin_loop(),
                false => {
                    rustix::thread::sched_yield();
                }
            }
            if waited > PATIENCE_NS && !reported {
                reported = true;
                tracing::warn!(
                    "GPU {}: a copy has not ended for {} s: is it behind a kernel that waits for \
                     its data? docs/GPU.md names a remedy",
                    self.gpu.number,
                    PATIENCE_NS / 1_000_000_000
                );
            }
        }
        Ok(())
    }

    /// Forgets what was fetched, before other ranges are fetched.
    pub(super) fn forget(&mut self) {
        self.fetched.clear();
        (self.next, self.read_end) = (0, 0);
    }

    /// Notes a range to be fetched. Returns false if it does not fit.
    pub(super) fn plan(&mut self, start: u64, length: usize) -> bool {
        if length > READ_ROOM - self.read_end {
            return false;
        }
        let at = self.read_end;
        self.read_end += length;
        match self.fetched.last_mut() {
            Some(last) if last.start + last.length as u64 == start => last.length += length,
            _ => self.fetched.push(Fetched { start, length, at }),
        }
        true
    }

    /// Fetches the noted ranges. A range that cannot be read is left out.
    pub(super) fn fetch(&mut self) -> Result<(), CudaError> {
        if self.fetched.is_empty() {
            return Ok(());
        }
        let gpu = Arc::clone(&self.gpu);
        let entered = gpu.enter()?;
        let (staging, stream) = (self.staging, self.stream);
        let mut first_error = Ok(());
        self.fetched.retain(|range| {
            // SAFETY: `plan` has given the range its own part of the read room, which is
            // pinned. It is read only after `wait`.
            let started = unsafe {
                let place = staging.add(range.at);
                entered.start_read(place, range.start, range.length, stream)
            };
            first_error = first_error.and(started);
            started.is_ok()
        });
        let waited = self.wait(&entered);
        if waited.is_err() {
            self.forget();
        }
        first_error.and(waited)
    }

    /// Copies fetched data. Returns false if the range was not fetched.
    pub(super) fn take_fetched(&mut self, start: u64, into: &mut [u8]) -> bool {
        let covers = |range: &Fetched| {
            let before = start.checked_sub(range.start);
            before.is_some_and(|before| before + into.len() as u64 <= range.length as u64)
        };
        // Reads come in the order of `plan`.
        let later = self.fetched[self.next..].iter().position(covers);
        let index = match later {
            Some(later) => self.next + later,
            None => match self.fetched.iter().position(covers) {
                Some(index) => index,
                None => return false,
            },
        };
        self.next = index;
        let range = self.fetched[index];
        let at = range.at + (start - range.start) as usize;
        // SAFETY: the range lies in the read room, and `fetch` has waited for its copy.
        unsafe {
            let place = self.staging.add(at);
            into.as_mut_ptr()
                .copy_from_nonoverlapping(place, into.len());
        }
        true
    }

    /// Reads a range that was not announced.
    pub(super) fn read(&mut self, start: u64, into: &mut [u8]) -> Result<(), CudaError> {
        let mut start = start;
        for part in into.chunks_mut(READ_ROOM) {
            self.forget();
            self.plan(start, part.len());
            self.fetch()?;
            self.take_fetched(start, part);
            start += part.len() as u64;
        }
        self.forget();
        Ok(())
    }
}
