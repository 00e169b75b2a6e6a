//! Whether this thread is inside librdmacm, whose own sockets stay what they are.

use core::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Calls something of librdmacm.
pub(crate) fn go<T>(call: impl FnOnce() -> T) -> T {
    let before = INSIDE
        .try_with(|inside| inside.replace(true))
        .unwrap_or(true);
    let result = call();
    let _thread_is_ending = INSIDE.try_with(|inside| inside.set(before));
    result
}
