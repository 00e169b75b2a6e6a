//! `epoll`, for sets with rsockets in them.
//!
//! Such a set gets a twin: rsockets go into the twin, and so does the kernel's set as a
//! whole. Rsockets are always level-triggered.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t};

use crate::inside::go;
use crate::map::{self, Behind};
use crate::next::real;
use crate::rsockets::*;
use crate::waiting::masked;

/// What the kernel's set is called in its twin. No program calls anything so.
const KERNEL: u64 = 0xfeed_face_0ddb_a11e;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let Some(rsocket) = map::rsocket(fd) else {
        // SAFETY: as the program has it.
        return unsafe { real::epoll_ctl(set, op, fd, event) };
    };
    let twin = match twin(set) {
        Ok(twin) => twin,
        Err(failed) => return failed,
    };
    // SAFETY: as the program has it.
    go(|| unsafe { repoll_ctl(twin, op, rsocket, event) })
}

/// The twin of a set, made if there is none.
fn twin(set: c_int) -> Result<c_int, c_int> {
    if let Behind::Epoll(twin) = map::get(set) {
        return Ok(twin);
    }
    let mut event = epoll_event {
        events: libc::EPOLLIN as u32,
        u64: KERNEL,
    };
    // SAFETY: numbers, and an event.
    unsafe {
        let twin = go(|| repoll_create(0));
        if twin < 0 {
            return Err(twin);
        }
        let added = go(|| repoll_ctl(twin, libc::EPOLL_CTL_ADD, set, &mut event));
        if added != 0 {
            go(|| rclose(twin));
            return Err(added);
        }
        map::put(set, Behind::Epoll(twin));
        Ok(twin)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    let Behind::Epoll(twin) = map::get(set) else {
        // SAFETY: as the program has it.
        return unsafe { real::epoll_wait(set, events, count, timeout) };
    };
    // SAFETY: as the program has it.
    let found = go(|| unsafe { repoll_wait(twin, events, count, timeout) });
    if found <= 0 {
        return found;
    }
    // SAFETY: as many as were found; there is room for `count`.
    unsafe {
        let ready = core::slice::from_raw_parts_mut(events, found as usize);
        let Some(kernel) = ready.iter().position(|event| { event.u64 } == KERNEL) else {
            return found;
        };
        ready[kernel] = ready[ready.len() - 1];
        let others = found - 1;
        let more = real::epoll_wait(set, events.add(others as usize), count - others, 0);
        others + more.max(0)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the program has it.
    unsafe {
        match map::get(set) {
            Behind::Epoll(_) => masked(mask, || epoll_wait(set, events, count, timeout)),
            _ => real::epoll_pwait(set, events, count, timeout, mask),
        }
    }
}
