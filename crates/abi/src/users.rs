//! How many things use an object, which cannot go before them.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The users of an object.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<AtomicU32>);

/// One user of an object, until it is dropped.
#[derive(Debug)]
pub(crate) struct Use(Arc<AtomicU32>);

impl Users {
    /// One more, until what is returned is dropped.
    pub(crate) fn hold(&self) -> Use {
        self.0.fetch_add(1, Ordering::AcqRel);
        Use(Arc::clone(&self.0))
    }

    /// Whether there is any.
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
    fn users_come_and_go() {
        let users = Users::default();
        assert!(!users.any());
        let (one, two) = (users.hold(), users.hold());
        drop(one);
        assert!(users.any());
        drop(two);
        assert!(!users.any());
    }
}
