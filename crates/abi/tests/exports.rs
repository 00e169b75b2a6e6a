//! libferroce.so exports exactly the symbols of the table, in their version nodes. The
//! filter libraries libibverbs.so.1 and librdmacm.so.1 resolve to it.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::ElfFile64;
use object::{Endianness, Object};

/// Symbols with their version nodes.
type Exports = BTreeSet<(String, String)>;

const TABLE: &str = include_str!("../exports.txt");

fn table() -> Exports {
    let mut node = "";
    let mut exports = Exports::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("    ") {
            Some(name) => drop(exports.insert((name.into(), node.into()))),
            None => node = line.split(' ').next().unwrap_or_default(),
        }
    }
    exports
}

/// Returns the library that `cargo xtask build` has linked; `None` if there is none.
fn library() -> Option<PathBuf> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => PathBuf::from(chosen),
        None => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")),
    };
    let path = target.join("debug/lib/libferroce.so");
    if path.exists() {
        return Some(path);
    }
    let why = format!(
        "NOT TESTED: {} does not exist; `cargo xtask test` links it first",
        path.display()
    );
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("{why}");
    None
}

#[test]
fn library_exports_exactly_the_table() {
    let Some(path) = library() else { return };
    let bytes = std::fs::read(path).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let endian = file.endian();
    let sections = file.elf_section_table();
    let versions = sections.versions(endian, &*bytes).unwrap().unwrap();
    let symbols = sections
        .symbols(endian, &*bytes, object::elf::SHT_DYNSYM)
        .unwrap();
    let mut exports = Exports::new();
    for (index, symbol) in symbols.enumerate() {
        let version = versions.version_index(endian, index);
        let absolute = symbol.st_shndx.get(endian) == object::elf::SHN_ABS;
        if symbol.st_shndx.get(endian) == object::elf::SHN_UNDEF || absolute {
            continue;
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = text(symbols.symbol_name(endian, symbol).unwrap());
        let version = versions.version(version).unwrap();
        let node = version.map_or("no version".into(), |version| text(version.name()));
        exports.insert((name, node));
    }
    let table = table();
    let missing: Vec<_> = table.difference(&exports).collect();
    let surplus: Vec<_> = exports.difference(&table).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
    assert!(surplus.is_empty(), "not in the table: {surplus:?}");
}

/// A loaded library.
struct Loaded(*mut libc::c_void);

impl Loaded {
    fn new(path: &Path) -> Loaded {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library has no initialisers with preconditions.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", path.display());
        Loaded(handle)
    }

    /// Returns the address of a symbol; NULL if there is none.
    fn find(&self, name: &str, node: &str) -> *mut libc::c_void {
        let (name, node) = (CString::new(name).unwrap(), CString::new(node).unwrap());
        // SAFETY: the handle is valid, and both names are strings.
        unsafe { libc::dlvsym(self.0, name.as_ptr(), node.as_ptr()) }
    }
}

#[test]
fn dynamic_linker_finds_every_version() {
    let Some(path) = library() else { return };
    let library = Loaded::new(&path);
    for (name, node) in table() {
        let found = library.find(&name, &node);
        assert!(!found.is_null(), "{name}@{node} is not found");
    }
    assert!(
        library.find("ibv_open_device", "IBVERBS_1.0").is_null(),
        "that had another layout"
    );
}

/// Both libraries, by both of their names, resolve to one copy of the code.
#[test]
fn filter_libraries_resolve_to_libferroce() {
    let Some(path) = library() else { return };
    let library = Loaded::new(&path);
    for (name, nodes) in [("libibverbs", "IBVERBS_"), ("librdmacm", "RDMACM_")] {
        for suffix in ["so.1", "so"] {
            let filter = Loaded::new(&path.with_file_name(format!("{name}.{suffix}")));
            for (name, node) in table() {
                if node.starts_with(nodes) {
                    let (here, there) = (filter.find(&name, &node), library.find(&name, &node));
                    assert_eq!(here, there, "{name}@{node}");
                }
            }
        }
    }
}

/// So a program that is linked against Ferroce also runs with the system's libraries.
#[test]
fn linked_programs_need_libibverbs_and_librdmacm() {
    let Some(path) = library() else { return };
    let folder = path.parent().unwrap();
    let dir = std::env::temp_dir().join(format!("ferroce-linked-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("program.c"), dir.join("program"));
    let text = "void ibv_fork_init(void); void rdma_create_event_channel(void);\n\
                int main(void) { ibv_fork_init(); rdma_create_event_channel(); return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let linked = Command::new("cc")
        .args(["-o".as_ref(), program.as_os_str(), source.as_os_str()])
        .arg("-L")
        .arg(folder)
        .args(["-libverbs", "-lrdmacm"])
        .status()
        .expect("a C compiler, which Rust needs too");
    assert!(linked.success());
    let bytes = std::fs::read(&program).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let imports = file.imports().unwrap().into_iter();
    let needed: BTreeSet<_> = imports
        .map(|import| String::from_utf8_lossy(import.library()).into_owned())
        .collect();
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        assert!(needed.contains(name), "{needed:?}");
    }
    assert!(
        !needed.iter().any(|name| name.contains("ferroce")),
        "{needed:?}"
    );
    let ran = Command::new(&program)
        .env("LD_LIBRARY_PATH", folder)
        .status();
    assert!(ran.unwrap().success(), "the loader found everything");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn table_has_all_exports_of_rdma_core_44() {
    let table = table();
    let count = |prefix: &str, nodes: &str, last: u32| {
        let names = table.iter().filter(|(name, node)| {
            name.starts_with(prefix) && node.starts_with(nodes) && !node.contains("PRIVATE")
        });
        let (old, new): (Vec<_>, Vec<_>) = names.partition(|(_, node)| {
            let minor = node.rsplit('.').next().and_then(|minor| minor.parse().ok());
            minor.is_some_and(|minor: u32| minor <= last)
        });
        (old.len(), new.len())
    };
    assert_eq!(count("", "IBVERBS", 14), (76, 19));
    assert_eq!(count("rdma_", "RDMACM", 3), (41, 3));
    assert_eq!(count("r", "RDMACM", 3), (68, 6));
}

/// Functions that rdma-core's librspreload.so replaces in the whole process. A call from the
/// library would call the library again and deadlock: see `src/own_calls.rs`.
const REPLACED: [&str; 26] = [
    "accept",
    "bind",
    "close",
    "connect",
    "dup2",
    "fcntl",
    "getpeername",
    "getsockname",
    "getsockopt",
    "listen",
    "poll",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "select",
    "send",
    "sendfile",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "socket",
    "write",
    "writev",
];

#[test]
fn library_imports_no_function_that_librspreload_replaces() {
    let Some(path) = library() else { return };
    let bytes = std::fs::read(path).unwrap();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let endian = file.endian();
    let symbols = file
        .elf_section_table()
        .symbols(endian, &*bytes, object::elf::SHT_DYNSYM)
        .unwrap();
    let imported = symbols
        .iter()
        .filter(|symbol| symbol.st_shndx.get(endian) == object::elf::SHN_UNDEF)
        .map(|symbol| symbols.symbol_name(endian, symbol).unwrap())
        .map(|name| String::from_utf8_lossy(name));
    let wrong: Vec<_> = imported
        .filter(|name| REPLACED.contains(&name.as_ref()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?} belong into own_calls.rs");
}
