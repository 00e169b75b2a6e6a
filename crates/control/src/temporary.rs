//! Directories in `/tmp`, where anybody can make anything: random names, found again by
//! their owner.
//!
//! Two processes of a user that find none may both make one. Each looks again after it
//! has made its own, so at least one of them sees the other's and withdraws.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::clock::pause;

const PREFIX: &str = "ferroce.";
/// How often a process withdraws before it gives up.
const ATTEMPTS: u32 = 100;

/// Lists the directories that [`create`] has made for this user, in order.
pub(crate) fn find(parent: &Path, uid: u32) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let named = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes());
        // Without following links, which anybody can make.
        if named && entry.metadata().is_ok_and(|m| is_private(&m, uid)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the first directory of this user in `parent`, and makes one if there is none.
pub(crate) fn create(parent: &Path, uid: u32) -> io::Result<PathBuf> {
    for _ in 0..ATTEMPTS {
        if let Some(first) = find(parent, uid)?.into_iter().next() {
            return Ok(first);
        }
        let path = make(parent, PREFIX)?;
        // One that cannot be removed is in use: another process has found it.
        if find(parent, uid)? == [path.clone()] || fs::remove_dir(&path).is_err() {
            return Ok(path);
        }
        pause(Duration::from_millis(random()? % 8));
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Makes a directory of mode 0700 that did not exist before, with a name that nobody
/// can guess.
///
/// # Errors
/// If nothing can be made in `parent`.
pub fn make(parent: &Path, prefix: &str) -> io::Result<PathBuf> {
    let path = parent.join(format!("{prefix}{:016x}", random()?));
    DirBuilder::new().mode(0o700).create(&path)?;
    // Whatever the umask says.
    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    Ok(path)
}

fn is_private(metadata: &fs::Metadata, uid: u32) -> bool {
    metadata.is_dir() && metadata.uid() == uid && metadata.mode() & 0o777 == 0o700
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let got = getrandom(&mut bytes, GetRandomFlags::empty())?;
    assert_eq!(got, bytes.len(), "so few bytes are never cut short");
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn a_directory_is_made_once_and_found_again() {
        let parent = make(&std::env::temp_dir(), "ferroce-temporary-").unwrap();
        assert_eq!(find(&parent, me()).unwrap(), [] as [PathBuf; 0]);
        let first = create(&parent, me()).unwrap();
        assert_eq!(create(&parent, me()).unwrap(), first);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn only_private_directories_of_the_user_are_found() {
        let parent = make(&std::env::temp_dir(), "ferroce-temporary-").unwrap();
        let own = create(&parent, me()).unwrap();
        assert_eq!(find(&parent, me() + 1).unwrap(), [] as [PathBuf; 0]);
        let link = parent.join("ferroce.0-link");
        std::os::unix::fs::symlink(&own, link).unwrap();
        let open = parent.join("ferroce.0-open");
        DirBuilder::new().mode(0o755).create(open).unwrap();
        fs::write(parent.join("ferroce.0-file"), "").unwrap();
        assert_eq!(find(&parent, me()).unwrap(), [own]);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "threads in the place of processes"
    )]
    fn processes_that_start_together_agree_on_one_directory() {
        let parent = make(&std::env::temp_dir(), "ferroce-temporary-").unwrap();
        let chosen = std::thread::scope(|scope| {
            let one = || scope.spawn(|| create(&parent, me()).unwrap());
            let all: Vec<_> = (0..8).map(|_| one()).collect();
            all.into_iter()
                .map(|t| t.join().unwrap())
                .collect::<Vec<_>>()
        });
        let found = find(&parent, me()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(chosen.contains(&found[0]));
        fs::remove_dir_all(parent).unwrap();
    }
}
