//! The path description in REQ and LAP.

use crate::Gid;
use crate::codec::*;

/// A path between two ports. RoCE uses the GIDs and the fields of the IP header.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Path {
    /// LID of the sender of the message.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender of the message.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class: DSCP and ECN on RoCE.
    pub traffic_class: u8,
    /// Hop limit, or time to live.
    pub hop_limit: u8,
    /// Packet rate, 6 bits; 0 is the rate of the port.
    pub packet_rate: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// True if both ends are in one subnet.
    pub subnet_local: bool,
    /// Acknowledgement timeout of the sender's queue pair; a time code.
    pub ack_timeout: u8,
}

impl Path {
    /// Parses the path of a REQ: 44 bytes from `at`.
    pub(super) fn parse_req(body: &Body, at: usize) -> Path {
        Path {
            flow_label: get32(body, at + 36) >> 12,
            packet_rate: get_bits(body, at + 39, 5, 0),
            traffic_class: body[at + 40],
            hop_limit: body[at + 41],
            ..Path::parse_common(body, at)
        }
    }

    pub(super) fn emit_req(&self, body: &mut Body, at: usize) {
        self.emit_common(body, at);
        let rate = u32::from(self.packet_rate & 0x3f);
        put32(body, at + 36, self.flow_label << 12 | rate);
        body[at + 40] = self.traffic_class;
        body[at + 41] = self.hop_limit;
    }

    /// Parses the path of a LAP: 44 bytes, some of them in another order.
    pub(super) fn parse_lap(body: &Body, at: usize) -> Path {
        Path {
            flow_label: get32(body, at + 36) >> 12,
            traffic_class: body[at + 39],
            hop_limit: body[at + 40],
            packet_rate: get_bits(body, at + 41, 5, 0),
            ..Path::parse_common(body, at)
        }
    }

    pub(super) fn emit_lap(&self, body: &mut Body, at: usize) {
        self.emit_common(body, at);
        let class = u32::from(self.traffic_class);
        put32(body, at + 36, self.flow_label << 12 | class);
        body[at + 40] = self.hop_limit;
        put_bits(body, at + 41, 5, 0, self.packet_rate);
    }

    fn parse_common(body: &Body, at: usize) -> Path {
        Path {
            local_lid: get16(body, at),
            remote_lid: get16(body, at + 2),
            local_gid: get_gid(body, at + 4),
            remote_gid: get_gid(body, at + 20),
            sl: get_bits(body, at + 42, 7, 4),
            subnet_local: get_flag(body, at + 42, 3),
            ack_timeout: get_bits(body, at + 43, 7, 3),
            ..Path::default()
        }
    }

    fn emit_common(&self, body: &mut Body, at: usize) {
        put16(body, at, self.local_lid);
        put16(body, at + 2, self.remote_lid);
        put_bytes(body, at + 4, &self.local_gid.0);
        put_bytes(body, at + 20, &self.remote_gid.0);
        put_bits(body, at + 42, 7, 4, self.sl);
        put_flag(body, at + 42, 3, self.subnet_local);
        put_bits(body, at + 43, 7, 3, self.ack_timeout);
    }
}
