//! Assembled packets: a batch of the engine, and its bytes.

use core::ops::Range;

use ferroce_net::Properties;
use ferroce_roce::{Batch, Engine, Fault, Path, Time, Trailer};

use crate::credits::Charge;
use crate::faults::{Fates, Inbound};
use crate::process::Process;
use crate::uc_connection::UcConnection;

/// Bytes that assembling a packet may write beyond the end of a run.
const OVERHANG: usize = 4096;
/// Bytes of a run that takes less time to copy than to read the clock, 40 ns.
const SHORT: usize = 512;

/// A batch of packets, assembled into a buffer. It needs neither the engine nor the memory of
/// the program to be sent.
pub(crate) struct Assembly {
    /// The batch; empty unless one of its runs is not sent yet.
    batch: Batch,
    /// The runs of the batch, one behind the other.
    buffer: Vec<u8>,
    runs: Vec<AssembledRun>,
    faults: Vec<(usize, Fault)>,
}

/// A run in the buffer of an assembly.
pub(crate) struct AssembledRun {
    pub(crate) path: Path,
    pub(crate) segment: usize,
    pub(crate) bytes: Range<usize>,
    pub(crate) charge: Option<Charge>,
    /// The fates of its packets; empty unless faults change one of them.
    pub(crate) fates: Fates,
}

impl Assembly {
    /// Creates an assembly for batches of up to `batch` packets.
    pub(crate) fn new(properties: &Properties, batch: usize) -> Assembly {
        Assembly {
            batch: Batch::new(batch, properties.run_limits),
            buffer: vec![0; Batch::max_bytes(&properties.run_limits, OVERHANG) + OVERHANG],
            runs: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Returns true if it has no packet.
    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Returns the number of bytes of its runs.
    pub(crate) fn bytes(&self) -> usize {
        self.runs.last().map_or(0, |run| run.bytes.end)
    }

    /// Returns true if it is one short run, which goes through memory.
    #[inline]
    pub(crate) fn is_short_in_memory(&self) -> bool {
        matches!(&self.runs[..], [run] if run.path.in_memory && run.bytes.end <= SHORT)
    }

    /// Returns all runs, in sending order, and the buffer that has their bytes.
    pub(crate) fn runs(&self) -> (&[AssembledRun], &[u8]) {
        (&self.runs, &self.buffer)
    }

    /// Forgets all runs, which have been sent or wait as copies.
    pub(crate) fn forget_runs(&mut self) {
        self.runs.clear();
    }

    /// Drops the runs of a UC connection.
    pub(crate) fn drop_runs(&mut self, connection: &UcConnection) {
        let buffer = &self.buffer;
        self.runs
            .retain(|run| !connection.owns(&run.path, run.segment, &buffer[run.bytes.clone()]));
    }

    /// Ends the batch, whose runs have been sent or wait as copies. UC and UD sends complete
    /// now.
    #[inline]
    pub(crate) fn finish(&mut self, now: Time, engine: &mut Engine) {
        if !self.batch.is_empty() {
            engine.finish_transmit(now, &mut self.batch);
        }
    }

    /// Assembles the next packets of the engine. Returns false if there are none. The assembly
    /// must be empty.
    pub(crate) fn fill(
        &mut self,
        now: Time,
        engine: &mut Engine,
        process: &mut impl Process,
        trailer: Trailer,
        judge: &mut Option<Box<Inbound>>,
    ) -> bool {
        loop {
            if !engine.has_packets() {
                return false;
            }
            engine.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                return false;
            }
            self.assemble(now, process, trailer, judge.as_deref_mut());
            engine.fail_unreadable(now, &mut self.batch);
            if !self.runs.is_empty() {
                return true;
            }
            self.finish(now, engine);
        }
    }

    /// Assembles the batch, all of it: what the engine decided now may be wrong later.
    fn assemble(
        &mut self,
        now: Time,
        process: &mut impl Process,
        trailer: Trailer,
        mut judge: Option<&mut Inbound>,
    ) {
        let mut end = 0;
        self.batch.prefetch(process.memory());
        for run in self.batch.runs() {
            let (memory, faults) = (process.memory(), &mut self.faults);
            let room = &mut self.buffer[end..];
            let trailer = match run.path.in_memory {
                true => Trailer::Unset,
                false => trailer,
            };
            let length = self.batch.assemble_run(run, trailer, memory, room, faults);
            let bytes = end..end + length;
            let packets = &self.buffer[bytes.clone()];
            let (fates, told) = match &mut judge {
                None => (Fates::new(), Vec::new()),
                Some(judge) => judge.judge(now, &run.path, run.segment, packets),
            };
            if process.observes() {
                process.assembled(&self.batch, run, packets, &self.faults, &told);
            }
            if length > 0 {
                end = bytes.end;
                self.runs.push(AssembledRun {
                    path: run.path,
                    segment: run.segment,
                    charge: Charge::of(run, packets),
                    bytes,
                    fates,
                });
            }
        }
        for (index, fault) in self.faults.drain(..) {
            self.batch.fault(index, fault);
        }
    }
}
