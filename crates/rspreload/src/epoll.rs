//! `epoll` for sets that contain rsockets.
//!
//! Such a set gets a twin, a set of librdmacm. The twin contains the rsockets and the
//! descriptor of the kernel's set. Rsockets are always level-triggered.

use core::ffi::c_int;

use libc::{epoll_event, sigset_t};

use crate::inside::go;
use crate::map::{self, FdTarget};
use crate::next::real;
use crate::rsockets::*;
use crate::waiting::masked;

/// The value of the kernel's set in its twin. No program uses this value.
const KERNEL: u64 = 0xfeed_face_0ddb_a11e;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let Some(rsocket) = map::rsocket(fd) else {
        // SAFETY: the program's arguments, unchanged.
        return unsafe { real::epoll_ctl(set, op, fd, event) };
    };
    let twin = match twin(set) {
        Ok(twin) => twin,
        Err(failed) => return failed,
    };
    // SAFETY: the program's arguments, unchanged.
    go(|| unsafe { repoll_ctl(twin, op, rsocket, event) })
}

/// Returns the twin of a set, which is created if needed.
fn twin(set: c_int) -> Result<c_int, c_int> {
    if let FdTarget::Epoll(twin) = map::get(set) {
        return Ok(twin);
    }
    let mut event = epoll_event {
        events: libc::EPOLLIN as u32,
        u64: KERNEL,
    };
    // SAFETY: the event lives until the calls return.
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
        map::put(set, FdTarget::Epoll(twin));
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
    let FdTarget::Epoll(twin) = map::get(set) else {
        // SAFETY: the program's arguments, unchanged.
        return unsafe { real::epoll_wait(set, events, count, timeout) };
    };
    // SAFETY: the program's arguments, unchanged.
    let found = go(|| unsafe { repoll_wait(twin, events, count, timeout) });
    if found <= 0 {
        return found;
    }
    // SAFETY: the program's array has room for `count` events, and `found` are written.
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
    // SAFETY: the program's arguments, unchanged.
    unsafe {
        match map::get(set) {
            FdTarget::Epoll(_) => masked(mask, || epoll_wait(set, events, count, timeout)),
            _ => real::epoll_pwait(set, events, count, timeout, mask),
        }
    }
}
