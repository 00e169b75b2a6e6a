//! The copies of one shard from and to the memory of GPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroce_roce::{Fault, MemRef, MemorySpace};

use super::driver::CudaError;
use super::session::Session;
use super::{Gpu, idle_sessions};

/// The sessions of a shard, one for each GPU whose memory its device has registered.
///
/// A session exists before the first region of its GPU: to allocate pinned memory can wait
/// for kernels, and these for data.
#[derive(Debug, Default)]
pub(crate) struct GpuCopies {
    /// True if started writes have not been waited for.
    writes: AtomicBool,
    /// True if the last copy failed.
    fails: AtomicBool,
    sessions: Mutex<Vec<Session>>,
}

impl GpuCopies {
    /// Makes sure that there is a session for a GPU.
    pub(super) fn prepare(&self, gpu: &Arc<Gpu>) -> Result<(), CudaError> {
        let has = |sessions: &[Session]| sessions.iter().any(|s| s.gpu.number == gpu.number);
        if has(&self.sessions()) {
            return Ok(());
        }
        // Not under the lock, which copies of other GPUs need meanwhile.
        let session = idle_session(gpu)?;
        let mut sessions = self.sessions();
        match has(&sessions) {
            true => idle_sessions().push(session),
            false => sessions.push(session),
        }
        Ok(())
    }

    /// Reads memory of a GPU.
    #[cold]
    pub(crate) fn read(&self, at: MemRef, into: &mut [u8]) -> Result<(), Fault> {
        self.with(at, |session, addr| match session.take_fetched(addr, into) {
            true => Ok(()),
            false => session.read(addr, into),
        })
    }

    /// Starts to write to memory of a GPU.
    #[cold]
    pub(crate) fn write(&self, at: MemRef, data: &[u8]) -> Result<(), Fault> {
        self.writes.store(true, Ordering::Relaxed);
        let mut data = core::iter::once(data);
        self.with(at, |session, addr| session.write_run(addr, &mut data).1)
    }

    /// Starts to write pieces one behind the other. Returns how many precede the first fault.
    #[cold]
    pub(crate) fn write_run(&self, at: MemRef, pieces: &mut dyn Iterator<Item = &[u8]>) -> u32 {
        self.writes.store(true, Ordering::Relaxed);
        let mut taken = 0;
        let written = self.with(at, |session, addr| {
            let (pieces, written) = session.write_run(addr, pieces);
            taken = pieces;
            written
        });
        // The engine passes the first piece that is not taken again, and gets its fault.
        written.map_or(taken, |()| taken)
    }

    /// Waits until started writes are in the memory of their GPUs.
    #[inline]
    pub(crate) fn complete_writes(&self) -> Result<(), Fault> {
        match self.writes.load(Ordering::Relaxed) {
            true => self.wait(),
            false => Ok(()),
        }
    }

    #[cold]
    fn wait(&self) -> Result<(), Fault> {
        let mut result = Ok(());
        for session in self
            .sessions()
            .iter_mut()
            .filter(|session| session.has_writes())
        {
            if let Err(error) = session.complete_writes() {
                tracing::warn!("GPU {}: {error}", session.gpu.number);
                let at = MemRef::gpu(session.gpu.number, 0);
                result = at.map_or(Ok(()), |at| Err(Fault { at }));
            }
        }
        self.writes.store(false, Ordering::Relaxed);
        result
    }

    /// Fetches ranges that will be read.
    #[cold]
    pub(crate) fn prefetch(&self, ranges: &mut dyn Iterator<Item = (MemRef, u64)>) {
        let mut sessions = self.sessions();
        sessions.iter_mut().for_each(Session::forget);
        for (at, length) in ranges {
            let MemorySpace::Gpu(number) = at.space() else {
                continue;
            };
            let session = sessions.iter_mut().find(|s| s.gpu.number == number);
            // A range without room is read when it is needed.
            let _fits = session.is_none_or(|session| session.plan(at.addr(), length as usize));
        }
        for session in sessions.iter_mut() {
            if let Err(error) = session.fetch() {
                tracing::debug!("GPU {}: {error}", session.gpu.number);
            }
        }
    }

    /// Replaces eight bytes by the result of `change`. Returns their old value. Other atomics of
    /// this process come before or after it; those of kernels may come in between.
    #[cold]
    pub(crate) fn update(&self, at: MemRef, change: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        self.writes.store(true, Ordering::Relaxed);
        self.with(at, |session, addr| {
            let gpu = Arc::clone(&session.gpu);
            let _one_at_a_time = gpu.atomics.lock().unwrap_or_else(PoisonError::into_inner);
            let mut bytes = [0; 8];
            session.read(addr, &mut bytes)?;
            let old = u64::from_ne_bytes(bytes);
            let new = change(old).to_ne_bytes();
            session.write_run(addr, &mut core::iter::once(&new[..])).1?;
            session.complete_writes()?;
            Ok(old)
        })
    }

    /// Runs copies of the GPU that `at` belongs to.
    fn with<T>(
        &self,
        at: MemRef,
        work: impl FnOnce(&mut Session, u64) -> Result<T, CudaError>,
    ) -> Result<T, Fault> {
        let MemorySpace::Gpu(number) = at.space() else {
            return Err(Fault { at });
        };
        let mut sessions = self.sessions();
        let Some(session) = sessions.iter_mut().find(|s| s.gpu.number == number) else {
            tracing::warn!("memory at {at}: the GPU is unknown");
            return Err(Fault { at });
        };
        let result = work(session, at.addr());
        let failed_before = self.fails.swap(result.is_err(), Ordering::Relaxed);
        result.map_err(|error| {
            // One line for the packets of a message.
            if !failed_before {
                tracing::warn!("memory at {at}: {error}; was it freed while registered?");
            }
            Fault { at }
        })
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GpuCopies {
    /// Keeps the sessions for the next device of the process.
    fn drop(&mut self) {
        let sessions = core::mem::take(&mut *self.sessions());
        for mut session in sessions {
            // A forked child has no context.
            if session.gpu.process == std::process::id() && session.complete_writes().is_ok() {
                idle_sessions().push(session);
            }
        }
    }
}

/// Returns a session for a GPU that no shard uses.
pub(super) fn idle_session(gpu: &Arc<Gpu>) -> Result<Session, CudaError> {
    let is_its = |session: &Session| Arc::ptr_eq(&session.gpu, gpu);
    let mut idle = idle_sessions();
    let found = idle.iter().position(is_its).map(|at| idle.swap_remove(at));
    drop(idle);
    found.map_or_else(|| Session::new(gpu), Ok)
}
