//! The folder of libraries: libferroce.so, which programs load instead of
//! libibverbs and librdmacm, libferroce-preload.so, which `ferroce run` loads before
//! all, and librspreload.so, which turns sockets into rsockets.
//!
//! libibverbs.so.1 and librdmacm.so.1 are *filters* of libferroce.so: they have the names
//! and versions of the exports, so that the linker records `libibverbs.so.1` in programs
//! that are linked with this folder, and the loader takes each symbol from libferroce.so.
//! So all code and state is in a process once, whichever of the two it loads.
//!
//! libferroce.so is the one product that cargo alone cannot make.
//! Its symbols carry the versions of libibverbs and librdmacm. rustc writes a version script of
//! its own for shared objects, which silently wins over ours; so the crate is
//! built as an archive, and linked here. The table `crates/abi/exports.txt` is
//! the version script in a form that tests can read as well.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::step::{cargo, root};

/// A library whose place libferroce.so takes.
struct Replaced {
    /// The name that programs record and the loader looks for.
    soname: &'static str,
    /// The name that the linker looks for.
    link: &'static str,
    /// How the names of its version nodes begin.
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

/// Libraries for LD_PRELOAD, as cargo calls them, and as they are called. Cargo does
/// not take a name with a hyphen, which such libraries have.
const PRELOADED: [(&str, &str); 2] = [
    ("libferroce_preload.so", "libferroce-preload.so"),
    ("librspreload.so", "librspreload.so"),
];

/// What the archive wants from the system.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lgcc_s", "-lpthread", "-ldl", "-lm", "-lc"];

/// Builds the libraries and their links into `target/<profile>/lib`.
pub(crate) fn build(release: bool) -> Result<()> {
    let profile = target_dir().join(if release { "release" } else { "debug" });
    let folder = profile.join("lib");
    fs::create_dir_all(&folder).context("cannot make the folder for the libraries")?;
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

/// The other names of `ferroce`, beside the libraries: what guides tell people to type.
pub(crate) const NAMES: [&str; 5] = ["ferroce", "rdma", "rxe_cfg", "rxe_init.sh", "sudo"];

/// Makes a folder in which `ferroce` has its other names.
pub(crate) fn name_commands(folder: &Path, ferroce: &str) -> Result<()> {
    fs::create_dir_all(folder).context("cannot make the folder for commands")?;
    for name in NAMES {
        match symlink(ferroce, folder.join(name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make the link {name}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Puts a new library in the place of an old one, at once: somebody may be running with it.
fn replace(new: &Path, old: &Path) -> Result<()> {
    fs::rename(new, old).with_context(|| format!("cannot put {} in its place", old.display()))
}

fn build_verbs(release: bool, profile: &Path, folder: &Path) -> Result<()> {
    let mut line = vec!["rustc", "--package", "ferroce-abi", "--lib"];
    line.extend(["--crate-type", "staticlib", "--features", "versions"]);
    if release {
        line.push("--release");
    }
    // Whatever panics must not unwind into a C program.
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
                    .with_context(|| format!("cannot make the link {}", replaced.link))?;
                replace(&new, &name)?;
            }
            made => made.with_context(|| format!("cannot make the link {}", replaced.link))?,
        }
    }
    Ok(())
}

/// Links a library that has the versioned names of another, and code of none: the loader
/// looks for each symbol in libferroce.so first.
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

/// A function for each name. None is ever called.
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

/// One word of an option and its value.
fn option(name: &str, value: impl AsRef<std::ffi::OsStr>) -> std::ffi::OsString {
    let mut word = std::ffi::OsString::from(name);
    word.push(value);
    word
}

fn run(mut command: Command, what: &str) -> Result<()> {
    eprintln!("   $ cc -shared -o {what}");
    let status = command
        .status()
        .context("cannot start the C compiler, which links; is one installed?")?;
    if !status.success() {
        bail!("the link of {what} reported the errors above ({status})");
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
        // An export that the code does not define is an error; so is anything unresolved.
        .args(["-Wl,--no-undefined-version", "-Wl,-z,defs"])
        // Threads run in it: it must never be unmapped.
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
            (Some(symbol), None) => bail!("{symbol} stands before any node"),
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

/// The linker's version script for nodes of the table of exports.
///
/// A name may stand in one node of a script only. Those that exist in several
/// are named in the first; the code gives them their other versions.
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
    fn a_filter_has_each_name_once() {
        let nodes = nodes("A_1\n    one\n    two\nA_2\n    one\n").unwrap();
        let source = filter_source(&nodes);
        assert_eq!(source.lines().count(), 2, "{source}");
        assert!(source.contains("void one(void)"), "{source}");
    }

    #[test]
    fn a_table_becomes_a_version_script() {
        let table = "# words\n\nA_1.0\n    one\n    two\n\nA_1.1 < A_1.0\n    three\n\n\
                     B_1\n    one\n    four\n\nB_2 < B_1\n";
        let script = "A_1.0 {\n    global:\n        one;\n        two;\n    local: *;\n};\n\
                      A_1.1 {\n    global:\n        three;\n} A_1.0;\n\
                      B_1 {\n    global:\n        four;\n};\nB_2 {\n} B_1;\n";
        assert_eq!(version_script(table).unwrap(), script);
        assert!(version_script("    one\n").is_err());
    }
}
