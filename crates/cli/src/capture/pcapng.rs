//! pcapng files: an interface for each program, and comments with the engine's decisions.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use ferroce_trace::Direction;

use super::blocks::{self, PacketBlock};
use super::frame::frame;
use super::line::wall_clock_offset_ns;
use super::segment::{Segment, Segments};
use super::sources::{Packet, Source};

/// Bytes of the headers in front of the BTH or of an FPDU, at most.
const FRONT: u32 = 14 + 40 + 24;

/// A pcapng file that is being written.
pub(crate) struct PcapNg<W: Write> {
    file: W,
    snap: u32,
    /// Interface of each program.
    interfaces: BTreeMap<u32, u32>,
    /// Decisions that belong to no packet. The next packet gets them as comments.
    decisions: Vec<String>,
    segments: Segments,
    offset_ns: i64,
}

impl<W: Write> PcapNg<W> {
    /// Begins a file for packets of up to `snap` bytes.
    pub(crate) fn new(mut file: W, snap: u32) -> Result<PcapNg<W>> {
        let application = format!("ferroce {}", env!("CARGO_PKG_VERSION"));
        blocks::section_header(&mut file, &application)?;
        Ok(PcapNg {
            file,
            snap,
            interfaces: BTreeMap::new(),
            decisions: Vec::new(),
            segments: Segments::default(),
            offset_ns: wall_clock_offset_ns(),
        })
    }

    /// Writes a packet, unless the file has it already. Keeps a decision for the next packet.
    /// Returns true if it has written a packet.
    pub(crate) fn packet(&mut self, source: &Source, packet: &Packet) -> Result<bool> {
        let flags = match packet.record.direction {
            Direction::None => {
                let qpn = packet.record.qpn;
                self.decisions
                    .push(format!("qp {qpn:#08x}: {}", packet.text));
                return Ok(false);
            }
            Direction::Received => 1,
            Direction::Sent => 2,
        };
        if let Some(segment) = Segment::of(&packet.record, &packet.bytes)
            && !self.segments.add(&segment)
        {
            return Ok(false);
        }
        let interface = self.interface(source)?;
        let frame = frame(&packet.record, &packet.bytes);
        let mut comments = core::mem::take(&mut self.decisions);
        if !packet.text.is_empty() {
            comments.push(packet.text.clone());
        }
        let block = PacketBlock {
            interface,
            time_ns: packet.record.time_ns.saturating_add_signed(self.offset_ns),
            bytes: &frame.bytes,
            length: frame.length,
            flags,
            comments: &comments,
        };
        blocks::packet(&mut self.file, &block)?;
        Ok(true)
    }

    /// Writes buffered bytes: a live reader sees them at once.
    pub(crate) fn flush(&mut self) -> Result<()> {
        Ok(self.file.flush()?)
    }

    /// Returns the interface of a program, and describes it before its first packet.
    fn interface(&mut self, source: &Source) -> Result<u32> {
        if let Some(number) = self.interfaces.get(&source.number) {
            return Ok(*number);
        }
        let description = format!("{} ({})", source.program, source.pid);
        let snap = self.snap + FRONT;
        blocks::interface(&mut self.file, snap, &source.link, &description)?;
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(source.number, number);
        Ok(number)
    }
}
