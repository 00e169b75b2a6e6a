//! The check whether anything but ferroced keeps its network namespace open.
//!
//! A process keeps the namespace that it is in, and so does ferroced: after `ip netns del`
//! namespace, netdevs and links would stay for ever. So while a ferroced in the background
//! serves no program, it checks from time to time whether the namespace has
//!
//! - another process, or a thread of one,
//! - a mount, in the mount namespace of any process (`ip netns add` makes one),
//! - an open descriptor in any process.
//!
//! If two checks in a row find none of these, the namespace is abandoned and ferroced ends.
//! If ferroced may not inspect some process, it stays. The exception is a network namespace
//! that belongs to ferroced's own user namespace (`unshare --map-root-user --net`): ferroced
//! may inspect every process of that user namespace, so processes that it may not inspect
//! cannot be in the network namespace. ferroced never checks if PID 1 is in the namespace.
//! Sockets of the namespace in processes elsewhere do not count.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::user_namespace;

/// Checks in a row that must find nothing.
const CHECKS: u32 = 2;

/// The schedule of the checks, and their result.
#[derive(Debug)]
pub(crate) struct NamespaceUse {
    /// The target of symbolic links to the namespace: `net:[NUMBER]`.
    namespace: PathBuf,
    interval: Duration,
    next: Option<Instant>,
    /// Checks in a row that found nothing.
    empty: u32,
}

impl NamespaceUse {
    /// Returns a schedule with a check per `interval`; `None` if ferroced should never end.
    pub(crate) fn new(interval: Duration) -> Option<NamespaceUse> {
        let namespace = fs::read_link("/proc/thread-self/ns/net").ok()?;
        let lives_elsewhere = match fs::read_link("/proc/1/ns/net") {
            Ok(first) => first != namespace,
            Err(_) => belongs_to_our_user_namespace(),
        };
        lives_elsewhere.then_some(NamespaceUse {
            namespace,
            interval,
            next: None,
            empty: 0,
        })
    }

    /// Returns the time of the next check.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Checks if the time has come. Returns true if the namespace is abandoned. While
    /// ferroced is `busy` with clients, it is not.
    pub(crate) fn is_abandoned(&mut self, now: Instant, busy: bool) -> bool {
        let Some(next) = self.next.filter(|_| !busy) else {
            self.next = (!busy).then(|| now + self.interval);
            self.empty = 0;
            return false;
        };
        if now < next {
            return false;
        }
        self.next = Some(now + self.interval);
        match is_kept_here(&self.namespace) {
            Ok(false) => self.empty += 1,
            Ok(true) => self.empty = 0,
            Err(error) => {
                tracing::debug!(%error, "cannot check whether the network namespace is in use");
                self.empty = 0;
            }
        }
        self.empty >= CHECKS
    }
}

/// Returns true if another process keeps the namespace open.
fn is_kept_here(namespace: &Path) -> io::Result<bool> {
    let private = belongs_to_our_user_namespace();
    is_kept(Path::new("/proc"), namespace, std::process::id(), private)
}

/// Returns true if a process other than `own` keeps the namespace open. `proc` is the path
/// of procfs. `private` is true if the namespace belongs to ferroced's user namespace.
///
/// # Errors
/// If some processes cannot be inspected and the others do not keep it open.
fn is_kept(proc: &Path, namespace: &Path, own: u32, private: bool) -> io::Result<bool> {
    // Most namespaces have a mount in ferroced's own mount namespace.
    if shows_mount(&proc.join("self/mountinfo"), namespace)? {
        return Ok(true);
    }
    let mut processes = Vec::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        if pid.is_some_and(|pid: u32| pid != own) {
            processes.push(entry.path());
        }
    }
    let is_outsider =
        |error: &io::Error| private && error.kind() == io::ErrorKind::PermissionDenied;
    let any = |check: &mut dyn FnMut(&Path) -> io::Result<bool>| {
        let mut unknown = None;
        for process in &processes {
            match check(process) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if is_gone(&error) || is_outsider(&error) => {}
                Err(error) => unknown = Some(error),
            }
        }
        unknown.map_or(Ok(false), Err)
    };
    // Threads first: reading the descriptors of all processes takes much longer.
    if any(&mut |process| lives_in(process, namespace))? {
        return Ok(true);
    }
    let mut seen = BTreeSet::from([fs::read_link(proc.join("self/ns/mnt"))?]);
    any(&mut |process| {
        Ok(has_open(process, namespace)? || has_mount(process, namespace, &mut seen)?)
    })
}

/// Returns true if this process is in a user namespace other than the machine's, which owns
/// the network namespace: then the network settings in /proc belong to its root.
fn belongs_to_our_user_namespace() -> bool {
    let settings = fs::metadata("/proc/sys/net/ipv4/ip_forward");
    !user_namespace::is_of_the_machine() && settings.is_ok_and(|settings| settings.uid() == 0)
}

/// Returns true if a thread of the process is in the namespace.
fn lives_in(process: &Path, namespace: &Path) -> io::Result<bool> {
    for thread in fs::read_dir(process.join("task"))? {
        match fs::read_link(thread?.path().join("ns/net")) {
            Ok(net) if net == namespace => return Ok(true),
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// Returns true if the process has an open descriptor of the namespace.
fn has_open(process: &Path, namespace: &Path) -> io::Result<bool> {
    for descriptor in fs::read_dir(process.join("fd"))? {
        match fs::read_link(descriptor?.path()) {
            Ok(target) if target == namespace => return Ok(true),
            Err(error) if !is_gone(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// Returns true if the process's mount namespace has a mount of the namespace. `seen` holds
/// the mount namespaces that were searched before.
fn has_mount(process: &Path, namespace: &Path, seen: &mut BTreeSet<PathBuf>) -> io::Result<bool> {
    let mounts = fs::read_link(process.join("ns/mnt"))?;
    if seen.contains(&mounts) {
        return Ok(false);
    }
    let found = shows_mount(&process.join("mountinfo"), namespace)?;
    // Only now: if this process has just ended, another one shows the same mounts.
    seen.insert(mounts);
    Ok(found)
}

/// Returns true if a mount table has a mount of the namespace. Lines are
/// `ID PARENT MAJOR:MINOR ROOT PATH ...`; the root of such a mount is the namespace.
fn shows_mount(mountinfo: &Path, namespace: &Path) -> io::Result<bool> {
    let mounts = fs::read_to_string(mountinfo)?;
    let mut roots = mounts.lines().filter_map(|line| line.split(' ').nth(3));
    Ok(roots.any(|root| Path::new(root) == namespace))
}

/// Returns true if the error says that the process or thread has ended.
fn is_gone(error: &io::Error) -> bool {
    // A zombie has no namespaces any more (EINVAL for mounts).
    let errno = error.raw_os_error();
    matches!(errno, Some(libc::ENOENT | libc::ESRCH | libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use ferroce_control::temporary;

    use super::*;

    #[test]
    fn namespace_is_abandoned_after_two_checks() {
        let mut check = NamespaceUse {
            namespace: "net:[0]".into(),
            interval: Duration::from_secs(10),
            next: None,
            empty: 0,
        };
        let start = crate::poller::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(
            !check.is_abandoned(at(0), false),
            "not before the time has come"
        );
        assert_eq!(check.deadline(), Some(at(10)));
        match is_kept_here(&check.namespace) {
            Ok(kept) => assert!(!kept, "there is no such namespace"),
            Err(error) => {
                eprintln!("*** SKIPPED: not all processes can be seen here: {error} ***");
                return;
            }
        }
        assert!(!check.is_abandoned(at(10), false), "the first check");
        assert!(!check.is_abandoned(at(15), true), "a program has connected");
        assert_eq!(check.deadline(), None);
        assert!(!check.is_abandoned(at(20), false));
        assert!(!check.is_abandoned(at(30), false), "the first check again");
        assert!(check.is_abandoned(at(40), false));
    }

    /// A directory that looks like procfs.
    struct Procfs(PathBuf);

    impl Procfs {
        fn new() -> Procfs {
            let path = temporary::make(&std::env::temp_dir(), "ferroce-proc-").unwrap();
            let procfs = Procfs(path);
            procfs.add("self", "net:[1]", "mnt:[1]");
            procfs.mounts("self", "/");
            procfs
        }

        /// Adds a process with one thread and no descriptors.
        fn add(&self, pid: &str, net: &str, mnt: &str) -> PathBuf {
            let process = self.0.join(pid);
            for dir in ["ns", "fd", "task/1/ns"] {
                fs::create_dir_all(process.join(dir)).unwrap();
            }
            symlink(mnt, process.join("ns/mnt")).unwrap();
            symlink(net, process.join("task/1/ns/net")).unwrap();
            process
        }

        fn mounts(&self, pid: &str, root: &str) {
            let line = format!("40 24 0:4 {root} /run/netns/blue rw - nsfs nsfs rw\n");
            fs::write(self.0.join(pid).join("mountinfo"), line).unwrap();
        }

        fn is_kept(&self) -> io::Result<bool> {
            is_kept(&self.0, Path::new("net:[7]"), 1, false)
        }
    }

    impl Drop for Procfs {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// The mounts of a process that ends while it is inspected cannot be read.
    #[test]
    fn mount_is_found_after_a_process_of_the_same_mount_namespace_has_ended() {
        let procfs = Procfs::new();
        for pid in 100..150 {
            procfs.add(&pid.to_string(), "net:[1]", "mnt:[2]");
        }
        assert!(!procfs.is_kept().unwrap());
        procfs.mounts("125", "net:[7]");
        assert!(procfs.is_kept().unwrap());
    }

    #[test]
    fn threads_are_searched_before_descriptors() {
        let procfs = Procfs::new();
        for pid in 100..150 {
            let process = procfs.add(&pid.to_string(), "net:[1]", "mnt:[1]");
            fs::remove_dir(process.join("fd")).unwrap();
            fs::write(process.join("fd"), "not a directory").unwrap();
        }
        assert!(procfs.is_kept().is_err(), "descriptors cannot be read");
        procfs.add("200", "net:[7]", "mnt:[1]");
        assert!(procfs.is_kept().unwrap());
    }

    #[test]
    fn open_descriptor_keeps_the_namespace() {
        let procfs = Procfs::new();
        let process = procfs.add("100", "net:[1]", "mnt:[1]");
        symlink("net:[1]", process.join("fd/0")).unwrap();
        assert!(!procfs.is_kept().unwrap());
        symlink("net:[7]", process.join("fd/1")).unwrap();
        assert!(procfs.is_kept().unwrap());
    }

    #[test]
    fn namespace_of_pid_1_is_never_checked() {
        let first = fs::read_link("/proc/1/ns/net");
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let watched = NamespaceUse::new(Duration::ZERO).is_some();
        assert_eq!(watched, first.is_ok_and(|first| first != own));
    }
}
