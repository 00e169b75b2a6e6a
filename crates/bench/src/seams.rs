//! The seams of a shard: captures, the flight recorder and faults.
//!
//! A benchmark measures the same traffic with each of them off and on.

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use ferroce_faults::{LocalCounts, Plan};
use ferroce_roce::{Batch, Datagram, Decision, Event, Fault, Memory, Received, Run, Time};
use ferroce_shard::{Faults, Process, Recorder, Senders, received_path};
use ferroce_trace::{
    Direction, Filter, JournalFile, JournalReader, JournalWriter, PathRecord, Record, RingFile,
    RingReader, RingWriter, STORY,
};

use crate::arena::Arena;

/// A fault that is in force and hits no packet of a benchmark.
const FAULT: &str = "drop the 1000000000000th packet";

/// The seam that is in use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seam {
    /// None: captures, recorder and faults are off.
    Off,
    /// The flight recorder.
    Recorder,
    /// A capture of whole packets.
    Capture,
    /// A fault that is asked about each packet, and hits none.
    Faults,
}

/// Where the packets of a shard are written.
pub(crate) struct Seams {
    seam: Seam,
    file: JournalFile,
    journal: JournalWriter,
    /// A program takes this lock for each call that writes to captures.
    writer: Mutex<RingWriter>,
    reader: RingReader,
    captured: usize,
}

impl Seams {
    pub(crate) fn new(seam: Seam) -> Result<Seams> {
        let file = JournalFile::new().context("journal")?;
        let filter = Filter {
            qpn: None,
            snap: 0xffff,
        };
        let [one, other] = RingFile::new(filter)?.into_fds()?;
        let (a, b) = UnixStream::pair()?;
        Ok(Seams {
            seam,
            journal: JournalWriter::new(&file).context("journal")?,
            file,
            writer: Mutex::new(RingWriter::new(one, a.into())?),
            reader: RingReader::new(other, b.into())?,
            captured: 0,
        })
    }

    /// Returns the faults to put in force; none if they are off.
    pub(crate) fn faults(&self) -> Result<Option<Faults>> {
        if self.seam != Seam::Faults {
            return Ok(None);
        }
        Ok(Some(Faults {
            plan: Arc::new(Plan::parse(FAULT)?),
            counts: Arc::new(LocalCounts::default()),
            senders: Arc::new(SeparateSenders),
        }))
    }

    /// Returns true if the shard must report packets and decisions.
    pub(crate) fn observes(&self) -> bool {
        matches!(self.seam, Seam::Recorder | Seam::Capture)
    }

    /// Reads the captured packets, as `ferroce capture` does in its own process.
    pub(crate) fn drain(&mut self) {
        while self.reader.take().is_some() {
            self.captured += 1;
        }
    }

    /// Checks that packets were recorded and captured exactly if they should be.
    pub(crate) fn check(&self) -> Result<()> {
        let stories = JournalReader::new(&self.file)?.stories();
        let recorded: usize = stories.iter().map(|story| story.records().count()).sum();
        let (wants_records, wants_capture) = match self.seam {
            Seam::Off | Seam::Faults => (0, false),
            Seam::Recorder => (STORY, false),
            Seam::Capture => (0, true),
        };
        ensure!(
            recorded == wants_records && (self.captured > 0) == wants_capture,
            "{:?}: {recorded} packets are recorded, {} captured",
            self.seam,
            self.captured
        );
        ensure!(self.reader.lost() == 0, "the capture has lost packets");
        Ok(())
    }

    /// Returns the process for a call at a time.
    pub(crate) fn process<'a, const TAPS: bool>(
        &'a self,
        memory: &'a Arena,
        now: Time,
    ) -> BenchProcess<'a, TAPS> {
        let records = self.seam == Seam::Recorder;
        BenchProcess {
            memory,
            recorder: records.then(|| Recorder::new(&self.journal, now, false)),
            capture: (self.seam == Seam::Capture).then_some(Capture {
                writer: &self.writer,
                now,
            }),
        }
    }
}

/// The senders of a benchmark do not share faults: both sides ask theirs about each packet.
#[derive(Debug)]
struct SeparateSenders;

impl Senders for SeparateSenders {
    fn include(&self, _: IpAddr, _: u16) -> bool {
        false
    }

    fn add(&self, _: u16) {}
}

/// The process of a shard. Without `TAPS`, the compiler removes captures and recorder.
pub(crate) struct BenchProcess<'a, const TAPS: bool> {
    memory: &'a Arena,
    recorder: Option<Recorder<'a>>,
    capture: Option<Capture<'a>>,
}

impl<const TAPS: bool> Process for BenchProcess<'_, TAPS> {
    fn memory(&self) -> &dyn Memory {
        self.memory
    }

    fn report(&mut self, _: Event) {}

    #[inline]
    fn observes(&self) -> bool {
        TAPS && (self.recorder.is_some() || self.capture.is_some())
    }

    #[inline]
    fn received(&mut self, datagram: &Datagram<'_>, _: Received, _: &[(u32, Decision)]) {
        match (&mut self.recorder, &self.capture) {
            (Some(recorder), _) => recorder.received(datagram, |_| true),
            (_, Some(capture)) => capture.received(datagram, datagram.payload.len()),
            _ => {}
        }
    }

    #[inline]
    fn predicted(&mut self, run: &Datagram<'_>, segment: usize, packets: usize) {
        match (&mut self.recorder, &self.capture) {
            (Some(recorder), _) => recorder.predicted(run, segment, packets),
            (_, Some(capture)) => {
                let payload = &run.payload[..run.payload.len().min(segment * packets)];
                capture.received(&Datagram { payload, ..*run }, segment);
            }
            _ => {}
        }
    }

    #[inline]
    fn assembled(
        &mut self,
        batch: &Batch,
        run: &Run,
        bytes: &[u8],
        _: &[(usize, Fault)],
        _: &[(usize, String)],
    ) {
        match (&self.recorder, &self.capture) {
            (Some(recorder), _) => recorder.assembled(batch, run, bytes),
            (_, Some(capture)) => capture.assembled(batch, run, bytes),
            _ => {}
        }
    }
}

/// A capture, during one call into a core. It writes the records that a program writes.
struct Capture<'a> {
    writer: &'a Mutex<RingWriter>,
    now: Time,
}

impl Capture<'_> {
    /// Writes the packets of a run that was received.
    #[inline(never)]
    fn received(&self, run: &Datagram<'_>, segment: usize) {
        let path = received_path(run);
        self.write(Direction::Received, &path, run.payload, segment, |bytes| {
            let qpn = bytes.get(5..8);
            qpn.map_or(0, |b| u32::from_be_bytes([0, b[0], b[1], b[2]]))
        });
    }

    /// Writes the packets of a run that is sent.
    #[inline(never)]
    fn assembled(&self, batch: &Batch, run: &Run, bytes: &[u8]) {
        let path = PathRecord {
            source: run.path.flow.source,
            destination: run.path.flow.destination,
            source_port: run.path.flow.source_port,
            traffic_class: run.path.traffic_class,
            hop_limit: run.path.hop_limit,
        };
        let mut packets = run.packets.clone();
        self.write(Direction::Sent, &path, bytes, run.segment, |_| {
            packets
                .next()
                .map_or(0, |number| batch.packet(number).qpn())
        });
    }

    fn write(
        &self,
        direction: Direction,
        path: &PathRecord,
        run: &[u8],
        segment: usize,
        mut qpn: impl FnMut(&[u8]) -> u32,
    ) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        for bytes in run.chunks(segment) {
            writer.write(&Record {
                time_ns: self.now.as_nanos(),
                direction,
                qpn: qpn(bytes),
                source: path.source,
                destination: path.destination,
                source_port: path.source_port,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                length: bytes.len() as u32,
                bytes,
                ..Record::default()
            });
        }
    }
}
