//! A stream as a capture shows it: TCP segments with one FPDU each.
//!
//! The kernel makes the real segments, and this process does not see them. So the segments are
//! made up from the bytes that were sent and received: a handshake, the MPA frames of the setup,
//! FPDUs, and the end. Sequence numbers count the real bytes. The other end of a connection makes
//! up the same segments, if it is captured, too.

use std::net::SocketAddr;

use ferroce_iwarp::fpdu::fpdu_len;
use ferroce_iwarp::mpa::Role;

/// Bytes of a TCP header without options.
const TCP_LEN: usize = 20;
/// Most bytes of a segment. With all headers it fits into an IP packet.
const MOST: usize = 65_480;
/// Option of a SYN: window scale 14, so that no window is too small for the bytes in flight.
const WINDOW_SCALE: [u8; 4] = [1, 3, 3, 14];
const WINDOW: u16 = u16::MAX;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// Opcode of a TERMINATE, in the fourth byte of an FPDU.
const TERMINATE: u8 = 7;

/// A segment: TCP header and payload.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) direction: StreamDirection,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// Bytes of the TCP header.
    pub(crate) header: usize,
    pub(crate) bytes: &'a [u8],
    /// True for a reset or a TERMINATE.
    pub(crate) trouble: bool,
}

/// The direction of a segment.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum StreamDirection {
    Sent,
    Received,
}

/// The segments of one direction.
#[derive(Debug, Default)]
struct Lane {
    /// Sequence number of the next byte.
    seq: u32,
    /// Bytes of an FPDU that had begun before the capture.
    skip: usize,
    /// The FPDU of which not all bytes have passed.
    partial: Vec<u8>,
    has_ended: bool,
}

/// The made-up segments of a stream.
#[derive(Debug)]
pub(super) struct StreamTap {
    local: SocketAddr,
    peer: SocketAddr,
    sent: Lane,
    received: Lane,
    segment: Vec<u8>,
}

impl StreamTap {
    /// Creates the tap of a stream. `left` are the bytes until the ends of the FPDUs that are
    /// partly sent and partly received.
    pub(super) fn new(local: SocketAddr, peer: SocketAddr, left: (usize, usize)) -> StreamTap {
        let lane = |skip| Lane {
            skip,
            ..Lane::default()
        };
        StreamTap {
            local,
            peer,
            sent: lane(left.0),
            received: lane(left.1),
            segment: Vec::new(),
        }
    }

    /// Makes the segments of the setup.
    pub(super) fn begin(
        &mut self,
        role: Role,
        request: &[u8],
        reply: &[u8],
        emit: &mut dyn FnMut(Segment<'_>),
    ) {
        let (client, server) = match role {
            Role::Initiator => (StreamDirection::Sent, StreamDirection::Received),
            Role::Responder => (StreamDirection::Received, StreamDirection::Sent),
        };
        self.emit(client, SYN, &[], emit);
        self.emit(server, SYN | ACK, &[], emit);
        self.emit(client, ACK, &[], emit);
        self.emit(client, PSH | ACK, request, emit);
        self.emit(server, PSH | ACK, reply, emit);
    }

    /// Takes bytes of the stream. Makes a segment for each FPDU that they complete.
    pub(super) fn pass(
        &mut self,
        direction: StreamDirection,
        bytes: &[u8],
        emit: &mut dyn FnMut(Segment<'_>),
    ) {
        let lane = self.lane(direction);
        let skipped = lane.skip.min(bytes.len());
        lane.skip -= skipped;
        lane.partial.extend_from_slice(&bytes[skipped..]);
        let whole = core::mem::take(&mut lane.partial);
        let mut rest = &whole[..];
        while let Some(fpdu) = first_fpdu(rest) {
            for part in fpdu.chunks(MOST) {
                self.emit(direction, PSH | ACK, part, emit);
            }
            rest = &rest[fpdu.len()..];
        }
        let kept = whole.len() - rest.len();
        let mut whole = whole;
        whole.drain(..kept);
        self.lane(direction).partial = whole;
    }

    /// Makes the segment for the end of a direction.
    pub(super) fn end(&mut self, direction: StreamDirection, emit: &mut dyn FnMut(Segment<'_>)) {
        if !core::mem::replace(&mut self.lane(direction).has_ended, true) {
            self.emit(direction, FIN | ACK, &[], emit);
        }
    }

    /// Makes the segment for a reset.
    pub(super) fn reset(&mut self, direction: StreamDirection, emit: &mut dyn FnMut(Segment<'_>)) {
        self.emit(direction, RST | ACK, &[], emit);
    }

    fn lane(&mut self, direction: StreamDirection) -> &mut Lane {
        match direction {
            StreamDirection::Sent => &mut self.sent,
            StreamDirection::Received => &mut self.received,
        }
    }

    fn emit(
        &mut self,
        direction: StreamDirection,
        flags: u8,
        payload: &[u8],
        emit: &mut dyn FnMut(Segment<'_>),
    ) {
        let ((source, this), (destination, other)) = match direction {
            StreamDirection::Sent => ((self.local, &mut self.sent), (self.peer, &self.received)),
            StreamDirection::Received => {
                ((self.peer, &mut self.received), (self.local, &self.sent))
            }
        };
        let options: &[u8] = match flags & SYN {
            0 => &[],
            _ => &WINDOW_SCALE,
        };
        let ack = match flags & ACK {
            0 => 0,
            _ => other.seq,
        };
        let header = TCP_LEN + options.len();
        let segment = &mut self.segment;
        segment.clear();
        segment.extend(source.port().to_be_bytes());
        segment.extend(destination.port().to_be_bytes());
        segment.extend(this.seq.to_be_bytes());
        segment.extend(ack.to_be_bytes());
        segment.extend([(header as u8 / 4) << 4, flags]);
        segment.extend(WINDOW.to_be_bytes());
        // Checksum and urgent pointer.
        segment.extend([0; 4]);
        segment.extend(options);
        segment.extend(payload);
        let counts = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
        this.seq = this.seq.wrapping_add(counts);
        let is_terminate = payload.get(3).is_some_and(|byte| byte & 0xf == TERMINATE);
        emit(Segment {
            direction,
            source,
            destination,
            header,
            bytes: segment,
            trouble: flags & RST != 0 || is_terminate && flags & PSH != 0 && !is_mpa(payload),
        });
    }
}

/// True for a frame of the setup.
fn is_mpa(payload: &[u8]) -> bool {
    payload.starts_with(b"MPA ID Re")
}

/// Returns the first FPDU, if all of it is there.
fn first_fpdu(bytes: &[u8]) -> Option<&[u8]> {
    let length = u16::from_be_bytes(*bytes.first_chunk()?);
    bytes.get(..fpdu_len(length.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);
    const PEER: ([u8; 4], u16) = ([10, 0, 0, 2], 7174);

    /// Direction, flags, sequence and acknowledgement numbers, and payload of a segment.
    type Seen = (StreamDirection, u8, u32, u32, Vec<u8>);

    fn seen(segment: Segment<'_>) -> Seen {
        let word = |at: usize| u32::from_be_bytes(segment.bytes[at..at + 4].try_into().unwrap());
        let payload = segment.bytes[segment.header..].to_vec();
        (
            segment.direction,
            segment.bytes[13],
            word(4),
            word(8),
            payload,
        )
    }

    fn tap(left: (usize, usize)) -> StreamTap {
        StreamTap::new(LOCAL.into(), PEER.into(), left)
    }

    /// An FPDU whose ULPDU has `length` bytes.
    fn fpdu(length: u16) -> Vec<u8> {
        let mut bytes = vec![0x5a; fpdu_len(length.into())];
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    #[test]
    fn both_ends_make_up_the_same_segments() {
        let (mut here, mut there) = (Vec::new(), Vec::new());
        let (request, reply) = (b"MPA ID Req Frame....", b"MPA ID Rep Frame....----");
        let mut one = tap((0, 0));
        one.begin(Role::Initiator, request, reply, &mut |s| here.push(seen(s)));
        let mut other = StreamTap::new(PEER.into(), LOCAL.into(), (0, 0));
        other.begin(Role::Responder, request, reply, &mut |s| {
            there.push(seen(s));
        });
        let flip = |(direction, flags, seq, ack, payload): Seen| {
            let direction = match direction {
                StreamDirection::Sent => StreamDirection::Received,
                StreamDirection::Received => StreamDirection::Sent,
            };
            (direction, flags, seq, ack, payload)
        };
        let there: Vec<Seen> = there.into_iter().map(flip).collect();
        assert_eq!(here, there);
        let numbers: Vec<(u8, u32, u32)> = here.iter().map(|s| (s.1, s.2, s.3)).collect();
        assert_eq!(
            numbers,
            [
                (SYN, 0, 0),
                (SYN | ACK, 0, 1),
                (ACK, 1, 1),
                (PSH | ACK, 1, 1),
                (PSH | ACK, 1, 21)
            ]
        );
    }

    #[test]
    fn each_fpdu_is_a_segment_however_the_bytes_are_cut() {
        let fpdus = [fpdu(14), fpdu(1000), fpdu(15)];
        let bytes = fpdus.concat();
        for cut in 0..bytes.len() {
            let mut tap = tap((0, 0));
            let mut segments = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                tap.pass(StreamDirection::Sent, part, &mut |s| segments.push(seen(s)));
            }
            let payloads: Vec<&Vec<u8>> = segments.iter().map(|s| &s.4).collect();
            assert_eq!(payloads, [&fpdus[0], &fpdus[1], &fpdus[2]], "cut at {cut}");
            assert_eq!(segments[2].2, (bytes.len() - fpdus[2].len()) as u32);
        }
    }

    #[test]
    fn fpdu_that_began_before_the_capture_is_left_out() {
        let (first, second) = (fpdu(100), fpdu(20));
        let mut tap = tap((0, 30));
        let mut segments = Vec::new();
        let bytes = [&first[first.len() - 30..], &second].concat();
        tap.pass(StreamDirection::Received, &bytes, &mut |s| {
            segments.push(seen(s))
        });
        assert_eq!(segments.len(), 1);
        assert_eq!((segments[0].2, &segments[0].4), (0, &second));
    }

    #[test]
    fn longest_fpdu_fits_into_ip_packets() {
        let mut tap = tap((0, 0));
        let mut lengths = Vec::new();
        tap.pass(StreamDirection::Sent, &fpdu(u16::MAX), &mut |s| {
            lengths.push(s.bytes.len())
        });
        assert!(
            lengths.iter().all(|length| length + 20 <= 65_535),
            "{lengths:?}"
        );
        assert_eq!(lengths.len(), 2);
    }

    #[test]
    fn end_and_reset_are_segments_too() {
        let mut tap = tap((0, 0));
        let mut segments = Vec::new();
        let mut trouble = Vec::new();
        let mut emit = |segment: Segment<'_>| {
            trouble.push(segment.trouble);
            segments.push(seen(segment));
        };
        tap.end(StreamDirection::Sent, &mut emit);
        tap.end(StreamDirection::Sent, &mut emit);
        tap.reset(StreamDirection::Received, &mut emit);
        let numbers: Vec<(u8, u32, u32)> = segments.iter().map(|s| (s.1, s.2, s.3)).collect();
        assert_eq!(numbers, [(FIN | ACK, 0, 0), (RST | ACK, 0, 1)]);
        assert_eq!(trouble, [false, true]);
    }
}
