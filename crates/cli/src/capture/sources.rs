//! The programs that are captured, and their packets in the order of time.

use std::os::fd::OwnedFd;

use super::line::padded;
use anyhow::{Context, Result};
use ferroce_control::Captured;
use ferroce_trace::{Direction, Record, RingReader};
use ferroce_wire::{Packet as Parsed, Syndrome};
use rustix::time::{ClockId, clock_gettime};

/// Packets that are taken from a program before others get their turn.
const TURN: usize = 4096;

/// The programs that are captured.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    all: Vec<Source>,
    /// Records that are newer than some that may not be written yet.
    pending: Vec<Packet>,
    /// Records that ended programs have lost.
    lost: u64,
}

/// A program.
#[derive(Debug)]
pub(crate) struct Source {
    /// Number of the program, in the order of appearance.
    pub(crate) number: u32,
    /// The link.
    pub(crate) link: String,
    /// Process number and name.
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// None if the program has ended.
    ring: Option<RingReader>,
}

/// A packet, or a decision without one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    /// Number of the program.
    pub(crate) source: u32,
    /// The record, without its packet and text.
    pub(crate) record: Record<'static>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) text: String,
}

impl Packet {
    /// Copies a record.
    pub(crate) fn new(source: u32, record: &Record<'_>) -> Packet {
        Packet {
            source,
            bytes: record.bytes.to_vec(),
            text: record.text.to_owned(),
            record: Record {
                bytes: &[],
                text: "",
                ..*record
            },
        }
    }

    /// Returns false for a decision without a packet.
    pub(crate) fn is_packet(&self) -> bool {
        self.record.direction != Direction::None
    }

    /// Returns true if the packet was dropped, is a duplicate, is sent again, or is a NAK.
    pub(crate) fn is_trouble(&self) -> bool {
        if self.record.tcp {
            return self.record.trouble;
        }
        let bytes = padded(&self.record, &self.bytes);
        let packet = Parsed::parse(&bytes).ok();
        let aeth = packet.and_then(|packet| packet.aeth());
        let acks = aeth.is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        self.record.trouble || !acks
    }
}

impl Sources {
    /// Adds a program that ferroced has introduced.
    pub(crate) fn add(&mut self, program: Captured) -> Result<()> {
        // A ferroced that was restarted introduces the programs again that are captured already.
        let is_same = |source: &Source| {
            source.pid == program.process.pid
                && source.link == program.link
                && source.ring.is_some()
        };
        if self.all.iter().any(is_same) {
            // Unless the program has closed the link and opened it again.
            self.read(usize::MAX);
        }
        if self.all.iter().any(is_same) {
            return Ok(());
        }
        let ring = RingReader::new(program.ring, program.socket);
        let ring = ring.with_context(|| format!("process {}", program.process.pid))?;
        self.all.push(Source {
            number: self.all.len() as u32,
            link: program.link,
            pid: program.process.pid,
            program: program.process.program,
            ring: Some(ring),
        });
        Ok(())
    }

    /// Returns the program of a packet.
    pub(crate) fn of(&self, packet: &Packet) -> &Source {
        &self.all[packet.source as usize]
    }

    /// Takes packets in the order of time. Those that were written during the call wait for the
    /// next one: another program may be about to write an earlier one.
    pub(crate) fn take(&mut self) -> Vec<Packet> {
        let time = clock_gettime(ClockId::Monotonic);
        let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        self.read(TURN);
        let ready = |packet: &mut Packet| packet.record.time_ns < time;
        let ready: Vec<Packet> = self.pending.extract_if(.., ready).collect();
        sorted(ready)
    }

    /// Takes all packets that programs have written.
    pub(crate) fn take_all(&mut self) -> Vec<Packet> {
        self.read(usize::MAX);
        sorted(core::mem::take(&mut self.pending))
    }

    fn read(&mut self, most: usize) {
        for source in &mut self.all {
            let Some(ring) = &mut source.ring else {
                continue;
            };
            // Before the records are read: none is missing if the program has ended.
            let lives = ring.take_wakeups();
            let mut taken = 0;
            while taken < most
                && let Some(record) = ring.take()
            {
                self.pending.push(Packet::new(source.number, &record));
                taken += 1;
            }
            if ring.is_broken() {
                let (pid, program) = (source.pid, &source.program);
                eprintln!("process {pid} ({program}) wrote no valid record: it is left out");
            }
            if ring.is_broken() || !lives && taken < most {
                self.lost += ring.lost();
                source.ring = None;
            }
        }
    }

    /// Prepares to sleep on the sockets. Returns false if there are packets.
    pub(crate) fn begin_sleep(&self) -> bool {
        // All of them: a program that sees that this command sleeps wakes it.
        let rings = self.all.iter().filter_map(|source| source.ring.as_ref());
        let ready = rings.filter(|ring| !ring.begin_sleep()).count();
        ready == 0 && self.pending.is_empty()
    }

    /// Returns the sockets to sleep on.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        let rings = self.all.iter().filter_map(|source| source.ring.as_ref());
        rings.map(RingReader::socket)
    }

    /// Returns the number of records that programs found no room for.
    pub(crate) fn lost(&self) -> u64 {
        let rings = self.all.iter().filter_map(|source| source.ring.as_ref());
        self.lost + rings.map(RingReader::lost).sum::<u64>()
    }
}

fn sorted(mut packets: Vec<Packet>) -> Vec<Packet> {
    // Stable: packets of one program stay in their order.
    packets.sort_by_key(|packet| packet.record.time_ns);
    packets
}

impl Source {
    /// Returns a source without a ring, for the records of a file.
    pub(crate) fn without_ring(number: u32, link: String, pid: u32, program: String) -> Source {
        Source {
            number,
            link,
            pid,
            program,
            ring: None,
        }
    }
}
