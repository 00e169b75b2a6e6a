//! The table of descriptors with an rsocket behind them.
//!
//! Every `read` and `write` of the program looks here, perhaps in a signal handler. So the
//! table has two levels and is read without locks.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicI64, AtomicPtr, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::inside;
use crate::rsockets::rclose;

/// The object behind a descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FdTarget {
    /// No other object: it is the kernel's.
    Kernel,
    /// An rsocket, by its descriptor.
    Rsocket(c_int),
    /// An epoll set that contains rsockets: the descriptor of its twin.
    Epoll(c_int),
    /// A TCP socket that is not connected, for a connection that an rsocket replaces later.
    ForkNew,
    /// Such a connection, on the side that connected.
    ForkActive,
    /// A listener for such connections.
    ForkListening,
    /// Such a connection, on the side that accepted.
    ForkPassive,
}

const PAGE: usize = 1024;
const PAGES: usize = 1024;
type Page = [AtomicI64; PAGE];

static TABLE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(ptr::null_mut()) }; PAGES];

/// The number of descriptors of each rsocket.
static SHARED: Mutex<BTreeMap<c_int, u32>> = Mutex::new(BTreeMap::new());

fn shared() -> MutexGuard<'static, BTreeMap<c_int, u32>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn place(fd: c_int, make: bool) -> Option<&'static AtomicI64> {
    let fd = usize::try_from(fd).ok().filter(|fd| *fd < PAGE * PAGES)?;
    let page = &TABLE[fd / PAGE];
    let mut found = page.load(Ordering::Acquire);
    if found.is_null() {
        if !make {
            return None;
        }
        let new = Box::into_raw(Box::new([const { AtomicI64::new(0) }; PAGE]));
        let set = page.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire);
        found = match set {
            Ok(_) => new,
            Err(other) => {
                // SAFETY: the page was not published, so this is its only reference.
                drop(unsafe { Box::from_raw(new) });
                other
            }
        };
    }
    // SAFETY: pages are never freed.
    Some(unsafe { &(*found)[fd % PAGE] })
}

fn encode(behind: FdTarget) -> i64 {
    let (kind, number) = match behind {
        FdTarget::Kernel => (0, 0),
        FdTarget::Rsocket(number) => (1, number),
        FdTarget::Epoll(number) => (2, number),
        FdTarget::ForkNew => (3, 0),
        FdTarget::ForkActive => (4, 0),
        FdTarget::ForkListening => (5, 0),
        FdTarget::ForkPassive => (6, 0),
    };
    kind << 32 | i64::from(number)
}

fn decode(value: i64) -> FdTarget {
    let number = value as c_int;
    match value >> 32 {
        1 => FdTarget::Rsocket(number),
        2 => FdTarget::Epoll(number),
        3 => FdTarget::ForkNew,
        4 => FdTarget::ForkActive,
        5 => FdTarget::ForkListening,
        6 => FdTarget::ForkPassive,
        _ => FdTarget::Kernel,
    }
}

/// Returns the object behind a descriptor; that of the kernel inside librdmacm.
pub(crate) fn get(fd: c_int) -> FdTarget {
    match place(fd, false).map(|place| place.load(Ordering::Acquire)) {
        None | Some(0) => FdTarget::Kernel,
        Some(_) if inside::is_inside() => FdTarget::Kernel,
        Some(value) => decode(value),
    }
}

/// Returns the rsocket behind a descriptor.
pub(crate) fn rsocket(fd: c_int) -> Option<c_int> {
    match get(fd) {
        FdTarget::Rsocket(number) => Some(number),
        _ => None,
    }
}

/// Puts an object behind a descriptor, and counts the descriptor as its user.
pub(crate) fn put(fd: c_int, behind: FdTarget) {
    forget_in_children();
    if let FdTarget::Rsocket(number) | FdTarget::Epoll(number) = behind {
        *shared().entry(number).or_default() += 1;
    }
    if let Some(place) = place(fd, true) {
        place.store(encode(behind), Ordering::Release);
    }
}

/// Removes the object behind a descriptor. The last user closes an rsocket.
pub(crate) fn take(fd: c_int) {
    let Some(place) = place(fd, false) else {
        return;
    };
    let (FdTarget::Rsocket(number) | FdTarget::Epoll(number)) =
        decode(place.swap(0, Ordering::AcqRel))
    else {
        return;
    };
    let last = {
        let mut shared = shared();
        let left = shared.get_mut(&number).map(|users| {
            *users -= 1;
            *users
        });
        if left == Some(0) {
            shared.remove(&number);
        }
        left == Some(0)
    };
    if last {
        // SAFETY: the call accesses no memory, and no descriptor has the rsocket any more.
        inside::go(|| unsafe { rclose(number) });
    }
}

/// Clears the table in forked children, whose descriptors are the kernel's: rsockets belong
/// to the parent.
fn forget_in_children() {
    extern "C" fn forget() {
        for page in &TABLE {
            let page = page.load(Ordering::Acquire);
            if page.is_null() {
                continue;
            }
            // SAFETY: pages are never freed.
            for place in unsafe { &*page } {
                if matches!(
                    decode(place.load(Ordering::Acquire)),
                    FdTarget::Rsocket(_) | FdTarget::Epoll(_)
                ) {
                    place.store(0, Ordering::Release);
                }
            }
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only loads and stores atomics, which is allowed after `fork`.
        unsafe { libc::pthread_atfork(None, None, Some(forget)) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_found_until_it_is_removed() {
        for (fd, behind) in [
            (3, FdTarget::ForkNew),
            (1023, FdTarget::ForkActive),
            (1024, FdTarget::ForkListening),
            (PAGE as c_int * PAGES as c_int - 1, FdTarget::ForkPassive),
        ] {
            assert_eq!(get(fd), FdTarget::Kernel);
            put(fd, behind);
            assert_eq!(get(fd), behind);
            assert_eq!(inside::go(|| get(fd)), FdTarget::Kernel);
            take(fd);
            assert_eq!(get(fd), FdTarget::Kernel);
        }
        assert_eq!(
            (get(-1), get(c_int::MAX)),
            (FdTarget::Kernel, FdTarget::Kernel)
        );
    }

    #[test]
    fn every_kind_of_object_round_trips() {
        for behind in [
            FdTarget::Kernel,
            FdTarget::Rsocket(7),
            FdTarget::Epoll(c_int::MAX),
            FdTarget::ForkPassive,
        ] {
            assert_eq!(decode(encode(behind)), behind);
        }
    }
}
