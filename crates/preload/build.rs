//! Lists the verbs that `src/verbs.rs` forwards, from the table of exports of libferroce.so.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

const TABLE: &str = "../abi/exports.txt";

fn main() {
    println!("cargo::rerun-if-changed={TABLE}");
    let table = fs::read_to_string(TABLE).unwrap_or_else(|error| panic!("{TABLE}: {error}"));
    let mut names = BTreeSet::new();
    let mut is_public = false;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        match line.strip_prefix("    ") {
            Some(name) if is_public && is_verb(name) => _ = names.insert(name),
            Some(_) => {}
            None => is_public = !line.contains("PRIVATE"),
        }
    }
    let lines = names.iter().enumerate();
    let lines: String = lines.map(|(n, name)| format!("{n} {name};\n")).collect();
    let code = format!("forward! {{ {}\n{lines}}}\n", names.len());
    let folder = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let file = Path::new(&folder).join("verbs.rs");
    fs::write(&file, code).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

/// True for names that only RDMA programs have. rsockets have names such as `rread`, which a
/// library that knows nothing of RDMA may define for itself.
fn is_verb(name: &str) -> bool {
    name.contains("ibv_") || name.starts_with("rdma_")
}
