//! The multicast groups of an engine and their members.

use core::net::IpAddr;
use std::collections::BTreeMap;

use crate::attr::QpType;
use crate::error::VerbsError;

/// Maximum number of groups of an adapter.
pub const MAX_GROUPS: usize = 8192;
/// Maximum number of queue pairs of a group.
pub const MAX_MEMBERS: usize = 56;

/// Multicast groups with their members.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    members: BTreeMap<IpAddr, Vec<u32>>,
}

impl Groups {
    /// Adds a UD queue pair to a group. Returns true if it is the group's first member.
    pub(crate) fn attach(
        &mut self,
        qpn: u32,
        kind: QpType,
        group: IpAddr,
    ) -> Result<bool, VerbsError> {
        if kind != QpType::Ud {
            return Err(VerbsError::invalid(format!(
                "queue pair {qpn:#x} is not of type UD, only those join multicast groups"
            )));
        }
        if !group.is_multicast() {
            return Err(VerbsError::invalid(format!(
                "{group} is not a multicast address"
            )));
        }
        if !self.members.contains_key(&group) && self.members.len() == MAX_GROUPS {
            return Err(VerbsError::NoMemory(format!(
                "{MAX_GROUPS} multicast groups are in use"
            )));
        }
        let members = self.members.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        if members.len() == MAX_MEMBERS {
            return Err(VerbsError::NoMemory(format!(
                "{MAX_MEMBERS} queue pairs are attached to {group}"
            )));
        }
        members.push(qpn);
        Ok(members.len() == 1)
    }

    /// Removes a queue pair from a group. Returns true if it was the group's last member.
    pub(crate) fn detach(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        let not_attached =
            || VerbsError::invalid(format!("queue pair {qpn:#x} is not attached to {group}"));
        let members = self.members.get_mut(&group).ok_or_else(not_attached)?;
        let at = members
            .iter()
            .position(|&m| m == qpn)
            .ok_or_else(not_attached)?;
        members.remove(at);
        let last = members.is_empty();
        if last {
            self.members.remove(&group);
        }
        Ok(last)
    }

    /// Returns the members of a group.
    pub(crate) fn members(&self, group: IpAddr) -> &[u32] {
        self.members.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Returns the groups of a queue pair.
    pub(crate) fn of(&self, qpn: u32) -> Vec<IpAddr> {
        let groups = self.members.iter();
        let groups = groups.filter(|(_, members)| members.contains(&qpn));
        groups.map(|(group, _)| *group).collect()
    }

    /// True if the queue pair is a member of any group.
    pub(crate) fn has_member(&self, qpn: u32) -> bool {
        self.members.values().any(|members| members.contains(&qpn))
    }
}
