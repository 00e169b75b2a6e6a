//! Access rules: the users that ferroced serves, and the requests that they may make. The
//! kernel identifies the peer (SO_PEERCRED).

use std::os::fd::AsFd;

use ferroce_control::Request;
use ferroce_control::sockopt::{self, Peer};

use crate::refusal::Refusal;

/// The group that a system-wide ferroced serves by default.
pub(crate) const DEFAULT_GROUP: &str = "ferroce";

/// The access rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    /// The user that ferroced runs as.
    pub(crate) uid: u32,
    /// The group whose members are served, too.
    pub(crate) group: Option<u32>,
    /// True if the command line names the group: then it must be served.
    pub(crate) group_is_chosen: bool,
}

/// Reason why a group cannot be served.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoGroup {
    #[error("there is no group `{0}`; `getent group` lists the groups")]
    Unknown(String),
    #[error(
        "group `{0}` (GID {1}) has no GID in this user namespace, so no file can belong \
         to it; run ferroced outside of the namespace to serve the group"
    )]
    Unmapped(String, u32),
}

impl Access {
    /// Returns the rules for this process. `group` is the group on the command line. Without
    /// one, root serves the group `ferroce` if it exists.
    pub(crate) fn new(group: Option<&str>) -> Result<Access, NoGroup> {
        let uid = rustix::process::geteuid().as_raw();
        let group_is_chosen = group.is_some();
        let group = match group {
            Some(name) => Some(find_usable(name)?),
            // In a user namespace the group may have no GID. Root of a user namespace is
            // an ordinary user and serves no group then.
            None if uid == 0 => find_usable(DEFAULT_GROUP).ok(),
            None => None,
        };
        Ok(Access {
            uid,
            group,
            group_is_chosen,
        })
    }

    /// Checks that the peer may connect.
    pub(crate) fn admits(&self, peer: Peer, socket: impl AsFd) -> Result<(), Refusal> {
        let groups = || sockopt::peer_groups(socket).unwrap_or_default();
        if self.is_admin(peer) || self.in_group(peer, groups) {
            return Ok(());
        }
        let served = match self.group {
            Some(gid) => format!("user {} and members of group {gid}", self.uid),
            None => format!("user {} alone", self.uid),
        };
        Err(Refusal::new(
            libc::EACCES,
            format!("this ferroced serves {served}, not user {}", peer.uid),
        ))
    }

    /// Checks that the peer may make this request.
    pub(crate) fn permits(&self, peer: Peer, request: &Request) -> Result<(), Refusal> {
        let what = match request {
            Request::LinkAdd(_) => "add links",
            Request::LinkDelete { .. } => "delete links",
            Request::LinkSet { .. } | Request::LinkFaults { .. } => "change links",
            Request::Shutdown => "stop it",
            _ => return Ok(()),
        };
        if self.is_admin(peer) {
            return Ok(());
        }
        let who = match self.uid {
            0 => "root".to_owned(),
            uid => format!("user {uid} or root"),
        };
        Err(Refusal::new(
            libc::EPERM,
            format!(
                "this ferroced lets only {who} {what}; you are user {}",
                peer.uid
            ),
        ))
    }

    pub(crate) fn is_admin(&self, peer: Peer) -> bool {
        peer.uid == self.uid || peer.uid == 0
    }

    fn in_group(&self, peer: Peer, groups: impl FnOnce() -> Vec<u32>) -> bool {
        self.group
            .is_some_and(|gid| peer.gid == gid || groups().contains(&gid))
    }
}

/// Finds a group that can own files.
fn find_usable(name: &str) -> Result<u32, NoGroup> {
    let gid = group_id(name).ok_or_else(|| NoGroup::Unknown(name.into()))?;
    // A kernel without this file has no user namespaces.
    let mapped = match std::fs::read_to_string("/proc/self/gid_map") {
        Ok(map) => maps_gid(&map, gid),
        Err(_) => true,
    };
    match mapped {
        true => Ok(gid),
        false => Err(NoGroup::Unmapped(name.into(), gid)),
    }
}

/// Returns true if a user namespace maps this GID. Lines of the map are
/// `first-inside first-outside count`.
fn maps_gid(map: &str, gid: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.nth(1)) {
            (Some(Ok(first)), Some(Ok(count))) => {
                (first..first.saturating_add(count)).contains(&gid.into())
            }
            _ => false,
        }
    })
}

/// Returns the GID of a group, given by name or number.
fn group_id(group: &str) -> Option<u32> {
    if let Ok(gid) = group.parse() {
        return Some(gid);
    }
    find_group(&std::fs::read_to_string("/etc/group").ok()?, group)
}

/// Finds a group in `/etc/group`, whose lines are `name:password:gid:members`.
fn find_group(table: &str, name: &str) -> Option<u32> {
    let line = table
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32) -> Peer {
        Peer { pid: 1, uid, gid }
    }

    #[test]
    fn only_admins_change_links() {
        let access = Access {
            uid: 5,
            group: Some(70),
            group_is_chosen: true,
        };
        let delete = Request::LinkDelete {
            name: "rxe0".into(),
            force: false,
        };
        assert!(access.permits(peer(5, 5), &delete).is_ok());
        assert!(access.permits(peer(0, 0), &delete).is_ok());
        assert_eq!(
            access.permits(peer(9, 70), &delete).unwrap_err().errno,
            libc::EPERM
        );
        assert!(access.permits(peer(9, 70), &Request::Links).is_ok());
    }

    #[test]
    fn members_of_the_group_are_served() {
        let access = Access {
            uid: 5,
            group: Some(70),
            group_is_chosen: true,
        };
        assert!(access.in_group(peer(9, 70), Vec::new));
        assert!(access.in_group(peer(9, 1), || vec![3, 70]));
        assert!(!access.in_group(peer(9, 1), || vec![3]));
    }

    #[test]
    fn group_without_a_gid_is_not_mapped() {
        let all = "         0          0 4294967295\n";
        assert!(maps_gid(all, 990));
        let mine = "         0       1000          1\n";
        assert!(maps_gid(mine, 0));
        assert!(!maps_gid(mine, 990));
        let several = "0 1000 1\n1 100000 65536\n";
        assert!(maps_gid(several, 990));
        assert!(!maps_gid(several, 70_000));
    }

    #[test]
    fn group_is_found_by_name_or_number() {
        let table = "root:x:0:\nferroce:x:990:ann,bob\nferroce2:x:991:\n";
        assert_eq!(find_group(table, "ferroce"), Some(990));
        assert_eq!(find_group(table, "nobody"), None);
        assert_eq!(group_id("4242"), Some(4242));
    }
}
