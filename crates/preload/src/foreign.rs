//! A warning for programs that load a libibverbs of others: one in their RPATH, or a copy
//! that they bring along. They would find no device and not say why.

use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::next::{errno, set_errno};
use crate::root;
use crate::text::Text;

const LIBRARY: &[u8] = b"libibverbs.so";

/// Set once the warning was written.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Looks at the libraries that are loaded now, and warns once of one that is not ours.
pub(crate) fn warn() {
    if WARNED.load(Ordering::Relaxed) || root::with(|_| ()).is_none() {
        return;
    }
    let before = errno();
    if let Some(folder) = our_folder() {
        let argument = (&raw const folder).cast_mut().cast::<c_void>();
        // SAFETY: the function takes what it is given, which lives until it returns.
        unsafe { libc::dl_iterate_phdr(Some(look), argument) };
    }
    set_errno(before);
}

/// The directory that this library was loaded from.
fn our_folder() -> Option<Text> {
    let mut place = MaybeUninit::<libc::Dl_info>::uninit();
    let ours = warn as fn() as *const c_void;
    // SAFETY: an address of ours, and room for the answer, which is read if it was given.
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

/// Looks at one library; anything but 0 ends the search.
unsafe extern "C" fn look(
    library: *mut libc::dl_phdr_info,
    _size: usize,
    folder: *mut c_void,
) -> c_int {
    // SAFETY: `warn` passes a directory, and the dynamic linker a library with a name.
    let (folder, name) = unsafe { (&*folder.cast::<Text>(), (*library).dlpi_name) };
    if name.is_null() {
        return 0;
    }
    // SAFETY: a string.
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
        // SAFETY: as many bytes as there are.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    }
    1
}

/// Whether a library is a libibverbs from another directory.
fn is_foreign(path: &[u8], folder: &[u8]) -> bool {
    let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else {
        return false;
    };
    path[slash + 1..].starts_with(LIBRARY) && &path[..slash] != folder
}

/// The program, as it was started.
fn program() -> &'static [u8] {
    // SAFETY: the kernel puts the address of a string there, which stays.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const core::ffi::c_char;
    if name.is_null() {
        return b"a program";
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(name) }.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_its_directory() {
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
