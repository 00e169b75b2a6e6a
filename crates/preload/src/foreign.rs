//! A warning about a copy of libibverbs that Ferroce does not replace. A program that uses
//! one finds no Ferroce device and reports no cause.
//!
//! Many programs load such a copy and then call Ferroce's functions (`verbs`). So the sign
//! is not that a copy is loaded, but that it looks for devices. Each version of rdma-core
//! does that in one of these ways; Ferroce's library does it in neither:
//!
//! - It opens the directory `/sys/class/infiniband_verbs` and the file `abi_version` there.
//! - It opens a netlink socket of the kernel's RDMA subsystem, itself or through libnl. UCX opens
//!   such sockets too, without libnl, so the caller of `socket` decides.
//!
//! A copy that is loaded with `RTLD_DEEPBIND` calls libc's functions in place of those here. It
//! is found when the program exits: `opendir` does not lead to this library.

use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::next::{Failed, Next, Path, errno, set_errno};
use crate::text::Text;
use crate::{binding, root};

/// The directory that a libibverbs opens, and the file in it.
const DIRECTORY: &CStr = c"/sys/class/infiniband_verbs";
const VERSION: &CStr = c"/sys/class/infiniband_verbs/abi_version";
/// Bits of [`SEEN`].
const SEEN_DIRECTORY: u8 = 1;
const SEEN_VERSION: u8 = 2;

/// A function that every libibverbs calls, and this library replaces.
const OPENDIR: &CStr = c"opendir";

/// Number of the netlink family of the RDMA subsystem.
const NETLINK_RDMA: c_int = 20;

/// The variable of `ferroce run --quiet`.
const QUIET: &CStr = c"FERROCE_QUIET";

/// Paths of a libibverbs that the process has opened.
static SEEN: AtomicU8 = AtomicU8::new(0);
/// Set once the warning was written, or if there shall be none.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Reads the variable of `ferroce run --quiet`.
pub(crate) fn read_quiet() {
    // SAFETY: the name is a string.
    if !unsafe { libc::getenv(QUIET.as_ptr()) }.is_null() {
        IS_SILENT.store(true, Ordering::Relaxed);
    }
}

/// Notes that the program opens a redirected path.
///
/// # Safety
/// `path` is a string.
pub(crate) unsafe fn opens(path: Path) {
    // SAFETY: the path is a string.
    let bit = match unsafe { CStr::from_ptr(path) } {
        path if path == DIRECTORY => SEEN_DIRECTORY,
        path if path == VERSION => SEEN_VERSION,
        _ => return,
    };
    let before = SEEN.fetch_or(bit, Ordering::Relaxed);
    if before | bit == SEEN_DIRECTORY | SEEN_VERSION {
        warn(Sign::Sysfs);
    }
}

type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
/// libc's own function.
// SAFETY: libc declares the function with this type.
static NEXT_SOCKET: Next<Socket> = unsafe { Next::new(c"socket") };

/// libc's `socket`, which also notes sockets of the RDMA subsystem. Passes on its arguments
/// and the address to which it returns.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    naked_asm!("mov rcx, [rsp]", "jmp {open}", open = sym open_socket)
}

unsafe extern "C" fn open_socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    caller: *const c_void,
) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        let library = library_of(caller).unwrap_or_default();
        if is_libibverbs(name_of(library)) || name_of(library).starts_with(b"libnl-3") {
            warn(Sign::Netlink);
        }
    }
    match NEXT_SOCKET.get() {
        // SAFETY: the program's arguments, unchanged.
        Some(next) => unsafe { next(domain, kind, protocol) },
        None => Failed::FAILED,
    }
}

/// Looks up libc's function.
pub(crate) fn find_all() {
    NEXT_SOCKET.find();
}

/// The reason to look for a copy of libibverbs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// The process has opened the files of a libibverbs.
    Sysfs,
    /// The process opens a socket of the RDMA subsystem.
    Netlink,
    /// The program exits.
    Exit,
}

/// Looks for a copy that calls other functions than those here, when the program exits.
pub(crate) fn look_at_exit() {
    warn(Sign::Exit);
}

/// Warns once about the libibverbs that the process has loaded and that is not Ferroce's.
fn warn(sign: Sign) {
    if IS_SILENT.load(Ordering::Relaxed) || root::with(|_| ()).is_none() {
        return;
    }
    let before = errno();
    if let Some(folder) = our_folder() {
        let mut search = Search {
            folder,
            sign,
            is_found: false,
        };
        let argument = (&raw mut search).cast::<c_void>();
        // SAFETY: `look` takes a `Search`, which lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(look), argument) };
        if !search.is_found && sign == Sign::Sysfs {
            say(&[
                b"warning: ",
                program(),
                b", or a library of it, contains a copy of libibverbs, linked statically, which \
                  does not see Ferroce's links; link it with libibverbs.so.1\n",
            ]);
        }
    }
    set_errno(before);
}

/// Writes the warning.
fn say(parts: &[&[u8]]) {
    IS_SILENT.store(true, Ordering::Relaxed);
    if let Some(line) = Text::of(parts) {
        line.write_to_stderr();
    }
}

/// The search for a libibverbs among the loaded libraries.
struct Search {
    /// The directory of Ferroce's libraries.
    folder: Text,
    sign: Sign,
    is_found: bool,
}

/// Returns the directory of this library.
pub(crate) fn our_folder() -> Option<Text> {
    let ours = our_folder as fn() -> Option<Text> as *const c_void;
    let mut folder = Text::of(&[library_of(ours)?])?;
    folder.pop();
    Some(folder)
}

/// Returns the path of the library or program that contains an address.
fn library_of(address: *const c_void) -> Option<&'static [u8]> {
    let mut place = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `place` has room for the answer, and is read only after success. The path lives
    // until the library is unloaded: it is this one, or one with a function that runs.
    unsafe {
        if libc::dladdr(address, place.as_mut_ptr()) == 0 {
            return None;
        }
        Some(CStr::from_ptr(place.assume_init().dli_fname).to_bytes())
    }
}

/// Checks one library. A result other than 0 ends the search.
unsafe extern "C" fn look(
    library: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: `warn` passes a `Search`, and the dynamic linker a valid library.
    let (search, library) = unsafe { (&mut *search.cast::<Search>(), &*library) };
    if library.dlpi_name.is_null() {
        return 0;
    }
    // SAFETY: the path is a string.
    let path = unsafe { CStr::from_ptr(library.dlpi_name) }.to_bytes();
    if !is_foreign(path, search.folder.bytes()) {
        return 0;
    }
    // SAFETY: libraries stay loaded while the dynamic linker lists them.
    if search.sign == Sign::Exit && !unsafe { avoids_us(library) } {
        return 0;
    }
    search.is_found = true;
    say(&[
        b"warning: ",
        program(),
        b" uses ",
        path,
        b", which is not Ferroce's and does not see its links: the program loaded it with \
          RTLD_DEEPBIND, or asked for it by its path; have it load libibverbs.so.1\n",
    ]);
    1
}

/// True if a library calls another `opendir` than the rest of the process.
///
/// # Safety
/// The dynamic linker has loaded the library and not unloaded it.
unsafe fn avoids_us(library: &libc::dl_phdr_info) -> bool {
    // SAFETY: the name is a string.
    let usual = unsafe { libc::dlsym(libc::RTLD_DEFAULT, OPENDIR.as_ptr()) } as usize;
    // SAFETY: promised by the caller.
    let bound = unsafe { binding::bound(library, OPENDIR) };
    // SAFETY: promised by the caller.
    let is_lazy = |address| unsafe { binding::contains(library, address) };
    bound.is_some_and(|address| address != usual && !is_lazy(address))
}

/// True if a library is a libibverbs from another directory.
fn is_foreign(path: &[u8], folder: &[u8]) -> bool {
    let name = name_of(path);
    let place = path[..path.len() - name.len()].strip_suffix(b"/");
    is_libibverbs(name) && place.is_some_and(|place| place != folder)
}

/// True for the name of a libibverbs. Python wheels insert a hash.
fn is_libibverbs(name: &[u8]) -> bool {
    let rest = name.strip_prefix(b"libibverbs");
    rest.is_some_and(|rest| rest.starts_with(b".so") || rest.starts_with(b"-"))
}

/// Returns the part of a path after its last slash.
fn name_of(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    &path[slash.map_or(0, |slash| slash + 1)..]
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
        assert!(is_foreign(
            b"/opt/x.libs/libibverbs-1de1263b.so.1.14.44.0",
            folder
        ));
        assert!(!is_foreign(b"/opt/lib/ferroce/libibverbs.so.1", folder));
        assert!(!is_foreign(
            b"/usr/lib/libibverbs/librxe-rdmav34.so",
            folder
        ));
        assert!(!is_foreign(b"/usr/lib/librdmacm.so.1", folder));
        assert!(!is_foreign(b"linux-vdso.so.1", folder));
    }
}
