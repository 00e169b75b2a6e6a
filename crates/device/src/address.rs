//! Translation of GIDs to IP addresses.

use core::net::{IpAddr, Ipv6Addr};

use ferroce_control::{Gid, LinkInfo};
use ferroce_roce::{AddressVector, VerbsError};

/// A route to a peer as verbs describe it: `ibv_ah_attr`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // as in libibverbs
pub struct AhAttr {
    pub sgid_index: u8,
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub port: u8,
}

/// Hop limit if the program sets none (0 or 1).
const DEFAULT_HOP_LIMIT: u8 = 64;

impl AhAttr {
    /// Returns the same route in IP addresses, and the entry of its source in the GID table.
    pub(crate) fn resolve<'a>(
        &self,
        link: &'a LinkInfo,
    ) -> Result<(&'a Gid, AddressVector), VerbsError> {
        let index = u32::from(self.sgid_index);
        let Some(gid) = link.gid(index) else {
            let known: Vec<String> = link.gids.iter().map(|gid| gid.index.to_string()).collect();
            return Err(VerbsError::Invalid(format!(
                "GID index {index} of {} is empty; populated: {}",
                link.name,
                known.join(", ")
            )));
        };
        let dgid = Ipv6Addr::from(self.dgid);
        let destination = match dgid.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(dgid),
        };
        if gid.address.is_ipv4() != destination.is_ipv4() {
            return Err(VerbsError::Invalid(format!(
                "GID index {index} is {}, the peer's GID is {destination}: \
                 choose a GID index of the same address family",
                gid.address
            )));
        }
        let av = AddressVector {
            source: gid.address,
            destination,
            sgid_index: self.sgid_index,
            flow_label: self.flow_label,
            hop_limit: match self.hop_limit {
                0 | 1 => DEFAULT_HOP_LIMIT,
                limit => limit,
            },
            traffic_class: self.traffic_class,
            sl: self.sl,
            port: self.port,
        };
        Ok((gid, av))
    }
}
