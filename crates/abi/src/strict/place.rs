//! The place in the program that called a verb: its call stack.

use core::ffi::{CStr, c_void};
use core::hash::{Hash, Hasher};
use std::collections::hash_map::DefaultHasher;

/// Number of return addresses that are looked at.
const DEPTH: usize = 32;
/// Number of places that a warning names.
const SHOWN: usize = 5;
/// Offset of `e_type` in the header of an ELF file, and its value for a program that is not
/// loaded at a random address.
const ELF_TYPE: usize = 16;
const ELF_EXEC: u16 = 2;

/// Return addresses in the program, from the innermost outwards.
pub(super) struct Place {
    addresses: Vec<usize>,
}

/// The file and function of an address.
struct Symbol {
    file: String,
    base: usize,
    function: Option<(String, usize)>,
}

impl Place {
    /// Returns the place that called this library. If the library is part of the program, as in
    /// its own tests, its functions are included.
    pub(super) fn here() -> Place {
        Place::of(&call_stack())
    }

    /// Returns the place of an earlier [`call_stack`].
    pub(super) fn of(all: &[usize]) -> Place {
        let own = symbol(Place::here as *const () as usize).map(|symbol| symbol.base);
        let is_own = |at: &usize| symbol(*at).map(|symbol| symbol.base) == own;
        let outside = all.iter().position(|at| !is_own(at));
        // Without a caller between this library and the C library, the program is this library.
        let addresses = match outside {
            Some(index) if !is_library_of_c(all[index]) => {
                all[index..].iter().take(SHOWN).copied().collect()
            }
            _ => all.to_vec(),
        };
        Place { addresses }
    }

    /// Returns a number that is the same for the same place.
    pub(super) fn key(&self) -> usize {
        let mut hasher = DefaultHasher::new();
        self.addresses.hash(&mut hasher);
        hasher.finish() as usize
    }

    /// Returns the innermost calls as text: the file with an offset for `addr2line`, and the
    /// function if it is exported.
    pub(super) fn lines(&self) -> Vec<String> {
        let innermost = self.addresses.iter().take(1);
        // The C library called main, or the function of a thread.
        let outer = self.addresses.iter().skip(1);
        let outer = outer.take_while(|at| !is_library_of_c(**at));
        let shown = innermost.chain(outer).take(SHOWN);
        shown.map(|at| line(*at)).collect()
    }
}

/// Returns the return addresses of the calling thread, from the innermost outwards. It takes a
/// few microseconds; [`Place::of`], which looks up files and functions, takes longer.
pub(super) fn call_stack() -> Vec<usize> {
    let mut addresses = [core::ptr::null_mut::<c_void>(); DEPTH];
    // SAFETY: the array has `DEPTH` elements.
    let count = unsafe { libc::backtrace(addresses.as_mut_ptr(), DEPTH as i32) };
    let count = usize::try_from(count).unwrap_or(0).min(DEPTH);
    addresses[..count].iter().map(|at| at.addr()).collect()
}

/// Returns true for an address in the C library, which calls `main` and the functions of threads.
fn is_library_of_c(at: usize) -> bool {
    symbol(at).is_some_and(|symbol| {
        let file = symbol.file.rsplit('/').next().unwrap_or_default();
        file.starts_with("libc.so") || file.starts_with("libpthread.so")
    })
}

fn line(at: usize) -> String {
    let Some(symbol) = symbol(at) else {
        return format!("{at:#x}");
    };
    // The call is in front of the return address.
    let offset = at - 1 - load_offset(symbol.base);
    let place = format!("{}+{offset:#x}", symbol.file);
    match symbol.function {
        Some((name, into)) => format!("{place} ({name}+{into:#x})"),
        None => place,
    }
}

/// Returns the number to subtract from an address for its place in the file.
fn load_offset(base: usize) -> usize {
    let header = core::ptr::with_exposed_provenance::<u8>(base + ELF_TYPE).cast::<u16>();
    // SAFETY: `dladdr` returned the base of a loaded file, which begins with its ELF header.
    match unsafe { header.read_unaligned() } {
        ELF_EXEC => 0,
        _ => base,
    }
}

fn symbol(at: usize) -> Option<Symbol> {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    let address = core::ptr::without_provenance(at.checked_sub(1)?);
    // SAFETY: `dladdr` compares the address, and fills the structure if it returns a number.
    let found = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    if !found || info.dli_fname.is_null() {
        return None;
    }
    let text = |name| {
        // SAFETY: the names are strings of the dynamic linker, which live as long as the file is
        // loaded; it is on the call stack.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    };
    Some(Symbol {
        file: text(info.dli_fname),
        base: info.dli_fbase.expose_provenance(),
        function: (!info.dli_sname.is_null())
            .then(|| (text(info.dli_sname), at - info.dli_saddr.addr())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn one() -> Place {
        Place::here()
    }

    #[test]
    fn place_is_a_file_with_an_offset() {
        let (first, second) = (one(), one());
        assert_ne!(first.key(), second.key(), "two places");
        let same: Vec<usize> = (0..2).map(|_| one().key()).collect();
        assert_eq!(same[0], same[1], "one place");
        let lines = first.lines();
        assert!(lines[0].contains("+0x"), "{lines:?}");
    }
}
