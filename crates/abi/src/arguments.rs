//! Memory that a program passes with a length.

/// Borrows an array of a program; `None` if no such array can exist: it is NULL and not empty,
/// or longer than `isize::MAX` bytes. An empty array may be NULL.
///
/// # Safety
///
/// The pointer is NULL, or has `count` elements that stay valid and unchanged as long as the
/// result is used.
pub(crate) unsafe fn slice<'a, T>(first: *const T, count: usize) -> Option<&'a [T]> {
    if count == 0 {
        return Some(&[]);
    }
    let bytes = count.checked_mul(size_of::<T>())?;
    if first.is_null() || isize::try_from(bytes).is_err() {
        return None;
    }
    // SAFETY: the pointer is not NULL, so it has `count` elements; their size was checked.
    Some(unsafe { core::slice::from_raw_parts(first, count) })
}

/// Borrows an array of a program for writing, as [`slice`] does for reading.
///
/// # Safety
///
/// The pointer is NULL, or has `count` elements that nothing else uses as long as the result
/// is used.
pub(crate) unsafe fn slice_mut<'a, T>(first: *mut T, count: usize) -> Option<&'a mut [T]> {
    if count == 0 {
        return Some(&mut []);
    }
    let bytes = count.checked_mul(size_of::<T>())?;
    if first.is_null() || isize::try_from(bytes).is_err() {
        return None;
    }
    // SAFETY: the pointer is not NULL, so it has `count` elements; their size was checked.
    Some(unsafe { core::slice::from_raw_parts_mut(first, count) })
}

/// Writes a result to a variable of a program. NULL refuses the call, as in
/// [`object!`](crate::object::object).
///
/// Only for functions that a program calls, which are `unsafe` for this contract.
macro_rules! put {
    ($place:ident, $value:expr, $why:literal => $fail:ident) => {{
        if $place.is_null() {
            return $crate::object::fail::$fail($crate::errno::refuse(libc::EINVAL, $why));
        }
        let value = $value;
        // SAFETY: the program passes NULL or a variable of the function's type; the old value
        // is not read.
        unsafe { $place.write(value) };
    }};
}
pub(crate) use put;

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    #[test]
    fn arrays_that_cannot_exist_are_refused() {
        let words = [1_u64, 2];
        let mut copy = words;
        // SAFETY: the arrays have as many elements as the calls say, unless they are refused.
        unsafe {
            assert_eq!(slice(words.as_ptr(), 2), Some(&words[..]));
            assert_eq!(slice(ptr::null::<u64>(), 0), Some(&[][..]));
            assert_eq!(slice(ptr::null::<u64>(), 1), None);
            assert_eq!(slice(words.as_ptr(), usize::MAX), None);
            assert_eq!(slice(words.as_ptr(), isize::MAX as usize / 8 + 1), None);
            assert_eq!(slice_mut(copy.as_mut_ptr(), 2), Some(&mut [1, 2][..]));
            assert_eq!(slice_mut(ptr::null_mut::<u64>(), 1), None);
            assert_eq!(slice_mut(copy.as_mut_ptr(), usize::MAX), None);
        }
    }
}
