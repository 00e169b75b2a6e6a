//! The functions of libibverbs and librdmacm, forwarded to libferroce.so.
//!
//! LD_LIBRARY_PATH leads programs to Ferroce's libibverbs by its name. It does not lead
//! those that come with a copy under another name, as Python wheels do
//! (`libibverbs-1de1263b.so.1.14.44.0`), or find one by their RPATH. But the dynamic linker
//! takes a symbol from the first library that defines it, and preloaded libraries are the
//! first. So the functions here replace those of every copy.
//!
//! libferroce.so has 2 MB, and most programs never call it. So each function here is a jump,
//! and the first call of any of them loads the library.
//!
//! The symbols have no version: the dynamic linker then accepts them for each version that a
//! program asks for. libferroce.so has one version of every public function.
//!
//! Three ways past these functions remain: `dlsym` with the handle of another copy, a library
//! loaded with `RTLD_DEEPBIND`, and a copy linked statically. [`foreign`](crate::foreign)
//! warns.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::foreign;
use crate::next::{errno, set_errno};
use crate::text::Text;

const LIBRARY: &[u8] = b"/libferroce.so";
/// Exit status of the dynamic linker for a library that it cannot load.
const NOT_LOADED: i32 = 127;

/// Defines the functions. `build.rs` writes the list: the number of functions, then the
/// index of each and its name.
macro_rules! forward {
    ($count:literal $($index:literal $name:ident;)*) => {
        /// The names of the functions.
        static NAMES: [&CStr; $count] = [$(
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("no zero at the end"),
            }
        ),*];

        /// The functions of libferroce.so; null before the first call.
        static TARGETS: [AtomicPtr<c_void>; $count] =
            [const { AtomicPtr::new(ptr::null_mut()) }; $count];

        $(#[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "mov r11, [rip + {targets} + {offset}]",
                "test r11, r11",
                "je 2f",
                "jmp r11",
                "2:",
                "mov r11d, {index}",
                "jmp {first}",
                targets = sym TARGETS,
                offset = const $index * 8,
                index = const $index,
                first = sym first_call,
            )
        })*
    };
}

include!(concat!(env!("OUT_DIR"), "/verbs.rs"));

/// Finds the function whose index is in `r11`, and jumps to it with the caller's arguments.
/// No function of the list has arguments in vector registers or a variable number of them.
#[unsafe(naked)]
unsafe extern "C" fn first_call() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        // At the entry of a function the stack is 8 bytes off its alignment of 16.
        "sub rsp, 8",
        "mov edi, r11d",
        "call {find}",
        "mov r11, rax",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp r11",
        find = sym find,
    )
}

/// Loads libferroce.so, and returns its function. Ends the process if that fails, as the
/// dynamic linker does for a library that a program needs.
extern "C" fn find(index: usize) -> *mut c_void {
    let before = errno();
    let path = foreign::our_folder().and_then(|folder| Text::of(&[folder.bytes(), LIBRARY]));
    let path = path
        .as_ref()
        .map_or(c"libferroce.so".as_ptr(), Text::as_ptr);
    // SAFETY: the path is a string. The library's constructors are those of Rust's standard
    // library.
    let library = unsafe { libc::dlopen(path, libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: `dlopen` has failed.
        unsafe { fail() };
    }
    for (name, target) in NAMES.iter().zip(&TARGETS) {
        // SAFETY: the handle is open, and the name is a string.
        target.store(
            unsafe { libc::dlsym(library, name.as_ptr()) },
            Ordering::Release,
        );
    }
    let target = TARGETS[index].load(Ordering::Relaxed);
    if target.is_null() {
        // SAFETY: the last call of `dlsym` may have succeeded; `fail` allows that.
        unsafe { fail() };
    }
    set_errno(before);
    target
}

/// Reports the failure of `dlopen` or `dlsym`, and ends the process.
///
/// # Safety
/// Called by the thread in which the function failed.
unsafe fn fail() -> ! {
    // SAFETY: `dlerror` returns a string or null.
    let cause: *const c_char = unsafe { libc::dlerror() };
    let cause = match cause.is_null() {
        true => c"libferroce.so lacks a function, so it is of another version",
        // SAFETY: the cause is a string.
        false => unsafe { CStr::from_ptr(cause) },
    };
    let line = [
        b"error: cannot load Ferroce's verbs: ",
        cause.to_bytes(),
        b"\n",
    ];
    if let Some(line) = Text::of(&line) {
        line.write_to_stderr();
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(NOT_LOADED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_verbs_are_forwarded_and_rsockets_are_not() {
        assert!(NAMES.contains(&c"ibv_open_device"));
        assert!(NAMES.contains(&c"_ibv_query_gid_ex"));
        assert!(NAMES.contains(&c"rdma_create_id"));
        assert!(!NAMES.contains(&c"rread"));
        assert!(!NAMES.contains(&c"verbs_register_driver_34"));
    }
}
