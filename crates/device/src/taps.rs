//! Taps: memory to which the shards of a link write their packets, for `ferroce capture` and
//! `ferroce explain`.
//!
//! Captures have rings. All packets of a link go to the same rings, under a lock of their own.
//!
//! The journal gets failures, decisions and the last packets of each queue pair (the flight
//! recorder). While no capture runs, a shard writes most packets to the journal by itself, without
//! this lock: see [`Recorder`](ferroce_shard::Recorder). Only packets with a text come here.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ferroce_control::path::RECORDER_VARIABLE;
use ferroce_roce::{
    Batch, Datagram, Decision, Failure, Fault, IpId, Received, Retransmission, Run, Time,
};
use ferroce_shard::{Recorder, received_path};
use ferroce_trace::{Direction, JournalFile, JournalWriter, Record, RingWriter};
use ferroce_wire::{MAX_HEADER_LEN, Opcode, Packet, Psn};

use crate::clock;
use crate::streams::{Segment, StreamDirection};

/// The taps of a link.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    /// True while captures run.
    captures: AtomicBool,
    /// True while a queue pair sends packets again, whose records have the cause.
    resends: AtomicBool,
    /// True if the journal gets packets and decisions, and not only failures.
    records: AtomicBool,
    /// True if it gets packets through shared memory without a decision, too.
    records_memory: AtomicBool,
    journal: OnceLock<JournalWriter>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rings: Vec<RingWriter>,
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
    /// Returns true while captures run.
    #[inline]
    pub(crate) fn captures(&self) -> bool {
        self.captures.load(Ordering::Relaxed)
    }

    /// Returns true while a queue pair sends packets again.
    #[inline]
    pub(crate) fn resends(&self) -> bool {
        self.resends.load(Ordering::Relaxed)
    }

    /// Returns the flight recorder for a call at this time; none if it is off.
    #[inline]
    pub(crate) fn recorder(&self, now: Time) -> Option<Recorder<'_>> {
        self.recording().map(|journal| {
            let in_memory = self.records_memory.load(Ordering::Relaxed);
            Recorder::new(journal, now, in_memory)
        })
    }

    /// Returns the journal if it gets packets: the flight recorder is on.
    #[inline]
    pub(crate) fn recording(&self) -> Option<&JournalWriter> {
        match self.records.load(Ordering::Relaxed) {
            true => self.journal.get(),
            false => None,
        }
    }

    /// Adds a ring.
    pub(crate) fn add(&self, ring: RingWriter) {
        self.lock().rings.push(ring);
        self.captures.store(true, Ordering::Relaxed);
    }

    /// Sets the journal, in place of that of an earlier ferroced.
    pub(crate) fn set_journal(&self, file: &JournalFile) -> std::io::Result<()> {
        match self.journal.get() {
            Some(journal) => journal.replace(file)?,
            None => drop(self.journal.set(JournalWriter::new(file)?)),
        }
        let setting = std::env::var_os(RECORDER_VARIABLE);
        let is = |value| setting.as_ref().is_some_and(|setting| setting == value);
        self.records_memory.store(is("1"), Ordering::Relaxed);
        self.records.store(!is("0"), Ordering::Relaxed);
        Ok(())
    }

    /// Writes a failure to the journal.
    pub(crate) fn failed(&self, failure: &Failure) {
        let Some(journal) = self.journal.get() else {
            return;
        };
        let text = match failure.wr_id {
            Some(wr_id) => format!("{}: {}, wr_id {wr_id:#x}", failure.status, failure.reason),
            None => format!("{}: {}", failure.status, failure.reason),
        };
        let record = Record {
            time_ns: clock::now().as_nanos(),
            trouble: true,
            qpn: failure.qpn,
            // The record has no packet: this is the code.
            length: failure.reason.code(),
            text: &text,
            ..Record::default()
        };
        journal.record(&record, || true);
    }

    /// Writes the cause of an asynchronous event to the journal, as a record of queue pair 0.
    pub(crate) fn event(&self, text: core::fmt::Arguments<'_>) {
        let Some(journal) = self.journal.get() else {
            return;
        };
        // Events come from several threads.
        let _one_at_a_time = self.lock();
        let record = Record {
            time_ns: clock::now().as_nanos(),
            trouble: true,
            text: &text.to_string(),
            ..Record::default()
        };
        journal.record(&record, || true);
    }

    /// Forgets a queue pair that is destroyed: the next one with its number has a story of its
    /// own.
    pub(crate) fn forget_qp(&self, qpn: u32) {
        if let Some(journal) = self.journal.get() {
            journal.forget(qpn);
        }
    }

    /// Notes that a queue pair gets another peer.
    pub(crate) fn path_changes(&self, qpn: u32) {
        if let Some(journal) = self.journal.get() {
            journal.path_changes(qpn);
        }
    }

    /// Writes a received packet, with the decisions about it and what a fault did to it. Without a
    /// result the fault has lost it. `exists` says whether its queue pair does.
    pub(crate) fn received(
        &self,
        datagram: &Datagram<'_>,
        result: Option<Received>,
        decisions: &[(u32, Decision)],
        fate: &str,
        exists: bool,
    ) {
        let mut state = self.lock();
        state.text.clear();
        state.text.push_str(fate);
        let mut trouble = !fate.is_empty();
        if let Some(Received::Dropped(why)) = result {
            state.describe(format_args!("dropped: {why}"));
            trouble = true;
        }
        for (qpn, decision) in decisions {
            trouble |= decision.is_trouble();
            state.describe(decision);
            state.remember(*qpn, decision);
        }
        let journal = self.recording().filter(|_| exists);
        state.write(&received_packet(datagram), trouble, journal);
        self.end(&mut state);
    }

    /// Writes the first `packets` packets of a merged run, with what a fault did to them.
    pub(crate) fn predicted(&self, run: &Datagram<'_>, segment: usize, packets: usize, fate: &str) {
        let mut state = self.lock();
        state.text.clear();
        state.text.push_str(fate);
        let mut rest = *run;
        for _ in 0..packets {
            let Some((first, others)) = rest.split_first(segment) else {
                break;
            };
            let trouble = !fate.is_empty();
            state.write(&received_packet(&first), trouble, self.recording());
            rest = others;
        }
        self.end(&mut state);
    }

    /// Writes the packets of a run that will be sent, with what faults do to them.
    pub(crate) fn assembled(
        &self,
        batch: &Batch,
        run: &Run,
        bytes: &[u8],
        faults: &[(usize, Fault)],
        fates: &[(usize, String)],
    ) {
        let mut state = self.lock();
        let (flow, mut rest) = (&run.path.flow, bytes);
        let mut fates = fates.iter().peekable();
        let mut index = 0;
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
            let mut trouble = state.describe_resend(packet.qpn(), bytes);
            if let Some((_, fate)) = fates.next_if(|(at, _)| *at == index) {
                state.describe(format_args!("{fate}"));
                trouble = true;
            }
            index += 1;
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
            state.write(&observed, trouble, self.recording());
        }
        self.end(&mut state);
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
            if let Some(journal) = self.recording()
                && !matches!(decision, Decision::Failed(_))
            {
                journal.record(&record, || true);
            }
            state.text = text;
        }
        self.end(&mut state);
    }

    /// Writes a segment of a stream.
    pub(crate) fn segment(&self, qpn: u32, segment: &Segment<'_>) {
        let mut state = self.lock();
        let time_ns = clock::now().as_nanos();
        let record = |snap: usize| Record {
            time_ns,
            direction: match segment.direction {
                StreamDirection::Sent => Direction::Sent,
                StreamDirection::Received => Direction::Received,
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
        if let Some(journal) = self.recording() {
            journal.record(&record(MAX_HEADER_LEN - segment.header), || true);
        }
        for ring in &mut state.rings {
            let filter = ring.filter();
            if filter.qpn.is_none_or(|only| only == qpn) {
                ring.write(&record(filter.snap as usize));
            }
        }
        self.end(&mut state);
    }

    /// Ends a call: forgets the rings whose readers have ended, and notes whether packets are sent
    /// again.
    fn end(&self, state: &mut State) {
        if state.rings.iter().any(RingWriter::is_closed) {
            state.rings.retain(|ring| !ring.is_closed());
            self.captures
                .store(!state.rings.is_empty(), Ordering::Relaxed);
        }
        self.resends
            .store(!state.resends.is_empty(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a decision, or what a fault did, to the text.
    fn describe(&mut self, decision: impl core::fmt::Display) {
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

    /// Writes a packet to the rings that want it, and to the journal.
    fn write(&mut self, packet: &Observed<'_>, trouble: bool, journal: Option<&JournalWriter>) {
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
        if let Some(journal) = journal {
            let opcode = packet.bytes.first().copied().and_then(Opcode::from_byte);
            let record = Record {
                text: &text,
                ..record(opcode.map_or(usize::MAX, Opcode::header_len))
            };
            journal.record(&record, || true);
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
}

fn received_packet<'a>(datagram: &Datagram<'a>) -> Observed<'a> {
    let dest_qpn = datagram.payload.get(5..8);
    let dest_qpn = dest_qpn.map_or(0, |b| u32::from_be_bytes([0, b[0], b[1], b[2]]));
    let path = received_path(datagram);
    Observed {
        direction: Direction::Received,
        qpn: dest_qpn,
        source: path.source,
        destination: path.destination,
        source_port: path.source_port,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        ip_id: match datagram.ip_id {
            IpId::Seen(id) => Some(id),
            IpId::Unseen(_) | IpId::InMemory => None,
        },
        bytes: datagram.payload,
    }
}
