//! Where a loaded library's reference to a function leads.

use core::ffi::{CStr, c_char};
use core::slice;

use libc::{Elf64_Phdr, Elf64_Rela, Elf64_Sym, dl_phdr_info};

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

const R_X86_64_GLOB_DAT: u32 = 6;
const R_X86_64_JUMP_SLOT: u32 = 7;

/// Returns the address that a library calls for an imported function. It lies in the library
/// itself until the first call, unless the library asks to be bound when it is loaded.
///
/// # Safety
/// glibc's dynamic linker has loaded the library and not unloaded it.
pub(crate) unsafe fn bound(library: &dl_phdr_info, function: &CStr) -> Option<usize> {
    // SAFETY: the dynamic linker states the place of the program headers.
    let headers =
        unsafe { slice::from_raw_parts(library.dlpi_phdr, usize::from(library.dlpi_phnum)) };
    let base = library.dlpi_addr as usize;
    let dynamic = headers
        .iter()
        .find(|header| header.p_type == libc::PT_DYNAMIC)?;
    let dynamic = (base + dynamic.p_vaddr as usize) as *const Dynamic;
    // SAFETY: the dynamic section ends with DT_NULL.
    let value = |tag| unsafe { find(dynamic, tag) };
    // glibc has replaced the offsets in the dynamic section by addresses.
    let symbols = value(DT_SYMTAB)? as *const Elf64_Sym;
    let names = value(DT_STRTAB)? as *const c_char;
    for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        let (Some(table), Some(size)) = (value(table), value(size)) else {
            continue;
        };
        let count = size / size_of::<Elf64_Rela>();
        // SAFETY: the dynamic section states the place of the relocations.
        let relocations = unsafe { slice::from_raw_parts(table as *const Elf64_Rela, count) };
        for relocation in relocations {
            let (symbol, kind) = (relocation.r_info >> 32, relocation.r_info as u32);
            if !matches!(kind, R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT) {
                continue;
            }
            // SAFETY: relocations refer to symbols of the table, and these to its names.
            let name = unsafe {
                CStr::from_ptr(names.add((*symbols.add(symbol as usize)).st_name as usize))
            };
            if name == function {
                // SAFETY: the relocation states the place of the address.
                return Some(unsafe { *((base + relocation.r_offset as usize) as *const usize) });
            }
        }
    }
    None
}

/// Returns the first value with a tag.
///
/// # Safety
/// The entries end with DT_NULL.
unsafe fn find(mut entry: *const Dynamic, tag: i64) -> Option<usize> {
    loop {
        // SAFETY: DT_NULL has not been passed yet.
        let now = unsafe { &*entry };
        if now.tag == tag {
            return Some(now.value);
        }
        if now.tag == DT_NULL {
            return None;
        }
        entry = entry.wrapping_add(1);
    }
}

/// Returns true if an address lies in a library.
///
/// # Safety
/// As for [`bound`].
pub(crate) unsafe fn contains(library: &dl_phdr_info, address: usize) -> bool {
    // SAFETY: the dynamic linker states the place of the program headers.
    let headers =
        unsafe { slice::from_raw_parts(library.dlpi_phdr, usize::from(library.dlpi_phnum)) };
    let holds = |header: &Elf64_Phdr| {
        let start = (library.dlpi_addr + header.p_vaddr) as usize;
        (start..start + header.p_memsz as usize).contains(&address)
    };
    let loaded = |header: &&Elf64_Phdr| header.p_type == libc::PT_LOAD;
    headers.iter().filter(loaded).any(holds)
}
