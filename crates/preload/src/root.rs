//! Where ferroced's files are: the variable that `ferroce run` sets.
//!
//! It is read once, and copied: programs write over their environment.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::text::LONGEST;

const VARIABLE: &CStr = c"FERROCE_SYSFS";

/// The path, without a slash at the end.
struct Root {
    state: AtomicU8,
    text: UnsafeCell<Text>,
}

#[derive(Clone, Copy)]
struct Text {
    bytes: [u8; LONGEST],
    length: usize,
}

const UNREAD: u8 = 0;
const READING: u8 = 1;
const READ: u8 = 2;

// SAFETY: the text is written by who changes UNREAD to READING, and read after READ.
unsafe impl Sync for Root {}

static ROOT: Root = Root {
    state: AtomicU8::new(UNREAD),
    text: UnsafeCell::new(Text {
        bytes: [0; LONGEST],
        length: 0,
    }),
};

/// Calls `act` with the path, unless there is none.
pub(crate) fn with<T>(act: impl FnOnce(&[u8]) -> T) -> Option<T> {
    read();
    if ROOT.state.load(Ordering::Acquire) == READ {
        // SAFETY: it is not written any more.
        let text = unsafe { &*ROOT.text.get() };
        return some(&text.bytes[..text.length]).map(act);
    }
    // Another thread is reading it, or we interrupt who is: no reason to wait.
    act_on_variable(act)
}

/// Reads the variable, if nobody has.
pub(crate) fn read() {
    let claim = ROOT
        .state
        .compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Relaxed);
    if claim.is_err() {
        return;
    }
    act_on_variable(|path| {
        // SAFETY: the claim is ours alone.
        let text = unsafe { &mut *ROOT.text.get() };
        if let Some(room) = text.bytes.get_mut(..path.len()) {
            room.copy_from_slice(path);
            text.length = path.len();
        }
    });
    ROOT.state.store(READ, Ordering::Release);
}

fn act_on_variable<T>(act: impl FnOnce(&[u8]) -> T) -> Option<T> {
    // SAFETY: a string.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment consists of strings.
    let path = unsafe { CStr::from_ptr(value) }.to_bytes();
    some(path).map(act)
}

/// Only absolute paths make sense; slashes at the end are cut.
fn some(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    (path[0] == b'/').then(|| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_count() {
        assert_eq!(some(b""), None);
        assert_eq!(some(b"/"), None);
        assert_eq!(some(b"run/x"), None);
        assert_eq!(some(b"/run/x//"), Some(&b"/run/x"[..]));
    }
}
