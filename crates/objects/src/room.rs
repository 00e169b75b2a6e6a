//! Allocations that report a lack of memory instead of ending the process.
//!
//! The program chooses the sizes of queues. A queue allocates all of its memory when it is
//! created, so posting never fails for lack of memory. Creating it can fail, with
//! [`VerbsError::NoMemory`]; an ordinary failed allocation would abort the process.

use std::collections::VecDeque;
use std::fmt::Display;

use crate::error::VerbsError;

/// Upper bound of the bytes that an object without arrays allocates: structs and tree nodes.
const OBJECTS: usize = 16 << 10;

/// Allocates a vector for `count` elements. `what` names them in the error.
pub fn vec<T>(count: usize, what: impl Display) -> Result<Vec<T>, VerbsError> {
    let mut vec = Vec::new();
    match vec.try_reserve_exact(count) {
        Ok(()) => Ok(vec),
        Err(_) => Err(none(count, what)),
    }
}

/// Allocates a queue for `count` elements. `what` names them in the error.
pub fn deque<T>(count: usize, what: impl Display) -> Result<VecDeque<T>, VerbsError> {
    let mut deque = VecDeque::new();
    match deque.try_reserve_exact(count) {
        Ok(()) => Ok(deque),
        Err(_) => Err(none(count, what)),
    }
}

/// Checks that there is memory for an object without arrays.
///
/// Such an object consists of small allocations, each of which aborts the process if it
/// fails. So one larger allocation is tried first and freed again.
pub fn for_an_object(what: impl Display) -> Result<(), VerbsError> {
    let probe = vec::<u8>(OBJECTS, what)?;
    // The compiler may otherwise remove an allocation that is never used.
    std::hint::black_box(&probe);
    Ok(())
}

/// Returns the error for a failed allocation of `count` elements.
pub fn none(count: usize, what: impl Display) -> VerbsError {
    VerbsError::NoMemory(format!("the process gets no memory for {count} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_allocation_is_an_error() {
        let error = vec::<u64>(usize::MAX / 16, "elements").unwrap_err();
        assert!(matches!(error, VerbsError::NoMemory(_)), "{error}");
        let error = deque::<u64>(usize::MAX / 16, "elements").unwrap_err();
        assert!(matches!(error, VerbsError::NoMemory(_)), "{error}");
        assert!(for_an_object("bytes").is_ok());
    }
}
