//! Memory for what a program asks for, which may not be there.
//!
//! The sizes of queues come from the program. A queue takes all of its memory when it is
//! created, so that posting never fails for want of memory; creating it does, with
//! [`VerbsError::NoMemory`], where an ordinary allocation would end the process.

use std::collections::VecDeque;
use std::fmt::Display;

use crate::error::VerbsError;

/// As much as objects of no particular size take, and more: structures and nodes of tables.
const OBJECTS: usize = 16 << 10;

/// A vector with room for `count` elements of `what`.
pub(crate) fn vec<T>(count: usize, what: impl Display) -> Result<Vec<T>, VerbsError> {
    let mut vec = Vec::new();
    match vec.try_reserve_exact(count) {
        Ok(()) => Ok(vec),
        Err(_) => Err(none(count, what)),
    }
}

/// A queue with room for `count` elements of `what`.
pub(crate) fn deque<T>(count: usize, what: impl Display) -> Result<VecDeque<T>, VerbsError> {
    let mut deque = VecDeque::new();
    match deque.try_reserve_exact(count) {
        Ok(()) => Ok(deque),
        Err(_) => Err(none(count, what)),
    }
}

/// Whether there is memory for an object without arrays. Such objects are many small
/// allocations, each of which would end the process if it failed: so one is tried first.
pub(crate) fn for_an_object(what: impl Display) -> Result<(), VerbsError> {
    let probe = vec::<u8>(OBJECTS, what)?;
    // The compiler must not leave out an allocation that nobody uses.
    std::hint::black_box(&probe);
    Ok(())
}

pub(crate) fn none(count: usize, what: impl Display) -> VerbsError {
    VerbsError::NoMemory(format!("the process gets no memory for {count} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_an_error() {
        let error = vec::<u64>(usize::MAX / 16, "elements").unwrap_err();
        assert!(matches!(error, VerbsError::NoMemory(_)), "{error}");
        let error = deque::<u64>(usize::MAX / 16, "elements").unwrap_err();
        assert!(matches!(error, VerbsError::NoMemory(_)), "{error}");
        assert!(for_an_object("bytes").is_ok());
    }
}
