//! The flight recorder: writes packets to a journal, at a cost that programs do not notice.
//!
//! A packet of a connection, or a uniform run of packets, is one cell of 64 bytes: the time of the
//! call, the length and the headers. No lock is taken, no clock is read and no text is made. That
//! costs 3 to 8 ns: less than 1 % of a message over UDP, and several per cent of one through
//! shared memory, whose packets are therefore left out unless the user wants them.

use ferroce_roce::{Batch, Datagram, IpId, Run, Time, TxPacket};
use ferroce_trace::{Direction, JournalWriter, PacketRecord, PathRecord, QpRing};
use ferroce_wire::Opcode;

/// The first of the UDP ports that RoCE sends from.
const DYNAMIC_PORTS: u16 = 0xc000;
/// The first three bits of a UD opcode.
const UD: u8 = 3;

/// A journal, during one call into a core.
#[derive(Copy, Clone, Debug)]
pub struct Recorder<'a> {
    journal: &'a JournalWriter,
    time_ns: u64,
    in_memory: bool,
    /// The queue pair of the last packet that was received, and its ring: packets of one call are
    /// mostly of one queue pair.
    last: Option<(u32, QpRing<'a>)>,
}

impl<'a> Recorder<'a> {
    /// Begins a call at a time. Packets through shared memory are left out, unless `in_memory`.
    #[inline]
    pub fn new(journal: &'a JournalWriter, now: Time, in_memory: bool) -> Recorder<'a> {
        Recorder {
            journal,
            time_ns: now.as_nanos(),
            in_memory,
            last: None,
        }
    }

    /// Sets the time of the next packets.
    #[inline]
    pub fn set_time(&mut self, now: Time) {
        self.time_ns = now.as_nanos();
    }

    /// Writes a received packet. `exists` says whether the process has a queue pair.
    #[inline]
    pub fn received(&mut self, datagram: &Datagram<'_>, exists: impl FnOnce(u32) -> bool) {
        self.received_run(datagram, datagram.payload.len(), 1, exists);
    }

    /// Writes the first `packets` packets of a merged run, which header prediction accepted: they
    /// differ in their PSNs only.
    #[inline]
    pub fn predicted(&mut self, run: &Datagram<'_>, segment: usize, packets: usize) {
        self.received_run(run, segment, packets, |_| true);
    }

    #[inline]
    fn received_run(
        &mut self,
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
        let packet = PacketRecord {
            time_ns: self.time_ns,
            direction: Direction::Received,
            length: segment,
            packets,
            bytes: run.payload,
            captured: Opcode::from_byte(opcode).map_or(0, Opcode::header_len),
        };
        let ring = match self.last {
            Some((last, ring)) if last == qpn => Some(ring),
            _ => self.find(qpn, run, exists),
        };
        let Some(ring) = ring else {
            return;
        };
        match opcode >> 5 == UD {
            true => received_datagram(ring, packet, run),
            false => ring.packet(&packet),
        }
    }

    /// Finds the ring of a queue pair that received a packet.
    #[inline(never)]
    fn find(
        &mut self,
        qpn: u32,
        run: &Datagram<'_>,
        exists: impl FnOnce(u32) -> bool,
    ) -> Option<QpRing<'a>> {
        let path = || received_path(run);
        let ring = self
            .journal
            .ring(qpn, Direction::Received, path, || exists(qpn))?;
        self.last = Some((qpn, ring));
        Some(ring)
    }

    /// Writes the packets of a run that will be sent. `bytes` are the assembled packets.
    #[inline]
    pub fn assembled(&self, batch: &Batch, run: &Run, bytes: &[u8]) {
        if run.path.in_memory && !self.in_memory {
            return;
        }
        if bytes.first().is_some_and(|opcode| opcode >> 5 == UD) {
            return self.assembled_datagrams(batch, run);
        }
        let mut last = None;
        for packet in batch.entries(run) {
            if let Some(ring) = self.sender_ring(&mut last, packet.qpn(), run) {
                ring.packet(&self.sent(packet));
            }
        }
    }

    #[inline(never)]
    fn assembled_datagrams(&self, batch: &Batch, run: &Run) {
        let (path, mut last) = (sent_path(run), None);
        for packet in batch.entries(run) {
            if let Some(ring) = self.sender_ring(&mut last, packet.qpn(), run) {
                ring.datagram(&self.sent(packet), &path);
            }
        }
    }

    /// Returns the ring of a queue pair that sends: mostly that of the packet before.
    #[inline(always)]
    fn sender_ring(
        &self,
        last: &mut Option<(u32, QpRing<'a>)>,
        qpn: u32,
        run: &Run,
    ) -> Option<QpRing<'a>> {
        if let Some((last, ring)) = *last
            && last == qpn
        {
            return Some(ring);
        }
        let path = || sent_path(run);
        let ring = self.journal.ring(qpn, Direction::Sent, path, || true)?;
        *last = Some((qpn, ring));
        Some(ring)
    }

    #[inline(always)]
    fn sent<'p>(&self, packet: &'p TxPacket) -> PacketRecord<'p> {
        PacketRecord {
            time_ns: self.time_ns,
            direction: Direction::Sent,
            length: packet.wire_len(),
            packets: packet.packets(),
            bytes: packet.header_buffer(),
            captured: packet.header().len(),
        }
    }
}

/// Writes a datagram that was received.
#[inline(never)]
fn received_datagram(ring: QpRing<'_>, packet: PacketRecord<'_>, datagram: &Datagram<'_>) {
    ring.datagram(&packet, &received_path(datagram));
}

/// Returns the addresses of packets that are sent.
fn sent_path(run: &Run) -> PathRecord {
    PathRecord {
        source: run.path.flow.source,
        destination: run.path.flow.destination,
        source_port: run.path.flow.source_port,
        traffic_class: run.path.traffic_class,
        hop_limit: run.path.hop_limit,
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

#[cfg(test)]
mod tests {
    use ferroce_trace::{JournalFile, JournalReader};

    use super::*;

    /// Returns a packet with 64 bytes of payload.
    fn packet(opcode: u8, qpn: u8, psn: u8) -> Vec<u8> {
        let mut packet = vec![opcode, 0, 0xff, 0xff, 0, 0, 0, qpn, 0, 0, 0, psn];
        packet.resize(12 + 64 + 4, 0xee);
        packet
    }

    fn datagram(payload: &[u8], source: [u8; 4]) -> Datagram<'_> {
        Datagram {
            source: source.into(),
            destination: [10, 0, 0, 9].into(),
            source_port: 0xc123,
            traffic_class: 0,
            hop_limit: 64,
            ip_id: IpId::UNSEEN,
            payload,
        }
    }

    #[test]
    fn headers_are_recorded_and_payload_is_not() {
        let file = JournalFile::new().expect("memory");
        let journal = JournalWriter::new(&file).expect("memory");
        let mut recorder = Recorder::new(&journal, Time::from_nanos(5), false);
        // RC SEND_ONLY; RC WRITE_MIDDLE, two packets in one buffer; RC ACKNOWLEDGE; UD SEND_ONLY
        // from two peers.
        recorder.received(&datagram(&packet(4, 7, 1), [10, 0, 0, 1]), |_| true);
        let run = [packet(7, 7, 2), packet(7, 7, 3)].concat();
        recorder.predicted(&datagram(&run, [10, 0, 0, 1]), 80, 2);
        recorder.received(&datagram(&packet(17, 7, 9), [10, 0, 0, 1]), |_| true);
        for peer in [1, 2, 1] {
            recorder.received(&datagram(&packet(100, 8, peer), [10, 0, 0, peer]), |_| true);
        }
        recorder.received(&datagram(&packet(4, 9, 1), [10, 0, 0, 1]), |_| false);
        let stories = JournalReader::new(&file).expect("memory").stories();
        let seen: Vec<Vec<_>> = stories
            .iter()
            .map(|story| {
                let records = story.records();
                let facts = records.map(|r| (r.bytes[0], r.bytes[11], r.bytes.len(), r.length));
                facts.collect()
            })
            .collect();
        let rc = vec![
            (4, 1, 12, 80),
            (7, 2, 12, 80),
            (7, 3, 12, 80),
            (17, 9, 16, 80),
        ];
        let ud = vec![(100, 1, 20, 80), (100, 2, 20, 80), (100, 1, 20, 80)];
        assert_eq!(seen, [rc, ud]);
        let sources: Vec<_> = stories[1].records().map(|r| r.source.to_string()).collect();
        assert_eq!(sources, ["10.0.0.1", "10.0.0.2", "10.0.0.1"]);
    }
}
