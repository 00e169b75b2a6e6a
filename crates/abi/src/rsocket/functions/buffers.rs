//! The buffers of one call.

use core::ffi::c_void;

use ferroce_rsocket::{Errno, Result};
use libc::iovec;

use crate::arguments::{slice, slice_mut};

/// The maximum number of bytes of one call, as in the kernel.
const MAX_LENGTH: usize = 0x7fff_f000;

/// The maximum number of buffers of one call, as in the kernel.
const MAX_PARTS: usize = 1024;

/// A program's list of buffers. Bytes beyond [`MAX_LENGTH`] are left out.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a>(&'a [iovec]);

impl<'a> Buffers<'a> {
    /// Checks a program's list of buffers: EINVAL if it is too long or a buffer is longer than
    /// memory can be, EFAULT if an address is NULL where bytes are.
    ///
    /// # Safety
    ///
    /// The list has `count` entries, or is NULL. Each buffer has as many bytes as its entry
    /// says. List and buffers stay valid for `'a`.
    pub(super) unsafe fn new(first: *const iovec, count: usize) -> Result<Buffers<'a>> {
        if count > MAX_PARTS {
            return Err(Errno::INVAL);
        }
        // SAFETY: the list has `count` entries, or is NULL, and stays valid for `'a`.
        let parts = unsafe { slice(first, count) }.ok_or(Errno::FAULT)?;
        // SAFETY: each buffer has its length and stays valid for `'a`: see `# Safety`.
        unsafe { Buffers::check(parts) }
    }

    /// Checks the only buffer of a call, as [`Buffers::new`] does.
    ///
    /// # Safety
    ///
    /// The buffer has as many bytes as its entry says, and stays valid for `'a`.
    pub(super) unsafe fn one(part: &'a iovec) -> Result<Buffers<'a>> {
        // SAFETY: the buffer has its length and stays valid for `'a`: see `# Safety`.
        unsafe { Buffers::check(core::slice::from_ref(part)) }
    }

    /// # Safety
    ///
    /// Each buffer has as many bytes as its entry says, and stays valid for `'a`.
    unsafe fn check(parts: &'a [iovec]) -> Result<Buffers<'a>> {
        for part in parts {
            if isize::try_from(part.iov_len).is_err() {
                return Err(Errno::INVAL);
            }
            if part.iov_base.is_null() && part.iov_len > 0 {
                return Err(Errno::FAULT);
            }
        }
        Ok(Buffers(parts))
    }

    /// Returns address and length of each buffer.
    fn parts(self) -> impl Iterator<Item = (*mut c_void, usize)> {
        let mut left = MAX_LENGTH;
        self.0.iter().map(move |part| {
            let length = part.iov_len.min(left);
            left -= length;
            (part.iov_base, length)
        })
    }

    /// Returns the number of bytes.
    pub(super) fn length(self) -> usize {
        self.parts().map(|(_, length)| length).sum()
    }

    /// Returns the buffers for reading.
    pub(super) fn slices(self) -> impl Iterator<Item = &'a [u8]> {
        // SAFETY: `new` promises this many bytes. The program does not change them during
        // the call.
        self.parts()
            .filter_map(|(base, length)| unsafe { slice(base.cast(), length) })
    }

    /// Returns the buffers that are not empty for writing.
    ///
    /// # Safety
    ///
    /// The caller uses one buffer at a time: programs may pass buffers that overlap.
    pub(super) unsafe fn slices_mut(self) -> impl Iterator<Item = &'a mut [u8]> {
        let parts = self.parts().filter(|(_, length)| *length > 0);
        // SAFETY: `new` promises this many bytes. The program does not use them during the
        // call, and the caller does not use another buffer.
        parts.filter_map(|(base, length)| unsafe { slice_mut(base.cast(), length) })
    }
}
