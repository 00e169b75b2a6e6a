//! Taps: memory to which the shards of a link write their packets, for `ferroce capture` and
//! `ferroce explain`.
//!
//! Captures have rings. The journal gets each failure, and with the flight recorder the last
//! packets of each queue pair, too. A shard looks once per call whether there is a tap. Without one nothing is done for any
//! packet. All packets of a link go to the same rings, under a lock of their own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferroce_control::path::RECORDER_VARIABLE;
use ferroce_roce::{
    Batch, Datagram, Decision, Failure, Fault, IpId, Received, Retransmission, Run,
};
use ferroce_trace::{Direction, JournalFile, JournalWriter, Record, RingWriter};
use ferroce_wire::{MAX_HEADER_LEN, Packet, Psn};

use crate::clock;
use crate::streams::{Segment, Way};

/// The first of the UDP ports that RoCE sends from.
const DYNAMIC_PORTS: u16 = 0xc000;

/// The taps of a link.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    exist: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rings: Vec<RingWriter>,
    /// The journal, which is mapped when the first record is written.
    journal_file: Option<JournalFile>,
    journal: Option<JournalWriter>,
    /// True if the journal gets all packets (the flight recorder).
    records: bool,
    /// Packets that queue pairs send again.
    resends: BTreeMap<u32, Resend>,
    text: String,
}

/// Packets that a queue pair sends again.
#[derive(Copy, Clone, Debug)]
struct Resend {
    from: Psn,
    until: Psn,
    /// None for a probe.
    cause: Option<Retransmission>,
}

/// A packet, for a record.
struct Observed<'a> {
    direction: Direction,
    qpn: u32,
    source: IpAddr,
    destination: IpAddr,
    source_port: u16,
    traffic_class: u8,
    hop_limit: u8,
    ip_id: Option<u16>,
    bytes: &'a [u8],
}

impl Taps {
    /// Returns true if packets are to be observed.
    #[inline]
    pub(crate) fn exist(&self) -> bool {
        self.exist.load(Ordering::Relaxed)
    }

    /// Adds a ring.
    pub(crate) fn add(&self, ring: RingWriter) {
        self.lock().rings.push(ring);
        self.exist.store(true, Ordering::Relaxed);
    }

    /// Sets the journal. With the flight recorder, it gets all packets from now on.
    pub(crate) fn set_journal(&self, file: JournalFile) {
        let mut state = self.lock();
        state.journal_file = Some(file);
        state.journal = None;
        state.records = std::env::var_os(RECORDER_VARIABLE).is_some_and(|value| value != "0");
        if state.records {
            self.exist.store(true, Ordering::Relaxed);
        }
    }

    /// Writes a failure to the journal.
    pub(crate) fn failed(&self, failure: &Failure) {
        let mut state = self.lock();
        let text = match failure.wr_id {
            Some(wr_id) => format!("{}: {}, wr_id {wr_id:#x}", failure.status, failure.reason),
            None => format!("{}: {}", failure.status, failure.reason),
        };
        state.write_journal(&Record {
            time_ns: clock::now().as_nanos(),
            trouble: true,
            qpn: failure.qpn,
            // The record has no packet: this is the code.
            length: failure.reason.code(),
            text: &text,
            ..Record::default()
        });
    }

    /// Forgets a queue pair that is destroyed: the next one with its number has a story of its
    /// own.
    pub(crate) fn forget_qp(&self, qpn: u32) {
        if let Some(journal) = &mut self.lock().journal {
            journal.forget(qpn);
        }
    }

    /// Writes a received packet with the decisions about it.
    pub(crate) fn received(
        &self,
        datagram: &Datagram<'_>,
        result: Received,
        decisions: &[(u32, Decision)],
    ) {
        let mut state = self.lock();
        state.text.clear();
        let mut trouble = false;
        if let Received::Dropped(why) = result {
            let _infallible = write!(state.text, "dropped: {why}");
            trouble = true;
        }
        for (qpn, decision) in decisions {
            trouble |= decision.is_trouble();
            state.describe(decision);
            state.remember(*qpn, decision);
        }
        state.write(&received_packet(datagram), trouble);
        self.forget_closed(&mut state);
    }

    /// Writes the first `packets` packets of a merged run.
    pub(crate) fn predicted(&self, run: &Datagram<'_>, segment: usize, packets: usize) {
        let mut state = self.lock();
        state.text.clear();
        let mut rest = *run;
        for _ in 0..packets {
            let Some((first, others)) = rest.split_first(segment) else {
                break;
            };
            state.write(&received_packet(&first), false);
            rest = others;
        }
        self.forget_closed(&mut state);
    }

    /// Writes the packets of a run that will be sent.
    pub(crate) fn assembled(
        &self,
        batch: &Batch,
        run: &Run,
        bytes: &[u8],
        faults: &[(usize, Fault)],
    ) {
        let mut state = self.lock();
        let (flow, mut rest) = (&run.path.flow, bytes);
        for number in run.packets.clone() {
            // A packet whose payload cannot be read is not sent.
            if faults.iter().any(|(fault, _)| *fault == number) {
                continue;
            }
            let packet = batch.packet(number);
            let Some((bytes, others)) = rest.split_at_checked(packet.wire_len()) else {
                break;
            };
            rest = others;
            state.text.clear();
            let again = state.describe_resend(packet.qpn(), bytes);
            let observed = Observed {
                direction: Direction::Sent,
                qpn: packet.qpn(),
                source: flow.source,
                destination: flow.destination,
                source_port: flow.source_port,
                traffic_class: run.path.traffic_class,
                hop_limit: run.path.hop_limit,
                ip_id: None,
                bytes,
            };
            state.write(&observed, again);
        }
        self.forget_closed(&mut state);
    }

    /// Writes decisions that belong to no received packet.
    pub(crate) fn decided(&self, decisions: &[(u32, Decision)]) {
        let mut state = self.lock();
        let time_ns = clock::now().as_nanos();
        for (qpn, decision) in decisions {
            state.remember(*qpn, decision);
            state.text.clear();
            state.describe(decision);
            let text = core::mem::take(&mut state.text);
            let record = Record {
                time_ns,
                trouble: decision.is_trouble(),
                qpn: *qpn,
                text: &text,
                ..Record::default()
            };
            for ring in &mut state.rings {
                if ring.filter().qpn.is_none_or(|only| only == *qpn) {
                    ring.write(&record);
                }
            }
            // Failures are in the journal with their codes.
            if state.records && !matches!(decision, Decision::Failed(_)) {
                state.write_journal(&record);
            }
            state.text = text;
        }
        self.forget_closed(&mut state);
    }

    /// Writes a segment of a stream.
    pub(crate) fn segment(&self, qpn: u32, segment: &Segment<'_>) {
        let mut state = self.lock();
        let time_ns = clock::now().as_nanos();
        let record = |snap: usize| Record {
            time_ns,
            direction: match segment.direction {
                Way::Sent => Direction::Sent,
                Way::Received => Direction::Received,
            },
            trouble: segment.trouble,
            qpn,
            source: segment.source.ip(),
            destination: segment.destination.ip(),
            tcp: true,
            length: segment.bytes.len() as u32,
            bytes: &segment.bytes[..segment.bytes.len().min(segment.header + snap)],
            ..Record::default()
        };
        if state.records {
            state.write_journal(&record(MAX_HEADER_LEN - segment.header));
        }
        for ring in &mut state.rings {
            let filter = ring.filter();
            if filter.qpn.is_none_or(|only| only == qpn) {
                ring.write(&record(filter.snap as usize));
            }
        }
        self.forget_closed(&mut state);
    }

    /// Forgets the rings whose readers have ended.
    fn forget_closed(&self, state: &mut State) {
        if state.rings.iter().any(RingWriter::is_closed) {
            state.rings.retain(|ring| !ring.is_closed());
            if state.rings.is_empty() && !state.records {
                state.resends.clear();
                self.exist.store(false, Ordering::Relaxed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a decision to the text.
    fn describe(&mut self, decision: &Decision) {
        if !self.text.is_empty() {
            self.text.push_str("; ");
        }
        let _infallible = write!(self.text, "{decision}");
    }

    /// Remembers which packets a queue pair will send again.
    fn remember(&mut self, qpn: u32, decision: &Decision) {
        let resend = match *decision {
            Decision::GoBack { from, until, cause } => Resend {
                from,
                until,
                cause: Some(cause),
            },
            Decision::Probe { psn } => Resend {
                from: psn,
                until: psn.next(),
                cause: None,
            },
            _ => return,
        };
        self.resends.insert(qpn, resend);
    }

    /// Describes why a packet is sent again. Returns false if it is sent for the first time.
    fn describe_resend(&mut self, qpn: u32, bytes: &[u8]) -> bool {
        let Some(resend) = self.resends.get(&qpn).copied() else {
            return false;
        };
        let request = Packet::parse(bytes).ok();
        let Some(request) = request.filter(|packet| !packet.opcode().is_response()) else {
            return false;
        };
        if request.psn().is_before(resend.from) || !request.psn().is_before(resend.until) {
            // The queue pair is past the packets, or has gone on before them.
            self.resends.remove(&qpn);
            return false;
        }
        let _infallible = match resend.cause {
            Some(cause) => write!(self.text, "retransmitted: {cause}"),
            None => write!(self.text, "probe: the response is overdue"),
        };
        true
    }

    /// Writes a packet to the rings that want it.
    fn write(&mut self, packet: &Observed<'_>, trouble: bool) {
        let time_ns = clock::now().as_nanos();
        let dest_qpn = packet.bytes.get(5..8);
        let dest_qpn = dest_qpn.map(|b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
        let record = |snap: usize| Record {
            time_ns,
            direction: packet.direction,
            trouble,
            qpn: packet.qpn,
            source: packet.source,
            destination: packet.destination,
            source_port: packet.source_port,
            traffic_class: packet.traffic_class,
            hop_limit: packet.hop_limit,
            ip_id: packet.ip_id,
            length: packet.bytes.len() as u32,
            bytes: &packet.bytes[..packet.bytes.len().min(snap).min(0xffff)],
            ..Record::default()
        };
        let text = core::mem::take(&mut self.text);
        if self.records {
            self.write_journal(&Record {
                text: &text,
                ..record(MAX_HEADER_LEN)
            });
        }
        for ring in &mut self.rings {
            let filter = ring.filter();
            let wants = |only| only == packet.qpn || Some(only) == dest_qpn;
            if !filter.qpn.is_none_or(wants) {
                continue;
            }
            ring.write(&Record {
                text: &text,
                ..record(filter.snap as usize)
            });
        }
        self.text = text;
    }

    /// Writes a record to the journal, and maps the journal before the first one.
    fn write_journal(&mut self, record: &Record<'_>) {
        if self.journal.is_none()
            && let Some(file) = self.journal_file.take()
        {
            match JournalWriter::new(&file) {
                Ok(journal) => self.journal = Some(journal),
                Err(error) => tracing::warn!("failures are not recorded: {error}"),
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.write(record);
        }
    }
}

fn received_packet<'a>(datagram: &Datagram<'a>) -> Observed<'a> {
    let dest_qpn = datagram.payload.get(5..8);
    let dest_qpn = dest_qpn.map_or(0, |b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
    Observed {
        direction: Direction::Received,
        qpn: dest_qpn,
        source: datagram.source,
        destination: datagram.destination,
        source_port: match datagram.ip_id {
            // The number is that of the sender's slot.
            IpId::InMemory => DYNAMIC_PORTS | datagram.source_port,
            IpId::Seen(_) | IpId::Unseen(_) => datagram.source_port,
        },
        traffic_class: datagram.traffic_class,
        hop_limit: datagram.hop_limit,
        ip_id: match datagram.ip_id {
            IpId::Seen(id) => Some(id),
            IpId::Unseen(_) | IpId::InMemory => None,
        },
        bytes: datagram.payload,
    }
}
