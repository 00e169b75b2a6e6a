//! The number of users of an object, which cannot be destroyed while it has any.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The users of an object, counted.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<AtomicU32>);

/// One use of an object, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Use(Arc<AtomicU32>);

impl Users {
    /// Adds a user until the result is dropped.
    pub(crate) fn hold(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    /// True if the object has users.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_in_use_until_the_last_use_is_dropped() {
        let users = Users::default();
        assert!(!users.any());
        let (one, two) = (users.hold(), users.hold());
        drop(one);
        assert!(users.any());
        drop(two);
        assert!(!users.any());
    }
}
