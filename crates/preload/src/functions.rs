//! The functions of libc that take a path.
//!
//! Each redirects its path and calls libc's own. `open` and its variants are variadic in C;
//! the argument after the flags is passed on, whether the program has set it or not.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::{Failed, Next, Path, errno, set_errno};
use crate::{foreign, paths};

/// Defines functions that redirect a path. `@` marks the path, brackets mark the directory
/// at which a relative path begins, and `back` marks functions that return a path.
macro_rules! functions {
    ($($(#[$back:ident])? fn $name:ident(
        $($before:ident: $before_type:ty,)* $([$dir:ident],)?
        @$path:ident $(, $after:ident: $after_type:ty)*
    ) -> $result:ty;)*) => {
        /// libc's own functions.
        #[allow(non_upper_case_globals)]
        mod next {
            use super::*;

            $(pub(super) static $name: Next<
                unsafe extern "C" fn(
                    $($before_type,)* $(functions!(@directory $dir),)? Path $(, $after_type)*
                ) -> $result,
            > =
                // SAFETY: libc declares the function with this type.
                unsafe { Next::new(name(concat!(stringify!($name), "\0"))) };)*
        }

        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)* $($dir: c_int,)? $path: Path $(, $after: $after_type)*
        ) -> $result {
            let Some(next) = next::$name.get() else {
                return Failed::FAILED;
            };
            // SAFETY: the program passes a string, or null.
            if !unsafe { paths::may_be_ours($path) } {
                // SAFETY: the program's arguments, unchanged.
                return unsafe { next($($before,)* $($dir,)? $path $(, $after)*) };
            }
            if const { opens(stringify!($name)) } {
                // SAFETY: the program's path is a string.
                unsafe { foreign::opens($path) };
            }
            let call = |led: Path| {
                // SAFETY: the program's arguments, with another string as the path.
                let result = unsafe { next($($before,)* $($dir,)? led $(, $after)*) };
                // SAFETY: the path is a string; the result is null or a writable string.
                $(unsafe {
                    if led != $path || paths::is_relative($path) {
                        paths::$back(result);
                    }
                })?
                result
            };
            // SAFETY: the program's path is a string.
            unsafe { paths::lead([$($dir,)? libc::AT_FDCWD][0], $path, call) }
        })*

        /// Looks up libc's functions.
        pub(crate) fn find_all() {
            $(next::$name.find();)*
        }
    };
    (@directory $dir:ident) => { c_int };
}

const fn name(text: &str) -> &core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("no zero at the end"),
    }
}

/// True for the names of functions that open a file or a directory.
const fn opens(name: &str) -> bool {
    let name = name.as_bytes();
    let name = match name {
        [b'_', b'_', rest @ ..] => rest,
        _ => name,
    };
    matches!(name, [b'o', b'p', b'e', b'n', ..])
}

functions! {
    // Attributes
    fn stat(@path, to: *mut libc::stat) -> c_int;
    fn stat64(@path, to: *mut libc::stat64) -> c_int;
    fn lstat(@path, to: *mut libc::stat) -> c_int;
    fn lstat64(@path, to: *mut libc::stat64) -> c_int;
    fn fstatat([dir], @path, to: *mut libc::stat, flags: c_int) -> c_int;
    fn fstatat64([dir], @path, to: *mut libc::stat64, flags: c_int) -> c_int;
    fn statx([dir], @path, flags: c_int, mask: c_uint, to: *mut libc::statx) -> c_int;
    // The same for programs built before glibc 2.33.
    fn __xstat(version: c_int, @path, to: *mut libc::stat) -> c_int;
    fn __xstat64(version: c_int, @path, to: *mut libc::stat64) -> c_int;
    fn __lxstat(version: c_int, @path, to: *mut libc::stat) -> c_int;
    fn __lxstat64(version: c_int, @path, to: *mut libc::stat64) -> c_int;
    fn __fxstatat(version: c_int, [dir], @path, to: *mut libc::stat, flags: c_int) -> c_int;
    fn __fxstatat64(
        version: c_int, [dir], @path, to: *mut libc::stat64, flags: c_int
    ) -> c_int;
    // Extended attributes, which `ls -l` reads
    fn getxattr(@path, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t;
    fn listxattr(@path, to: *mut c_char, room: size_t) -> ssize_t;
    fn llistxattr(@path, to: *mut c_char, room: size_t) -> ssize_t;
    fn lgetxattr(@path, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t;

    // Permissions
    fn access(@path, mode: c_int) -> c_int;
    fn faccessat([dir], @path, mode: c_int, flags: c_int) -> c_int;
    fn euidaccess(@path, mode: c_int) -> c_int;
    fn eaccess(@path, mode: c_int) -> c_int;

    // Opening
    fn open(@path, flags: c_int, mode: mode_t) -> c_int;
    fn open64(@path, flags: c_int, mode: mode_t) -> c_int;
    fn openat([dir], @path, flags: c_int, mode: mode_t) -> c_int;
    fn openat64([dir], @path, flags: c_int, mode: mode_t) -> c_int;
    fn fopen(@path, mode: *const c_char) -> *mut FILE;
    fn fopen64(@path, mode: *const c_char) -> *mut FILE;
    // Variants for programs that are compiled with checks of the flags
    fn __open_2(@path, flags: c_int) -> c_int;
    fn __open64_2(@path, flags: c_int) -> c_int;
    fn __openat_2([dir], @path, flags: c_int) -> c_int;
    fn __openat64_2([dir], @path, flags: c_int) -> c_int;

    // Directories
    fn opendir(@path) -> *mut DIR;
    fn scandir(@path, to: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    fn scandir64(@path, to: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;

    // The working directory
    fn chdir(@path) -> c_int;

    // Symbolic links
    fn readlink(@path, to: *mut c_char, room: size_t) -> ssize_t;
    fn readlinkat([dir], @path, to: *mut c_char, room: size_t) -> ssize_t;
    fn __readlink_chk(@path, to: *mut c_char, room: size_t, all: size_t) -> ssize_t;
    fn __readlinkat_chk(
        [dir], @path, to: *mut c_char, room: size_t, all: size_t
    ) -> ssize_t;
    #[back] fn realpath(@path, to: *mut c_char) -> *mut c_char;
    #[back] fn __realpath_chk(@path, to: *mut c_char, room: size_t) -> *mut c_char;
    #[back] fn canonicalize_file_name(@path) -> *mut c_char;
}

/// True if a file exists at a path.
///
/// # Safety
/// `path` is a string.
pub(crate) unsafe fn exists(path: Path) -> bool {
    let before = errno();
    // SAFETY: the path is a string.
    let there = next::access
        .get()
        .is_some_and(|access| unsafe { access(path, libc::F_OK) } == 0);
    set_errno(before);
    there
}
