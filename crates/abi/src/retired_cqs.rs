//! Completion queues that were destroyed and are not freed yet.
//!
//! A program may destroy a queue while it handles a completion in a loop, and the loop polls
//! the queue once more: libiscsi does so when it disconnects. `ibv_poll_cq` is an inline
//! function that dereferences the queue, so the library cannot catch the call. Therefore the
//! last 16 destroyed queues stay allocated; polls find them empty.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::cq::CqObject;
use crate::ffi::ibv_cq;
use crate::object::take;

/// Number of destroyed queues that stay allocated.
const MOST: usize = 16;

static LAST: Mutex<VecDeque<Retired>> = Mutex::new(VecDeque::new());

struct Retired(*mut ibv_cq);

// SAFETY: the pointer is only passed to `take`, once.
unsafe impl Send for Retired {}

/// Frees a queue after [`MOST`] others.
///
/// # Safety
///
/// The queue is destroyed, and only a late poll may use it.
pub(crate) unsafe fn free_later(cq: *mut ibv_cq) {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    last.push_back(Retired(cq));
    if last.len() > MOST
        && let Some(Retired(oldest)) = last.pop_front()
    {
        // SAFETY: the queue is destroyed, and was put here once.
        drop(unsafe { take::<CqObject>(oldest) });
    }
}
