//! Builds the directory of libraries: libferroce.so, which replaces libibverbs and
//! librdmacm; libferroce-preload.so, which `ferroce run` preloads; and librspreload.so,
//! which turns sockets into rsockets.
//!
//! libibverbs.so.1 and librdmacm.so.1 are *filters* of libferroce.so: they have the names
//! and versions of the exports, so that the linker records `libibverbs.so.1` in programs
//! that are linked with this folder, and the loader takes each symbol from libferroce.so.
//! So a process has one copy of all code and state, whichever of the two it loads.
//!
//! Cargo alone cannot build libferroce.so. Its symbols carry the versions of libibverbs and
//! librdmacm, and rustc's own version script for shared objects silently overrides another.
//! So cargo builds the crate as an archive, and this module links it. The version script is
//! made from the table `crates/abi/exports.txt`, which tests read as well.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::step::{cargo, root};

/// A library that libferroce.so replaces.
struct Replaced {
    /// The name that programs record and the loader looks for.
    soname: &'static str,
    /// The name that the linker looks for.
    link: &'static str,
    /// Prefix of the names of its version nodes.
    nodes: &'static str,
}

const REPLACED: [Replaced; 2] = [
    Replaced {
        soname: "libibverbs.so.1",
        link: "libibverbs.so",
        nodes: "IBVERBS_",
    },
    Replaced {
        soname: "librdmacm.so.1",
        link: "librdmacm.so",
        nodes: "RDMACM_",
    },
];

/// Libraries for LD_PRELOAD: the name that cargo gives them, which cannot have a hyphen, and
/// their final name.
const PRELOADED: [(&str, &str); 2] = [
    ("libferroce_preload.so", "libferroce-preload.so"),
    ("librspreload.so", "librspreload.so"),
];

/// System libraries that the archive needs.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"];

/// Builds the libraries and their links into `target/<profile>/lib`.
pub(crate) fn build(release: bool) -> Result<()> {
    let profile = target_dir().join(if release { "release" } else { "debug" });
    let folder = profile.join("lib");
    fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {} for the libraries", folder.display()))?;
    build_verbs(release, &profile, &folder)?;
    let mut line = vec!["build", "--package", "ferroce-preload"];
    line.extend(["--package", "ferroce-rspreload"]);
    line.extend(release.then_some("--release"));
    cargo(&line)?;
    for (built, name) in PRELOADED {
        let new = folder.join(format!("{name}.new"));
        fs::copy(profile.join(built), &new).with_context(|| format!("cannot copy {name}"))?;
        replace(&new, &folder.join(name))?;
    }
    name_commands(&folder.join("bin"), "../../ferroce")
}

/// Names of `ferroce` in the directory `bin` beside the libraries: the commands of guides.
pub(crate) const NAMES: [&str; 5] = ["ferroce", "rdma", "rxe_cfg", "rxe_init.sh", "sudo"];

/// Creates a directory with links to `ferroce` under its other names.
pub(crate) fn name_commands(folder: &Path, ferroce: &str) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {} for commands", folder.display()))?;
    for name in NAMES {
        match symlink(ferroce, folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot create the link {name}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Replaces a library atomically, because a process may have it loaded.
fn replace(new: &Path, old: &Path) -> Result<()> {
    fs::rename(new, old).with_context(|| format!("cannot replace {}", old.display()))
}

fn build_verbs(release: bool, profile: &Path, folder: &Path) -> Result<()> {
    let mut line = vec!["rustc", "--package", "ferroce-abi", "--lib"];
    line.extend(["--crate-type", "staticlib", "--features", "versions"]);
    if release {
        line.push("--release");
    }
    // A panic must not unwind into a C program.
    line.extend(["--", "-C", "panic=abort"]);
    cargo(&line)?;
    let table = root().join("crates/abi/exports.txt");
    let table = fs::read_to_string(&table).context("cannot read the table of exports")?;
    link(&profile.join("libferroce_abi.a"), &table, folder)?;
    for replaced in &REPLACED {
        link_filter(replaced, &table, folder)?;
        let name = folder.join(replaced.link);
        match symlink(replaced.soname, &name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let new = folder.join(format!("{}.new", replaced.link));
                let _left_by_a_build_that_was_ended = fs::remove_file(&new);
                symlink(replaced.soname, &new)
                    .with_context(|| format!("cannot create the link {}", replaced.link))?;
                replace(&new, &name)?;
            }
            made => made.with_context(|| format!("cannot create the link {}", replaced.link))?,
        }
    }
    Ok(())
}

/// Links a filter library. It has the versioned names of the replaced library and no code:
/// the loader takes each symbol from libferroce.so.
fn link_filter(replaced: &Replaced, table: &str, folder: &Path) -> Result<()> {
    let all = nodes(table)?;
    let own: Vec<Node> = all
        .into_iter()
        .filter(|node| node.name.starts_with(replaced.nodes))
        .collect();
    let source = folder.with_file_name(format!("{}.c", replaced.link));
    let script = folder.with_file_name(format!("{}.map", replaced.link));
    fs::write(&source, filter_source(&own)).context("cannot write the source of a filter")?;
    fs::write(&script, script_of(&own)?).context("cannot write the version script")?;
    let new = folder.join(format!("{}.new", replaced.soname));
    let mut command = compiler();
    command
        .args(["-shared", "-fPIC", "-nostdlib", "-o"])
        .arg(&new)
        .arg(option("-Wl,-soname,", replaced.soname))
        .args(["-Wl,--filter=libferroce.so", "-Wl,-rpath,$ORIGIN"])
        .arg(option("-Wl,--version-script=", &script))
        .args(["-Wl,--no-undefined-version", "-Wl,-z,now", "-Wl,-z,relro"])
        .arg(&source);
    run(command, replaced.soname)?;
    replace(&new, &folder.join(replaced.soname))
}

/// Returns C source with a function for each name. The functions are never called.
fn filter_source(nodes: &[Node]) -> String {
    let names: BTreeSet<&str> = nodes
        .iter()
        .flat_map(|node| &node.symbols)
        .copied()
        .collect();
    let functions = names
        .iter()
        .map(|name| format!("void {name}(void) {{ __builtin_trap(); }}\n"));
    functions.collect()
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Joins an option and its value to one argument.
fn option(name: &str, value: impl AsRef<std::ffi::OsStr>) -> std::ffi::OsString {
    let mut word = std::ffi::OsString::from(name);
    word.push(value);
    word
}

fn run(mut command: Command, what: &str) -> Result<()> {
    eprintln!("   $ cc -shared -o {what}");
    let status = command
        .status()
        .context("cannot start the C compiler, which links the library; is one installed?")?;
    if !status.success() {
        bail!("linking {what} reported the errors above ({status})");
    }
    Ok(())
}

fn link(archive: &Path, table: &str, folder: &Path) -> Result<()> {
    let script = folder.with_file_name("libferroce.map");
    let text = script_of(&nodes(table)?)?;
    fs::write(&script, text).context("cannot write the version script")?;
    let library = folder.join("libferroce.so");
    let new = folder.join("libferroce.so.new");
    let mut command = compiler();
    command
        .args(["-shared", "-Wl,-soname,libferroce.so", "-o"])
        .arg(&new)
        .arg(option("-Wl,--version-script=", &script))
        // Fail on an export that the code does not define, and on an unresolved symbol.
        .args(["-Wl,--no-undefined-version", "-Wl,-z,defs"])
        // Threads run in the library, so dlclose must not unmap it.
        .args(["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro"])
        .args(["-Wl,--gc-sections", "-Wl,--whole-archive"])
        .arg(archive)
        .arg("-Wl,--no-whole-archive")
        .args(SYSTEM_LIBRARIES);
    run(command, &library.display().to_string())?;
    replace(&new, &library)
}

/// A version node of the table of exports.
struct Node<'a> {
    name: &'a str,
    parent: Option<&'a str>,
    symbols: Vec<&'a str>,
}

fn nodes(table: &str) -> Result<Vec<Node<'_>>> {
    let mut nodes: Vec<Node> = Vec::new();
    for line in table.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match (line.strip_prefix("    "), nodes.last_mut()) {
            (Some(symbol), Some(node)) => node.symbols.push(symbol),
            (Some(symbol), None) => bail!("exports.txt: {symbol} comes before any version node"),
            (None, _) => {
                let (name, parent) = match line.split_once(" < ") {
                    Some((name, parent)) => (name, Some(parent)),
                    None => (line, None),
                };
                nodes.push(Node {
                    name,
                    parent,
                    symbols: Vec::new(),
                });
            }
        }
    }
    Ok(nodes)
}

/// Returns the linker's version script for nodes of the table of exports.
///
/// A script may list a name in one node only. A name with several versions is listed in its
/// first node; the code gives it the other versions.
fn script_of(nodes: &[Node]) -> Result<String> {
    let mut script = String::new();
    let mut named = BTreeSet::new();
    for (place, node) in nodes.iter().enumerate() {
        writeln!(script, "{} {{", node.name)?;
        let new: Vec<_> = node.symbols.iter().filter(|s| named.insert(**s)).collect();
        if !new.is_empty() {
            writeln!(script, "    global:")?;
        }
        for symbol in new {
            writeln!(script, "        {symbol};")?;
        }
        if place == 0 {
            writeln!(script, "    local: *;")?;
        }
        match node.parent {
            Some(parent) => writeln!(script, "}} {parent};")?,
            None => writeln!(script, "}};")?,
        }
    }
    Ok(script)
}

pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => root().join(chosen),
        None => root().join("target"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version_script(table: &str) -> Result<String> {
        script_of(&nodes(table)?)
    }

    #[test]
    fn filter_has_each_name_once() {
        let nodes = nodes("A_1\n    one\n    two\nA_2\n    one\n").unwrap();
        let source = filter_source(&nodes);
        assert_eq!(source.lines().count(), 2, "{source}");
        assert!(source.contains("void one(void)"), "{source}");
    }

    #[test]
    fn table_of_exports_becomes_a_version_script() {
        let table = "# a comment\n\nA_1.0\n    one\n    two\n\nA_1.1 < A_1.0\n    three\n\n\
                     B_1\n    one\n    four\n\nB_2 < B_1\n";
        let script = "A_1.0 {\n    global:\n        one;\n        two;\n    local: *;\n};\n\
                      A_1.1 {\n    global:\n        three;\n} A_1.0;\n\
                      B_1 {\n    global:\n        four;\n};\nB_2 {\n} B_1;\n";
        assert_eq!(version_script(table).unwrap(), script);
        assert!(version_script("    one\n").is_err());
    }
}
