//! Tables of the C objects that a program holds.
//!
//! A function looks its object up by address. So a pointer that is NULL, or that of an object
//! which was destroyed, is refused instead of followed, and an object that one thread
//! destroys stays valid for another thread that is in a call with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::lock;
use crate::object::Object;

/// The live objects of one type.
#[derive(Debug)]
pub(crate) struct LiveObjects<O>(Mutex<BTreeMap<usize, Arc<O>>>);

impl<O: Object> LiveObjects<O> {
    pub(crate) const fn new() -> LiveObjects<O> {
        LiveObjects(Mutex::new(BTreeMap::new()))
    }

    /// Adds an object, and returns the pointer that the program gets.
    pub(crate) fn insert(&self, object: &Arc<O>) -> *mut O::C {
        let c = Arc::as_ptr(object).cast_mut().cast::<O::C>();
        lock(&self.0).insert(c.addr(), Arc::clone(object));
        c
    }

    /// Returns the object of a program's pointer; None for NULL and for destroyed objects.
    pub(crate) fn get(&self, c: *const O::C) -> Option<Arc<O>> {
        self.at(c.addr())
    }

    /// Returns the object at an address.
    pub(crate) fn at(&self, address: usize) -> Option<Arc<O>> {
        lock(&self.0).get(&address).cloned()
    }

    /// Removes an object. It is freed when the last thread leaves its call.
    pub(crate) fn remove(&self, c: *const O::C) -> Option<Arc<O>> {
        lock(&self.0).remove(&c.addr())
    }
}
