//! Runtime directories in `/tmp`, which have random names and are found by their owner.
//!
//! Two processes of a user that find no directory may both create one. Each searches again
//! after it has created its own. So at least one of them finds the other's directory and
//! removes its own.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::clock::pause;
use crate::runtime_dir::Viewer;

const PREFIX: &str = "ferroce.";
/// Attempts to create a directory before giving up.
const ATTEMPTS: u32 = 100;

/// Returns the directories that [`create`] has created for this user, sorted.
pub(crate) fn find(parent: &Path, viewer: Viewer) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let named = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes());
        // Does not follow symbolic links, which any user can create.
        if named
            && entry
                .metadata()
                .is_ok_and(|m| is_private(&entry.path(), &m, viewer))
        {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the first directory of this user in `parent`. Creates one if there is none.
pub(crate) fn create(parent: &Path, viewer: Viewer) -> io::Result<PathBuf> {
    for _ in 0..ATTEMPTS {
        if let Some(first) = find(parent, viewer)?.into_iter().next() {
            return Ok(first);
        }
        let path = make(parent, PREFIX)?;
        // If the directory cannot be removed, another process has found and used it.
        if find(parent, viewer)? == [path.clone()] || fs::remove_dir(&path).is_err() {
            return Ok(path);
        }
        pause(Duration::from_millis(random()? % 8));
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Creates a directory of mode 0700 with a random name that cannot be guessed.
///
/// # Errors
/// If nothing can be created in `parent`.
pub fn make(parent: &Path, prefix: &str) -> io::Result<PathBuf> {
    let path = parent.join(format!("{prefix}{:016x}", random()?));
    DirBuilder::new().mode(0o700).create(&path)?;
    // The umask may have cleared bits.
    fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    Ok(path)
}

fn is_private(path: &Path, metadata: &fs::Metadata, viewer: Viewer) -> bool {
    metadata.is_dir() && metadata.mode() & 0o777 == 0o700 && viewer.owns(path, metadata)
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let got = getrandom(&mut bytes, GetRandomFlags::empty())?;
    assert_eq!(got, bytes.len(), "8 random bytes are always returned whole");
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Viewer {
        Viewer::here()
    }

    fn another() -> Viewer {
        Viewer {
            uid: me().uid + 1,
            ..me()
        }
    }

    #[test]
    fn directory_is_created_once_and_found_again() {
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
        assert_eq!(find(&parent, another()).unwrap(), [] as [PathBuf; 0]);
        let link = parent.join("ferroce.0-link");
        std::os::unix::fs::symlink(&own, link).unwrap();
        let open = parent.join("ferroce.0-open");
        DirBuilder::new().mode(0o755).create(open).unwrap();
        fs::write(parent.join("ferroce.0-file"), "").unwrap();
        assert_eq!(find(&parent, me()).unwrap(), [own]);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "threads stand for processes")]
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
