//! The flag of a thread that runs in librdmacm, whose own sockets do not become rsockets.

use core::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// True if the calling thread runs in librdmacm.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Calls a function of librdmacm.
pub(crate) fn go<T>(call: impl FnOnce() -> T) -> T {
    let before = INSIDE
        .try_with(|inside| inside.replace(true))
        .unwrap_or(true);
    let result = call();
    let _thread_is_ending = INSIDE.try_with(|inside| inside.set(before));
    result
}
