//! The flight recorder: writes packets to a journal, at a cost that programs do not notice.
//!
//! A packet of a connection, or a uniform run of packets, is one cell of 64 bytes: the time of the
//! call, the length and the headers. No lock is taken, no clock is read and no text is made. That
//! costs about 20 ns: less than 1 % of a message over UDP, and several per cent of one through
//! shared memory, whose packets are therefore left out unless the user wants them.

use ferroce_roce::{Batch, Datagram, IpId, Run, Time};
use ferroce_trace::{Direction, JournalWriter, PacketRecord, PathRecord, Record};

/// The first of the UDP ports that RoCE sends from.
const DYNAMIC_PORTS: u16 = 0xc000;
/// The first three bits of a UD opcode.
const UD: u8 = 3;

/// A journal, during one call into a core.
#[derive(Copy, Clone, Debug)]
pub struct Recorder<'a> {
    /// The journal.
    pub journal: &'a JournalWriter,
    /// The time of the call.
    pub now: Time,
    /// True if packets through shared memory are recorded, too.
    pub in_memory: bool,
}

impl Recorder<'_> {
    /// Writes a received packet. `exists` says whether the process has a queue pair.
    #[inline]
    pub fn received(&self, datagram: &Datagram<'_>, exists: impl FnOnce(u32) -> bool) {
        self.received_run(datagram, datagram.payload.len(), 1, exists);
    }

    /// Writes the first `packets` packets of a merged run, which header prediction accepted: they
    /// differ in their PSNs only.
    #[inline]
    pub fn predicted(&self, run: &Datagram<'_>, segment: usize, packets: usize) {
        self.received_run(run, segment, packets, |_| true);
    }

    #[inline]
    fn received_run(
        &self,
        run: &Datagram<'_>,
        segment: usize,
        packets: usize,
        exists: impl FnOnce(u32) -> bool,
    ) {
        if run.ip_id == IpId::InMemory && !self.in_memory {
            return;
        }
        let Some(&[opcode, _, _, _, _, a, b, c]) = run.payload.first_chunk() else {
            return;
        };
        let qpn = u32::from_be_bytes([0, a, b, c]);
        if opcode >> 5 == UD {
            let path = received_path(run);
            return self.datagram(Direction::Received, qpn, &path, run.payload, exists);
        }
        let packet = PacketRecord {
            time_ns: self.now.as_nanos(),
            direction: Direction::Received,
            qpn,
            length: segment,
            packets,
            bytes: run.payload,
            captured: segment,
        };
        self.journal
            .packet(&packet, || received_path(run), || exists(qpn));
    }

    /// Writes the packets of a run that will be sent. `bytes` are the assembled packets.
    #[inline]
    pub fn assembled(&self, batch: &Batch, run: &Run, bytes: &[u8]) {
        if run.path.in_memory && !self.in_memory {
            return;
        }
        let path = || PathRecord {
            source: run.path.flow.source,
            destination: run.path.flow.destination,
            source_port: run.path.flow.source_port,
            traffic_class: run.path.traffic_class,
            hop_limit: run.path.hop_limit,
        };
        if bytes.first().is_some_and(|opcode| opcode >> 5 == UD) {
            let qpns = batch.entries(run).iter().map(|packet| packet.qpn());
            for (qpn, packet) in qpns.zip(bytes.chunks(run.segment)) {
                self.datagram(Direction::Sent, qpn, &path(), packet, |_| true);
            }
            return;
        }
        for packet in batch.entries(run) {
            let record = PacketRecord {
                time_ns: self.now.as_nanos(),
                direction: Direction::Sent,
                qpn: packet.qpn(),
                length: packet.wire_len(),
                packets: packet.packets(),
                bytes: packet.header_buffer(),
                captured: packet.header().len(),
            };
            self.journal.packet(&record, path, || true);
        }
    }

    /// Writes a datagram: its queue pair has many peers.
    #[cold]
    fn datagram(
        &self,
        direction: Direction,
        qpn: u32,
        path: &PathRecord,
        packet: &[u8],
        exists: impl FnOnce(u32) -> bool,
    ) {
        let record = Record {
            time_ns: self.now.as_nanos(),
            direction,
            qpn,
            source: path.source,
            destination: path.destination,
            source_port: path.source_port,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            length: packet.len() as u32,
            bytes: packet,
            ..Record::default()
        };
        self.journal.record(&record, || exists(qpn));
    }
}

/// Returns the addresses of a received packet.
pub fn received_path(datagram: &Datagram<'_>) -> PathRecord {
    PathRecord {
        source: datagram.source,
        destination: datagram.destination,
        source_port: match datagram.ip_id {
            // The number is that of the sender's slot.
            IpId::InMemory => DYNAMIC_PORTS | datagram.source_port,
            IpId::Seen(_) | IpId::Unseen(_) => datagram.source_port,
        },
        traffic_class: datagram.traffic_class,
        hop_limit: datagram.hop_limit,
    }
}
