//! Input and output of the connection managers: calls of programs, packets of queue pair 1,
//! and timers.

use std::ops::RangeInclusive;

use ferroce_cm::{Address, Time, Transmit};
use ferroce_control::{CmCall, LinkEvent, LinkEventKind, Reply};
use ferroce_net::Incoming;
use ferroce_roce::{Counter, Drop};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::attachments::RESUME_TIMEOUT;
use crate::client::{ClientId, RequestId};
use crate::connections::{Caller, Connections, Output};
use crate::links::Link;
use crate::poller::{Token, now};
use crate::process::ProcessId;
use crate::qp1::{self, Qp1};
use crate::refusal::Refusal;
use crate::server::Server;

/// Ephemeral ports by the kernel's default.
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

impl Server {
    /// Returns the time of the connection managers.
    pub(crate) fn cm_time(&self) -> Time {
        now().saturating_duration_since(self.epoch)
    }

    /// Returns the next deadline of the connection managers.
    pub(crate) fn cm_deadline(&self) -> Option<std::time::Instant> {
        let timers = self.connections.next_timeout().into_iter();
        let next = timers.chain(self.cm_faults.next_due()).min();
        next.map(|at| self.epoch + at)
    }

    /// Handles a call to the connection manager, and replies to it.
    pub(crate) fn handle_cm(&mut self, id: RequestId, call: CmCall) {
        let answer = self.call_cm(id.client, call);
        self.defer(id, &answer.unwrap_or_else(Reply::from));
    }

    /// Handles calls to the connection manager that get no reply.
    pub(crate) fn handle_cm_notices(&mut self, client: ClientId, calls: Vec<CmCall>) {
        for call in calls {
            if let Err(refusal) = self.call_cm(client, call) {
                tracing::debug!(client, "a notice is refused: {refusal}");
            }
        }
    }

    fn call_cm(&mut self, id: ClientId, call: CmCall) -> Result<Reply, Refusal> {
        let process = self.register_program(id)?;
        let privileged = self.clients.get(&id).is_some_and(|c| c.peer.uid == 0);
        if names_addresses(&call) {
            // Changes that the program made to addresses before this call must be known.
            self.hear_news();
            self.need_port()?;
        }
        if let Some(qpn) = named_queue_pair(&call) {
            self.check_queue_pair(process, qpn)?;
        }
        let caller = Caller {
            client: id,
            privileged,
        };
        let answer = self.connections.call(self.cm_time(), caller, call)?;
        Ok(Reply::CmAnswer(answer))
    }

    /// Registers a client as a user of the connection manager, and identifies its process.
    /// Its connections end with the process.
    fn register_program(&mut self, id: ClientId) -> Result<ProcessId, Refusal> {
        let Some(client) = self.clients.get_mut(&id) else {
            return Err(Refusal::new(libc::ECONNRESET, "the connection is closed"));
        };
        client.connects = true;
        if let Some(process) = client.process {
            return Ok(process);
        }
        let (process, pidfd) = ProcessId::of(client.peer, &*client);
        client.process = Some(process);
        if let Some(pidfd) = &pidfd
            && let Err(error) = self.poller.add(pidfd, Token::Peer(id))
        {
            tracing::warn!(%error, "cannot watch a process");
        }
        client.pidfd = pidfd;
        Ok(process)
    }

    /// Refuses the number of another process's queue pair: a peer that receives it in a REQ
    /// or REP ends the connection which that queue pair has. Numbers without an owner are
    /// allowed: programs that measure only the connection manager (`cmtime`) invent them.
    fn check_queue_pair(&self, process: ProcessId, qpn: u32) -> Result<(), Refusal> {
        let refused = |reason: String| Err(Refusal::new(libc::EINVAL, reason));
        let Ok(slot) = u8::try_from(qpn >> 16) else {
            return refused(format!(
                "{qpn:#x} is no queue pair number: they have 24 bits"
            ));
        };
        let mut owners = self.owners.values();
        match owners.find(|owner| owner.has_udp_slot(slot)) {
            Some(owner) if owner.process.differs(process) => refused(format!(
                "queue pair {qpn:#08x} belongs to process {}",
                owner.described()
            )),
            _ => Ok(()),
        }
    }

    /// Ends all connections of a client that has closed its connection or ended.
    pub(crate) fn end_program(&mut self, id: ClientId) {
        let time = self.cm_time();
        self.cm_faults.forget_client(id);
        self.connections.close(time, id);
    }

    /// Updates the connection managers after a link event.
    pub(crate) fn tell_cm(&mut self, event: &LinkEvent) {
        match event.kind {
            LinkEventKind::Removed => {
                let time = self.cm_time();
                self.connections.remove_link(time, event.link.index);
            }
            _ => self.connections.update_link(&event.link),
        }
    }

    /// Suspends rejections for want of a listener: programs from before a restart listen
    /// again soon.
    pub(crate) fn await_survivors(&mut self) {
        let until = self.cm_time() + RESUME_TIMEOUT;
        self.connections.hold_refusals(until);
    }

    /// Starts to read queue pair 1, once the socket group exists.
    pub(crate) fn attend_qp1(&mut self) {
        let Some(group) = &self.group else { return };
        let attended = group.sockets_of_slot_0().and_then(|sockets| {
            let qp1 = Qp1::new(sockets);
            for fd in qp1.fds() {
                self.poller.add(fd, Token::Qp1)?;
            }
            Ok(qp1)
        });
        match attended {
            Ok(qp1) => self.qp1 = Some(qp1),
            Err(error) => tracing::error!(%error, "connections are impossible: cannot read slot 0"),
        }
    }

    /// Reads a batch of packets for queue pair 1.
    pub(crate) fn read_qp1(&mut self) {
        let Some(mut qp1) = self.qp1.take() else {
            return;
        };
        let time = self.cm_time();
        let result = qp1.receive(|incoming| self.on_packet(time, incoming));
        if let Err(error) = result {
            tracing::warn!(%error, "cannot read slot 0");
        }
        self.qp1 = Some(qp1);
    }

    fn on_packet(&mut self, time: Time, incoming: &Incoming<'_>) {
        // A packet from an address of this host comes from our own port. Drop others: their
        // source address is spoofed.
        let ours = self.links.have_address(incoming.source);
        let v6 = incoming.source.is_ipv6();
        let forged = ours && !self.mads.sends_from(incoming.source_port, v6);
        let Some(link) = self
            .links
            .by_address(incoming.destination, incoming.ifindex)
        else {
            return;
        };
        let mad = match qp1::check(incoming, link.info.crc) {
            Ok(_) if forged => Err(Drop::WrongPeer),
            other => other,
        };
        let mad = match mad {
            Ok(mad) => mad,
            Err(drop) => {
                tracing::trace!(from = %incoming.source, ?drop, "dropped");
                link.totals.count(drop.counter());
                let (index, text) = (link.info.index, format!("dropped: {drop}"));
                return self.cm_taps.received(index, incoming, &text);
            }
        };
        let address = Address {
            local: incoming.destination,
            remote: incoming.source,
        };
        count(link, qp1::RECEIVED);
        let index = link.info.index;
        if !self.cm_faults.is_empty()
            && let Some(text) = self.fault_holds(index, address, mad, ours)
        {
            return self.cm_taps.received(index, incoming, &text);
        }
        self.cm_taps.received(index, incoming, "");
        if let Err(why) = self.connections.receive(time, index, address, mad) {
            tracing::debug!(from = %incoming.source, "a MAD changed nothing: {why}");
        }
    }

    /// Runs expired timers of the connection managers.
    pub(crate) fn serve_connections(&mut self) {
        let time = self.cm_time();
        if self.connections.next_timeout().is_some_and(|at| at <= time) {
            self.connections.handle_timeout(time);
        }
        if self.cm_faults.next_due().is_some_and(|due| due <= time) {
            self.release_held_mads();
        }
        self.speak();
    }

    /// Sends the MADs and events of the connection managers.
    pub(crate) fn speak(&mut self) {
        loop {
            while let Some(output) = self.connections.next_output() {
                self.carry_out(output);
            }
            let Some((ifindex, mad)) = self.local_mads.pop_front() else {
                return;
            };
            let time = self.cm_time();
            self.on_packet(time, &mad.incoming(ifindex));
        }
    }

    /// Sends a message, or tells a program of an event.
    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Send {
                link,
                netdev,
                transmit,
            } => match self.cm_faults.is_empty() {
                true => self.send_mad(link, netdev, &transmit, ""),
                false => self.send_mad_through_faults(link, netdev, transmit),
            },
            Output::Tell { client, event } => {
                let number = None;
                let event = Reply::CmEvent(Box::new(event));
                self.defer(RequestId { client, number }, &event);
            }
        }
    }

    /// Sends a MAD. `fate` tells captures what a fault did to it.
    ///
    /// A MAD to a link of this host stays in this process if both links carry packets of
    /// programs through shared memory: a UDP packet through the kernel's loopback takes 10 us. The
    /// loop that carries out the outputs delivers it after them.
    pub(crate) fn send_mad(&mut self, index: u32, netdev: u32, transmit: &Transmit, fate: &str) {
        let local = self.links.local_netdev(index, netdev, transmit.address);
        let result = match local {
            Some(_) => self.mads.build(transmit),
            None => self.mads.send(transmit, netdev),
        };
        if let Err(error) = &result {
            // Like a MAD that the network lost: the connection manager retransmits it.
            tracing::debug!(to = %transmit.address.remote, "a MAD was not sent: {error}");
        }
        let Some(link) = self.links.by_index_mut(index) else {
            return;
        };
        match result {
            Ok(sent) => {
                count(link, qp1::SENT);
                self.cm_taps.sent(index, &sent, fate);
                if let Some(ifindex) = local {
                    self.local_mads.push_back((ifindex, sent));
                }
            }
            Err(_) => link.totals.count(Counter::SendErr),
        }
    }
}

/// Creates the connection managers, without links.
pub(crate) fn new_connections() -> std::io::Result<Connections> {
    let mut seed = [0; 32];
    let got = getrandom(&mut seed, GetRandomFlags::empty())?;
    assert_eq!(got, seed.len(), "so few bytes are never cut short");
    Ok(Connections::new(ephemeral_ports(), seed))
}

/// Returns the kernel's range of ephemeral ports.
fn ephemeral_ports() -> RangeInclusive<u16> {
    let path = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(low)), Some(Ok(high))) if low <= high && low > 0 => low..=high,
        _ => EPHEMERAL,
    }
}

fn names_addresses(call: &CmCall) -> bool {
    matches!(
        call,
        CmCall::Bind { .. }
            | CmCall::Listen { .. }
            | CmCall::Connect { .. }
            | CmCall::SidrRequest { .. }
    )
}

/// Returns the queue pair that a call names as the program's own.
fn named_queue_pair(call: &CmCall) -> Option<u32> {
    match call {
        CmCall::Connect { request, .. } => Some(request.qpn),
        CmCall::Accept { accept, .. } => Some(accept.qpn),
        CmCall::Resume { snapshot, .. } => Some(snapshot.qp.local_qpn),
        CmCall::SidrAnswer { answer, .. } => Some(answer.qpn),
        _ => None,
    }
}

fn count(link: &mut Link, (packets, bytes): (Counter, Counter)) {
    link.totals.count(packets);
    link.totals.add_to(bytes, qp1::BYTES);
}
