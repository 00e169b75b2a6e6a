//! Structures have the layout of the system's headers.

use std::collections::HashMap;
use std::path::Path;

use ferroce_abi::ffi::{LAYOUTS, Layout, RDMACM_LAYOUTS};

/// The header, which includes that of libibverbs.
const HEADER: &str = "/usr/include/rdma/rdma_cma.h";
const CSV: &str = include_str!("../struct-layouts.csv");

/// Structures that have grown: in older headers they are shorter.
const GROWN: [&str; 3] = ["ibv_port_attr", "ibv_qp_ex", "verbs_context"];

/// Layouts by the C compiler: sizes by name, offsets by name and field.
struct Header {
    sizes: HashMap<String, usize>,
    offsets: HashMap<(String, String), usize>,
}

impl Header {
    /// Reads the header. Without a header or libclang the result is `None`, with a loud message.
    fn read() -> Option<Header> {
        if !Path::new(HEADER).exists() {
            return not_tested(&format!("there is no {HEADER} (package librdmacm-dev)"));
        }
        // Without libclang, bindgen panics.
        let generated = std::panic::catch_unwind(|| {
            bindgen::Builder::default()
                .header(HEADER)
                .allowlist_type("_?ibv_.*|verbs_context|rdma_.*")
                .generate()
        });
        match generated {
            Ok(Ok(bindings)) => Some(Header::parse(&bindings.to_string())),
            Ok(Err(error)) => not_tested(&format!("bindgen: {error}")),
            Err(_) => not_tested("there is no libclang (package libclang-dev)"),
        }
    }

    /// Parses bindgen's assertions, such as
    /// `["Size of ibv_pd"][::std::mem::size_of::<ibv_pd>() - 16usize]`.
    fn parse(bindings: &str) -> Header {
        let mut header = Header {
            sizes: HashMap::new(),
            offsets: HashMap::new(),
        };
        let text: String = bindings.split_whitespace().collect::<Vec<_>>().join(" ");
        for assertion in text.split("[\"").skip(1) {
            let Some((what, rest)) = assertion.split_once("\"]") else {
                continue;
            };
            let number = rest.split("usize").next().unwrap_or_default();
            let number = number.rsplit(' ').next().and_then(|n| n.parse().ok());
            let Some(number) = number else { continue };
            if let Some(name) = what.strip_prefix("Size of ") {
                header.sizes.insert(name.into(), number);
            } else if let Some(field) = what.strip_prefix("Offset of field: ") {
                let (name, field) = field.split_once("::").unwrap();
                header.offsets.insert((name.into(), field.into()), number);
            }
        }
        header
    }
}

fn layouts() -> impl Iterator<Item = &'static Layout> {
    LAYOUTS.iter().chain(RDMACM_LAYOUTS)
}

fn not_tested<T>(why: &str) -> Option<T> {
    assert!(std::env::var_os("CI").is_none(), "not tested: {why}");
    eprintln!("NOT TESTED: {why}");
    None
}

#[test]
fn structures_match_the_headers_of_the_system() {
    let Some(header) = Header::read() else { return };
    let (mut structures, mut fields) = (0, 0);
    for &(name, size, ours) in layouts() {
        let Some(&theirs) = header.sizes.get(name) else {
            panic!("{HEADER} has no {name}");
        };
        let grown = GROWN.contains(&name) && theirs < size;
        assert!(
            theirs == size || grown,
            "{name}: {theirs} bytes, not {size}"
        );
        structures += 1;
        // All but verbs_context have grown at the end.
        let shift = match name {
            "verbs_context" => size - theirs,
            _ => 0,
        };
        for &(field, offset) in ours.iter().filter(|(field, _)| !field.contains('.')) {
            let key = (name.to_string(), field.to_string());
            match header.offsets.get(&key) {
                Some(theirs) => assert_eq!(theirs + shift, offset, "{name}.{field}"),
                None => assert!(grown, "{HEADER} has no {name}.{field}"),
            }
            fields += 1;
        }
    }
    assert!(structures > 75 && fields > 500, "{structures}, {fields}");
}

#[test]
fn structures_match_the_table() {
    let ours: HashMap<_, _> = layouts().map(|&(name, size, _)| (name, size)).collect();
    let mut rows = 0;
    for row in CSV.lines().skip(1) {
        let columns: Vec<&str> = row.split(',').collect();
        let [name, size, offset, _, _, field] = columns[..] else {
            panic!("not a row: {row}");
        };
        assert_eq!(ours.get(name), Some(&size.parse().unwrap()), "{name}");
        let (_, _, fields) = layouts().find(|layout| layout.0 == name).unwrap();
        let offset: usize = offset.parse().unwrap();
        let last = field.rsplit('.').next().unwrap();
        let same = |ours: &&(&str, usize)| {
            let ours_last = ours.0.rsplit(['.', ' ']).next().unwrap();
            ours_last.trim_end_matches('_') == last && ours.1 == offset
        };
        assert!(fields.iter().any(|ours| same(&ours)), "{row}");
        rows += 1;
    }
    let fields: usize = layouts().map(|layout| layout.2.len()).sum();
    assert_eq!(rows, fields);
}
