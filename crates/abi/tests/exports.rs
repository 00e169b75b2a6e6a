//! libferroce.so exports what the table says, in the nodes it says, and no more.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::PathBuf;

use object::Endianness;
use object::read::elf::ElfFile64;

/// Names with their nodes.
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

/// The library as `cargo xtask build` links it; none if it has not been.
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
fn the_library_exports_the_table_and_nothing_else() {
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

#[test]
fn the_loader_finds_every_version() {
    let Some(path) = library() else { return };
    let path = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the library does nothing when it is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "the library cannot be loaded");
    let find = |name: &str, node: &str| {
        let (name, node) = (CString::new(name).unwrap(), CString::new(node).unwrap());
        // SAFETY: a handle and two strings.
        let found = unsafe { libc::dlvsym(handle, name.as_ptr(), node.as_ptr()) };
        !found.is_null()
    };
    for (name, node) in table() {
        assert!(find(&name, &node), "{name}@{node} is not found");
    }
    assert!(
        !find("ibv_open_device", "IBVERBS_1.0"),
        "that had another layout"
    );
}

#[test]
fn the_table_has_what_rdma_core_44_has() {
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
