//! Source rules that neither rustc nor clippy checks.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// A text file of the repository.
pub(crate) struct File {
    /// Path from the repository root, separated by `/`.
    path: String,
    text: String,
}

/// A rule for the files. `check` returns a complaint for each violation.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&[File]) -> Vec<String>,
}

pub(crate) const ALL: &[Rule] = &[
    Rule {
        name: "the protocol crates forbid unsafe code",
        check: unsafe_is_forbidden,
    },
    Rule {
        name: "no source file in crates reaches 800 lines",
        check: files_are_short,
    },
    Rule {
        name: "no file names an absolute path of a developer's machine",
        check: no_machine_paths,
    },
    Rule {
        name: "only the simulator enables injected bugs",
        check: bugs_stay_in_the_simulator,
    },
    Rule {
        name: "refused calls of verbs and rdma_cm log their cause",
        check: refusals_say_why,
    },
];

/// Crates in which `unsafe` cannot even be allowed locally.
const SAFE_CRATES: [&str; 10] = [
    "wire", "objects", "roce", "iwarp", "cm", "shard", "rdmacm", "sim", "faults", "strict",
];
const MAX_LINES: usize = 800;
/// Directories of build products.
const PRODUCTS: [&str; 5] = [".git", "target", "artifacts", "coverage", "corpus"];
/// Forbidden paths, written in halves so that this file does not contain them.
const MACHINE_PATHS: [&str; 3] = [
    concat!("/ro", "ot"),
    concat!("/ho", "me"),
    concat!("/wo", "rk"),
];

/// Reads all text files below `root`, in order of their paths.
pub(crate) fn files(root: &Path) -> Result<Vec<File>> {
    let mut files = Vec::new();
    collect(root, "", &mut files)?;
    Ok(files)
}

fn collect(folder: &Path, prefix: &str, files: &mut Vec<File>) -> Result<()> {
    let what = || format!("cannot read {}", folder.display());
    let entries = fs::read_dir(folder).with_context(what)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().with_context(what)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().with_context(what)?;
        // In a git worktree, .git is a file.
        if PRODUCTS.contains(&name.as_str()) {
            continue;
        }
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), files)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).with_context(|| format!("cannot read {path}"))?;
            // Files that are not text are packet captures.
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(File { path, text });
            }
        }
    }
    Ok(())
}

fn unsafe_is_forbidden(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in SAFE_CRATES {
        let folder = format!("crates/{name}/src/");
        let mut roots = files
            .iter()
            .filter(|f| f.path.strip_prefix(&folder).is_some_and(is_crate_root))
            .peekable();
        if roots.peek().is_none() {
            complaints.push(format!("{folder}: no lib.rs or main.rs found"));
        }
        for file in roots {
            if !file
                .text
                .lines()
                .any(|l| l.trim() == "#![forbid(unsafe_code)]")
            {
                complaints.push(format!("{}: #![forbid(unsafe_code)] is missing", file.path));
            }
        }
    }
    complaints
}

/// Returns true if a file in `src` is the root of a crate, whose attributes govern it all.
fn is_crate_root(file: &str) -> bool {
    file == "lib.rs" || file == "main.rs" || file.starts_with("bin/")
}

fn files_are_short(files: &[File]) -> Vec<String> {
    files
        .iter()
        .filter(|f| f.path.starts_with("crates/") && f.path.ends_with(".rs"))
        .map(|f| (f, f.text.lines().count()))
        .filter(|(_, lines)| *lines >= MAX_LINES)
        .map(|(f, lines)| format!("{}: {lines} lines; split it by role", f.path))
        .collect()
}

fn no_machine_paths(files: &[File]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            for path in MACHINE_PATHS {
                if names_path(line, path) {
                    complaints.push(format!("{}:{}: names {path}", file.path, number + 1));
                }
            }
        }
    }
    complaints
}

/// Returns true if `line` contains `path` as an absolute path or the start of one, and not
/// as a part of `some/path/like/this` or of a longer name.
fn names_path(line: &str, path: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || "_-.~})*".contains(c);
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + path.len()..].chars().next();
        !before.is_some_and(part_of_name)
            && !after.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-')
    })
}

fn bugs_stay_in_the_simulator(files: &[File]) -> Vec<String> {
    const MAY: [&str; 3] = [
        "crates/shard/Cargo.toml",
        "crates/sim/Cargo.toml",
        "crates/roce/Cargo.toml",
    ];
    files
        .iter()
        .filter(|f| f.path.ends_with("Cargo.toml") && !MAY.contains(&f.path.as_str()))
        .filter(|f| f.text.contains("\"bugs\"") || f.text.contains("/bugs\""))
        .map(|f| format!("{}: enables the feature `bugs`", f.path))
        .collect()
}

/// Finds error numbers that bypass `errno::refuse`, which logs the cause and sets `errno`.
/// Rsockets do both where their functions return.
fn refusals_say_why(files: &[File]) -> Vec<String> {
    const BARE: [&str; 6] = [
        "Err(libc::E",
        "null(libc::E",
        "minus_one(libc::E",
        "ok_or(libc::E",
        "return libc::E",
        "return -libc::E",
    ];
    let mut complaints = Vec::new();
    let sources = files.iter().filter(|f| {
        let name = f.path.strip_prefix("crates/abi/src/");
        name.is_some_and(|name| name.ends_with(".rs") && !name.starts_with("rsocket/"))
    });
    for file in sources {
        let code = file.text.lines().take_while(|line| *line != "#[cfg(test)]");
        for (number, line) in code.enumerate() {
            if BARE.iter().any(|bare| line.contains(bare)) {
                complaints.push(format!("{}:{}: no cause", file.path, number + 1));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: impl Into<String>) -> File {
        File {
            path: path.into(),
            text: text.into(),
        }
    }

    #[test]
    fn roots_of_protocol_crates_must_forbid_unsafe_code() {
        let safe = "//! Docs.\n#![forbid(unsafe_code)]\n";
        let mut files = vec![
            file("crates/wire/src/lib.rs", safe),
            file("crates/objects/src/lib.rs", safe),
            file("crates/roce/src/lib.rs", safe),
            file("crates/iwarp/src/lib.rs", safe),
            file("crates/cm/src/lib.rs", safe),
            file("crates/shard/src/lib.rs", safe),
            file("crates/faults/src/lib.rs", safe),
            file("crates/strict/src/lib.rs", safe),
            file("crates/rdmacm/src/lib.rs", safe),
            file("crates/sim/src/lib.rs", safe),
            file("crates/sim/src/part.rs", ""),
            file("crates/bench/src/lib.rs", ""),
        ];
        assert!(unsafe_is_forbidden(&files).is_empty());
        files.push(file("crates/sim/src/main.rs", "// #![forbid(unsafe_code)]"));
        assert_eq!(unsafe_is_forbidden(&files).len(), 1);
        assert_eq!(
            unsafe_is_forbidden(&[]).len(),
            SAFE_CRATES.len(),
            "a missing crate is a violation"
        );
    }

    #[test]
    fn file_of_800_lines_is_too_long() {
        let long = |n| file("crates/wire/src/x.rs", "\n".repeat(n));
        assert!(files_are_short(&[long(799)]).is_empty());
        assert_eq!(files_are_short(&[long(800)]).len(), 1);
        assert!(files_are_short(&[file("Cargo.lock", "\n".repeat(5000))]).is_empty());
    }

    #[test]
    fn absolute_paths_are_distinguished_from_parts_of_paths() {
        let [root, home, work] = MACHINE_PATHS;
        assert!(names_path(&format!("see {root}/notes"), root));
        assert!(names_path(&format!("\"{home}/me/x\""), home));
        assert!(names_path(&format!("cd {work}"), work));
        assert!(names_path(&format!("file://{work}/x"), work));
        assert!(!names_path(&format!("net{work}"), work));
        assert!(!names_path(&format!("{work}space/x"), work));
        assert!(!names_path(&format!("{{dir}}{work}/x"), work));
    }

    #[test]
    fn bare_error_number_is_a_violation() {
        let text = "a\n    return Err(libc::EINVAL);\n#[cfg(test)]\nErr(libc::EINVAL)\n";
        let broken = refusals_say_why(&[file("crates/abi/src/cq.rs", text)]);
        assert_eq!(broken, ["crates/abi/src/cq.rs:2: no cause"]);
        let elsewhere = ["crates/abi/src/rsocket/id.rs", "crates/abi/tests/a.rs"];
        let others: Vec<File> = elsewhere.map(|path| file(path, text)).into();
        assert!(refusals_say_why(&others).is_empty());
        let said = "return Err(refuse(libc::EINVAL, why));";
        assert!(refusals_say_why(&[file("crates/abi/src/cq.rs", said)]).is_empty());
    }

    #[test]
    fn only_the_simulator_may_enable_bugs() {
        let enabling = "ferroce-roce = { workspace = true, features = [\"bugs\"] }";
        assert!(bugs_stay_in_the_simulator(&[file("crates/sim/Cargo.toml", enabling)]).is_empty());
        assert_eq!(
            bugs_stay_in_the_simulator(&[file("crates/bench/Cargo.toml", enabling)]).len(),
            1
        );
    }

    #[test]
    fn files_of_this_repository_are_found() {
        let files = files(&crate::step::root()).expect("readable");
        assert!(files.iter().any(|f| f.path == "xtask/src/rules.rs"));
        assert!(!files.iter().any(|f| f.path.starts_with("target/")));
    }
}
