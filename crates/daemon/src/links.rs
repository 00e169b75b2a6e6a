//! The links: creation, deletion, options, and updates when netdevs change.

use std::net::IpAddr;

use ferroce_cm::Address;
use ferroce_control::link::{HEADERS, MAX_SPEED, MTUS, largest_mtu};
use ferroce_control::{
    CounterValues, Gid, LinkConfig, LinkEvent, LinkEventKind, LinkInfo, PortState, check_name,
};
use ferroce_faults::Plan;
use ferroce_roce::Counter;
use ferroce_strict::{Mode, Profile};

use crate::gids::{self, GidTable};
use crate::netdevs::{Netdev, Netdevs};
use crate::refusal::{Refusal, listed};
use crate::state::SavedLink;

/// The speed in Mb/s of a loopback netdev, which reports none. Two processes on a machine with
/// two cores transfer 30 Gb/s over it. Programs choose devices and algorithms by this number.
const LOOPBACK_SPEED: u32 = 25_000;
/// The speed in Mb/s of other netdevs that report none, such as tunnels: that of a veth.
const UNKNOWN_SPEED: u32 = 10_000;

/// A link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) config: LinkConfig,
    pub(crate) ifindex: u32,
    pub(crate) gids: GidTable,
    /// Counters of programs that have ended, and ferroced's own.
    pub(crate) totals: CounterValues,
    /// The state at the last update.
    pub(crate) info: LinkInfo,
    /// True if its netdev runs, and the kernel is about to give it a link-local address.
    awaits_link_local: bool,
}

/// All links, in the order they were added.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Link>,
    next_index: u32,
    queries: Queries,
}

/// Questions about a netdev that rtnetlink does not answer, by its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queries {
    /// Returns the speed in Mb/s.
    pub(crate) speed: fn(&str) -> Option<u32>,
    /// Returns true if the kernel gives the netdev a link-local address when it starts to run.
    pub(crate) allow_link_local: fn(&str) -> bool,
}

impl Links {
    pub(crate) fn new(queries: Queries) -> Links {
        Links {
            links: Vec::new(),
            next_index: 0,
            queries,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.links.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    pub(crate) fn next_index(&self) -> u32 {
        self.next_index
    }

    pub(crate) fn by_index(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.info.index == index)
    }

    pub(crate) fn by_index_mut(&mut self, index: u32) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.info.index == index)
    }

    /// Returns true if one of the links has the address.
    pub(crate) fn have_address(&self, address: IpAddr) -> bool {
        let mut gids = self.links.iter().flat_map(|link| &link.info.gids);
        gids.any(|gid| gid.address == address)
    }

    /// Returns the RoCE link that has the address. Of several, prefers the one on netdev
    /// `ifindex`, which received the packet.
    pub(crate) fn by_address(&mut self, address: IpAddr, ifindex: u32) -> Option<&mut Link> {
        let has = |link: &Link, by: Option<u32>| {
            let mut gids = link.info.gids.iter();
            !link.info.is_iwarp()
                && gids.any(|gid| gid.address == address && by.is_none_or(|by| gid.ifindex == by))
        };
        let links = || self.links.iter();
        let at = links().position(|link| has(link, Some(ifindex)));
        let at = at.or_else(|| links().position(|link| has(link, None)))?;
        self.links.get_mut(at)
    }

    /// Returns the netdev of the RoCE link of this host to which a MAD of link `index` goes, if
    /// both links have the option `local` and are up. `netdev` has the source address.
    pub(crate) fn local_netdev(&self, index: u32, netdev: u32, address: Address) -> Option<u32> {
        let is_local = |link: &&Link| link.info.local && link.info.up && !link.info.is_iwarp();
        self.by_index(index).filter(is_local)?;
        let is_scoped =
            matches!(address.remote, IpAddr::V6(remote) if remote.is_unicast_link_local());
        self.links.iter().filter(is_local).find_map(|link| {
            let has =
                |gid: &&Gid| gid.address == address.remote && (!is_scoped || gid.ifindex == netdev);
            link.info.gids.iter().find(has).map(|gid| gid.ifindex)
        })
    }

    /// Returns the link of that name.
    pub(crate) fn find(&self, name: &str) -> Result<&Link, Refusal> {
        let found = self.links.iter().find(|link| link.config.name == name);
        found.ok_or_else(|| {
            let there = match self.links.len() {
                0 => {
                    "there are no links; `ferroce link add NAME type rxe netdev IF` adds one".into()
                }
                _ => format!("existing links: {}", listed(self.names())),
            };
            Refusal::new(libc::ENODEV, format!("link {name} does not exist; {there}"))
        })
    }

    /// Adds a link.
    pub(crate) fn add(
        &mut self,
        config: LinkConfig,
        netdevs: &Netdevs,
    ) -> Result<LinkEvent, Refusal> {
        let netdev = self.check(&config, netdevs)?;
        self.insert(
            config,
            netdev.ifindex,
            self.next_index,
            GidTable::default(),
            netdevs,
        );
        self.next_index += 1;
        let link = self.links.last().expect("just added");
        Ok(happened(LinkEventKind::Added, link.info.clone()))
    }

    /// Changes the options of a link. Returns `None` if nothing changed.
    pub(crate) fn set(
        &mut self,
        name: &str,
        change: Change,
        netdevs: &Netdevs,
    ) -> Result<Option<LinkEvent>, Refusal> {
        let index = self.find(name)?.info.index;
        let queries = self.queries;
        let Some(link) = self.by_index_mut(index) else {
            return Ok(None);
        };
        let Some(netdev) = netdevs.get(link.ifindex) else {
            return Ok(None);
        };
        let mut config = link.config.clone();
        if let Some(mtu) = change.mtu {
            config.mtu = (mtu != 0).then_some(mtu);
        }
        config.crc = change.crc.unwrap_or(config.crc);
        config.lids = change.lids.unwrap_or(config.lids);
        config.patience = change.patience.unwrap_or(config.patience);
        if let Some(speed) = change.speed {
            config.speed = (speed != 0).then_some(speed);
        }
        config.local = change.local.unwrap_or(config.local);
        if let Some(strict) = change.strict {
            config.strict = unless_off(strict);
        }
        if let Some(profile) = change.profile {
            config.profile = unless_off(profile);
        }
        check_options(&config)?;
        check_mtu(&config, netdev)?;
        check_speed(&config)?;
        link.config = config;
        let old = link.look(netdev, netdevs, queries);
        let changed = old != link.info;
        Ok(changed.then(|| happened(LinkEventKind::Changed, link.info.clone())))
    }

    /// Puts faults in force on a link, or ends them. Returns `None` if nothing changed.
    pub(crate) fn set_faults(
        &mut self,
        name: &str,
        text: &str,
    ) -> Result<Option<LinkEvent>, Refusal> {
        let index = self.find(name)?.info.index;
        let plan = Plan::parse(text).map_err(|error| Refusal::new(libc::EINVAL, error))?;
        let faults = match plan.is_empty() {
            true => String::new(),
            false => plan.to_string(),
        };
        if plan.concerns_verbs() {
            let message = "verbs fail in one program, not on a link; use `ferroce run --faults`";
            return Err(Refusal::new(libc::EINVAL, message));
        }
        let Some(link) = self.by_index_mut(index) else {
            return Ok(None);
        };
        let checked = match link.info.is_iwarp() {
            true => plan.check_for_streams(),
            false => plan.check_for_packets(),
        };
        checked.map_err(|message| Refusal::new(libc::EOPNOTSUPP, message))?;
        if link.info.faults == faults {
            return Ok(None);
        }
        link.info.faults = faults;
        Ok(Some(happened(LinkEventKind::Changed, link.info.clone())))
    }

    /// Renames a link. Returns `None` if it has that name already. Programs refer to the link
    /// by its index and are not affected.
    pub(crate) fn rename(&mut self, name: &str, new: &str) -> Result<Option<LinkEvent>, Refusal> {
        let index = self.find(name)?.info.index;
        if name == new {
            return Ok(None);
        }
        self.check_free_name(new)?;
        let Some(link) = self.by_index_mut(index) else {
            return Ok(None);
        };
        link.config.name = new.into();
        link.info.name = new.into();
        Ok(Some(happened(LinkEventKind::Changed, link.info.clone())))
    }

    fn check_free_name(&self, name: &str) -> Result<(), Refusal> {
        check_name(name).map_err(|e| Refusal::new(libc::EINVAL, e))?;
        match self.links.iter().find(|l| l.config.name == name) {
            None => Ok(()),
            Some(link) => Err(Refusal::new(
                libc::EEXIST,
                format!(
                    "link {name} exists already, on netdev {}; choose another name",
                    link.info.netdev
                ),
            )),
        }
    }

    /// Sets the lowest index for new links.
    pub(crate) fn begin_at(&mut self, index: u32) {
        self.next_index = self.next_index.max(index);
    }

    /// Restores a link of an earlier ferroced, if its netdev still exists.
    pub(crate) fn restore(&mut self, saved: SavedLink, netdevs: &Netdevs) {
        self.begin_at(saved.index.saturating_add(1));
        let (totals, faults) = (saved.counters(), saved.faults.clone());
        if netdevs.get(saved.ifindex).is_none() {
            tracing::info!(
                link = saved.config.name,
                "link not restored: its netdev is gone"
            );
            return;
        }
        self.insert(
            saved.config,
            saved.ifindex,
            saved.index,
            saved.gids,
            netdevs,
        );
        let link = self.links.last_mut().expect("just added");
        link.totals = totals;
        link.info.faults = faults;
    }

    /// Removes a link.
    pub(crate) fn remove(&mut self, index: u32) -> Option<LinkEvent> {
        let at = self.links.iter().position(|l| l.info.index == index)?;
        Some(happened(LinkEventKind::Removed, self.links.remove(at).info))
    }

    /// Updates all links from their netdevs. Returns the events, in order.
    pub(crate) fn refresh(&mut self, netdevs: &Netdevs) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        let queries = self.queries;
        self.links.retain_mut(|link| {
            let Some(netdev) = netdevs.get(link.ifindex) else {
                events.push(happened(LinkEventKind::Removed, link.info.clone()));
                return false;
            };
            let old = link.look(netdev, netdevs, queries);
            for kind in differences(&old, &link.info) {
                if kind == LinkEventKind::PortErr {
                    link.totals.count(Counter::LinkDowned);
                }
                events.push(happened(kind, link.info.clone()));
            }
            true
        });
        events
    }

    /// Returns the netdevs to which the kernel may be about to give a link-local address, and the number of
    /// addresses of each link.
    pub(crate) fn awaiting_link_local(&self) -> Vec<(u32, usize)> {
        let links = self.links.iter().filter(|link| link.awaits_link_local);
        links
            .map(|link| (link.ifindex, link.info.gids.len()))
            .collect()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|link| link.config.name.as_str())
    }

    fn insert(
        &mut self,
        config: LinkConfig,
        ifindex: u32,
        index: u32,
        gids: GidTable,
        netdevs: &Netdevs,
    ) {
        let netdev = netdevs.get(ifindex).expect("checked by the caller");
        // `look` fills in the rest.
        let info = LinkInfo {
            index,
            kind: config.kind.clone(),
            ..LinkInfo::new(&config.name, &netdev.name, ifindex)
        };
        let mut link = Link {
            config,
            ifindex,
            gids,
            totals: CounterValues::default(),
            info,
            awaits_link_local: false,
        };
        link.look(netdev, netdevs, self.queries);
        self.links.push(link);
    }

    /// Checks that a link can be created. Returns its netdev.
    fn check<'a>(&self, config: &LinkConfig, netdevs: &'a Netdevs) -> Result<&'a Netdev, Refusal> {
        check_kind(&config.kind)?;
        let netdev = find_netdev(&config.netdev, netdevs)?;
        self.check_free_name(&config.name)?;
        let same = |link: &&Link| link.ifindex == netdev.ifindex && link.config.kind == config.kind;
        if let Some(link) = self.links.iter().find(same) {
            let (netdev, name) = (&netdev.name, &link.config.name);
            return Err(Refusal::new(
                libc::EEXIST,
                format!(
                    "netdev {netdev} already has link {name} \
                     (`ferroce link delete {name}` removes it)"
                ),
            ));
        }
        check_options(config)?;
        check_mtu(config, netdev)?;
        check_speed(config)?;
        check_addresses(netdev, netdevs)?;
        Ok(netdev)
    }
}

impl Link {
    /// Updates the state of the link. Returns the state before.
    fn look(&mut self, netdev: &Netdev, netdevs: &Netdevs, queries: Queries) -> LinkInfo {
        self.awaits_link_local =
            netdevs.lacks_link_local(netdev) && (queries.allow_link_local)(&netdev.name);
        let this = gids::Netdev {
            ifindex: netdev.ifindex,
            loopback: netdev.loopback,
            is_complete: netdev.running && !self.awaits_link_local,
        };
        let addresses = netdevs.addresses_of(self.ifindex);
        self.gids.update(this, &addresses);
        let entries = self.gids.entries().into_iter();
        let gids = entries.map(|(index, entry)| Gid {
            index,
            address: entry.address,
            ifindex: entry.ifindex,
            netdev: netdevs
                .get(entry.ifindex)
                .map_or(String::new(), |n| n.name.clone()),
            tentative: netdevs.is_tentative(entry),
        });
        let largest = largest_mtu(netdev.mtu);
        let new = LinkInfo {
            netdev: netdev.name.clone(),
            up: netdev.up,
            carrier: netdev.carrier,
            netdev_mtu: netdev.mtu,
            mtu: self.config.mtu,
            crc: self.config.crc,
            lids: self.config.lids,
            patience: self.config.patience,
            active_mtu: self.config.mtu.map_or(largest, |limit| limit.min(largest)),
            speed: self.config.speed,
            local: self.config.local,
            strict: self.config.strict.clone(),
            profile: self.config.profile.clone(),
            speed_mbps: Some(self.config.speed.unwrap_or_else(|| {
                (queries.speed)(&netdev.name).unwrap_or(match netdev.loopback {
                    true => LOOPBACK_SPEED,
                    false => UNKNOWN_SPEED,
                })
            })),
            mac: netdev.mac,
            gids: gids.collect(),
            ..self.info.clone()
        };
        std::mem::replace(&mut self.info, new)
    }
}

/// Options of a link to change.
#[derive(Debug, Default, Clone)]
pub(crate) struct Change {
    /// The largest packet payload; 0 means the largest for the netdev.
    pub(crate) mtu: Option<u32>,
    pub(crate) crc: Option<bool>,
    pub(crate) lids: Option<bool>,
    pub(crate) patience: Option<u32>,
    /// The speed in Mb/s; 0 means the netdev's.
    pub(crate) speed: Option<u32>,
    pub(crate) local: Option<bool>,
    /// The mode of strict checks, or `off`.
    pub(crate) strict: Option<String>,
    /// The profile of limits, or `off`.
    pub(crate) profile: Option<String>,
}

/// Returns a word; the empty one for `off`.
fn unless_off(word: String) -> String {
    match word.as_str() {
        "off" => String::new(),
        _ => word,
    }
}

fn happened(kind: LinkEventKind, link: LinkInfo) -> LinkEvent {
    LinkEvent { kind, link }
}

/// Returns the events that lead from one state of a link to another.
fn differences(old: &LinkInfo, new: &LinkInfo) -> Vec<LinkEventKind> {
    let mut kinds = Vec::new();
    match (old.state(), new.state()) {
        (PortState::Active, PortState::Down) => kinds.push(LinkEventKind::PortErr),
        (PortState::Down, PortState::Active) => kinds.push(LinkEventKind::PortActive),
        _ => {}
    }
    let places = |link: &LinkInfo| -> Vec<(u32, IpAddr, u32)> {
        let gids = link.gids.iter();
        gids.map(Gid::place).collect()
    };
    if places(old) != places(new) {
        kinds.push(LinkEventKind::GidChange);
    }
    if kinds.is_empty() && old != new {
        kinds.push(LinkEventKind::Changed);
    }
    kinds
}

fn check_kind(kind: &str) -> Result<(), Refusal> {
    match kind {
        "rxe" | "siw" => Ok(()),
        other => Err(Refusal::new(
            libc::EINVAL,
            format!("type `{other}` is not known; use type rxe (RoCE) or siw (iWARP)"),
        )),
    }
}

fn find_netdev<'a>(name: &str, netdevs: &'a Netdevs) -> Result<&'a Netdev, Refusal> {
    netdevs.by_name(name).ok_or_else(|| {
        let there = listed(netdevs.names());
        Refusal::new(
            libc::ENODEV,
            format!("netdev {name} does not exist; existing netdevs: {there}"),
        )
    })
}

/// Refuses unknown modes and profiles, and options of RoCE for a link of type siw.
fn check_options(config: &LinkConfig) -> Result<(), Refusal> {
    if let Err(error) = config.strict.parse::<Mode>() {
        return Err(Refusal::new(libc::EINVAL, error));
    }
    if let Err(error) = Profile::named(&config.profile) {
        return Err(Refusal::new(libc::EINVAL, error));
    }
    if config.kind != "siw" {
        return Ok(());
    }
    let option = match config {
        LinkConfig { mtu: Some(_), .. } => "mtu: TCP chooses the size of segments",
        LinkConfig { profile, .. } if !profile.is_empty() => "profile: the adapters have RoCE",
        LinkConfig { lids: true, .. } => "lids: iWARP has no LIDs",
        LinkConfig { patience: 1.., .. } => "patience: TCP decides when a peer is lost",
        _ => return Ok(()),
    };
    let message = format!("type siw has no option {option}; leave it out, or use type rxe");
    Err(Refusal::new(libc::EINVAL, message))
}

fn check_mtu(config: &LinkConfig, netdev: &Netdev) -> Result<(), Refusal> {
    let Some(mtu) = config.mtu else {
        return Ok(());
    };
    if !MTUS.contains(&mtu) {
        let message = format!("mtu {mtu} is not one of {}", listed(MTUS));
        return Err(Refusal::new(libc::EINVAL, message));
    }
    let largest = largest_mtu(netdev.mtu);
    if mtu > largest {
        let (name, has, needed) = (&netdev.name, netdev.mtu, mtu + HEADERS);
        let message = format!(
            "mtu {mtu} does not fit netdev {name}, whose own is {has}: at most {largest} does \
             (`ip link set {name} mtu {needed}` would make room)"
        );
        return Err(Refusal::new(libc::EINVAL, message));
    }
    Ok(())
}

fn check_speed(config: &LinkConfig) -> Result<(), Refusal> {
    match config.speed {
        None | Some(1..=MAX_SPEED) => Ok(()),
        Some(speed) => Err(Refusal::new(
            libc::EINVAL,
            format!("speed {speed} Mb/s is not between 1 and {MAX_SPEED}"),
        )),
    }
}

fn check_addresses(netdev: &Netdev, netdevs: &Netdevs) -> Result<(), Refusal> {
    if !netdevs.addresses_of(netdev.ifindex).is_empty() {
        return Ok(());
    }
    let name = &netdev.name;
    let remedy = match (netdev.loopback, netdev.up) {
        (true, false) => format!("`ip link set {name} up` gives it 127.0.0.1"),
        (_, false) => format!(
            "`ip link set {name} up` may give it an IPv6 one, \
             `ip address add ADDRESS/PREFIX dev {name}` any"
        ),
        (_, true) => format!("`ip address add ADDRESS/PREFIX dev {name}` gives it one"),
    };
    let message = format!("netdev {name} has no IP address, and RDMA needs one: {remedy}");
    Err(Refusal::new(libc::EADDRNOTAVAIL, message))
}

#[cfg(test)]
mod tests;
