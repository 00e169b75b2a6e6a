//! What a program's environment needs so that it finds our libraries.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferroce_control::path::{SYSFS_DIR, SYSFS_VARIABLE};
use ferroce_control::{create_own_dir, find_daemon};

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// `rdma` and the like, in the folder of the libraries.
const COMMANDS: &str = "bin";
const PATH: &str = "PATH";
const PRELOAD: &str = "LD_PRELOAD";
const PRELOAD_LIBRARY: &str = "libferroce-preload.so";
const ASAN: &str = "ASAN_OPTIONS";
/// Programs built with AddressSanitizer refuse to start if anything is preloaded before it.
const ASAN_OPTION: &str = "verify_asan_link_order";

/// Where libibverbs.so.1 of ours is.
pub(crate) fn folder() -> Option<PathBuf> {
    let chosen = std::env::var_os("FERROCE_LIB_DIR").map(PathBuf::from);
    let beside = || {
        let bin = std::env::current_exe().ok()?.parent()?.to_owned();
        Some([bin.join("../lib/ferroce"), bin.join("lib")])
    };
    let candidates = chosen.into_iter().chain(beside().into_iter().flatten());
    let mut candidates = candidates.filter_map(|dir| dir.canonicalize().ok());
    candidates.find(|dir| dir.join("libibverbs.so.1").exists())
}

/// Variables and their values.
pub(super) fn environment(folder: &Path) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![(LIBRARY_PATH, with_first(folder, LIBRARY_PATH)?)];
    variables.push((PATH, search_path(folder)?));
    let library = folder.join(PRELOAD_LIBRARY);
    if library.exists() {
        variables.push((PRELOAD, preload(&library, std::env::var_os(PRELOAD))));
        variables.push((SYSFS_VARIABLE, sysfs()?.into()));
        variables.extend(asan(std::env::var_os(ASAN)).map(|options| (ASAN, options)));
    }
    Ok(variables)
}

/// Where the program and what it starts look for commands.
pub(super) fn search_path(folder: &Path) -> Result<OsString> {
    let commands = folder.join(COMMANDS);
    match commands.exists() {
        true => with_first(&commands, PATH),
        false => Ok(std::env::var_os(PATH).unwrap_or_default()),
    }
}

/// A list of directories with one more in front.
fn with_first(dir: &Path, variable: &str) -> Result<OsString> {
    let before = std::env::var_os(variable).unwrap_or_default();
    let rest = std::env::split_paths(&before);
    let rest = rest.filter(|path| !path.as_os_str().is_empty() && path != dir);
    std::env::join_paths(std::iter::once(dir.to_owned()).chain(rest))
        .context("a directory's name has a colon in it")
}

/// A list of libraries with one more in front, once.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let separates = |byte: &u8| matches!(byte, b':' | b' ');
    let path = library.as_os_str();
    // In a path that cannot stand in a list, the dynamic linker looks by itself.
    let name = match path.as_bytes().iter().any(separates) {
        true => OsStr::new(PRELOAD_LIBRARY),
        false => path,
    };
    let rest = before.as_bytes().split(separates);
    let rest = rest.filter(|other| !other.is_empty() && *other != name.as_bytes());
    let mut list = name.to_owned();
    for other in rest {
        list.push(":");
        list.push(OsStr::from_bytes(other));
    }
    list
}

/// Options that let AddressSanitizer start, with those of the user; none if the user has
/// decided.
fn asan(before: Option<OsString>) -> Option<OsString> {
    let before = before.unwrap_or_default();
    if before.to_string_lossy().contains(ASAN_OPTION) {
        return None;
    }
    let mut options = OsString::from(format!("{ASAN_OPTION}=0"));
    if !before.is_empty() {
        options.push(":");
        options.push(before);
    }
    Some(options)
}

/// Where ferroced keeps its files, or will: the path as the kernel would say it.
fn sysfs() -> Result<PathBuf> {
    let dir = match find_daemon().ok().flatten() {
        Some(connection) => connection.dir().to_owned(),
        None => {
            let dir = create_own_dir()?;
            // A directory in /tmp would have another name the next time.
            if !dir.is_temporary() {
                dir.remove_if_empty();
            }
            dir.path().to_owned()
        }
    };
    Ok(dir.canonicalize().unwrap_or(dir).join(SYSFS_DIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_preloaded_after_ours() {
        let ours = Path::new("/x/libferroce-preload.so");
        let list = |before: &str| preload(ours, Some(before.into()));
        assert_eq!(preload(ours, None), ours.as_os_str());
        assert_eq!(list("a.so b.so"), "/x/libferroce-preload.so:a.so:b.so");
        let again = list("/x/libferroce-preload.so:a.so");
        assert_eq!(again, "/x/libferroce-preload.so:a.so");
        let odd = preload(Path::new("/a b/libferroce-preload.so"), None);
        assert_eq!(odd, "libferroce-preload.so");
    }

    #[test]
    fn address_sanitizer_keeps_its_options() {
        let options = |before: &str| asan(Some(before.into()));
        assert_eq!(asan(None).unwrap(), "verify_asan_link_order=0");
        let more = options("detect_leaks=0").unwrap();
        assert_eq!(more, "verify_asan_link_order=0:detect_leaks=0");
        assert_eq!(options("verify_asan_link_order=1"), None);
    }
}
