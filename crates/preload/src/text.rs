//! A path in a buffer of fixed size, because this library must not allocate.

use core::ffi::c_char;

/// The maximum length of a path in bytes, including its final zero.
pub(crate) const LONGEST: usize = libc::PATH_MAX as usize;

/// A path of at most [`LONGEST`] bytes, including its final zero.
pub(crate) struct Text {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Text {
    /// Returns an empty path.
    pub(crate) const fn new() -> Text {
        Text {
            bytes: [0; LONGEST],
            length: 0,
        }
    }

    /// Concatenates parts; `None` if the result is too long.
    pub(crate) fn of(parts: &[&[u8]]) -> Option<Text> {
        let mut text = Text::new();
        parts.iter().try_for_each(|part| text.push(part))?;
        Some(text)
    }

    /// Appends bytes; `None` and no change if there is no room for them.
    pub(crate) fn push(&mut self, more: &[u8]) -> Option<()> {
        let end = self.length + more.len();
        if end >= LONGEST {
            return None;
        }
        self.bytes[self.length..end].copy_from_slice(more);
        self.bytes[end] = 0;
        self.length = end;
        Some(())
    }

    /// Removes the last component and the slash before it.
    pub(crate) fn pop(&mut self) {
        let slash = self.bytes().iter().rposition(|byte| *byte == b'/');
        self.length = slash.unwrap_or(0);
        self.bytes[self.length] = 0;
    }

    /// Returns the path without its final zero.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Returns the path as a C string.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// Writes the text to standard error, in one call so that lines of programs do not mix.
    pub(crate) fn write_to_stderr(&self) {
        let bytes = self.bytes();
        // SAFETY: the pointer and the length are those of the text.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Calls `write` to fill the buffer. `write` returns the length, negative if it failed.
    /// The result is `None` if it failed or filled the whole buffer.
    pub(crate) fn written(write: impl FnOnce(*mut c_char, usize) -> isize) -> Option<Text> {
        let mut text = Text::new();
        let length = write(text.bytes.as_mut_ptr().cast(), LONGEST);
        text.length = usize::try_from(length)
            .ok()
            .filter(|length| *length < LONGEST)?;
        text.bytes[text.length] = 0;
        Some(text)
    }
}
