//! `ferroce explain`: tells why queue pairs failed, and decodes `vendor_err`.
//!
//! Programs write failures and their last packets to journals in shared memory. ferroced keeps the
//! journals of programs that have ended.

use std::fmt::Write as _;
use std::fs::File;
use std::io::BufWriter;

use anyhow::{Context, Result, bail};
use clap::Args;
use ferroce_control::Story;
use ferroce_device::transport::{VENDOR_CODES, VendorCode};
use ferroce_trace::{Direction, JournalFile, JournalReader, QpStory, Record};
use ferroce_wire::Packet as Parsed;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::arguments::number;
use crate::capture::line::{describe, padded, time_of_day, wall_clock_offset_ns};
use crate::capture::pcapng::PcapNg;
use crate::capture::sources::{Packet, Source};
use crate::daemon;
use crate::output::{self, Format};

/// Numbers from here on are those of queue pairs: their top byte is a slot.
const FIRST_QPN: u32 = 0x1_0000;
/// Packets and decisions that are shown of each queue pair, if all queue pairs are shown.
const BRIEF: usize = 10;

/// Tell why a queue pair failed, or what a vendor_err means
#[derive(Debug, Args)]
#[command(
    long_about = "\
Tells why queue pairs failed: the reason in words, the code that programs see as vendor_err, and what \
to do; and the causes of asynchronous events. Without a number it tells of all queue pairs that failed, of programs that run and of the last \
16 that have ended with a failure, even if they were killed. Root sees all programs, others their own.

Programs on links of type rxe record the last 256 packets and decisions of each queue pair, with \
headers only; on the local wire, only packets that something was decided about. With a number this command shows all of them, and those of queue pairs that have not \
failed, too; without, the last 10. FERROCE_RECORDER=0 in the environment of a program turns the recorder off, and 1 includes all packets on the local wire.",
    after_long_help = "\
EXAMPLES
    ferroce explain
        all queue pairs that failed
    ferroce explain 0x10011
        the story of one queue pair
    ferroce explain 0x30
        the meaning of vendor_err 0x30
    ferroce explain codes
        all codes
    ferroce explain 0x10011 -w story.pcapng
        its last packets, for Wireshark"
)]
pub(crate) struct ExplainArgs {
    /// A queue pair number, a vendor_err, or `codes`
    #[arg(value_name = "QPN|CODE")]
    what: Option<String>,

    /// Write the recorded packets to a pcapng file
    #[arg(short, long, value_name = "FILE")]
    write: Option<String>,

    /// Only queue pairs of this process
    #[arg(long)]
    pid: Option<u32>,
}

/// A queue pair of a program.
struct ProgramQp<'a> {
    program: &'a Story,
    story: QpStory,
}

/// A failure as JSON.
#[derive(Serialize)]
struct Shown {
    ifname: String,
    pid: u32,
    comm: String,
    running: bool,
    lqpn: u32,
    reason: Option<String>,
    vendor_err: Option<u32>,
    name: Option<&'static str>,
    remedy: Option<&'static str>,
}

impl ExplainArgs {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        let only = match self.what.as_deref() {
            None => None,
            Some("codes") => return codes(format),
            Some(text) => {
                let value = number(text).map_err(anyhow::Error::msg)?;
                if value < FIRST_QPN {
                    return code(text, value);
                }
                Some(value)
            }
        };
        let programs = programs()?;
        let all = stories(&programs)?;
        let wanted = |told: &&ProgramQp<'_>| {
            let of_process = self.pid.is_none_or(|pid| pid == told.program.process.pid);
            of_process
                && match only {
                    Some(qpn) => told.story.qpn == qpn,
                    // With a file, packets of queue pairs without a failure count as well.
                    None => {
                        let has_failed = told.story.failure().is_some();
                        self.write.is_some() || has_failed || told.is_device()
                    }
                }
        };
        let told: Vec<&ProgramQp<'_>> = all.iter().filter(wanted).collect();
        if let (Some(qpn), true) = (only, told.is_empty()) {
            bail!(
                "nothing is recorded of queue pair {qpn:#08x}: it has not failed, or its program \
                 ended long ago; `ferroce resource show qp` lists the queue pairs of programs that run"
            );
        }
        if let Some(path) = &self.write {
            return write_packets(path, &told);
        }
        if format.json || format.pretty {
            return format.write_json(&told.iter().map(|told| told.shown()).collect::<Vec<_>>());
        }
        if told.is_empty() {
            return output::write(
                "no queue pair has failed, and there was no asynchronous event\n",
            );
        }
        let mut text = String::new();
        for told in told {
            if !text.is_empty() {
                text.push('\n');
            }
            let most = if only.is_some() { usize::MAX } else { BRIEF };
            told.tell(&all, most, &mut text);
        }
        output::write(&text)
    }
}

const NOT_RECORDED: &str = "  its packets were not recorded: FERROCE_RECORDER=1 includes the local wire; \
links of type siw have no recorder\n";

/// Returns the story of one queue pair of a program that runs.
pub(crate) fn story_of(qpn: u32, pid: u32) -> Result<String> {
    let programs = programs()?;
    let all = stories(&programs)?;
    let is_wanted = |told: &&ProgramQp<'_>| {
        told.story.qpn == qpn && told.program.process.pid == pid && told.program.ended_ago.is_none()
    };
    let mut text = String::new();
    match all.iter().find(is_wanted) {
        Some(told) => told.tell(&all, usize::MAX, &mut text),
        None => {
            text.push_str("  it has not failed\n");
            text.push_str(NOT_RECORDED);
        }
    }
    Ok(text)
}

/// Returns the programs that have journals, and those that have ended with one.
fn programs() -> Result<Vec<Story>> {
    match daemon::connect()? {
        Some(mut connection) => Ok(connection.journals()?),
        None => Ok(Vec::new()),
    }
}

/// Returns the queue pairs in the journals.
fn stories(programs: &[Story]) -> Result<Vec<ProgramQp<'_>>> {
    let mut all = Vec::new();
    for program in programs {
        let file = JournalFile::from_fd(program.journal.try_clone()?);
        let reader = file.and_then(|file| JournalReader::new(&file));
        let reader = reader.with_context(|| format!("process {}", program.process.pid))?;
        let stories = reader.stories().into_iter();
        all.extend(stories.map(|story| ProgramQp { program, story }));
    }
    Ok(all)
}

impl ProgramQp<'_> {
    /// Adds the story to the text, with at most this many packets and decisions.
    fn tell(&self, all: &[ProgramQp<'_>], most: usize, text: &mut String) {
        let offset_ns = wall_clock_offset_ns();
        let (qpn, of) = (self.story.qpn, self.program());
        if self.is_device() {
            let _infallible = writeln!(text, "asynchronous events of {of}");
            for record in self.story.records() {
                let time = time_of_day(record.time_ns.saturating_add_signed(offset_ns));
                let _infallible = writeln!(text, "    {time}  !  {}", record.text);
            }
            return;
        }
        let _infallible = writeln!(text, "queue pair {qpn:#08x} of {of}");
        match self.story.failure() {
            Some(failure) => tell_failure(&failure, "it failed", text),
            None => text.push_str("  it has not failed\n"),
        }
        for peer in self.peers(all) {
            let (qpn, of) = (peer.story.qpn, peer.program());
            let _infallible = writeln!(text, "  its peer is queue pair {qpn:#08x} of {of}");
            if let Some(failure) = peer.story.failure() {
                tell_failure(&failure, "the peer failed", text);
            }
        }
        let packets = self
            .story
            .records()
            .filter(|r| r.direction != Direction::None);
        if packets.count() == 0 {
            text.push_str(NOT_RECORDED);
            return;
        }
        let known = self.story.records().count();
        let shown = known.min(most);
        let _infallible = match (shown < known, self.story.is_cut) {
            (true, _) => writeln!(
                text,
                "  the last {shown} packets and decisions; `ferroce explain {qpn:#x}` shows {known}:"
            ),
            (_, true) => writeln!(text, "  the last {shown} packets and decisions:"),
            _ => writeln!(text, "  its packets and decisions:"),
        };
        for record in self.story.records().skip(known - shown) {
            let time = time_of_day(record.time_ns.saturating_add_signed(offset_ns));
            let line = match record.direction {
                Direction::None => format!("!  {}", record.text),
                direction => {
                    let arrow = match direction {
                        Direction::Received => "<",
                        _ => ">",
                    };
                    let packet = describe(&record, record.bytes).replacen("  ", " ", 1);
                    match record.text {
                        "" => format!("{arrow}  {packet}"),
                        text => format!("{arrow}  {packet}  [{text}]"),
                    }
                }
            };
            let _infallible = writeln!(text, "    {time}  {line}");
        }
    }

    /// Returns true if these are the events of a device and its port.
    fn is_device(&self) -> bool {
        self.story.qpn == 0
    }

    fn program(&self) -> String {
        let process = &self.program.process;
        let (program, pid, link) = (&process.program, process.pid, &self.program.link);
        match self.program.ended_ago {
            Some(ago) => format!("{program} (process {pid}, ended {ago} s ago, link {link})"),
            None => format!("{program} (process {pid}, link {link})"),
        }
    }

    /// Returns the queue pairs on this host that packets of this one went to.
    fn peers<'a>(&self, all: &'a [ProgramQp<'a>]) -> Vec<&'a ProgramQp<'a>> {
        let sent = self.story.records();
        let mut sent = sent.filter(|record| record.direction == Direction::Sent);
        let last = sent.next_back();
        let to = last.and_then(|record| {
            let bytes = padded(&record, record.bytes);
            let parsed = Parsed::parse(&bytes).ok();
            parsed.map(|packet| (packet.dest_qpn(), record.source == record.destination))
        });
        let Some((qpn, true)) = to else {
            return Vec::new();
        };
        let peer = all.iter().rev().find(|told| told.story.qpn == qpn);
        peer.into_iter().collect()
    }

    fn shown(&self) -> Shown {
        let failure = self.story.failure();
        let known = failure.and_then(|failure| VendorCode::find(failure.length));
        Shown {
            ifname: self.program.link.clone(),
            pid: self.program.process.pid,
            comm: self.program.process.program.clone(),
            running: self.program.ended_ago.is_none(),
            lqpn: self.story.qpn,
            reason: match self.is_device() {
                true => self.story.records().last().map(|r| r.text.to_owned()),
                false => failure.map(|failure| failure.text.to_owned()),
            },
            vendor_err: failure.map(|failure| failure.length),
            name: known.map(|known| known.name),
            remedy: known.map(|known| known.remedy),
        }
    }
}

fn tell_failure(failure: &Record<'_>, subject: &str, text: &mut String) {
    let now = clock_gettime(ClockId::Monotonic);
    let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let ago = now.saturating_sub(failure.time_ns) / 1_000_000_000;
    let _infallible = writeln!(text, "  {subject} {ago} s ago: {}", failure.text);
    if let Some(known) = VendorCode::find(failure.length) {
        let (code, name, meaning) = (known.code, known.name, known.meaning);
        let _infallible = writeln!(text, "  vendor_err {code:#04x} ({name}): {meaning}");
        let _infallible = writeln!(text, "  remedy: {}", known.remedy);
    }
}

/// Prints the meaning of a code.
fn code(text: &str, code: u32) -> Result<()> {
    if let Some(known) = VendorCode::find(code) {
        let (name, meaning, remedy) = (known.name, known.meaning, known.remedy);
        return output::write(&format!(
            "vendor_err {code:#04x} ({name}): {meaning}\nremedy: {remedy}\n"
        ));
    }
    let as_hex = u32::from_str_radix(text, 16).ok();
    let hint = match as_hex.and_then(VendorCode::find) {
        Some(known) => format!(
            "; did the program print it in hexadecimal, as {:#04x}?",
            known.code
        ),
        None => {
            "; `ferroce explain codes` lists the codes, and queue pair numbers begin at 0x10000"
                .into()
        }
    };
    bail!("{text} is no vendor_err of Ferroce{hint}")
}

/// Prints all codes.
fn codes(format: Format) -> Result<()> {
    if format.json || format.pretty {
        let codes = VENDOR_CODES.iter();
        let codes: Vec<_> = codes
            .map(|known| (known.code, known.name, known.meaning, known.remedy))
            .collect();
        return format.write_json(&codes);
    }
    let row = |known: &VendorCode| {
        [
            format!("{:#04x}", known.code),
            known.name.to_owned(),
            known.meaning.to_owned(),
        ]
    };
    let rows: Vec<[String; 3]> = VENDOR_CODES.iter().map(row).collect();
    output::write(&output::columns(&rows))
}

/// Writes recorded packets to a pcapng file, in the order of time.
fn write_packets(path: &str, told: &[&ProgramQp<'_>]) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot write {path}"))?;
    let mut file = PcapNg::new(BufWriter::new(file), 64)?;
    let mut packets = Vec::new();
    for (number, told) in told.iter().enumerate() {
        let number = number as u32;
        packets.extend(told.story.records().map(|r| Packet::new(number, &r)));
    }
    packets.sort_by_key(|packet| packet.record.time_ns);
    let sources = told.iter().enumerate().map(|(number, told)| {
        let process = &told.program.process;
        let (link, program) = (told.program.link.clone(), process.program.clone());
        Source::without_ring(number as u32, link, process.pid, program)
    });
    let sources: Vec<Source> = sources.collect();
    let mut written = 0;
    for packet in &packets {
        file.packet(&sources[packet.source as usize], packet)?;
        written += usize::from(packet.is_packet());
    }
    file.flush()?;
    output::write(&format!("{written} packets in {path}\n"))
}
