//! The completion queues that were destroyed last.
//!
//! A program that handles completions in a loop may destroy the queue from within, and
//! the loop polls it once more: libiscsi does so when it disconnects. `ibv_poll_cq` is inline
//! code that follows a pointer in the queue, so nothing can be done about it in the call
//! itself. The memory of a few queues therefore outlives them; polled, they are empty.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::cq::CqObject;
use crate::ffi::ibv_cq;
use crate::object::take;

/// How many.
const MOST: usize = 16;

static LAST: Mutex<VecDeque<Retired>> = Mutex::new(VecDeque::new());

struct Retired(*mut ibv_cq);

// SAFETY: only handed to `take`, once.
unsafe impl Send for Retired {}

/// Frees a queue after some others.
///
/// # Safety
///
/// It has been destroyed, and nothing but a late poll uses it.
pub(crate) unsafe fn free_later(cq: *mut ibv_cq) {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.push_back(Retired(cq));
    if last.len() > MOST
        && let Some(Retired(oldest)) = last.pop_front()
    {
        // SAFETY: by contract of this function, when it was put here.
        drop(unsafe { take::<CqObject>(oldest) });
    }
}
