//! Which paths lead elsewhere, and where.

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;

use crate::next::Path;
use crate::{functions, refresh, root};

/// The longest path that the kernel takes, with its zero.
pub(crate) const LONGEST: usize = libc::PATH_MAX as usize;

/// Folders whose contents are ours.
const OURS: [&[u8]; 4] = [
    b"/sys/class/infiniband",
    b"/sys/kernel/config/rdma_cm",
    b"/sys/class/infiniband_verbs",
    b"/dev/infiniband",
];

/// Calls `call` with the path to use instead of `path`, which is one of ours.
///
/// A function of its own, so that others need no room on the stack: that of a signal
/// handler may be small.
///
/// # Safety
/// `path` is a string.
#[cold]
#[inline(never)]
pub(crate) unsafe fn lead<T>(path: Path, call: impl FnOnce(Path) -> T) -> T {
    let mut room = MaybeUninit::uninit();
    // SAFETY: a string.
    let led = led(unsafe { CStr::from_ptr(path) }, &mut room);
    call(led.unwrap_or(path))
}

/// Puts the path together; none if it leads nowhere else.
fn led(path: &CStr, room: &mut MaybeUninit<[u8; LONGEST]>) -> Option<Path> {
    let room = room.as_mut_ptr().cast::<u8>();
    root::with(|root| {
        let path = path.to_bytes_with_nul();
        if leaves(path) || root.len() + path.len() > LONGEST {
            return None;
        }
        // SAFETY: there is room for the root and a zero, which make a string.
        let there = unsafe {
            room.copy_from_nonoverlapping(root.as_ptr(), root.len());
            room.add(root.len()).write(0);
            functions::exists(room.cast_const().cast())
        };
        if !there {
            return None;
        }
        if is_counter(path) {
            refresh::ask(root);
        }
        // SAFETY: there is room for both.
        unsafe {
            let rest = room.add(root.len());
            rest.copy_from_nonoverlapping(path.as_ptr(), path.len());
        }
        Some(room.cast_const().cast())
    })?
}

/// Takes the root away from a path that was found behind one of ours.
///
/// # Safety
/// `path` is a string that may be written to, or null.
pub(crate) unsafe fn back(path: *mut c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: a string.
    let text = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let length = text.len();
    let cut = root::with(|root| match text.strip_prefix(root) {
        Some([b'/', ..]) => root.len(),
        _ => 0,
    });
    if let Some(cut @ 1..) = cut {
        // SAFETY: within the string, its zero included.
        unsafe { core::ptr::copy(path.add(cut), path, length - cut) };
    }
}

/// Whether a path begins with a folder of ours.
///
/// # Safety
/// `path` is a string or null.
#[inline]
pub(crate) unsafe fn is_ours(path: Path) -> bool {
    if path.is_null() {
        return false;
    }
    let path = path.cast::<u8>();
    OURS.iter().any(|folder| {
        // SAFETY: no byte is read behind one that differs, so none behind the zero.
        let same = (folder.iter().enumerate()).all(|(at, byte)| unsafe { *path.add(at) } == *byte);
        // SAFETY: all before it are as in the folder, so the string goes on to here.
        same && matches!(unsafe { *path.add(folder.len()) }, 0 | b'/')
    })
}

/// Whether a path of ours is that of a counter, or of a folder of counters.
fn is_counter(path: &[u8]) -> bool {
    let path = path.strip_suffix(&[0]).unwrap_or(path);
    let mut parts = path.split(|byte| *byte == b'/');
    parts.any(|part| part == b"counters" || part == b"hw_counters")
}

/// Whether a path of ours climbs out of our folder.
fn leaves(path: &[u8]) -> bool {
    let path = path.strip_suffix(&[0]).unwrap_or(path);
    let inside = OURS.iter().find_map(|folder| {
        let rest = path.strip_prefix(*folder)?;
        (rest.is_empty() || rest[0] == b'/').then_some(rest)
    });
    let mut depth = 0i32;
    for part in inside.unwrap_or_default().split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(path: &CStr) -> bool {
        // SAFETY: a string.
        unsafe { is_ours(path.as_ptr()) }
    }

    #[test]
    fn these_paths_and_no_others() {
        for path in [
            c"/sys/class/infiniband",
            c"/sys/class/infiniband/",
            c"/sys/class/infiniband/rxe0/ports/1/state",
            c"/sys/class/infiniband_verbs/uverbs0",
            c"/dev/infiniband/uverbs0",
            c"/sys/kernel/config/rdma_cm/rxe0/ports/1/default_roce_mode",
        ] {
            assert!(ours(path), "{path:?}");
        }
        for path in [
            c"",
            c"/",
            c"/sys",
            c"/sys/class/infiniban",
            c"/sys/class/infiniband_mad",
            c"/sys/class/infinibands/x",
            c"/sys/class/net/lo",
            c"/dev/null",
            c"/dev/infiniband0",
            c"sys/class/infiniband",
        ] {
            assert!(!ours(path), "{path:?}");
        }
        // SAFETY: null is allowed.
        assert!(!unsafe { is_ours(core::ptr::null()) });
    }

    #[test]
    fn counters_are_known_by_their_folder() {
        assert!(is_counter(
            b"/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts\0"
        ));
        assert!(is_counter(b"/sys/class/infiniband/rxe0/ports/1/counters\0"));
        assert!(!is_counter(b"/sys/class/infiniband/rxe0/ports/1/state\0"));
        assert!(!is_counter(
            b"/sys/class/infiniband/counters0/ports/1/state\0"
        ));
    }

    #[test]
    fn who_climbs_out_is_not_led() {
        assert!(leaves(b"/dev/infiniband/../null\0"));
        assert!(leaves(b"/sys/class/infiniband/rxe0/../../net\0"));
        assert!(!leaves(b"/sys/class/infiniband/rxe0/../rxe1\0"));
        assert!(!leaves(b"/sys/class/infiniband//./\0"));
    }
}
