//! C objects that are the first field of Rust ones.
//!
//! A program gets a pointer to the C structure and reads its fields; behind the
//! structure, in the same allocation, lies what the library keeps.

/// A Rust object that begins with the C structure a program sees.
///
/// # Safety
///
/// The type is `#[repr(C)]` and its first field is a [`Object::C`], or a
/// `#[repr(transparent)]` cell of one.
pub(crate) unsafe trait Object: Sized {
    /// What the program sees.
    type C;
}

/// The object a program means; none for NULL.
///
/// # Safety
///
/// The pointer is NULL or came from [`into_c`] for this type of object, which
/// has not been taken back.
#[inline(always)]
pub(crate) unsafe fn from_c<'a, O: Object>(c: *mut O::C) -> Option<&'a O> {
    // SAFETY: by contract the pointer is that of a live object or NULL.
    unsafe { c.cast::<O>().as_ref() }
}

/// Hands an object to the program.
pub(crate) fn into_c<O: Object>(object: Box<O>) -> *mut O::C {
    Box::into_raw(object).cast()
}

/// Takes an object back, to free it.
///
/// # Safety
///
/// As [`from_c`], not NULL, and nobody uses the object any more.
pub(crate) unsafe fn take<O: Object>(c: *mut O::C) -> Box<O> {
    // SAFETY: by contract this is what `into_c` gave away.
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
    fn an_object_comes_back_as_it_went() {
        let c = into_c(Box::new(Sample {
            c: ibv_pd {
                handle: 7,
                ..zeroed()
            },
            secret: "behind".into(),
        }));
        // SAFETY: `c` was made above and is taken back once.
        let taken = unsafe {
            assert_eq!((*c).handle, 7);
            assert_eq!(from_c::<Sample>(c).unwrap().secret, "behind");
            assert!(from_c::<Sample>(core::ptr::null_mut()).is_none());
            take::<Sample>(c)
        };
        assert_eq!(taken.c.handle, 7);
    }
}
