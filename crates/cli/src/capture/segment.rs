//! TCP segments of iWARP: their headers, their words for a line, and those that a capture file
//! has already.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use ferroce_device::iwarp::header::{Header, Place};
use ferroce_device::iwarp::opcode::Opcode;
use ferroce_device::iwarp::terminate::Terminate;
use ferroce_trace::Record;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// A segment of a record.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Segment<'a> {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    seq: u32,
    flags: u8,
    /// The payload, or the beginning of it.
    payload: &'a [u8],
    /// Bytes of the whole payload.
    length: u32,
}

impl<'a> Segment<'a> {
    /// Reads the segment of a record that has one.
    pub(super) fn of(record: &Record<'_>, bytes: &'a [u8]) -> Option<Segment<'a>> {
        if !record.tcp {
            return None;
        }
        let number = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let word = |at: usize| Some(u32::from(number(at)?) << 16 | u32::from(number(at + 2)?));
        let header = usize::from(bytes.get(12)? >> 4) * 4;
        Some(Segment {
            source: SocketAddr::new(record.source, number(0)?),
            destination: SocketAddr::new(record.destination, number(2)?),
            seq: word(4)?,
            flags: *bytes.get(13)?,
            payload: bytes.get(header..)?,
            length: record.length.saturating_sub(header as u32),
        })
    }

    /// Describes the segment: a name, two spaces, and the headers of iWARP.
    pub(super) fn describe(&self, qpn: u32) -> String {
        let (from, to, length) = (self.source, self.destination, self.length);
        let of_tcp = |name: &str| format!("{name}  qp {qpn:#08x} {from} > {to} len {length}");
        match self.flags {
            flags if flags & RST != 0 => return of_tcp("TCP_RST"),
            flags if flags & SYN != 0 => return of_tcp("TCP_SYN"),
            flags if flags & FIN != 0 => return of_tcp("TCP_FIN"),
            _ if length == 0 => return of_tcp("TCP_ACK"),
            _ => {}
        }
        if self.payload.starts_with(b"MPA ID Req") {
            return of_tcp("MPA_REQUEST");
        }
        if self.payload.starts_with(b"MPA ID Rep") {
            return of_tcp("MPA_REPLY");
        }
        let start = self.payload.first_chunk().copied();
        let headers = start.and_then(|start| Header::length(start).ok());
        let headers = headers.and_then(|length| self.payload.get(..length));
        match headers.and_then(|bytes| Some((Header::decode(bytes).ok()?, bytes.len()))) {
            Some((header, behind)) => self.describe_fpdu(qpn, &header, &self.payload[behind..]),
            None => of_tcp("TCP_DATA"),
        }
    }

    fn describe_fpdu(&self, qpn: u32, header: &Header, payload: &[u8]) -> String {
        let (name, length) = (name(header.opcode), header.payload);
        let mut text = format!("{name}  qp {qpn:#08x}");
        match header.place {
            Place::Tagged { stag, offset } => {
                let _infallible = write!(text, " stag {stag:#x} to {offset:#x}");
            }
            Place::Untagged {
                invalidate,
                msn,
                mo,
                read,
                ..
            } => {
                let _infallible = write!(text, " msn {msn} mo {mo}");
                if invalidate != 0 {
                    let _infallible = write!(text, " invalidates {invalidate:#x}");
                }
                if let Some(read) = read {
                    let _infallible = write!(
                        text,
                        " source {:#x} {:#x} sink {:#x} {:#x} dlen {}",
                        read.source_stag,
                        read.source_offset,
                        read.sink_stag,
                        read.sink_offset,
                        read.size
                    );
                }
            }
        }
        let _infallible = write!(text, " len {length}");
        if header.last {
            text.push_str(" last");
        }
        if header.opcode == Opcode::Terminate
            && let Some(terminate) = Terminate::decode(payload)
        {
            let _infallible = write!(text, " {}", terminate.code);
        }
        text
    }
}

fn name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Write => "WRITE",
        Opcode::ReadRequest => "READ_REQUEST",
        Opcode::ReadResponse => "READ_RESPONSE",
        Opcode::Send => "SEND",
        Opcode::SendInvalidate => "SEND_INVALIDATE",
        Opcode::SendSolicited => "SEND_SOLICITED",
        Opcode::SendSolicitedInvalidate => "SEND_SOLICITED_INVALIDATE",
        Opcode::Terminate => "TERMINATE",
    }
}

/// The segments that a capture file has.
///
/// If both ends of a connection are captured, each segment is recorded twice. A reader of the
/// file would take the second one for a retransmission.
#[derive(Debug, Default)]
pub(super) struct Segments(BTreeMap<(SocketAddr, SocketAddr), Flow>);

/// The segments of one direction.
#[derive(Debug, Default)]
struct Flow {
    /// Sequence number behind the last segment.
    next: u32,
    has_ack: bool,
    has_ended: bool,
}

impl Segments {
    /// Returns true if the file does not have a segment yet.
    pub(super) fn add(&mut self, segment: &Segment<'_>) -> bool {
        let key = (segment.source, segment.destination);
        let counts = segment.length + u32::from(segment.flags & (SYN | FIN) != 0);
        let end = segment.seq.wrapping_add(counts);
        let is_fresh = self.0.get(&key).is_none_or(|flow| flow.has_ended);
        // The ports of an ended connection may serve another one.
        if is_fresh && segment.flags & SYN != 0 {
            let flow = Flow {
                next: end,
                ..Flow::default()
            };
            self.0.insert(key, flow);
            return true;
        }
        let flow = self.0.entry(key).or_insert_with(|| Flow {
            next: segment.seq,
            ..Flow::default()
        });
        if segment.flags & RST != 0 {
            return !core::mem::replace(&mut flow.has_ended, true);
        }
        if counts == 0 {
            return !core::mem::replace(&mut flow.has_ack, true);
        }
        // Segments of one end arrive in order.
        let is_new = end.wrapping_sub(flow.next) as i32 > 0;
        if is_new {
            flow.next = end;
            flow.has_ended |= segment.flags & FIN != 0;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(ports: (u16, u16), seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(ports.0.to_be_bytes());
        bytes.extend(ports.1.to_be_bytes());
        bytes.extend(seq.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    fn record(length: usize) -> Record<'static> {
        Record {
            tcp: true,
            length: length as u32,
            ..Record::default()
        }
    }

    fn adds(segments: &mut Segments, bytes: &[u8]) -> bool {
        let record = record(bytes.len());
        segments.add(&Segment::of(&record, bytes).expect("TCP"))
    }

    #[test]
    fn segment_of_two_programs_is_in_the_file_once() {
        let mut segments = Segments::default();
        let there = (40_000, 7174);
        let all = [
            bytes(there, 0, SYN, &[]),
            bytes(there, 1, 16, &[]),
            bytes(there, 1, 24, b"MPA ID Req Frame...."),
            bytes(there, 21, 24, &[0; 20]),
            bytes(there, 41, FIN | 16, &[]),
        ];
        for (n, segment) in all.iter().enumerate() {
            assert!(adds(&mut segments, segment), "segment {n}");
            assert!(!adds(&mut segments, segment), "segment {n} again");
        }
        let back = bytes((7174, 40_000), 0, SYN | 16, &[]);
        assert!(adds(&mut segments, &back), "the other direction");
        assert!(adds(&mut segments, &all[0]), "another connection");
        assert!(adds(&mut segments, &all[2]));
    }

    #[test]
    fn connection_without_a_beginning_is_in_the_file() {
        let mut segments = Segments::default();
        let segment = bytes((1, 2), u32::MAX - 3, 24, &[0; 8]);
        assert!(adds(&mut segments, &segment));
        assert!(!adds(&mut segments, &segment));
        assert!(
            adds(&mut segments, &bytes((1, 2), 4, 24, &[0; 8])),
            "it wraps"
        );
    }

    #[test]
    fn lines_name_the_headers_of_iwarp() {
        let describe = |flags, payload: &[u8]| {
            let bytes = bytes((40_000, 7174), 1, flags, payload);
            let record = record(bytes.len());
            Segment::of(&record, &bytes).expect("TCP").describe(0x101)
        };
        assert_eq!(
            describe(SYN, &[]),
            "TCP_SYN  qp 0x000101 0.0.0.0:40000 > 0.0.0.0:7174 len 0"
        );
        assert!(describe(24, b"MPA ID Rep Frame....").starts_with("MPA_REPLY  "));
        let mut fpdu = Vec::new();
        Header::tagged(Opcode::Write, true, 0x200, 0x1000, 64).encode(&mut fpdu);
        fpdu.extend([0; 64 + 4]);
        assert_eq!(
            describe(24, &fpdu),
            "WRITE  qp 0x000101 stag 0x200 to 0x1000 len 64 last"
        );
        // The beginning of a segment, too.
        assert_eq!(describe(24, &fpdu[..16]), describe(24, &fpdu));
        assert!(describe(24, &[1, 2, 3]).starts_with("TCP_DATA  "));
    }
}
