//! The engine: the queue pairs of one shard and the streams under them.

use core::ops::Range;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ferroce_objects::region::KeyCache;
use ferroce_objects::{
    Access, AccessError, AttrMask, Event, MemRef, Memory, Pd, QpAttr, QpCap, QpInit,
    ReceivedMessages, RecvWr, Regions, SendWr, Time, VerbsError,
};

use crate::bugs::Bug;
use crate::event::{CloseCause, StreamEvent};
use crate::mpa::Params;
use crate::output::Output;
use crate::qp::{Qp, QpQuery};
use crate::qp_table::{QpTable, no_qp};

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Range of the queue pair numbers that this engine assigns.
    pub qpns: Range<u32>,
    /// MSN of the first message in each queue. RFC 5041 4.3 sets it to 1; simulations start
    /// before the wrap.
    pub first_msn: u32,
    /// True if streams start so that the kernel's siw overlooks no message. The initiator
    /// announces itself by a Write of no bytes. The responder waits for the initiator's first
    /// byte, up to [`HOLD`](crate::HOLD), before it sends.
    pub careful_start: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            qpns: 1..1 << 20,
            first_msn: 1,
            careful_start: false,
        }
    }
}

/// The state that all queue pairs of an engine share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) now: Time,
    pub(crate) config: Config,
    pub(crate) regions: Arc<Regions>,
    keys: KeyCache,
    pub(crate) events: VecDeque<Event>,
    pub(crate) stream_events: VecDeque<StreamEvent>,
    pub(crate) ready: VecDeque<u32>,
    pub(crate) timers: BTreeSet<(Time, u32)>,
    /// The payload of the FPDU that is being written. It is kept for its memory.
    pub(crate) places: Vec<(MemRef, u32)>,
    pub(crate) received: ReceivedMessages,
    #[cfg(test)]
    pub(crate) bug: Option<Bug>,
}

impl Context {
    /// Checks a local key and returns the memory behind the address.
    pub(crate) fn local(
        &self,
        lkey: u32,
        pd: &Pd,
        need: Access,
        addr: u64,
        length: u32,
    ) -> Result<MemRef, AccessError> {
        self.keys.local(&self.regions, lkey, pd, need, addr, length)
    }

    /// Checks a peer's key and returns the memory behind the address.
    pub(crate) fn remote(
        &self,
        stag: u32,
        pd: &Pd,
        qpn: u32,
        need: Access,
        offset: u64,
        length: u64,
    ) -> Result<MemRef, AccessError> {
        self.keys
            .remote(&self.regions, stag, pd, qpn, need, offset, length)
    }

    /// Returns true if this injected bug is active.
    #[cfg(test)]
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns false: no bug can be active.
    #[cfg(not(test))]
    #[inline]
    pub(crate) const fn has_bug(&self, _: Bug) -> bool {
        false
    }
}

/// An iWARP engine: queue pairs, and the byte streams that carry their FPDUs.
///
/// The caller owns the sockets. It sets a connection up ([`mpa`](crate::mpa)), calls
/// [`connect`](Engine::connect), and then moves bytes:
///
/// - bytes from the socket go to [`receive`](Engine::receive), the end of the stream to
///   [`end_of_stream`](Engine::end_of_stream), a reset to [`reset`](Engine::reset);
/// - [`poll_ready`](Engine::poll_ready) names queue pairs that may have bytes to send. The
///   caller sends the [`output`](Engine::output) and reports the number of bytes that the
///   socket took ([`accepted`](Engine::accepted)). If it did not take all, the caller calls
///   `output` again once the socket is writable;
/// - [`poll_stream_event`](Engine::poll_stream_event) names the streams to shut down or close.
#[derive(Debug)]
pub struct Engine {
    qps: QpTable,
    cx: Context,
}

impl Engine {
    /// Creates an engine without queue pairs that uses the keys of `regions`.
    pub fn new(config: Config, regions: Arc<Regions>) -> Engine {
        Engine {
            qps: QpTable::new(config.qpns.clone()),
            cx: Context {
                now: Time::ZERO,
                config,
                regions,
                keys: KeyCache::default(),
                events: VecDeque::new(),
                stream_events: VecDeque::new(),
                ready: VecDeque::new(),
                timers: BTreeSet::new(),
                places: Vec::new(),
                received: ReceivedMessages::default(),
                #[cfg(test)]
                bug: None,
            },
        }
    }

    /// Enables one injected bug.
    #[cfg(test)]
    pub(crate) fn set_bug(&mut self, bug: Option<Bug>) {
        self.cx.bug = bug;
    }

    /// Creates a queue pair in RESET. Returns its number and the granted sizes.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(u32, QpCap), VerbsError> {
        let mut granted = init.cap;
        let qpn = self.qps.insert(|qpn| {
            let qp = Qp::new(qpn, init)?;
            granted = qp.cap();
            Ok(qp)
        })?;
        Ok((qpn, granted))
    }

    /// Changes attributes and state of a queue pair.
    pub fn modify_qp(
        &mut self,
        now: Time,
        qpn: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.modify(&mut self.cx, attr, mask)
    }

    /// Returns attributes, state and sizes of a queue pair.
    pub fn query_qp(&self, qpn: u32) -> Result<QpQuery, VerbsError> {
        Ok(self.qps.get(qpn).ok_or_else(|| no_qp(qpn))?.query())
    }

    /// Destroys a queue pair. Posted work requests get no completion. If the queue pair had a
    /// stream, the event [`StreamEvent::Closed`] follows.
    pub fn destroy_qp(&mut self, now: Time, qpn: u32) -> Result<(), VerbsError> {
        self.cx.now = now;
        let qp = self.qps.verb(qpn)?;
        // Bytes that the socket has accepted still reach the peer, as with siw.
        let abort = qp.has_unsent_bytes();
        qp.close_stream(&mut self.cx, abort, CloseCause::Program);
        self.qps.remove(qpn);
        self.cx.regions.release_windows_of(qpn);
        Ok(())
    }

    /// Posts to the send queue.
    pub fn post_send(&mut self, now: Time, qpn: u32, wr: SendWr<'_>) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.post_send(&mut self.cx, wr)
    }

    /// Checks a send work request as [`post_send`](Engine::post_send) does, when `ahead`
    /// others are posted before it.
    pub fn check_send(&self, qpn: u32, wr: &SendWr<'_>, ahead: usize) -> Result<(), VerbsError> {
        let qp = self.qps.get(qpn).ok_or_else(|| no_qp(qpn))?;
        qp.check_send(wr, ahead).map(|_length| ())
    }

    /// Posts to the receive queue.
    pub fn post_recv(&mut self, now: Time, qpn: u32, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.post_recv(&mut self.cx, wr)
    }

    /// Gives a queue pair the stream of a connection that has been set up. Its FPDUs fit into
    /// TCP segments of `mss` bytes.
    ///
    /// The event [`StreamEvent::Established`] follows: at once, or after the RTR frame.
    pub fn connect(
        &mut self,
        now: Time,
        qpn: u32,
        params: Params,
        mss: u32,
    ) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.connect(&mut self.cx, params, mss)
    }

    /// Ends a connection in order: SENDs and Writes that were posted are sent, then the stream
    /// is shut down. Reads without a response are flushed, and the work requests behind them.
    pub fn disconnect(&mut self, now: Time, qpn: u32) -> Result<(), VerbsError> {
        self.cx.now = now;
        self.qps.verb(qpn)?.disconnect(&mut self.cx)
    }

    /// Lets a responder that waits for the initiator's first byte send now: the queue pair or
    /// the process ends. Returns true if the queue pair had waited.
    pub fn end_hold(&mut self, now: Time, qpn: u32) -> bool {
        self.cx.now = now;
        let qp = self.qps.get_mut(qpn);
        qp.is_some_and(|qp| qp.end_hold(&mut self.cx))
    }

    /// Processes received bytes, cut anywhere. Payload is written to its place at once.
    pub fn receive(&mut self, now: Time, memory: &dyn Memory, qpn: u32, bytes: &[u8]) {
        self.cx.now = now;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.receive(&mut self.cx, memory, bytes);
        }
    }

    /// Returns the places of the payload bytes that come next, in order, into `places`.
    ///
    /// A caller may have the kernel write the next received bytes there, and report their
    /// number by [`placed`](Engine::placed). The list is empty between payloads, with CRCs,
    /// and if the key has become invalid: then the bytes go to [`receive`](Engine::receive).
    pub fn direct_places(&self, qpn: u32, places: &mut Vec<(MemRef, u32)>) {
        places.clear();
        if let Some(qp) = self.qps.get(qpn) {
            qp.direct_places(&self.cx, places);
        }
    }

    /// Reports that the next `bytes` received are at their places already.
    pub fn placed(&mut self, qpn: u32, bytes: u32) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.placed(bytes);
        }
    }

    /// Returns the bytes until the ends of the FPDUs that are partly sent and partly received,
    /// for a capture that begins now. None without a stream, or if a length is not known yet.
    pub fn left_of_fpdus(&self, qpn: u32) -> Option<(usize, usize)> {
        self.qps.get(qpn)?.left_of_fpdus()
    }

    /// Processes the end of the peer's stream (FIN).
    pub fn end_of_stream(&mut self, now: Time, qpn: u32) {
        self.cx.now = now;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.end_of_stream(&mut self.cx);
        }
    }

    /// Processes an error of the socket: the connection was reset, or timed out.
    pub fn reset(&mut self, now: Time, qpn: u32) {
        self.cx.now = now;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.stream_lost(&mut self.cx, "reset by the peer");
        }
    }

    /// Resets the connection of a queue pair because a fault says so.
    pub fn provoke_reset(&mut self, now: Time, qpn: u32) {
        self.cx.now = now;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.stream_lost(&mut self.cx, "reset by a fault that is in force");
        }
    }

    /// Fails a queue pair because a fault says so.
    pub fn provoke_failure(&mut self, now: Time, qpn: u32) {
        self.cx.now = now;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.provoke(&mut self.cx);
        }
    }

    /// Returns a queue pair that may have bytes to send.
    pub fn poll_ready(&mut self) -> Option<u32> {
        loop {
            let qpn = self.cx.ready.pop_front()?;
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.leave_ready_list();
                return Some(qpn);
            }
        }
    }

    /// Adds FPDUs to the output of a queue pair until it has `limit` bytes or more, or none
    /// is left. Returns the output.
    ///
    /// The caller sends the output, or a part of it, and calls [`accepted`](Engine::accepted)
    /// before any other call for this queue pair, even if the socket took nothing. References
    /// to memory are valid until a region ends: then the caller calls
    /// [`own_outputs`](Engine::own_outputs).
    pub fn output(
        &mut self,
        now: Time,
        memory: &dyn Memory,
        qpn: u32,
        limit: usize,
    ) -> Option<&Output> {
        self.cx.now = now;
        self.qps
            .get_mut(qpn)?
            .fill_output(&mut self.cx, memory, limit)
    }

    /// Reports that the socket has accepted the first `bytes` of the output, which may be 0.
    /// Sends complete.
    pub fn accepted(&mut self, now: Time, qpn: u32, bytes: usize) {
        self.cx.now = now;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.accepted(&mut self.cx, bytes);
        }
    }

    /// Reports that memory of the output cannot be read (EFAULT). The connection ends.
    pub fn output_fault(&mut self, now: Time, qpn: u32) {
        self.cx.now = now;
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.output_fault(&mut self.cx);
        }
    }

    /// Copies all unsent bytes that are references to memory. The caller calls this after a
    /// region has ended and before its memory is freed: an unsent work request may name it.
    pub fn own_outputs(&mut self, now: Time, memory: &dyn Memory) {
        self.cx.now = now;
        for qpn in self.qps.numbers().collect::<Vec<_>>() {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.own_output(&mut self.cx, memory);
            }
        }
    }

    /// Returns the time of the next call of [`handle_timeout`](Engine::handle_timeout).
    pub fn next_timeout(&self) -> Option<Time> {
        self.cx.timers.first().map(|(time, _)| *time)
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout(&mut self, now: Time) {
        self.cx.now = now;
        while let Some((_, qpn)) = self.cx.timers.first().copied().filter(|(t, _)| *t <= now) {
            self.cx.timers.pop_first();
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.timed_out(&mut self.cx);
            }
        }
    }

    /// Removes and returns the oldest event of verbs.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.cx.events.pop_front()
    }

    /// Removes and returns the oldest event of a stream.
    pub fn poll_stream_event(&mut self) -> Option<StreamEvent> {
        self.cx.stream_events.pop_front()
    }

    /// Returns the numbers of messages that were received whole.
    pub fn received_messages(&self) -> ReceivedMessages {
        self.cx.received
    }

    /// Returns the numbers of all queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = u32> + '_ {
        self.qps.numbers()
    }
}
