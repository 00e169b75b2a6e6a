//! Processes that own slots, told apart even when a process number is used again.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use ferroce_control::sockopt::{self, Peer};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

/// A process, unmistakably.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) pid: u32,
    /// When it was started, in ticks since boot. 0 if we cannot see it.
    start: u64,
}

impl ProcessId {
    /// The process at the other end of a connection.
    pub(crate) fn of(peer: Peer) -> ProcessId {
        ProcessId {
            pid: peer.pid,
            start: start_time(peer.pid).unwrap_or(0),
        }
    }

    /// A descriptor that becomes readable when the process ends; none if it has.
    pub(crate) fn open(self) -> Option<OwnedFd> {
        let pid = Pid::from_raw(self.pid.cast_signed())?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // Looked at after opening: it is this process that the descriptor means.
        (start_time(self.pid) == Some(self.start)).then_some(pidfd)
    }
}

/// A descriptor that becomes readable when the peer ends, where the kernel can.
pub(crate) fn watch_peer(socket: impl AsFd, id: ProcessId) -> Option<OwnedFd> {
    sockopt::peer_pidfd(socket).ok().or_else(|| id.open())
}

/// Field 22 of `/proc/PID/stat`; the second field is a name in parentheses that may
/// contain anything.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> ProcessId {
        ProcessId::of(Peer {
            pid: std::process::id(),
            uid: 0,
            gid: 0,
        })
    }

    #[test]
    fn a_process_is_known_by_number_and_birth() {
        assert!(me().start > 0);
        assert!(me().open().is_some());
        let other = ProcessId {
            start: me().start + 1,
            ..me()
        };
        assert!(other.open().is_none(), "the number has been used again");
    }

    #[test]
    fn the_end_is_seen() {
        let mut child = std::process::Command::new("/proc/self/exe")
            .arg("--list")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let id = ProcessId {
            pid: child.id(),
            start: start_time(child.id()).unwrap(),
        };
        child.wait().unwrap();
        assert!(id.open().is_none());
    }
}
