//! Queue pair 1, which carries the MADs of the connection manager.
//!
//! Its packets arrive at slot 0. It needs one kind of packet in each direction, which this
//! module checks and builds.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use ferroce_cm::{MAD_LEN, Transmit};
use ferroce_net::{Incoming, Receiver, SendError, Sender, SlotSockets, probe};
use ferroce_roce::{Counter, Datagram, Drop, IpId, Path};
use ferroce_wire::{
    Bth, Deth, Flow, HeaderBuf, ICRC_LEN, Opcode, Operation, Packet, Psn, Transport, icrc,
    ud_source_port,
};

/// The QPN, here and at every peer.
pub(crate) const QPN: u32 = 1;
/// The Q_Key of all queue pairs 1.
const QKEY: u32 = 0x8001_0000;
/// The hop limit, as in the kernel.
pub(crate) const HOP_LIMIT: u8 = 64;
/// Length of a packet from BTH to ICRC.
const PACKET_LEN: usize = Bth::LEN + Deth::LEN + MAD_LEN + ICRC_LEN;
/// Datagrams to receive before other descriptors are served.
pub(crate) const TURN: usize = 64;

/// The receiving end of queue pair 1: the sockets of slot 0.
pub(crate) struct Qp1(Receiver);

impl Qp1 {
    pub(crate) fn new(sockets: SlotSockets) -> Qp1 {
        Qp1(Receiver::new(0, sockets))
    }

    /// Returns the descriptors to wait on.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let sockets = self.0.sockets();
        let v6 = sockets.v6.as_ref().map(AsFd::as_fd);
        std::iter::once(sockets.v4.as_fd()).chain(v6)
    }

    /// Receives up to about [`TURN`] datagrams.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(&Incoming<'_>)) -> io::Result<usize> {
        self.0
            .receive(TURN, |run| run.datagrams().for_each(|one| each(&one)))
    }
}

/// Returns the MAD of a packet for queue pair 1, or the reason to drop it. The order of the
/// checks is that of other queue pairs.
pub(crate) fn check<'a>(incoming: &Incoming<'a>, check_icrc: bool) -> Result<&'a [u8], Drop> {
    let packet = Packet::parse(incoming.payload).map_err(|_| Drop::Malformed)?;
    if packet.dest_qpn() != QPN {
        return Err(Drop::UnknownQp);
    }
    if packet.opcode() != send_only() {
        return Err(Drop::WrongState);
    }
    if packet.pkey() & 0x7fff != Bth::DEFAULT_PKEY & 0x7fff {
        return Err(Drop::BadPkey);
    }
    if packet.deth().is_none_or(|deth| deth.qkey != QKEY) {
        return Err(Drop::BadQkey);
    }
    let flow = Flow {
        source: incoming.source,
        destination: incoming.destination,
        source_port: incoming.source_port,
    };
    if check_icrc && icrc::recover_id(&flow, 0, packet.bytes()).is_none() {
        return Err(Drop::BadIcrc);
    }
    match packet.payload() {
        mad if mad.len() == MAD_LEN => Ok(mad),
        _ => Err(Drop::Malformed),
    }
}

/// A packet that is sent, or that a fault loses.
pub(crate) struct SentMad {
    pub(crate) flow: Flow,
    pub(crate) packet: [u8; PACKET_LEN],
}

impl SentMad {
    /// Returns the packet as the link on netdev `ifindex` of this host receives it.
    pub(crate) fn incoming(&self, ifindex: u32) -> Incoming<'_> {
        Incoming {
            datagram: Datagram {
                source: self.flow.source,
                destination: self.flow.destination,
                source_port: self.flow.source_port,
                traffic_class: 0,
                hop_limit: HOP_LIMIT,
                ip_id: IpId::Seen(0),
                payload: &self.packet,
            },
            ifindex,
        }
    }
}

/// Sends MADs.
pub(crate) struct MadSender {
    sender: Sender,
    psn: Psn,
}

impl MadSender {
    pub(crate) fn new() -> MadSender {
        MadSender {
            // All MADs have one source port.
            sender: Sender::with_features(&probe(), 1),
            psn: Psn::new(0),
        }
    }

    /// Returns true if MADs are sent from this UDP port, which no other process of this
    /// machine can use.
    pub(crate) fn sends_from(&mut self, port: u16, v6: bool) -> bool {
        let own = self.sender.bind(ud_source_port(QPN), v6);
        own.is_ok_and(|own| own == port)
    }

    /// Returns the next packet with a MAD.
    pub(crate) fn build(&mut self, transmit: &Transmit) -> Result<SentMad, SendError> {
        let (source, destination) = (transmit.address.local, transmit.address.remote);
        let port = self.sender.bind(ud_source_port(QPN), source.is_ipv6());
        let flow = Flow {
            source,
            destination,
            source_port: port.map_err(SendError::Dropped)?,
        };
        let packet = build(&flow, self.psn, &transmit.mad);
        self.psn = self.psn.next();
        Ok(SentMad { flow, packet })
    }

    /// Sends a MAD. A link-local destination is reached by netdev `ifindex`.
    pub(crate) fn send(&mut self, transmit: &Transmit, ifindex: u32) -> Result<SentMad, SendError> {
        let SentMad { flow, packet } = self.build(transmit)?;
        let path = Path::new(flow, 0, HOP_LIMIT);
        let scoped = matches!(flow.destination, IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.sender
            .send_run(&path, packet.len(), &packet, scoped.then_some(ifindex))?;
        Ok(SentMad { flow, packet })
    }
}

/// Builds a packet as rxe does.
fn build(flow: &Flow, psn: Psn, mad: &[u8; MAD_LEN]) -> [u8; PACKET_LEN] {
    let bth = Bth {
        ack_req: true,
        ..Bth::new(send_only(), QPN, psn)
    };
    let deth = Deth {
        qkey: QKEY,
        source_qpn: QPN,
    };
    let header = HeaderBuf::new(&bth).deth(&deth).finish();
    let mut packet = [0; PACKET_LEN];
    let (body, crc) = packet.split_at_mut(PACKET_LEN - ICRC_LEN);
    body[..header.len()].copy_from_slice(header.as_bytes());
    body[header.len()..].copy_from_slice(mad);
    crc.copy_from_slice(&icrc::compute(flow, 0, body));
    packet
}

fn send_only() -> Opcode {
    Opcode::new(Transport::Ud, Operation::SendOnly).expect("there is one")
}

/// Counters of packets and bytes sent.
pub(crate) const SENT: (Counter, Counter) = (Counter::SentPkts, Counter::SentBytes);
/// Counters of packets and bytes received.
pub(crate) const RECEIVED: (Counter, Counter) = (Counter::RcvdPkts, Counter::RcvdBytes);
/// Bytes of a packet, for the counters.
pub(crate) const BYTES: u64 = PACKET_LEN as u64;

#[cfg(test)]
mod tests;
