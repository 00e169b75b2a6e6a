//! Packets as text: one line each.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use anyhow::Result;
use ferroce_trace::{Direction, Record};
use ferroce_wire::{NakCode, Opcode, Packet as Parsed, Syndrome, rnr_delay_ns};
use rustix::time::{ClockId, clock_gettime};

use super::segment::Segment;
use super::sources::{Packet, Source};

const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const RESET: &str = "\x1b[0m";

/// Lines on standard output.
pub(crate) struct Lines {
    out: BufWriter<Stdout>,
    colours: bool,
    offset_ns: i64,
}

impl Lines {
    pub(crate) fn new() -> Lines {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Lines {
            colours: io::stdout().is_terminal() && !plain,
            out: BufWriter::new(io::stdout()),
            offset_ns: wall_clock_offset_ns(),
        }
    }

    /// Prints a packet or a decision. Returns true for a packet.
    pub(crate) fn packet(&mut self, source: &Source, packet: &Packet) -> Result<bool> {
        let time_ns = packet.record.time_ns.saturating_add_signed(self.offset_ns);
        let (time, text) = (
            time_of_day(time_ns),
            describe(&packet.record, &packet.bytes),
        );
        let colour = |colour| if self.colours { colour } else { "" };
        let (dim, bold) = (colour(DIM), colour(BOLD));
        let (red, reset) = (colour(RED), colour(RESET));
        let (pid, program) = (source.pid, &source.program);
        let head = format!("{dim}{time} {program}/{pid}{reset}");
        let line = match packet.record.direction {
            Direction::None => {
                let qpn = packet.record.qpn;
                format!("{head}  !  qp {qpn:#08x} {red}{}{reset}", packet.text)
            }
            direction => {
                let arrow = match direction {
                    Direction::Received => "<",
                    _ => ">",
                };
                let trouble = if packet.is_trouble() { red } else { bold };
                let (opcode, rest) = text.split_once("  ").unwrap_or((&text, ""));
                let comment = match packet.text.as_str() {
                    "" => String::new(),
                    text => format!("  {red}[{text}]{reset}"),
                };
                format!("{head}  {arrow}  {trouble}{opcode}{reset} {rest}{comment}")
            }
        };
        writeln!(self.out, "{line}")?;
        Ok(packet.is_packet())
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.out.flush()?)
    }
}

/// Describes a packet: opcode, two spaces, QPNs, PSN, length and further headers.
pub(crate) fn describe(record: &Record<'_>, bytes: &[u8]) -> String {
    if let Some(segment) = Segment::of(record, bytes) {
        return segment.describe(record.qpn);
    }
    let bytes = padded(record, bytes);
    let Ok(packet) = Parsed::parse(&bytes) else {
        let opcode = bytes.first().copied().and_then(Opcode::from_byte);
        let opcode = opcode.map_or("not RoCE".into(), |opcode| opcode.to_string());
        return format!("{opcode}  {} bytes", record.length);
    };
    let (opcode, psn) = (packet.opcode(), packet.psn().value());
    let mut text = format!("{opcode}  ");
    let (from, to) = match record.direction {
        // The headers have no source QPN; the receiving queue pair knows its peer.
        Direction::Received => (String::new(), packet.dest_qpn()),
        _ => (format!("{:#08x} ", record.qpn), packet.dest_qpn()),
    };
    let headers = packet.header().len() + packet.pad() + ferroce_wire::ICRC_LEN;
    let length = (record.length as usize).saturating_sub(headers);
    let _infallible = write!(text, "qp {from}> {to:#08x} psn {psn} len {length}");
    if let Some(reth) = packet.reth() {
        let (va, rkey, length) = (reth.va, reth.rkey, reth.length);
        let _infallible = write!(text, " va {va:#x} rkey {rkey:#x} dlen {length}");
    }
    if let Some(aeth) = packet.aeth() {
        let _infallible = write!(text, " {} msn {}", syndrome(aeth.syndrome), aeth.msn);
    }
    if let Some(atomic) = packet.atomic_eth() {
        let (va, rkey) = (atomic.va, atomic.rkey);
        let _infallible = write!(text, " va {va:#x} rkey {rkey:#x}");
    }
    if let Some(deth) = packet.deth() {
        let (qpn, qkey) = (deth.source_qpn, deth.qkey);
        let _infallible = write!(text, " src_qp {qpn:#08x} qkey {qkey:#x}");
    }
    if let Some(imm) = packet.immediate() {
        let _infallible = write!(text, " imm {:#x}", u32::from_be(imm.0));
    }
    if let Some(ieth) = packet.ieth() {
        let _infallible = write!(text, " invalidates {:#x}", ieth.rkey);
    }
    if packet.ack_req() {
        text.push_str(" ackreq");
    }
    if packet.solicited() {
        text.push_str(" solicited");
    }
    text
}

/// Returns a packet with zeros in place of bytes that were not captured. It can be parsed if it
/// has all headers.
pub(crate) fn padded<'a>(record: &Record<'_>, bytes: &'a [u8]) -> Cow<'a, [u8]> {
    match bytes.len() < record.length as usize {
        true => [bytes, &[0; 3 + ferroce_wire::ICRC_LEN]].concat().into(),
        false => bytes.into(),
    }
}

fn syndrome(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack { .. } => "ack".into(),
        Syndrome::RnrNak { timer } => format!("RNR NAK {} us", rnr_delay_ns(timer) / 1000),
        Syndrome::Nak(code) => {
            let name = match code {
                NakCode::PsnSequence => "PSN sequence error",
                NakCode::InvalidRequest => "invalid request",
                NakCode::RemoteAccess => "remote access error",
                NakCode::RemoteOperational => "remote operational error",
                _ => "of another kind",
            };
            format!("NAK {name}")
        }
        Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#x}"),
    }
}

/// Returns the time of day in UTC.
pub(crate) fn time_of_day(ns: u64) -> String {
    let (seconds, micros) = (ns / 1_000_000_000 % 86_400, ns / 1000 % 1_000_000);
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{micros:06}")
}

/// Returns the difference between the wall clock and the monotonic clock.
pub(crate) fn wall_clock_offset_ns() -> i64 {
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    ns(ClockId::Realtime) - ns(ClockId::Monotonic)
}
