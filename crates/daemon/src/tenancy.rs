//! Whether anything but ferroced keeps its network namespace alive.
//!
//! A process pins the namespace that it lives in, and so does ferroced: after
//! `ip netns del` namespace, netdevs and links would stay for good. A ferroced that was
//! started for others therefore looks from time to time, while it has no program to
//! serve, whether the namespace has
//!
//! - another process, or a thread of one,
//! - a mount, in the mount namespace of any process (`ip netns add` makes one),
//! - an open descriptor in any process.
//!
//! If two looks in a row find nothing, nobody can reach the namespace any more, and
//! ferroced ends. When it may not look at some process, it cannot know, and stays. An
//! exception is a network namespace that belongs to ferroced's own user namespace
//! (`unshare --map-root-user --net`): ferroced may look at every process of that user
//! namespace, so a process that it may not look at is an outsider and does not count.
//! Where the first process of the machine or container lives in the namespace it never looks.
//! Sockets that a process has taken elsewhere do not count.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many looks must find nothing.
const LOOKS: u32 = 2;

/// When to look, and what was seen.
#[derive(Debug)]
pub(crate) struct Tenancy {
    /// The target of symbolic links to the namespace: `net:[NUMBER]`.
    namespace: PathBuf,
    interval: Duration,
    next: Option<Instant>,
    /// Looks in a row that found nothing.
    empty: u32,
}

impl Tenancy {
    /// Prepares to look every `interval`. None where that cannot lead to anything.
    pub(crate) fn new(interval: Duration) -> Option<Tenancy> {
        let namespace = fs::read_link("/proc/thread-self/ns/net").ok()?;
        let lives_elsewhere = match fs::read_link("/proc/1/ns/net") {
            Ok(first) => first != namespace,
            Err(_) => belongs_to_our_user_namespace(),
        };
        lives_elsewhere.then_some(Tenancy {
            namespace,
            interval,
            next: None,
            empty: 0,
        })
    }

    /// When to look next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Looks if it is time, and says whether nothing else keeps the namespace. While
    /// ferroced is `busy` with programs, they do.
    pub(crate) fn is_over(&mut self, now: Instant, busy: bool) -> bool {
        let Some(next) = self.next.filter(|_| !busy) else {
            self.next = (!busy).then(|| now + self.interval);
            self.empty = 0;
            return false;
        };
        if now < next {
            return false;
        }
        self.next = Some(now + self.interval);
        match is_kept(&self.namespace, std::process::id()) {
            Ok(false) => self.empty += 1,
            Ok(true) => self.empty = 0,
            Err(error) => {
                tracing::debug!(%error, "cannot see what keeps the network namespace");
                self.empty = 0;
            }
        }
        self.empty >= LOOKS
    }
}

/// True if a process other than `own` keeps the namespace; an error if that cannot be
/// known.
fn is_kept(namespace: &Path, own: u32) -> io::Result<bool> {
    // The cheap and frequent case first.
    let own_mounts = Path::new("/proc/self/mountinfo");
    if shows_mount(own_mounts, namespace)? {
        return Ok(true);
    }
    let mut seen = BTreeSet::from([fs::read_link("/proc/self/ns/mnt")?]);
    let private = belongs_to_our_user_namespace();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if pid.is_none_or(|pid: u32| pid == own) {
            continue;
        }
        match keeps(&entry.path(), namespace, &mut seen) {
            Ok(false) => {}
            Ok(true) => return Ok(true),
            Err(error) if is_gone(&error) => {}
            Err(error) if private && error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// True if this process is in a user namespace other than the machine's, and that one owns
/// the network namespace: then the network settings in /proc belong to its root.
fn belongs_to_our_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<&str> = map.split_whitespace().collect();
    let of_the_machine = fields == ["0", "0", "4294967295"];
    let settings = fs::metadata("/proc/sys/net/ipv4/ip_forward");
    !of_the_machine && settings.is_ok_and(|settings| settings.uid() == 0)
}

/// True if this process keeps the namespace. `seen` are mount namespaces that have been
/// looked at.
fn keeps(process: &Path, namespace: &Path, seen: &mut BTreeSet<PathBuf>) -> io::Result<bool> {
    for thread in fs::read_dir(process.join("task"))? {
        match fs::read_link(thread?.path().join("ns/net")) {
            Ok(lives_in) if lives_in == namespace => return Ok(true),
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    for descriptor in fs::read_dir(process.join("fd"))? {
        match fs::read_link(descriptor?.path()) {
            Ok(target) if target == namespace => return Ok(true),
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    match seen.insert(fs::read_link(process.join("ns/mnt"))?) {
        true => shows_mount(&process.join("mountinfo"), namespace),
        false => Ok(false),
    }
}

/// Lines are `ID PARENT MAJOR:MINOR ROOT PLACE ...`; the root of such a mount is the
/// namespace.
fn shows_mount(mountinfo: &Path, namespace: &Path) -> io::Result<bool> {
    let mounts = fs::read_to_string(mountinfo)?;
    let mut roots = mounts.lines().filter_map(|line| line.split(' ').nth(3));
    Ok(roots.any(|root| Path::new(root) == namespace))
}

/// True if the process, or that part of it, has ended meanwhile.
fn is_gone(error: &io::Error) -> bool {
    // A process that is only waited for has no namespaces any more (EINVAL for mounts).
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::ENOENT | libc::ESRCH | libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_without_a_tenant_is_over_after_two_looks() {
        let mut tenancy = Tenancy {
            namespace: "net:[0]".into(),
            interval: Duration::from_secs(10),
            next: None,
            empty: 0,
        };
        let start = crate::poller::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(
            !tenancy.is_over(at(0), false),
            "not before the time has come"
        );
        assert_eq!(tenancy.deadline(), Some(at(10)));
        match is_kept(&tenancy.namespace, std::process::id()) {
            Ok(kept) => assert!(!kept, "there is no such namespace"),
            Err(error) => {
                eprintln!("*** SKIPPED: not all processes can be seen here: {error} ***");
                return;
            }
        }
        assert!(!tenancy.is_over(at(10), false), "the first look");
        assert!(!tenancy.is_over(at(15), true), "a program has come");
        assert_eq!(tenancy.deadline(), None);
        assert!(!tenancy.is_over(at(20), false));
        assert!(!tenancy.is_over(at(30), false), "the first look again");
        assert!(tenancy.is_over(at(40), false));
    }

    #[test]
    fn the_first_process_keeps_its_namespace() {
        let first = fs::read_link("/proc/1/ns/net");
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let watched = Tenancy::new(Duration::ZERO).is_some();
        assert_eq!(watched, first.is_ok_and(|first| first != own));
    }
}
