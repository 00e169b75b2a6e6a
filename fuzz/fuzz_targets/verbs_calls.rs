//! Arbitrary bytes as a sequence of verbs calls. Checks that each call does what a simple
//! model predicts, that nothing crashes or hangs, and that no other memory is written.
//!
//! The target needs a device: a ferroced with a link, preferably on `lo`.

#![no_main]

#[path = "../../crates/abi/tests/sequences/calls/mod.rs"]
mod calls;

use std::cell::OnceCell;

use ferroce_abi::exports::{ibv_free_device_list, ibv_get_device_list, ibv_open_device};
use ferroce_abi::ffi::ibv_context;
use libfuzzer_sys::fuzz_target;

thread_local! {
    /// Context that all sequences share; each sequence destroys the objects it creates.
    static CONTEXT: OnceCell<*mut ibv_context> = const { OnceCell::new() };
}

fn open() -> *mut ibv_context {
    let mut count = 0;
    // SAFETY: the list has `count` devices, and is freed once.
    unsafe {
        let list = ibv_get_device_list(&mut count);
        assert!(
            !list.is_null() && count > 0,
            "no device found: start ferroced and add a link"
        );
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        assert!(!context.is_null(), "{}", std::io::Error::last_os_error());
        context
    }
}

fuzz_target!(|data: &[u8]| {
    let context = CONTEXT.with(|context| *context.get_or_init(open));
    calls::play(context, data, "this input");
});
