//! Sending: when a core begins to send, and by which thread.
//!
//! To send a long message takes longer than anything else that a core does. So a thread need
//! not hold the core while it sends. It takes the transmitter with assembled packets, sends
//! them, and gives the transmitter back. Meanwhile other threads post, and receive ACKs. They
//! leave their own packets to the thread that sends.
//!
//! If processors are free, these threads also assemble the next batch for it
//! ([`Core::prepare_batches`]). **Why**: copying and the ICRC take a quarter of the time of sending.
//! With two threads the kernel's part alone limits the bandwidth of a queue pair. Without free
//! processors the sender would only wait for the lock of the thread that assembles.

use ferroce_net::Wire;
use ferroce_roce::Time;

use crate::assembly::Assembly;
use crate::core::Core;
use crate::credits::CreditPage;
use crate::process::Process;
use crate::transmitter::{Transmitter, trailer};
use crate::uc_connection::UcConnection;

/// The transmitter of a core, on loan to the thread that sends. Only
/// [`Core::end_transmit`] gives it back: without, the core sends nothing any more.
pub type Sending<W, P> = Box<Transmitter<<W as Wire>::Sender, P>>;

/// Batches that a thread sends in a row. After that it leaves the rest to other threads: it
/// may have posted one message, and would send those of all others.
pub const MAX_BATCHES: u32 = 16;

/// Time after a send in which a posted datagram belongs to the same burst. A program that
/// answers a message takes longer: the message is on its way for 4 us, and its answer too.
const BURST_NS: u64 = 4_000;

impl<W: Wire, P: AsRef<CreditPage> + Clone> Core<W, P> {
    /// Takes the engine's packets to send them. Returns none if there are no packets, or if
    /// another thread sends: that thread takes these packets as well.
    ///
    /// The caller calls [`Transmitter::send`], with or without access to the core, and then
    /// [`Core::end_transmit`].
    #[must_use]
    pub fn begin_transmit(
        &mut self,
        now: Time,
        process: &mut impl Process,
    ) -> Option<Sending<W, P>> {
        self.ack_deferred = false;
        self.posts_wait = false;
        let mut begun = None;
        match self.transmitter.take() {
            Some(sending) if sending.is_due(now) => begun = Some(sending),
            // Most turns of a poller end here.
            Some(idle) if idle.is_empty() && !self.engine.has_packets() && !self.has_prepared() => {
                self.transmitter = Some(idle);
            }
            Some(sending) => begun = self.load(now, process, sending),
            None if self.prepares => self.prepare(now, process),
            None => {}
        }
        self.report(process);
        begun
    }

    /// Loads the next packets to send. If there are none, the core gets its transmitter back.
    fn load(
        &mut self,
        now: Time,
        process: &mut impl Process,
        mut sending: Sending<W, P>,
    ) -> Option<Sending<W, P>> {
        let next = self.prepared.as_deref_mut();
        let judge = &mut self.faults;
        if sending.load(now, &mut self.engine, process, next, judge) {
            return Some(sending);
        }
        self.transmitter = Some(sending);
        None
    }

    /// Assembles the next batch for the thread that sends, unless that has been done.
    fn prepare(&mut self, now: Time, process: &mut impl Process) {
        let properties = self.wire().properties();
        let prepared = self
            .prepared
            .get_or_insert_with(|| Box::new(Assembly::new(&properties, self.batch)));
        if prepared.is_empty() {
            let trailer = trailer(&properties);
            prepared.fill(now, &mut self.engine, process, trailer, &mut self.faults);
        }
    }

    /// Ends [`Transmitter::send`]. Returns the next packets to send. If there are none, or if
    /// they shall wait for other threads, the core has its transmitter back.
    #[must_use]
    pub fn end_transmit(
        &mut self,
        now: Time,
        process: &mut impl Process,
        sending: Sending<W, P>,
        continues: bool,
    ) -> Option<Sending<W, P>> {
        self.sent_at = now;
        let next = if continues {
            self.load(now, process, sending)
        } else {
            self.transmitter = Some(sending);
            self.posts_wait = true;
            None
        };
        self.report(process);
        next
    }

    /// Returns true while a thread sends.
    pub fn is_sending(&self) -> bool {
        self.transmitter.is_none()
    }

    /// Chooses whether calls during a send assemble the next batch.
    pub fn prepare_batches(&mut self, prepares: bool) {
        self.prepares = prepares;
    }

    /// Returns true if packets were assembled for a thread that sends.
    pub fn has_prepared(&self) -> bool {
        self.prepared.as_ref().is_some_and(|next| !next.is_empty())
    }

    /// Sends the engine's packets and reports its events.
    pub fn transmit(&mut self, now: Time, process: &mut impl Process) {
        let sending = self.begin_transmit(now, process);
        self.complete(now, process, sending);
    }

    /// Sends packets until there are none.
    pub fn complete(
        &mut self,
        now: Time,
        process: &mut impl Process,
        mut sending: Option<Sending<W, P>>,
    ) {
        while let Some(mut transmitter) = sending {
            transmitter.send(now);
            sending = self.end_transmit(now, process, transmitter, true);
        }
    }

    /// Ends a list of posts to the send queue of `qpn`: begins to send, as
    /// [`Core::begin_transmit`] does, or lets the work requests wait for more of them.
    ///
    /// A system call for each small message would take most of the time. While a response
    /// to an earlier packet is on its way, a few work requests can wait: for more posts, for
    /// the program's next poll, for that response, or at the latest for the deadline. A lone
    /// message is sent at once. Datagrams have no response: they wait if the last send ended
    /// just before the post.
    #[inline]
    #[must_use]
    pub fn posted(
        &mut self,
        now: Time,
        process: &mut impl Process,
        qpn: u32,
    ) -> Option<Sending<W, P>> {
        self.received_ack.note_post();
        // A deferred ACK may be the response that the queue pair still expects.
        let waits = self.received_ack.is_empty() && self.engine.posts_may_wait(qpn);
        // A program that posts again at once does so many times, or polls soon.
        let is_burst = now.nanos_since(self.sent_at) < BURST_NS;
        if waits || is_burst && self.engine.datagrams_may_wait(qpn) {
            self.posts_wait = true;
            return None;
        }
        self.begin_transmit(now, process)
    }

    /// Drops the runs of a UC connection that has ended, and sends the runs behind them. The owner of the
    /// core waits for a thread that sends before it resets or destroys a queue pair.
    pub(crate) fn drop_runs(
        &mut self,
        now: Time,
        process: &mut impl Process,
        connection: &UcConnection,
    ) {
        if let Some(prepared) = &mut self.prepared {
            prepared.drop_runs(connection);
        }
        if let Some(transmitter) = &mut self.transmitter
            && transmitter.is_blocked()
        {
            transmitter.drop_waiting(connection);
            self.transmit(now, process);
        }
    }

    /// Sends what was deferred: ACKs of the last turn, and posted work requests.
    pub fn flush_deferred(&mut self, now: Time, process: &mut impl Process) {
        if self.has_deferred() {
            self.transmit(now, process);
        }
    }
}
