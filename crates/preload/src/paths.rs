//! The redirection of paths to ferroced's files.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::next::{Path, errno, set_errno};
use crate::text::Text;
use crate::walk::{Entry, walk};
use crate::{functions, refresh, root};

/// Directories that are redirected.
const OURS: [&[u8]; 6] = [
    b"/sys/class/infiniband",
    b"/sys/devices/virtual/infiniband",
    b"/sys/kernel/config/rdma_cm",
    b"/sys/class/infiniband_verbs",
    b"/sys/devices/virtual/infiniband_verbs",
    b"/dev/infiniband",
];

/// True once this process may have a redirected directory as its working directory or behind
/// a descriptor. Until then relative paths are not redirected.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Sets [`ENTERED`] if the process started in a redirected directory.
pub(crate) fn find_where_we_are() {
    let before = errno();
    let ours = root::with(|root| directory(root, libc::AT_FDCWD).is_some());
    if ours == Some(true) {
        ENTERED.store(true, Ordering::Relaxed);
    }
    set_errno(before);
}

/// True if a relative path may have to be redirected.
pub(crate) fn is_entered() -> bool {
    ENTERED.load(Ordering::Relaxed)
}

/// Calls `call` with the redirected path, for a path for which [`may_be_ours`] is true. A
/// relative path begins at the directory `dir`.
///
/// Not inlined: its buffers of several PATH_MAX bytes would burden the stack of every caller,
/// and that of a signal handler may be small.
///
/// # Safety
/// `path` is a string.
#[cold]
#[inline(never)]
pub(crate) unsafe fn lead<T>(dir: c_int, path: Path, call: impl FnOnce(Path) -> T) -> T {
    let before = errno();
    // SAFETY: the path is a string.
    let text = unsafe { CStr::from_ptr(path) }.to_bytes();
    let led = root::with(|root| led(root, dir, text)).flatten();
    set_errno(before);
    match &led {
        Some(led) => call(led.as_ptr()),
        None => call(path),
    }
}

/// Returns the redirected path; `None` if the path is not redirected.
fn led(root: &[u8], dir: c_int, path: &[u8]) -> Option<Text> {
    let top = Text::of(&[root])?;
    // SAFETY: the path is a string.
    if !unsafe { functions::exists(top.as_ptr()) } {
        return None;
    }
    let meant = match path {
        [b'/', ..] => walk(b"", path, |at| entry(root, at)),
        _ => {
            let dir = directory(root, dir)?;
            walk(dir.bytes().get(root.len()..)?, path, |at| entry(root, at))
        }
    }?;
    if !is_inside(meant.bytes()) {
        return Some(meant);
    }
    ENTERED.store(true, Ordering::Relaxed);
    if is_counter(meant.bytes()) {
        refresh::ask(root);
    }
    Text::of(&[root, meant.bytes()])
}

/// Returns the path of an open directory, or with AT_FDCWD of the working directory, if it
/// lies below the root.
fn directory(root: &[u8], dir: c_int) -> Option<Text> {
    let path = match dir {
        // SAFETY: the buffer has `room` bytes.
        libc::AT_FDCWD => Text::written(|to, room| unsafe {
            // The kernel's length includes the final zero.
            libc::syscall(libc::SYS_getcwd, to, room) as isize - 1
        }),
        dir => {
            let mut digits = [0; 10];
            Text::of(&[b"/proc/self/fd/", decimal(dir, &mut digits)?])
                .and_then(|link| target(&link))
        }
    }?;
    let below = path.bytes().strip_prefix(root)?;
    matches!(below, [] | [b'/', ..]).then_some(path)
}

/// Returns the decimal digits of a number; `None` if it is negative.
fn decimal(number: c_int, digits: &mut [u8; 10]) -> Option<&[u8]> {
    let mut rest = u32::try_from(number).ok()?;
    let mut start = digits.len();
    while rest > 0 || start == digits.len() {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    Some(&digits[start..])
}

/// Returns the type of the file below the root to which a path is redirected.
fn entry(root: &[u8], path: &Text) -> Entry {
    let Some(place) = Text::of(&[root, path.bytes()]) else {
        return Entry::Other;
    };
    if let Some(target) = target(&place) {
        return Entry::Link(target);
    }
    let within = Text::of(&[place.bytes(), b"/."]);
    // SAFETY: the path is a string.
    match within.is_some_and(|within| unsafe { functions::exists(within.as_ptr()) }) {
        true => Entry::Folder,
        false => Entry::Other,
    }
}

/// Returns the target of a symbolic link.
fn target(link: &Text) -> Option<Text> {
    // SAFETY: the link is a string, and the buffer has `room` bytes.
    Text::written(|to, room| unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            link.as_ptr(),
            to,
            room,
        ) as isize
    })
}

/// True if a path may have to be redirected: it begins with a redirected directory, or is
/// relative and may begin in one.
///
/// # Safety
/// `path` is a string or null.
#[inline]
pub(crate) unsafe fn may_be_ours(path: Path) -> bool {
    // SAFETY: if the path is not null, it is a string.
    if path.is_null() || unsafe { *path } == 0 {
        return false;
    }
    // SAFETY: the path is a string.
    match unsafe { is_relative(path) } {
        true => is_entered(),
        // SAFETY: the path is a string.
        false => unsafe { is_ours(path) },
    }
}

/// True if a path is relative.
///
/// # Safety
/// `path` is a string.
pub(crate) unsafe fn is_relative(path: Path) -> bool {
    // SAFETY: a string has at least its final zero.
    unsafe { *path.cast::<u8>() != b'/' }
}

/// Removes the root from a path that libc returned for a redirected path.
///
/// # Safety
/// `path` is a string that may be written to, or null.
pub(crate) unsafe fn back(path: *mut c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: the path is a string.
    let text = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let length = text.len();
    let cut = root::with(|root| match text.strip_prefix(root) {
        Some([b'/', ..]) => root.len(),
        _ => 0,
    });
    if let Some(cut @ 1..) = cut {
        // SAFETY: both ranges lie within the string and its final zero.
        unsafe { core::ptr::copy(path.add(cut), path, length - cut) };
    }
}

/// True if a path begins with a redirected directory.
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
        // SAFETY: `all` stops at the first byte that differs, so at the latest at the zero.
        let same = (folder.iter().enumerate()).all(|(at, byte)| unsafe { *path.add(at) } == *byte);
        // SAFETY: the bytes before are not zero, so the string has this byte.
        same && matches!(unsafe { *path.add(folder.len()) }, 0 | b'/')
    })
}

/// True if a redirected path is a counter or a directory of counters.
fn is_counter(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    parts.any(|part| part == b"counters" || part == b"hw_counters")
}

/// True if a path is a redirected directory or within one.
pub(crate) fn is_inside(path: &[u8]) -> bool {
    OURS.iter().any(|folder| {
        let rest = path.strip_prefix(*folder);
        matches!(rest, Some([] | [b'/', ..]))
    })
}

/// True if a path is a parent of a redirected directory.
pub(crate) fn is_above(path: &[u8]) -> bool {
    let below = |folder: &&[u8]| matches!(folder.strip_prefix(path), Some([b'/', ..]));
    OURS.iter().any(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(path: &CStr) -> bool {
        // SAFETY: the path is a string.
        unsafe { is_ours(path.as_ptr()) }
    }

    #[test]
    fn only_paths_of_rdma_devices_are_redirected() {
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
    fn counters_are_recognised_by_their_directory() {
        assert!(is_counter(
            b"/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
        ));
        assert!(is_counter(b"/sys/class/infiniband/rxe0/ports/1/counters"));
        assert!(!is_counter(b"/sys/class/infiniband/rxe0/ports/1/state"));
        assert!(!is_counter(
            b"/sys/class/infiniband/counters0/ports/1/state"
        ));
    }

    #[test]
    fn parents_of_redirected_directories_are_recognised() {
        for path in ["", "/sys", "/sys/class", "/sys/devices/virtual", "/dev"] {
            assert!(is_above(path.as_bytes()), "{path}");
        }
        for path in ["/sys/class/infiniband", "/sys/class/net", "/de", "/sys/"] {
            assert!(!is_above(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn descriptors_are_formatted_in_decimal() {
        assert_eq!(decimal(0, &mut [0; 10]), Some(&b"0"[..]));
        assert_eq!(decimal(4095, &mut [0; 10]), Some(&b"4095"[..]));
        assert_eq!(decimal(i32::MAX, &mut [0; 10]), Some(&b"2147483647"[..]));
        assert_eq!(decimal(-1, &mut [0; 10]), None);
    }
}
