//! Which program has which port: the rules of `rdma_bind_addr`, as the kernel
//! keeps them.
//!
//! Each port space has ports of its own. A port belongs to all who are bound to
//! it, and a newcomer is let in if none of them is in its way. Ephemeral ports
//! are looked for from a random place on; one may be shared by connections that
//! differ in where they lead.

use core::net::IpAddr;
use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use crate::PortSpace;

/// Below these, ports need a privilege.
const FIRST_UNPRIVILEGED: u16 = 1024;

/// Names a bound port to its owner.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct BindId(u64);

/// An address as programs name it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
pub struct Host {
    /// The address; unspecified is a wildcard.
    pub ip: IpAddr,
    /// The link that a link-local IPv6 address belongs to, else 0.
    pub scope: u32,
}

impl Host {
    /// An address that needs no scope.
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

    /// Both are known and they differ.
    fn differs(self, other: Host) -> bool {
        !self.is_any() && !other.is_any() && !self.same(other)
    }
}

/// A wish for a port.
#[derive(Copy, Clone, Debug)]
pub struct Bind {
    /// In which port space.
    pub space: PortSpace,
    /// For which of our addresses.
    pub source: Host,
    /// Which port; 0 is any.
    pub port: u16,
    /// Where the connection is to lead, if that is known.
    pub destination: Option<(Host, u16)>,
    /// Share the port with others who say so too, while nobody listens.
    pub reuse: bool,
    /// Do not mind the other IP version.
    pub af_only: bool,
    /// The program may have ports below 1024.
    pub privileged: bool,
}

impl Bind {
    /// A wish without options.
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

/// Why a port cannot be had.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody has this address and port: EADDRINUSE.
    #[error("address already in use")]
    InUse,
    /// A wildcard is in the way, or all ports are taken: EADDRNOTAVAIL.
    #[error("cannot assign requested address")]
    NotAvailable,
    /// Ports below 1024 need a privilege: EACCES.
    #[error("permission denied")]
    Denied,
    /// No such bound port.
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
    /// The ephemeral port that was given out last, which rests for a moment.
    last: u16,
}

impl PortTable {
    /// A table without owners; ephemeral ports come from this range.
    pub fn new(ephemeral: RangeInclusive<u16>) -> PortTable {
        PortTable {
            ephemeral,
            owners: BTreeMap::new(),
            by_port: BTreeMap::new(),
            next: 0,
            last: 0,
        }
    }

    /// Binds to a port. `random` decides where the search for an ephemeral one
    /// begins.
    ///
    /// # Errors
    /// If the port cannot be had.
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

    /// The owner is going to listen. Whoever was ready to share the port must
    /// have it alone by then, and shares it no longer.
    ///
    /// # Errors
    /// If somebody else is in the way.
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

    /// The owner has learnt where its connection leads, and by which address.
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

    /// The owner does not need its port any more.
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

    /// Whether nobody has a port.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.by_port.is_empty()
    }

    fn sharers(&self, space: PortSpace, port: u16) -> impl Iterator<Item = (BindId, &Owner)> {
        let ids = self.by_port.get(&(space, port)).into_iter().flatten();
        ids.map(|id| (*id, &self.owners[id]))
    }

    /// Whether nobody who has the port is in the way.
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

    /// Whether a connection from this port would differ from those of all others
    /// who have it: in the port it leads to, or in one of its addresses.
    fn is_distinct(&self, bind: &Bind, port: u16) -> bool {
        let nowhere = |ip: IpAddr| match ip {
            IpAddr::V4(_) => Host::new(core::net::Ipv4Addr::UNSPECIFIED.into()),
            IpAddr::V6(_) => Host::new(core::net::Ipv6Addr::UNSPECIFIED.into()),
        };
        let leads = |bind: &Bind| bind.destination.unwrap_or((nowhere(bind.source.ip), 0));
        let (to, to_port) = leads(bind);
        self.sharers(bind.space, port).all(|(_, other)| {
            let (theirs, their_port) = leads(&other.bind);
            to_port != their_port || bind.source.differs(other.bind.source) || to.differs(theirs)
        })
    }
}
