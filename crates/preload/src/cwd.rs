//! The functions of libc that return the working directory. A directory of ferroced's files
//! is reported as the path in sysfs or `/dev` that the program knows.

use core::ffi::c_char;
use core::ptr;

use libc::size_t;

use crate::next::{Next, errno, set_errno};
use crate::paths;
use crate::text::{LONGEST, Text};

type Getcwd = unsafe extern "C" fn(*mut c_char, size_t) -> *mut c_char;
type NoArguments = unsafe extern "C" fn() -> *mut c_char;

// SAFETY: libc declares the function with this type.
static GETCWD: Next<Getcwd> = unsafe { Next::new(c"getcwd") };
// SAFETY: libc declares the function with this type.
static GET_CURRENT_DIR_NAME: Next<NoArguments> = unsafe { Next::new(c"get_current_dir_name") };

/// Looks up libc's functions.
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
        // SAFETY: the program's arguments, unchanged.
        return unsafe { next(to, room) };
    }
    match (to.is_null(), room) {
        (false, _) => {
            // SAFETY: the program's buffer has `room` bytes.
            unsafe { shortened(next, to, room) }
        }
        (true, 0) => {
            // SAFETY: with NULL and 0 libc allocates the buffer.
            let path = unsafe { next(to, 0) };
            // SAFETY: the path is NULL or a string that libc has allocated.
            unsafe { paths::back(path) };
            path
        }
        (true, room) => {
            // The program may write to all `room` bytes of the result.
            // SAFETY: the allocation has `room` bytes, and is freed unless it is returned.
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

/// Writes the working directory to a buffer, which may be too small for the kernel's longer
/// path.
///
/// # Safety
/// `to` has room for `room` bytes.
#[cold]
#[inline(never)]
unsafe fn shortened(next: Getcwd, to: *mut c_char, room: size_t) -> *mut c_char {
    let whole = Text::written(|buffer, size| {
        // SAFETY: the buffer has `size` bytes.
        let path = unsafe { next(buffer, size) };
        // SAFETY: the path is NULL or a string in the buffer.
        unsafe { paths::back(path) };
        match path.is_null() {
            true => -1,
            // SAFETY: the path is a string.
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
    // SAFETY: the path and its final zero have at most `room` bytes.
    unsafe { to.copy_from_nonoverlapping(whole.as_ptr(), length + 1) };
    to
}

/// `getcwd` for programs that are compiled with checks of buffer sizes.
#[unsafe(no_mangle)]
unsafe extern "C" fn __getcwd_chk(to: *mut c_char, room: size_t, all: size_t) -> *mut c_char {
    if room > all {
        // As libc does: the program passes a size that exceeds its buffer.
        // SAFETY: `abort` has no preconditions.
        unsafe { libc::abort() };
    }
    // SAFETY: the program's buffer has `room` bytes.
    unsafe { getcwd(to, room) }
}

/// `getwd`, whose buffer has room for the longest path.
#[unsafe(no_mangle)]
unsafe extern "C" fn getwd(to: *mut c_char) -> *mut c_char {
    if to.is_null() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: the program's buffer has PATH_MAX bytes.
    unsafe { getcwd(to, LONGEST) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    // libc returns $PWD if it names the working directory, but libc's check bypasses this
    // library.
    if paths::is_entered() {
        // SAFETY: `getenv` returns NULL or a string; with NULL and 0 libc allocates.
        return unsafe {
            let variable = libc::getenv(c"PWD".as_ptr());
            match is_working_directory(variable) {
                true => libc::strdup(variable),
                false => getcwd(ptr::null_mut(), 0),
            }
        };
    }
    match GET_CURRENT_DIR_NAME.get() {
        // SAFETY: the function has no arguments.
        Some(next) => unsafe { next() },
        None => ptr::null_mut(),
    }
}

/// True if a path names the working directory, as `stat` of this library finds it.
///
/// # Safety
/// `path` is a string or null.
unsafe fn is_working_directory(path: *const c_char) -> bool {
    let identity = |path: *const c_char| {
        let mut found = core::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the path is a string, `found` has room, and is read only after success.
        unsafe {
            (libc::stat(path, found.as_mut_ptr()) == 0).then(|| {
                let found = found.assume_init();
                (found.st_dev, found.st_ino)
            })
        }
    };
    if path.is_null() {
        return false;
    }
    let before = errno();
    let same = identity(path).is_some_and(|this| identity(c".".as_ptr()) == Some(this));
    set_errno(before);
    same
}
