//! Paths, as the kernel makes them for RoCE: without a subnet administrator.

use ferroce_cm::{QpParameters, flow_label};
use ferroce_control::LinkInfo;

use crate::error::{Error, no_device, no_port};
use crate::id::Inner;

/// Hop limit of packets.
pub(crate) const HOP_LIMIT: u8 = 64;
/// Packet life time of a path, as a time code.
const PACKET_LIFE_TIME: u8 = 16;
/// Bytes that the kernel subtracts from a netdev's MTU for the headers.
const HEADERS: u32 = 96;

/// A path to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Path MTU as an enumeration: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Packet life time, as a time code.
    pub life_time: u8,
    /// Speed of the netdev in Mbit/s; 0 if it has none.
    pub speed_mbps: u32,
}

impl Path {
    /// Returns the path of an id that has a source port and a destination.
    pub(crate) fn of(inner: &Inner) -> Result<Path, Error> {
        let device = inner.device.as_ref().ok_or_else(no_device)?;
        let port = inner.port.ok_or_else(no_port)?;
        let to = port.destination.map_or(0, |(_, port)| port);
        let life_time = match inner.options.ack_timeout {
            Some(timeout) => timeout.saturating_sub(1),
            None => PACKET_LIFE_TIME,
        };
        let link = device.link();
        Ok(Path {
            flow_label: flow_label(port.number, to),
            hop_limit: HOP_LIMIT,
            traffic_class: inner.options.type_of_service,
            mtu: mtu(&link),
            life_time,
            speed_mbps: link.speed_mbps.unwrap_or(0),
        })
    }

    /// Returns the path with the parameters of a connection request.
    pub(crate) fn with_parameters(self, qp: &QpParameters) -> Path {
        Path {
            flow_label: qp.flow_label,
            hop_limit: qp.hop_limit,
            traffic_class: qp.traffic_class,
            mtu: qp.path_mtu,
            ..self
        }
    }
}

/// Returns the path MTU of a link, as an enumeration.
fn mtu(link: &LinkInfo) -> u8 {
    let room = link.netdev_mtu.saturating_sub(HEADERS);
    let room = room.min(link.active_mtu).clamp(256, 4096);
    (room.ilog2() - 7) as u8
}
