//! C objects that are the first field of Rust objects.
//!
//! A program gets a pointer to the C structure and reads its fields. The library's own
//! fields follow the structure in the same allocation.
//!
//! Every function that a program calls relies on the program's contract: a pointer is NULL,
//! or it came from the library and was not destroyed. [`object!`], [`argument!`] and [`free!`]
//! are the ways from such a pointer to the object.

/// A Rust object that begins with the C structure a program sees.
///
/// # Safety
///
/// The type is `#[repr(C)]` and its first field is a [`Object::C`], or a
/// `#[repr(transparent)]` cell of one.
pub(crate) unsafe trait Object: Sized {
    /// The C structure.
    type C;
}

/// Returns the object of a program's pointer; `None` for NULL.
///
/// # Safety
///
/// The pointer is NULL, or came from [`into_c`] for this type and was not taken back with
/// [`take`].
#[inline(always)]
pub(crate) unsafe fn from_c<'a, O: Object>(c: *mut O::C) -> Option<&'a O> {
    // SAFETY: the pointer is NULL or that of a live `O`, whose first field is an `O::C`.
    unsafe { c.cast::<O>().as_ref() }
}

/// Finds the object of a program's pointer. NULL refuses the call with EINVAL and a reason,
/// and makes the function return the errno: as it is (`errno`), negative (`negative`), as
/// NULL (`null`) or as -1 (`minus_one`).
///
/// Only for functions that a program calls, which are `unsafe` for this contract.
macro_rules! object {
    ($c:ident as $object:ty, $why:literal => $fail:ident) => {
        // SAFETY: the program passes NULL or a live object of the function's type.
        match unsafe { $crate::object::from_c::<$object>($c) } {
            Some(object) => object,
            None => {
                return $crate::object::fail::$fail($crate::errno::refuse(libc::EINVAL, $why));
            }
        }
    };
}
pub(crate) use object;

/// Finds a structure that a program passes. NULL refuses the call, as in [`object!`].
///
/// Only for functions that a program calls, which are `unsafe` for this contract.
macro_rules! argument {
    ($c:ident, $why:literal => $fail:ident) => {
        // SAFETY: the program passes NULL or a live structure of the function's type.
        match unsafe { $c.as_ref() } {
            Some(argument) => argument,
            None => {
                return $crate::object::fail::$fail($crate::errno::refuse(libc::EINVAL, $why));
            }
        }
    };
}
pub(crate) use argument;

/// Frees an object in the function with which a program destroys it, after a check that no
/// other object uses it.
macro_rules! free {
    ($c:ident as $object:ty) => {
        // SAFETY: the program passes a live object, and this call is its last use of it.
        drop(unsafe { $crate::object::take::<$object>($c) })
    };
}
pub(crate) use free;

/// The ways in which [`object!`] reports an errno.
pub(crate) mod fail {
    use core::ffi::c_int;

    pub(crate) use crate::errno::{minus_one, null};

    pub(crate) fn errno(errno: c_int) -> c_int {
        errno
    }

    pub(crate) fn negative(errno: c_int) -> c_int {
        -errno
    }

    pub(crate) fn negative_size(errno: c_int) -> isize {
        -(errno as isize)
    }
}

/// Hands an object to the program.
pub(crate) fn into_c<O: Object>(object: Box<O>) -> *mut O::C {
    Box::into_raw(object).cast()
}

/// Takes an object back, to free it.
///
/// # Safety
///
/// The pointer came from [`into_c`] for this type, and the object has no other user.
pub(crate) unsafe fn take<O: Object>(c: *mut O::C) -> Box<O> {
    // SAFETY: `into_c` made the pointer from such a box, and this is its last use.
    unsafe { Box::from_raw(c.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::{ibv_pd, zeroed};

    #[repr(C)]
    struct Sample {
        c: ibv_pd,
        secret: String,
    }

    // SAFETY: `repr(C)`, and the C structure comes first.
    unsafe impl Object for Sample {
        type C = ibv_pd;
    }

    #[test]
    fn object_round_trips_through_its_c_pointer() {
        let c = into_c(Box::new(Sample {
            c: ibv_pd {
                handle: 7,
                ..zeroed()
            },
            secret: "behind".into(),
        }));
        // SAFETY: `c` is a live object, and is taken back once.
        let taken = unsafe {
            assert_eq!((*c).handle, 7);
            assert_eq!(from_c::<Sample>(c).unwrap().secret, "behind");
            assert!(from_c::<Sample>(core::ptr::null_mut()).is_none());
            take::<Sample>(c)
        };
        assert_eq!(taken.c.handle, 7);
    }
}
