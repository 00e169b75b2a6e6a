//! Copies from and to memory that the device may access at the same time.
//!
//! A copy by `ptr::copy` would be a data race, and so undefined behaviour, if the device
//! writes to the memory meanwhile. The assembly routine of the device is not: the compiler
//! knows nothing about its accesses, as for accesses of hardware. Bytes that change during a
//! copy are copied as they were before or after the change.

/// Copies `length` bytes.
///
/// # Safety
///
/// Both ranges are mapped; the destination is writable. One of them is memory that is only
/// accessed by the device and by this function; the other is exclusive to the caller, or
/// shared if it is the source.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: both ranges are mapped, so the routine does not fault.
        let fault = unsafe { super::access::copy(to, from, length) };
        debug_assert_eq!(fault, 0, "both ranges are mapped");
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..length {
        use core::sync::atomic::{AtomicU8, Ordering};
        // SAFETY: both bytes are mapped, and an atomic access of one byte needs no alignment.
        // The source is only loaded from.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}
