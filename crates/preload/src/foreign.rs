//! A warning for programs that load another libibverbs, by their RPATH or as their own copy.
//! Such a program finds no Ferroce device and reports no cause.

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::next::{errno, set_errno};
use crate::root;
use crate::text::Text;

const LIBRARY: &[u8] = b"libibverbs.so";

/// Set once the warning was written.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Checks the loaded libraries, and warns once about a libibverbs that is not Ferroce's.
pub(crate) fn warn() {
    if WARNED.load(Ordering::Relaxed) || root::with(|_| ()).is_none() {
        return;
    }
    let before = errno();
    if let Some(folder) = our_folder() {
        let argument = (&raw const folder).cast_mut().cast::<c_void>();
        // SAFETY: `look` takes a `Text`, which lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(look), argument) };
    }
    set_errno(before);
}

/// Returns the directory of this library.
fn our_folder() -> Option<Text> {
    let mut place = MaybeUninit::<libc::Dl_info>::uninit();
    let ours = warn as fn() as *const c_void;
    // SAFETY: `place` has room for the answer, and is read only after success.
    let name = unsafe {
        if libc::dladdr(ours, place.as_mut_ptr()) == 0 {
            return None;
        }
        CStr::from_ptr(place.assume_init().dli_fname)
    };
    let mut folder = Text::of(&[name.to_bytes()])?;
    folder.pop();
    Some(folder)
}

/// Checks one library. A result other than 0 ends the search.
unsafe extern "C" fn look(
    library: *mut libc::dl_phdr_info,
    _size: usize,
    folder: *mut c_void,
) -> c_int {
    // SAFETY: `warn` passes a `Text`, and the dynamic linker a valid library.
    let (folder, name) = unsafe { (&*folder.cast::<Text>(), (*library).dlpi_name) };
    if name.is_null() {
        return 0;
    }
    // SAFETY: the path is a string.
    let path = unsafe { CStr::from_ptr(name) }.to_bytes();
    if !is_foreign(path, folder.bytes()) {
        return 0;
    }
    WARNED.store(true, Ordering::Relaxed);
    let line = Text::of(&[
        b"warning: ",
        program(),
        b" has loaded ",
        path,
        b", which is not Ferroce's, and does not see its links; have it load ",
        folder.bytes(),
        b"/libibverbs.so.1: remove its RPATH or its own copy\n",
    ]);
    if let Some(line) = line {
        let bytes = line.bytes();
        // SAFETY: the pointer and the length are those of the line.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    }
    1
}

/// True if a library is a libibverbs from another directory.
fn is_foreign(path: &[u8], folder: &[u8]) -> bool {
    let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else {
        return false;
    };
    path[slash + 1..].starts_with(LIBRARY) && &path[..slash] != folder
}

/// Returns the path with which the program was started.
fn program() -> &'static [u8] {
    // SAFETY: the kernel provides the address of a string that lives as long as the process.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const core::ffi::c_char;
    if name.is_null() {
        return b"a program";
    }
    // SAFETY: the address is that of a string, and not null.
    unsafe { CStr::from_ptr(name) }.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libibverbs_of_another_directory_is_foreign() {
        let folder = b"/opt/lib/ferroce";
        assert!(is_foreign(b"/usr/lib/libibverbs.so.1", folder));
        assert!(is_foreign(b"/opt/lib/libibverbs.so.1.14", folder));
        assert!(!is_foreign(b"/opt/lib/ferroce/libibverbs.so.1", folder));
        assert!(!is_foreign(
            b"/usr/lib/libibverbs/librxe-rdmav34.so",
            folder
        ));
        assert!(!is_foreign(b"/usr/lib/librdmacm.so.1", folder));
        assert!(!is_foreign(b"linux-vdso.so.1", folder));
    }
}
