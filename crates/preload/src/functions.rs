//! The functions of libc that take a path, as programs call them.
//!
//! Each leads its path and calls libc's own. `open` and its kin take any number of
//! arguments in C; the one behind the flags is passed on whether it is there or not.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::next::{Failed, Next, Path, errno, set_errno};
use crate::paths;

/// Defines functions that lead their path, which has an `@`. In brackets stands the
/// directory that a relative path begins at. Functions whose result is a path, too, have
/// `back` in front.
macro_rules! functions {
    ($($(#[$back:ident])? fn $name:ident(
        $($before:ident: $before_type:ty,)* $([$dir:ident],)?
        @$path:ident $(, $after:ident: $after_type:ty)*
    ) -> $result:ty;)*) => {
        /// Libc's own.
        #[allow(non_upper_case_globals)]
        mod next {
            use super::*;

            $(pub(super) static $name: Next<
                unsafe extern "C" fn(
                    $($before_type,)* $(functions!(@directory $dir),)? Path $(, $after_type)*
                ) -> $result,
            > =
                // SAFETY: this is how libc declares it.
                unsafe { Next::new(name(concat!(stringify!($name), "\0"))) };)*
        }

        $(#[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)* $($dir: c_int,)? $path: Path $(, $after: $after_type)*
        ) -> $result {
            let Some(next) = next::$name.get() else {
                return Failed::FAILED;
            };
            // SAFETY: the program passes what libc asks for.
            if !unsafe { paths::may_be_ours($path) } {
                // SAFETY: as the program has it.
                return unsafe { next($($before,)* $($dir,)? $path $(, $after)*) };
            }
            let call = |led: Path| {
                // SAFETY: as the program has it, but for a path that is as good.
                let result = unsafe { next($($before,)* $($dir,)? led $(, $after)*) };
                // SAFETY: a string of the program's; null or a path in memory of the
                // program's.
                $(unsafe {
                    if led != $path || paths::is_relative($path) {
                        paths::$back(result);
                    }
                })?
                result
            };
            // SAFETY: a string of the program's.
            unsafe { paths::lead([$($dir,)? libc::AT_FDCWD][0], $path, call) }
        })*

        /// Looks for all of libc's.
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

functions! {
    // What is it?
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
    // What `ls -l` asks as well.
    fn getxattr(@path, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t;
    fn listxattr(@path, to: *mut c_char, room: size_t) -> ssize_t;
    fn llistxattr(@path, to: *mut c_char, room: size_t) -> ssize_t;
    fn lgetxattr(@path, name: *const c_char, to: *mut c_void, room: size_t) -> ssize_t;

    // May I?
    fn access(@path, mode: c_int) -> c_int;
    fn faccessat([dir], @path, mode: c_int, flags: c_int) -> c_int;
    fn euidaccess(@path, mode: c_int) -> c_int;
    fn eaccess(@path, mode: c_int) -> c_int;

    // Open it.
    fn open(@path, flags: c_int, mode: mode_t) -> c_int;
    fn open64(@path, flags: c_int, mode: mode_t) -> c_int;
    fn openat([dir], @path, flags: c_int, mode: mode_t) -> c_int;
    fn openat64([dir], @path, flags: c_int, mode: mode_t) -> c_int;
    fn fopen(@path, mode: *const c_char) -> *mut FILE;
    fn fopen64(@path, mode: *const c_char) -> *mut FILE;
    // The same as the compiler calls it where it has checked the flags.
    fn __open_2(@path, flags: c_int) -> c_int;
    fn __open64_2(@path, flags: c_int) -> c_int;
    fn __openat_2([dir], @path, flags: c_int) -> c_int;
    fn __openat64_2([dir], @path, flags: c_int) -> c_int;

    // What is in it?
    fn opendir(@path) -> *mut DIR;
    fn scandir(@path, to: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    fn scandir64(@path, to: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;

    // Go there.
    fn chdir(@path) -> c_int;

    // Where does it lead?
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

/// Whether anything is at a path.
///
/// # Safety
/// `path` is a string.
pub(crate) unsafe fn exists(path: Path) -> bool {
    let before = errno();
    // SAFETY: a string.
    let there = next::access
        .get()
        .is_some_and(|access| unsafe { access(path, libc::F_OK) } == 0);
    set_errno(before);
    there
}
