//! The process of a shard: its memory, and the observers of its packets and events.

use ferroce_faults::Provoked;
use ferroce_roce::{Batch, Datagram, Decision, Event, Fault, Memory, Received, Run, Time};
use ferroce_shard::Recorder;

use crate::directory::Directory;
use crate::gpu::GpuCopies;
use crate::memory::LazyMemory;
use crate::streams::{Observer, Segment};

/// The process, for one call into the core.
pub(crate) struct ThisProcess<'a> {
    memory: LazyMemory<'a>,
    events: &'a Directory,
    /// True while captures run.
    captures: bool,
    /// The flight recorder, unless it is off.
    recorder: Option<Recorder<'a>>,
    /// The effect of a fault on the next datagram, in words; empty if there is none.
    fate: String,
}

impl<'a> ThisProcess<'a> {
    /// Returns the process as it is at the time `now`.
    #[inline]
    pub(super) fn new(now: Time, gpu: &'a GpuCopies, events: &'a Directory) -> ThisProcess<'a> {
        ThisProcess {
            memory: LazyMemory::new(now, gpu),
            events,
            captures: events.taps.captures(),
            recorder: events.taps.recorder(now),
            fate: String::new(),
        }
    }

    /// Sets the time of the packets that the recorder writes next.
    pub(super) fn set_time(&mut self, now: Time) {
        if let Some(recorder) = &mut self.recorder {
            recorder.set_time(now);
        }
    }
}

impl ferroce_shard::Process for ThisProcess<'_> {
    fn memory(&self) -> &dyn Memory {
        &self.memory
    }

    fn report(&mut self, event: Event) {
        self.events.report(event);
    }

    fn provoked(&mut self, event: Provoked) {
        self.events.provoked(event);
    }

    #[inline]
    fn observes(&self) -> bool {
        self.captures || self.recorder.is_some()
    }

    #[inline]
    fn received(
        &mut self,
        datagram: &Datagram<'_>,
        result: Received,
        decisions: &[(u32, Decision)],
    ) {
        let is_plain = decisions.is_empty() && result == Received::Accepted && self.fate.is_empty();
        match &mut self.recorder {
            Some(recorder) if is_plain && !self.captures => {
                recorder.received(datagram, |qpn| self.events.has_qp(qpn));
            }
            _ => {
                let fate = core::mem::take(&mut self.fate);
                self.events
                    .tap_received(datagram, Some(result), decisions, &fate);
            }
        }
    }

    fn met_fault(&mut self, fate: &str) {
        if self.observes() {
            fate.clone_into(&mut self.fate);
        }
    }

    fn lost(&mut self, datagram: &Datagram<'_>, fate: &str) {
        if self.observes() {
            self.events.tap_received(datagram, None, &[], fate);
        }
    }

    #[inline]
    fn predicted(&mut self, run: &Datagram<'_>, segment: usize, packets: usize) {
        match &mut self.recorder {
            Some(recorder) if !self.captures && self.fate.is_empty() => {
                recorder.predicted(run, segment, packets);
            }
            _ => {
                let fate = core::mem::take(&mut self.fate);
                self.events.taps.predicted(run, segment, packets, &fate);
            }
        }
    }

    #[inline]
    fn assembled(
        &mut self,
        batch: &Batch,
        run: &Run,
        bytes: &[u8],
        faults: &[(usize, Fault)],
        fates: &[(usize, String)],
    ) {
        let taps = &self.events.taps;
        let has_text = !faults.is_empty() || !fates.is_empty() || taps.resends();
        match &self.recorder {
            Some(recorder) if !has_text && !self.captures => recorder.assembled(batch, run, bytes),
            _ => taps.assembled(batch, run, bytes, faults, fates),
        }
    }

    fn decided(&mut self, decisions: &[(u32, Decision)]) {
        self.events.taps.decided(decisions);
    }
}

impl Observer for ThisProcess<'_> {
    #[inline]
    fn captures(&self) -> bool {
        self.captures
    }

    fn segment(&mut self, qpn: u32, segment: &Segment<'_>) {
        self.events.taps.segment(qpn, segment);
    }
}
