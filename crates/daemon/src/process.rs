//! Identities of processes. They differ even if a PID is reused, or if a process has no PID
//! here: a process in another PID namespace appears as PID 0.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use ferroce_control::sockopt::{self, Peer};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// Magic number of pidfs (Linux 6.9), which never reuses inode numbers.
const PID_FS_MAGIC: i64 = 0x5049_4446;

/// The identity of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    /// The PID; 0 if the process is in a PID namespace that is not visible here.
    pub(crate) pid: u32,
    /// The start time in ticks since boot; 0 if unknown.
    start: u64,
    /// The inode number of its pidfd; 0 before Linux 6.9.
    #[serde(default)]
    inode: u64,
    /// The user who connected; unknown in the state file of an earlier release.
    #[serde(default)]
    uid: Option<u32>,
}

impl ProcessId {
    /// Identifies the process at the other end of a connection. Also returns a pidfd, which
    /// becomes readable when the process ends, if the kernel has one.
    pub(crate) fn of(peer: Peer, socket: impl AsFd) -> (ProcessId, Option<OwnedFd>) {
        let mut id = ProcessId {
            pid: peer.pid,
            start: start_time(peer.pid).unwrap_or(0),
            inode: 0,
            uid: Some(peer.uid),
        };
        let pidfd = sockopt::peer_pidfd(socket).ok().or_else(|| id.open());
        id.inode = pidfd.as_ref().and_then(inode).unwrap_or(0);
        (id, pidfd)
    }

    /// Opens a pidfd. Returns `None` if the process has ended or is not visible.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid.cast_signed())?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The start time is read after the open, so it is that of the opened process.
        let same = |start| self.start == 0 || start == self.start;
        start_time(self.pid).is_none_or(same).then_some(pidfd)
    }

    /// Returns true if the process has a PID here. Then [`ProcessId::open`] tells whether it
    /// lives.
    pub(crate) fn is_visible(self) -> bool {
        self.pid != 0
    }

    /// Returns true if the two are the same process. Before Linux 6.9 processes of other PID
    /// namespaces cannot be told apart. Then this returns true for those of one user.
    pub(crate) fn is_same(self, other: ProcessId) -> bool {
        let same = |one: u64, two: u64| one != 0 && one == two;
        let certain = same(self.inode, other.inode)
            || self.is_visible() && self.pid == other.pid && same(self.start, other.start);
        let same_user = self.uid.is_some() && self.uid == other.uid;
        !self.differs(other) && (certain || same_user)
    }

    /// Returns true if the two are certainly not the same process. Before Linux 6.9,
    /// processes without a number here have no inode number either: those of one user then
    /// count as the same process, those of two users do not. A process that both numbers
    /// identify may change its user.
    pub(crate) fn differs(self, other: ProcessId) -> bool {
        let differ = |one: u64, two: u64| one != 0 && two != 0 && one != two;
        let anonymous = self.pid == 0 && (self.inode == 0 || other.inode == 0);
        let users = self.uid.zip(other.uid);
        self.pid != other.pid
            || differ(self.start, other.start)
            || differ(self.inode, other.inode)
            || anonymous && users.is_some_and(|(one, two)| one != two)
    }
}

/// Returns the inode number of a pidfd, which is unique until the machine reboots.
fn inode(pidfd: &OwnedFd) -> Option<u64> {
    let file_system = rustix::fs::fstatfs(pidfd).ok()?;
    let unique = file_system.f_type == PID_FS_MAGIC;
    rustix::fs::fstat(pidfd)
        .ok()
        .filter(|_| unique)
        .map(|stat| stat.st_ino)
}

/// Returns field 22 of `/proc/PID/stat`. The second field is a name in parentheses that may
/// contain any character.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> ProcessId {
        let pid = std::process::id();
        ProcessId {
            pid,
            start: start_time(pid).unwrap(),
            inode: 7,
            uid: Some(1000),
        }
    }

    #[test]
    fn process_is_identified_by_pid_and_start_time() {
        assert!(me().start > 0);
        assert!(me().open().is_some());
        let other = ProcessId {
            start: me().start + 1,
            ..me()
        };
        assert!(other.open().is_none(), "the PID was reused");
        assert!(other.differs(me()) && !me().differs(me()));
    }

    #[test]
    fn processes_without_a_pid_differ_by_their_inode() {
        let unseen = |inode| ProcessId {
            pid: 0,
            start: 0,
            inode,
            uid: Some(1000),
        };
        assert!(unseen(1).differs(unseen(2)));
        assert!(!unseen(1).differs(unseen(1)));
        assert!(
            !unseen(0).differs(unseen(1)),
            "the old kernel has no inode numbers"
        );
        assert!(unseen(0).differs(me()));
        assert!(unseen(1).open().is_none() && !unseen(1).is_visible());
    }

    /// Before Linux 6.9 there are no inode numbers, and PIDs of other namespaces are 0.
    #[test]
    fn unidentified_process_is_the_same_for_one_user_only() {
        let unseen = |inode, uid| ProcessId {
            pid: 0,
            start: 0,
            inode,
            uid,
        };
        let mine = unseen(0, Some(1000));
        assert!(mine.is_same(mine));
        assert!(!mine.is_same(unseen(0, Some(1001))), "another user");
        assert!(!mine.is_same(unseen(0, None)), "an unknown user");
        assert!(
            unseen(3, Some(1)).is_same(unseen(3, Some(2))),
            "after setuid"
        );
        let after_setuid = ProcessId {
            uid: Some(1),
            inode: 0,
            ..me()
        };
        assert!(me().is_same(after_setuid), "PID and start time suffice");
    }

    #[test]
    fn users_tell_processes_apart_that_no_number_identifies() {
        let process = |pid, inode, uid| ProcessId {
            pid,
            start: 0,
            inode,
            uid,
        };
        let unseen = |uid| process(0, 0, uid);
        assert!(unseen(Some(1)).differs(unseen(Some(2))));
        assert!(!unseen(Some(1)).differs(unseen(Some(1))));
        assert!(!unseen(Some(1)).differs(unseen(None)), "an earlier version");
        // A process may give up its privileges.
        assert!(!process(0, 7, Some(0)).differs(process(0, 7, Some(1000))));
        assert!(!process(9, 0, Some(0)).differs(process(9, 0, Some(1000))));
    }

    #[test]
    fn ended_process_cannot_be_opened() {
        let mut child = std::process::Command::new("/proc/self/exe")
            .arg("--list")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let id = ProcessId {
            pid: child.id(),
            start: start_time(child.id()).unwrap(),
            inode: 0,
            uid: None,
        };
        child.wait().unwrap();
        assert!(id.open().is_none());
    }
}
