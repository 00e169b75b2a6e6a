//! Environment variables that make a program load Ferroce's libraries.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ferroce_control::path::{NCCL_SET_VARIABLE, SYSFS_DIR, SYSFS_VARIABLE};
use ferroce_control::{create_own_dir, find_daemon};

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Directory of `rdma`, `rxe_cfg` and `rxe_init.sh`, below that of the libraries.
const COMMANDS: &str = "bin";
const PATH: &str = "PATH";
pub(super) const PRELOAD: &str = "LD_PRELOAD";
const PRELOAD_LIBRARY: &str = "libferroce-preload.so";
const ASAN: &str = "ASAN_OPTIONS";
/// Programs built with AddressSanitizer refuse to start if a library is preloaded before
/// its runtime, unless this option is 0.
const ASAN_OPTION: &str = "verify_asan_link_order";
/// With the value 2, NCCL 2.28 does not crash on devices other than mlx5.
const NCCL_GIN_TYPE: &str = "NCCL_GIN_TYPE";

/// Returns the directory of Ferroce's libibverbs.so.1.
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

/// Returns the variables to set, with their values.
pub(super) fn environment(folder: &Path) -> Result<Vec<(&'static str, OsString)>> {
    let mut variables = vec![(LIBRARY_PATH, with_first(folder, LIBRARY_PATH)?)];
    variables.push((PATH, search_path(folder)?));
    let library = folder.join(PRELOAD_LIBRARY);
    if library.exists() {
        variables.push((PRELOAD, preload(&library, std::env::var_os(PRELOAD))));
        variables.push((SYSFS_VARIABLE, sysfs()?.into()));
        variables.extend(asan(std::env::var_os(ASAN)).map(|options| (ASAN, options)));
    }
    if std::env::var_os(NCCL_GIN_TYPE).is_none() {
        variables.push((NCCL_GIN_TYPE, "2".into()));
        variables.push((NCCL_SET_VARIABLE, "1".into()));
    }
    Ok(variables)
}

/// Returns PATH for the program: Ferroce's commands come first.
pub(super) fn search_path(folder: &Path) -> Result<OsString> {
    let commands = folder.join(COMMANDS);
    match commands.exists() {
        true => with_first(&commands, PATH),
        false => Ok(std::env::var_os(PATH).unwrap_or_default()),
    }
}

/// Puts a directory in front of the list in a variable.
fn with_first(dir: &Path, variable: &str) -> Result<OsString> {
    let before = std::env::var_os(variable).unwrap_or_default();
    let rest = std::env::split_paths(&before);
    let rest = rest.filter(|path| !path.as_os_str().is_empty() && path != dir);
    std::env::join_paths(std::iter::once(dir.to_owned()).chain(rest)).with_context(|| {
        let dir = dir.display();
        format!("cannot put {dir} into {variable}: its name contains a colon; move it")
    })
}

/// Puts a library in front of the list in LD_PRELOAD, unless it is there already.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let before = before.unwrap_or_default();
    let separates = |byte: &u8| matches!(byte, b':' | b' ');
    let path = library.as_os_str();
    // A path with a separator cannot be listed. The dynamic linker then finds the library by
    // its name in LD_LIBRARY_PATH.
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

/// Returns options that let AddressSanitizer start, followed by those of the user. Returns
/// `None` if the user has set the option.
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

/// Returns the directory of ferroced's sysfs files, with symbolic links resolved. ferroced
/// may create it later.
fn sysfs() -> Result<PathBuf> {
    let dir = match find_daemon().ok().flatten() {
        Some(connection) => connection.dir().to_owned(),
        None => {
            let dir = create_own_dir()?;
            // A directory in /tmp must stay: its name is random, so ferroced would create
            // another one.
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
    fn ferroces_library_is_preloaded_first_and_once() {
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
    fn options_of_address_sanitizer_are_kept() {
        let options = |before: &str| asan(Some(before.into()));
        assert_eq!(asan(None).unwrap(), "verify_asan_link_order=0");
        let more = options("detect_leaks=0").unwrap();
        assert_eq!(more, "verify_asan_link_order=0:detect_leaks=0");
        assert_eq!(options("verify_asan_link_order=1"), None);
    }
}
