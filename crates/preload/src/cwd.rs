//! The functions of libc that return the working directory: one of ours is shown as the
//! path that the program knows.

use core::ffi::c_char;
use core::ptr;

use libc::size_t;

use crate::next::{Next, set_errno};
use crate::paths;
use crate::text::{LONGEST, Text};

type Getcwd = unsafe extern "C" fn(*mut c_char, size_t) -> *mut c_char;
type NoArguments = unsafe extern "C" fn() -> *mut c_char;

// SAFETY: this is how libc declares them.
static GETCWD: Next<Getcwd> = unsafe { Next::new(c"getcwd") };
// SAFETY: as above.
static GET_CURRENT_DIR_NAME: Next<NoArguments> = unsafe { Next::new(c"get_current_dir_name") };

/// Looks for all of libc's.
pub(crate) fn find_all() {
    GETCWD.find();
    GET_CURRENT_DIR_NAME.find();
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getcwd(to: *mut c_char, room: size_t) -> *mut c_char {
    let Some(next) = GETCWD.get() else {
        return ptr::null_mut();
    };
    if !paths::is_entered() {
        // SAFETY: as the program has it.
        return unsafe { next(to, room) };
    }
    match (to.is_null(), room) {
        (false, _) => {
            // SAFETY: the program's buffer.
            unsafe { shortened(next, to, room) }
        }
        (true, 0) => {
            // SAFETY: libc allocates as much as it needs.
            let path = unsafe { next(to, 0) };
            // SAFETY: null or a path that libc has allocated.
            unsafe { paths::back(path) };
            path
        }
        (true, room) => {
            // The program may write as much as it has asked for.
            // SAFETY: an allocation of that size, freed if nobody gets it.
            unsafe {
                let to = libc::malloc(room).cast::<c_char>();
                if to.is_null() {
                    return to;
                }
                let path = shortened(next, to, room);
                if path.is_null() {
                    libc::free(to.cast());
                }
                path
            }
        }
    }
}

/// The working directory in a buffer that may be too small for the path as the kernel has
/// it.
///
/// # Safety
/// There is room for `room` bytes at `to`.
#[cold]
#[inline(never)]
unsafe fn shortened(next: Getcwd, to: *mut c_char, room: size_t) -> *mut c_char {
    let whole = Text::written(|buffer, size| {
        // SAFETY: there is room for that many bytes.
        let path = unsafe { next(buffer, size) };
        // SAFETY: null or a path that may be changed.
        unsafe { paths::back(path) };
        match path.is_null() {
            true => -1,
            // SAFETY: a string.
            false => unsafe { libc::strlen(path) }.cast_signed(),
        }
    });
    let Some(whole) = whole else {
        return ptr::null_mut();
    };
    let length = whole.bytes().len();
    if length >= room {
        set_errno(if room == 0 {
            libc::EINVAL
        } else {
            libc::ERANGE
        });
        return ptr::null_mut();
    }
    // SAFETY: there is room for the path and its zero, which stands behind it.
    unsafe { to.copy_from_nonoverlapping(whole.as_ptr(), length + 1) };
    to
}

/// The same as the compiler calls it where it knows the size of the buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn __getcwd_chk(to: *mut c_char, room: size_t, all: size_t) -> *mut c_char {
    if room > all {
        // libc, too, ends a program that says its buffer is larger than it is.
        // SAFETY: no memory is involved.
        unsafe { libc::abort() };
    }
    // SAFETY: as the program has it.
    unsafe { getcwd(to, room) }
}

/// The old form; the program has room for the longest path.
#[unsafe(no_mangle)]
unsafe extern "C" fn getwd(to: *mut c_char) -> *mut c_char {
    if to.is_null() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: by contract there is room for that many bytes.
    unsafe { getcwd(to, LONGEST) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    // libc answers with the variable if it names the working directory, but it does not
    // know our directories.
    if paths::is_entered() {
        // SAFETY: libc allocates as much as it needs.
        return unsafe { getcwd(ptr::null_mut(), 0) };
    }
    match GET_CURRENT_DIR_NAME.get() {
        // SAFETY: no memory is involved.
        Some(next) => unsafe { next() },
        None => ptr::null_mut(),
    }
}
