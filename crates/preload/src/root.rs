//! The directory of ferroced's files, from the variable that `ferroce run` sets.
//!
//! The variable is copied once, because programs overwrite their environment.

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

// SAFETY: the thread that changes UNREAD to READING writes the text; others read it after
// READ.
unsafe impl Sync for Root {}

static ROOT: Root = Root {
    state: AtomicU8::new(UNREAD),
    text: UnsafeCell::new(Text {
        bytes: [0; LONGEST],
        length: 0,
    }),
};

/// Calls `act` with the path, if the variable is set.
pub(crate) fn with<T>(act: impl FnOnce(&[u8]) -> T) -> Option<T> {
    read();
    if ROOT.state.load(Ordering::Acquire) == READ {
        // SAFETY: after READ the text is not written any more.
        let text = unsafe { &*ROOT.text.get() };
        return some(&text.bytes[..text.length]).map(act);
    }
    // Another thread is copying it, or this is a signal handler in that thread: waiting could
    // deadlock.
    act_on_variable(act)
}

/// Copies the variable, once.
pub(crate) fn read() {
    let claim = ROOT
        .state
        .compare_exchange(UNREAD, READING, Ordering::Acquire, Ordering::Relaxed);
    if claim.is_err() {
        return;
    }
    act_on_variable(|path| {
        // SAFETY: only the thread that set READING writes the text.
        let text = unsafe { &mut *ROOT.text.get() };
        if let Some(room) = text.bytes.get_mut(..path.len()) {
            room.copy_from_slice(path);
            text.length = path.len();
        }
    });
    ROOT.state.store(READ, Ordering::Release);
}

fn act_on_variable<T>(act: impl FnOnce(&[u8]) -> T) -> Option<T> {
    // SAFETY: the name is a string.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment consists of strings.
    let path = unsafe { CStr::from_ptr(value) }.to_bytes();
    some(path).map(act)
}

/// Returns an absolute path without slashes at its end; `None` for others.
fn some(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    (path[0] == b'/').then(|| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_accepted() {
        assert_eq!(some(b""), None);
        assert_eq!(some(b"/"), None);
        assert_eq!(some(b"run/x"), None);
        assert_eq!(some(b"/run/x//"), Some(&b"/run/x"[..]));
    }
}
