//! Multicast groups. RoCE has no subnet administrator to ask: the address of a group is its
//! GID, and attaching the queue pair makes the kernel join it.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ferroce_cm::multicast::{MULTICAST_QPN, RoceVersion, mgid};
use ferroce_device::AhAttr;

use crate::channel::ChannelEvent;
use crate::error::{Error, ErrorKind, no_device, no_port};
use crate::event::Datagrams;
use crate::id::{Id, Shared, State};
use crate::path::HOP_LIMIT;

/// A group that an id has joined.
#[derive(Debug)]
pub(crate) struct Group {
    address: SocketAddr,
    mgid: [u8; 16],
    send_only: bool,
    sgid_index: u8,
    traffic_class: u8,
    qkey: u32,
    /// The program's number for the group.
    pub(crate) context: u64,
    attached: AtomicBool,
}

impl Group {
    /// Attaches the queue pair of the id, if it has one and the id receives.
    pub(crate) fn attach(&self, id: &Shared) -> Result<(), Error> {
        let Some(qp) = id.qp().filter(|_| !self.send_only) else {
            return Ok(());
        };
        let group = self.ip();
        if !group.is_multicast() {
            return Err(Error::invalid(format!("{group} is no multicast address")));
        }
        qp.multicast(group, true)?;
        self.attached.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Detaches the queue pair of the id, if it is attached.
    pub(crate) fn leave(&self, id: &Shared) {
        if let Some(qp) = id.qp()
            && self.attached.swap(false, Ordering::Relaxed)
        {
            let _gone_already = qp.multicast(self.ip(), false);
        }
    }

    /// Returns the destination of datagrams to the group.
    pub(crate) fn destination(&self) -> Datagrams {
        Datagrams {
            ah: AhAttr {
                sgid_index: self.sgid_index,
                dgid: self.mgid,
                flow_label: 0,
                hop_limit: HOP_LIMIT,
                traffic_class: self.traffic_class,
                sl: 0,
                port: 1,
            },
            qpn: MULTICAST_QPN,
            qkey: self.qkey,
        }
    }

    fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.mgid);
        v6.to_ipv4_mapped().map_or(v6.into(), IpAddr::V4)
    }
}

impl Id {
    /// Joins a multicast group; with `send_only`, without receiving its datagrams. An event
    /// with the program's number `context` follows.
    pub fn join_multicast(
        &self,
        address: SocketAddr,
        send_only: bool,
        context: u64,
    ) -> Result<(), Error> {
        let id = self.usable()?;
        let group = {
            let mut inner = id.inner();
            let device = inner.device.clone().ok_or_else(no_device)?;
            if !id.is_datagram() || matches!(inner.state, State::Idle | State::Listen) {
                return Err(Error::invalid(
                    "a multicast group needs a bound id for datagrams",
                ));
            }
            let source = inner.port.ok_or_else(no_port)?.source.ip;
            let index = gid_index(&device.link(), source, address.is_ipv4())?;
            let mgid = mgid(address.ip(), RoceVersion::V2)
                .map_err(|error| Error::new(ErrorKind::NotSupported, error.to_string()))?;
            let group = Arc::new(Group {
                address,
                mgid: mgid.0,
                send_only,
                sgid_index: index,
                traffic_class: inner.options.type_of_service,
                qkey: id.space.default_qkey().unwrap_or(0),
                context,
                attached: AtomicBool::new(false),
            });
            inner.groups.push(Arc::clone(&group));
            group
        };
        id.post(ChannelEvent::Joined(group));
        Ok(())
    }

    /// Leaves a multicast group, takes back its event if that still waits, and returns the
    /// number that the program gave the group.
    pub fn leave_multicast(&self, address: SocketAddr) -> Result<u64, Error> {
        let id = self.usable()?;
        let group = {
            let mut inner = id.inner();
            let mut groups = inner.groups.iter();
            let place = groups.position(|group| group.address == address);
            let place = place.ok_or_else(|| {
                Error::new(
                    ErrorKind::AddressNotAvailable,
                    format!("the id is not in the multicast group {}", address.ip()),
                )
            })?;
            inner.groups.remove(place)
        };
        group.leave(id);
        id.channel().purge_group(&group);
        Ok(group.context)
    }
}

/// Returns the index of `source` in the GID table of the link; for a wildcard, that of any
/// address of the IP version.
fn gid_index(link: &ferroce_control::LinkInfo, source: IpAddr, v4: bool) -> Result<u8, Error> {
    let mut gids = link.gids.iter();
    let fits = |ip: IpAddr| ip == source || source.is_unspecified() && ip.is_ipv4() == v4;
    let gid = gids.find(|gid| fits(gid.address)).ok_or_else(|| {
        Error::new(
            ErrorKind::NoDevice,
            format!("{source} is not in the GID table of the link"),
        )
    })?;
    u8::try_from(gid.index).map_err(|_| {
        Error::new(
            ErrorKind::NoDevice,
            format!("GID index {} is above 255", gid.index),
        )
    })
}
