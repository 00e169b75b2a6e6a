//! Path records, as the kernel makes them for RoCE: nobody has to be asked.

use std::sync::Arc;

use ferroce_cm::{QpParameters, flow_label};
use ferroce_control::LinkInfo;

use super::Outcome;
use super::id::{Id, Inner};
use super::{no_device, no_port};
use crate::errno::refuse;
use crate::ffi::*;

/// Hops of packets for those who say nothing else.
pub(crate) const HOP_LIMIT: u8 = 64;
/// How long a packet travels at most; a time code.
pub(crate) const PACKET_LIFE_TIME: u8 = 16;
/// "Exactly", in the selectors of a path record.
const EXACTLY: u8 = 2;
/// What the kernel subtracts from a netdev's MTU for a path.
const HEADERS: u32 = 96;

/// The MTU of a path, as an enumeration: 1 is 256 bytes.
pub(crate) fn mtu(link: &LinkInfo) -> u8 {
    let room = link.netdev_mtu.saturating_sub(HEADERS);
    let room = room.min(link.active_mtu).clamp(256, 4096);
    (room.ilog2() - 7) as u8
}

/// What a connection or question asks of the network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) mtu: u8,
    pub(crate) life_time: u8,
}

impl Path {
    /// The path of an id that has a source port and a destination.
    pub(crate) fn of(inner: &Inner) -> Outcome<Path> {
        let device = inner.device.ok_or_else(no_device)?;
        let port = inner.port.ok_or_else(no_port)?;
        let to = port.destination.map_or(0, |(_, port)| port);
        let life_time = match inner.options.ack_timeout {
            Some(timeout) => timeout.saturating_sub(1),
            None => PACKET_LIFE_TIME,
        };
        Ok(Path {
            flow_label: flow_label(port.number, to),
            hop_limit: HOP_LIMIT,
            traffic_class: inner.options.tos,
            mtu: mtu(&device.link()),
            life_time,
        })
    }
}

/// Fills the path record that the program sees.
pub(crate) fn set(id: &Arc<Id>, qp: Option<&QpParameters>) -> Outcome {
    let (mut path, rate) = {
        let inner = id.inner();
        let device = inner.device.ok_or_else(no_device)?;
        (Path::of(&inner)?, rate(&device.link()))
    };
    if let Some(qp) = qp {
        path.flow_label = qp.flow_label;
        path.hop_limit = qp.hop_limit;
        path.traffic_class = qp.traffic_class;
        path.mtu = qp.path_mtu;
    }
    // SAFETY: the program's object; its threads call us. A record of the size that
    // C knows, which it may also free.
    unsafe {
        let route = &mut (*id.c()).route;
        if route.path_rec.is_null() {
            route.path_rec = libc::calloc(1, size_of::<ibv_sa_path_rec>()).cast();
        }
        let Some(record) = route.path_rec.as_mut() else {
            return Err(refuse(libc::ENOMEM, "the process has no memory left"));
        };
        route.num_paths = 1;
        let ib = route.addr.addr.ibaddr;
        *record = ibv_sa_path_rec {
            dgid: ib.dgid,
            sgid: ib.sgid,
            flow_label: path.flow_label.to_be(),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            reversible: 1,
            numb_path: 1,
            pkey: 0xffff,
            mtu_selector: EXACTLY,
            mtu: path.mtu,
            rate_selector: EXACTLY,
            rate,
            packet_life_time_selector: EXACTLY,
            packet_life_time: path.life_time,
            preference: (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL)
                as u8,
            ..zeroed()
        };
    }
    Ok(())
}

/// The rate of a netdev, as the kernel rounds it.
fn rate(link: &LinkInfo) -> u8 {
    let rate = match link.speed_mbps.unwrap_or(0) {
        40_000.. => IBV_RATE_40_GBPS,
        30_000.. => IBV_RATE_30_GBPS,
        20_000.. => IBV_RATE_20_GBPS,
        10_000.. => IBV_RATE_10_GBPS,
        _ => IBV_RATE_MAX,
    };
    rate as u8
}
