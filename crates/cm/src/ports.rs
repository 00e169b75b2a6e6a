//! The port table of rdma_cm: the kernel's rules for `rdma_bind_addr`.
//!
//! - Each port space has its own ports.
//! - Several owners may share a port if none of them conflicts with another.
//! - The search for an ephemeral port starts at a random port.
//! - Connections with different destinations may share an ephemeral port.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use crate::PortSpace;

/// The first port that needs no privilege.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// Handle of a bound port.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct BindId(u64);

/// An IP address with its scope.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct Host {
    /// The address. The unspecified address is a wildcard.
    pub ip: IpAddr,
    /// Interface index of a link-local IPv6 address, else 0.
    pub scope: u32,
}

impl Host {
    /// Returns an address without scope.
    pub fn new(ip: IpAddr) -> Host {
        Host { ip, scope: 0 }
    }

    fn is_any(self) -> bool {
        self.ip.is_unspecified()
    }

    fn same(self, other: Host) -> bool {
        let link_local = match self.ip {
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
            IpAddr::V4(_) => false,
        };
        self.ip == other.ip && (!link_local || self.scope == other.scope)
    }

    /// Returns true if neither address is a wildcard and they differ.
    fn differs(self, other: Host) -> bool {
        !self.is_any() && !other.is_any() && !self.same(other)
    }
}

/// The parameters of a bind.
#[derive(Copy, Clone, Debug)]
pub struct Bind {
    /// The port space.
    pub space: PortSpace,
    /// The local address.
    pub source: Host,
    /// The port; 0 asks for an ephemeral port.
    pub port: u16,
    /// Address and port of the peer, if they are known.
    pub destination: Option<(Host, u16)>,
    /// True to share the port with other owners that set this, as long as none listens.
    pub reuse: bool,
    /// True to use one IP version only. A bind of the other version that also sets this
    /// does not conflict.
    pub af_only: bool,
    /// True if the program may bind to ports below 1024.
    pub privileged: bool,
}

impl Bind {
    /// Returns a bind without options.
    pub fn new(space: PortSpace, source: Host, port: u16) -> Bind {
        Bind {
            space,
            source,
            port,
            destination: None,
            reuse: false,
            af_only: false,
            privileged: false,
        }
    }
}

/// The reason why a bind failed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// The address and port are in use: EADDRINUSE.
    #[error("address already in use")]
    InUse,
    /// The port conflicts with a wildcard, or no ephemeral port is free: EADDRNOTAVAIL.
    #[error("cannot assign requested address")]
    NotAvailable,
    /// The port is below 1024 and the program has no privilege: EACCES.
    #[error("permission denied")]
    Denied,
    /// The handle names no bound port.
    #[error("not bound")]
    Unknown,
}

#[derive(Debug)]
struct Owner {
    bind: Bind,
    port: u16,
}

/// The ports of all port spaces.
#[derive(Debug)]
pub struct PortTable {
    ephemeral: RangeInclusive<u16>,
    owners: BTreeMap<BindId, Owner>,
    by_port: BTreeMap<(PortSpace, u16), Vec<BindId>>,
    next: u64,
    /// The last ephemeral port. The next search skips it, so that it is not reused at once.
    last: u16,
}

impl PortTable {
    /// Returns an empty table that takes ephemeral ports from this range.
    pub fn new(ephemeral: RangeInclusive<u16>) -> PortTable {
        PortTable {
            ephemeral,
            owners: BTreeMap::new(),
            by_port: BTreeMap::new(),
            next: 0,
            last: 0,
        }
    }

    /// Binds to a port. `random` determines the start of the search for an ephemeral port.
    ///
    /// # Errors
    /// If the port is not available to this owner.
    pub fn bind(&mut self, bind: &Bind, random: u32) -> Result<(BindId, u16), BindError> {
        let port = match bind.port {
            0 => self.any_port(bind, random)?,
            port if port < FIRST_UNPRIVILEGED && !bind.privileged => {
                return Err(BindError::Denied);
            }
            port => {
                self.check(bind, port, bind.reuse, None)?;
                port
            }
        };
        let id = BindId(self.next);
        self.next += 1;
        let owner = Owner { bind: *bind, port };
        self.owners.insert(id, owner);
        self.by_port.entry((bind.space, port)).or_default().push(id);
        Ok((id, port))
    }

    /// Prepares a bound port for listening and clears `reuse`, because a listener cannot share
    /// its port.
    ///
    /// # Errors
    /// If another owner of the port conflicts.
    pub fn listen(&mut self, id: BindId) -> Result<(), BindError> {
        let owner = self.owners.get(&id).ok_or(BindError::Unknown)?;
        if owner.bind.reuse {
            self.check(&owner.bind, owner.port, false, Some(id))?;
        }
        if let Some(owner) = self.owners.get_mut(&id) {
            owner.bind.reuse = false;
        }
        Ok(())
    }

    /// Sets the source address and the destination of a bound port.
    ///
    /// # Errors
    /// If there is no such owner.
    pub fn set_route(
        &mut self,
        id: BindId,
        source: Host,
        destination: (Host, u16),
    ) -> Result<(), BindError> {
        let owner = self.owners.get_mut(&id).ok_or(BindError::Unknown)?;
        owner.bind.source = source;
        owner.bind.destination = Some(destination);
        Ok(())
    }

    /// Releases a bound port.
    ///
    /// # Errors
    /// If there is no such owner.
    pub fn release(&mut self, id: BindId) -> Result<(), BindError> {
        let owner = self.owners.remove(&id).ok_or(BindError::Unknown)?;
        let key = (owner.bind.space, owner.port);
        if let Some(sharers) = self.by_port.get_mut(&key) {
            sharers.retain(|other| *other != id);
            if sharers.is_empty() {
                self.by_port.remove(&key);
            }
        }
        Ok(())
    }

    /// Returns true if no port is bound.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.by_port.is_empty()
    }

    fn sharers(&self, space: PortSpace, port: u16) -> impl Iterator<Item = (BindId, &Owner)> {
        let ids = self.by_port.get(&(space, port)).into_iter().flatten();
        ids.map(|id| (*id, &self.owners[id]))
    }

    /// Checks that no owner of the port, except `except`, conflicts with `bind`.
    fn check(
        &self,
        bind: &Bind,
        port: u16,
        reuse: bool,
        except: Option<BindId>,
    ) -> Result<(), BindError> {
        for (id, other) in self.sharers(bind.space, port) {
            let theirs = other.bind.source;
            let shared = reuse && other.bind.reuse;
            let other_family = bind.af_only
                && other.bind.af_only
                && bind.source.ip.is_ipv4() != theirs.ip.is_ipv4();
            if Some(id) == except || shared || other_family {
                continue;
            }
            if bind.source.is_any() || theirs.is_any() {
                return Err(BindError::NotAvailable);
            }
            if bind.source.same(theirs) {
                return Err(BindError::InUse);
            }
        }
        Ok(())
    }

    fn any_port(&mut self, bind: &Bind, random: u32) -> Result<u16, BindError> {
        let (low, high) = (*self.ephemeral.start(), *self.ephemeral.end());
        let count = u32::from(high - low) + 1;
        for step in 0..count {
            let offset = (random % count + step) % count;
            let port = low + u16::try_from(offset).expect("within the range");
            if port != self.last && self.is_distinct(bind, port) {
                self.last = port;
                return Ok(port);
            }
        }
        Err(BindError::NotAvailable)
    }

    /// Returns true if a connection from this port differs from those of all owners of the
    /// port: in the destination port, or in the source or destination address.
    fn is_distinct(&self, bind: &Bind, port: u16) -> bool {
        let wildcard = |ip: IpAddr| match ip {
            IpAddr::V4(_) => Host::new(core::net::Ipv4Addr::UNSPECIFIED.into()),
            IpAddr::V6(_) => Host::new(core::net::Ipv6Addr::UNSPECIFIED.into()),
        };
        let destination = |bind: &Bind| bind.destination.unwrap_or((wildcard(bind.source.ip), 0));
        let (to, to_port) = destination(bind);
        self.sharers(bind.space, port).all(|(_, other)| {
            let (theirs, their_port) = destination(&other.bind);
            to_port != their_port || bind.source.differs(other.bind.source) || to.differs(theirs)
        })
    }
}
