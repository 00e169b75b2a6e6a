//! Received datagrams: all checks before a queue pair gets a packet.
//!
//! The order of the checks is that of rxe. A packet that fails a check is dropped without a
//! response and counted under its reason. Predicted packets take a shorter path: see
//! [`prediction`](crate::qp::prediction).

use core::net::IpAddr;

use ferroce_wire::{Flow, FlowIcrc, Opcode, Operation, Packet, Transport, icrc};

use crate::attr::{QpState, QpType};
use crate::counters::Counter;
use crate::engine::Context;
use crate::memory::Memory;
use crate::multicast::Groups;
use crate::qp::{Qp, Sender};
use crate::qp_table::QpTable;

/// The destination QPN of multicast packets.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// A UDP datagram to port 4791, with the fields of its IP header.
#[derive(Copy, Clone, Debug)]
pub struct Datagram<'a> {
    /// Source address.
    pub source: IpAddr,
    /// Destination address: one of this host's or a multicast group.
    pub destination: IpAddr,
    /// UDP source port. For a packet that came through shared memory, the slot of the sender.
    pub source_port: u16,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 identification.
    pub ip_id: IpId,
    /// Bytes from the BTH to the ICRC.
    pub payload: &'a [u8],
}

/// The IPv4 identification of a packet, as far as it is known. IPv6 has none.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum IpId {
    /// Identification from the IP header.
    Seen(u16),
    /// Unknown identification: a UDP socket does not deliver it. The number is the position
    /// of the packet in a merged run; it is the identification if the sender used
    /// segmentation, which numbers packets from 0.
    Unseen(u16),
    /// None: the packet came through memory that is shared with the sender's process. It has
    /// no ICRC either, and its source port is the sender's slot. If it is a packet of UD, the
    /// wire has checked that both addresses are those of this host.
    InMemory,
}

impl IpId {
    /// Unknown identification of a single packet, or of the first packet of a merged run.
    pub const UNSEEN: IpId = IpId::Unseen(0);

    /// Returns the identification if it is known.
    pub(crate) fn seen(self) -> Option<u16> {
        match self {
            IpId::Seen(id) => Some(id),
            IpId::Unseen(_) | IpId::InMemory => None,
        }
    }

    /// Returns the identification of the packet `count` positions later.
    fn later(self, count: usize) -> IpId {
        match self {
            IpId::Seen(id) => IpId::Seen(id),
            IpId::Unseen(nth) => IpId::Unseen(nth.wrapping_add(count as u16)),
            IpId::InMemory => IpId::InMemory,
        }
    }
}

impl<'a> Datagram<'a> {
    /// Returns the sender on this host that the datagram came from.
    #[inline]
    pub(crate) fn sender(&self) -> Sender {
        match self.ip_id {
            IpId::InMemory => Sender::InMemory(self.source_port as u8),
            IpId::Seen(_) | IpId::Unseen(_) => Sender::Udp(self.source_port),
        }
    }

    /// Splits the first segment off a GRO buffer with segments of `segment` bytes. Returns
    /// the first and the others, or `None` if the buffer is empty.
    #[inline]
    pub fn split_first(&self, segment: usize) -> Option<(Datagram<'a>, Datagram<'a>)> {
        if self.payload.is_empty() {
            return None;
        }
        let (mut first, mut rest) = (*self, *self);
        first.payload = self.first_payload(segment);
        rest.skip(1, segment);
        Some((first, rest))
    }

    /// Returns the payload of the first segment; nothing if the buffer is empty.
    #[inline]
    pub fn first_payload(&self, segment: usize) -> &'a [u8] {
        let bytes = segment.max(1).min(self.payload.len());
        &self.payload[..bytes]
    }

    /// Removes the first `count` segments. It works in place: to copy the addresses for each packet
    /// takes longer than the rest.
    #[inline]
    pub fn skip(&mut self, count: usize, segment: usize) {
        let bytes = count * segment.max(1);
        self.payload = self.payload.get(bytes..).unwrap_or_default();
        self.ip_id = self.ip_id.later(count);
    }
}

/// The outcome of a received datagram.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// A queue pair accepted the datagram.
    Accepted,
    /// The datagram was dropped.
    Dropped(Drop),
}

/// The reason why a datagram was dropped.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Drop {
    /// The packet is too short, or has an unknown opcode or version.
    Malformed,
    /// No queue pair has the destination QPN.
    UnknownQp,
    /// The queue pair has another type, or its state accepts no such packet.
    WrongState,
    /// The addresses, or the pinned UDP source port, are not those of the connection.
    WrongPeer,
    /// The P_Key is that of another partition.
    BadPkey,
    /// The Q_Key is not that of the queue pair.
    BadQkey,
    /// The ICRC is wrong.
    BadIcrc,
    /// No receive, or none that is large enough, is posted for an unreliable message.
    NoReceive,
    /// A packet of an unreliable message is missing.
    OutOfSequence,
    /// The packet is a response to no outstanding request.
    Stale,
}

impl core::fmt::Display for Drop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Drop::Malformed => "too short, or an unknown opcode or version",
            Drop::UnknownQp => "no queue pair has the destination QPN",
            Drop::WrongState => "type or state of the queue pair accepts no such packet",
            Drop::WrongPeer => "addresses or UDP source port are not those of the connection",
            Drop::BadPkey => "the P_Key is that of another partition",
            Drop::BadQkey => "the Q_Key is not that of the queue pair",
            Drop::BadIcrc => "the ICRC is wrong",
            Drop::NoReceive => "no receive of sufficient size is posted",
            Drop::OutOfSequence => "a packet of the unreliable message is missing or invalid",
            Drop::Stale => "it answers no outstanding request",
        })
    }
}

impl Drop {
    /// Returns the counter of this reason.
    pub const fn counter(self) -> Counter {
        match self {
            Drop::Malformed => Counter::RxMalformed,
            Drop::UnknownQp => Counter::RxUnknownQp,
            Drop::WrongState => Counter::RxWrongState,
            Drop::WrongPeer => Counter::RxWrongPeer,
            Drop::BadPkey => Counter::BadPkey,
            Drop::BadQkey => Counter::BadQkey,
            Drop::BadIcrc => Counter::RxIcrcErr,
            Drop::NoReceive => Counter::RxNoReceive,
            Drop::OutOfSequence | Drop::Stale => Counter::RxDropped,
        }
    }
}

pub(crate) fn receive(
    cx: &mut Context,
    qps: &mut QpTable,
    groups: &Groups,
    memory: &dyn Memory,
    datagram: &Datagram<'_>,
) -> Received {
    match try_receive(cx, qps, groups, memory, datagram) {
        Ok(received) => received,
        Err(why) => Received::Dropped(why),
    }
}

fn try_receive(
    cx: &mut Context,
    qps: &mut QpTable,
    groups: &Groups,
    memory: &dyn Memory,
    datagram: &Datagram<'_>,
) -> Result<Received, Drop> {
    let packet = Packet::parse(datagram.payload).map_err(|_| Drop::Malformed)?;
    if packet.dest_qpn() == MULTICAST_QPN {
        return receive_multicast(cx, qps, groups, memory, datagram, &packet);
    }
    let qp = qps.get_mut(packet.dest_qpn()).ok_or(Drop::UnknownQp)?;
    check(qp, datagram, &packet)?;
    check_icrc(cx, qp, datagram, &packet)?;
    let opcode = packet.opcode();
    if opcode.operation() == Operation::CongestionNotification {
        qp.congestion_notified(cx);
        return Ok(Received::Accepted);
    }
    if is_congested(datagram) && opcode.transport() != Transport::Ud {
        qp.notify_congestion(cx);
    }
    if qp.learns_peer_port() {
        return Ok(receive_first(cx, qp, memory, datagram, &packet));
    }
    Ok(take(cx, qp, memory, datagram, &packet))
}

/// Passes a checked packet to the datagram, requester or responder side of a queue pair.
#[inline(always)]
fn take(
    cx: &mut Context,
    qp: &mut Qp,
    memory: &dyn Memory,
    datagram: &Datagram<'_>,
    packet: &Packet<'_>,
) -> Received {
    match qp.kind() {
        QpType::Ud | QpType::Gsi => qp.datagram(cx, memory, datagram, packet),
        _ if packet.opcode().is_response() => qp.response(cx, memory, packet),
        _ => qp.request(cx, memory, packet),
    }
}

/// Passes a packet to a queue pair that will pin the peer's UDP port.
#[cold]
fn receive_first(
    cx: &mut Context,
    qp: &mut Qp,
    memory: &dyn Memory,
    datagram: &Datagram<'_>,
    packet: &Packet<'_>,
) -> Received {
    let next = qp.expected_psn();
    let received = take(cx, qp, memory, datagram, packet);
    // A response is accepted only if it answers an outstanding request.
    let expected = packet.opcode().is_response() || packet.psn() == next;
    // A request that is out of sequence, or finds no receive, will be retransmitted.
    let moved = packet.opcode().is_response() || qp.expected_psn() != next;
    if received == Received::Accepted && moved {
        qp.learn_peer_port(datagram.sender(), expected);
    }
    received
}

/// Delivers a copy of the datagram to every member that accepts it.
#[inline(never)]
fn receive_multicast(
    cx: &mut Context,
    qps: &mut QpTable,
    groups: &Groups,
    memory: &dyn Memory,
    datagram: &Datagram<'_>,
    packet: &Packet<'_>,
) -> Result<Received, Drop> {
    if packet.opcode().transport() != Transport::Ud {
        return Err(Drop::WrongState);
    }
    let mut result = Err(Drop::UnknownQp);
    let mut verified = false;
    for &qpn in groups.members(datagram.destination) {
        let Some(qp) = qps.get_mut(qpn) else {
            continue;
        };
        if let Err(why) = check(qp, datagram, packet) {
            result = result.or(Err(why));
            continue;
        }
        if !verified {
            check_icrc(cx, qp, datagram, packet)?;
            verified = true;
        }
        let received = qp.datagram(cx, memory, datagram, packet);
        if result.is_err() || received == Received::Accepted {
            result = Ok(received);
        }
    }
    result
}

/// Checks type, state, addresses, partition and Q_Key.
#[inline(always)]
fn check(qp: &Qp, datagram: &Datagram<'_>, packet: &Packet<'_>) -> Result<(), Drop> {
    let opcode = packet.opcode();
    if !fits(qp, opcode) {
        return Err(Drop::WrongState);
    }
    // A datagram comes from anywhere. In memory, the wire has checked its addresses.
    if !qp.kind().is_datagram() && !is_from_peer(qp, datagram) {
        return Err(Drop::WrongPeer);
    }
    if !is_our_partition(packet.pkey()) {
        return Err(Drop::BadPkey);
    }
    if let Some(deth) = packet.deth()
        && deth.qkey != qp.qkey()
    {
        return Err(Drop::BadQkey);
    }
    Ok(())
}

/// True if the datagram has the addresses of the connection and comes from its sender.
#[inline]
pub(crate) fn is_from_peer(qp: &Qp, datagram: &Datagram<'_>) -> bool {
    let flow = &qp.path().flow;
    datagram.source == flow.destination
        && datagram.destination == flow.source
        && qp.may_come_from(datagram.sender())
}

/// True if the P_Key is that of the default partition, the only one. The top bit is the
/// sender's membership: a limited member may talk to this port, which is a full member.
#[inline]
pub(crate) fn is_our_partition(pkey: u16) -> bool {
    pkey & 0x7fff == 0x7fff
}

/// True if a switch has marked the packet: ECN "congestion experienced".
#[inline]
pub(crate) fn is_congested(datagram: &Datagram<'_>) -> bool {
    datagram.traffic_class & 3 == 3
}

/// True if type and state of the queue pair accept the opcode.
fn fits(qp: &Qp, opcode: Opcode) -> bool {
    let state = qp.state();
    let sends = matches!(state, QpState::Rts | QpState::Sqd);
    if opcode.operation() == Operation::CongestionNotification {
        return sends && !qp.kind().is_datagram();
    }
    if opcode.transport() != qp.transport() {
        return false;
    }
    match opcode.is_response() {
        true => sends && qp.kind() != QpType::XrcTarget,
        false => state.receives() && qp.kind() != QpType::XrcInitiator,
    }
}

#[inline(always)]
fn check_icrc(
    cx: &Context,
    qp: &mut Qp,
    datagram: &Datagram<'_>,
    packet: &Packet<'_>,
) -> Result<(), Drop> {
    if !cx.checks_icrc() || datagram.ip_id == IpId::InMemory || icrc_fits(qp, datagram) {
        return Ok(());
    }
    let flush = packet.opcode().operation() == Operation::Flush;
    let good = flush && flush_icrc_fits(qp, datagram);
    good.then_some(()).ok_or(Drop::BadIcrc)
}

#[inline]
fn icrc_fits(qp: &mut Qp, datagram: &Datagram<'_>) -> bool {
    let prepared = match qp.kind().is_datagram() {
        true => FlowIcrc::new(&flow(datagram)),
        false => qp.rx_icrc(datagram.source_port),
    };
    let bytes = datagram.payload;
    match datagram.ip_id {
        IpId::InMemory => true,
        IpId::Seen(id) => prepared.verify(id, bytes),
        IpId::Unseen(nth) => {
            let found = prepared.recover_id(expected_id(qp.peer_ip_id, nth), bytes);
            if let Some(found) = found {
                qp.peer_ip_id = found.id;
            }
            found.is_some()
        }
    }
}

/// True if the ICRC of a FLUSH is right as rxe computes it.
fn flush_icrc_fits(qp: &Qp, datagram: &Datagram<'_>) -> bool {
    let (flow, bytes) = (flow(datagram), datagram.payload);
    match datagram.ip_id {
        IpId::InMemory => true,
        IpId::Seen(id) => icrc::verify_flush_quirk(&flow, id, bytes),
        IpId::Unseen(nth) => {
            let expected = expected_id(qp.peer_ip_id, nth);
            icrc::recover_id_flush_quirk(&flow, expected, bytes).is_some()
        }
    }
}

/// Returns the likely IPv4 identification of the `nth` packet of a merged run. A sender
/// counts all its packets, or restarts at 0 with each segmented send.
#[inline]
pub(crate) fn expected_id(last: u16, nth: u16) -> u16 {
    match last < icrc::SEGMENTS {
        true => nth,
        false => last.wrapping_add(1),
    }
}

/// Returns the flow of a datagram.
fn flow(datagram: &Datagram<'_>) -> Flow {
    Flow {
        source: datagram.source,
        destination: datagram.destination,
        source_port: datagram.source_port,
    }
}
