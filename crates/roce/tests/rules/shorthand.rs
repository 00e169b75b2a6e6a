//! Short forms of common steps: host 0 is the requester, host 1 the responder.

use std::net::IpAddr;

use ferroce_roce::{
    AddressHandle, Counter, Event, Failure, QpEvent, QpQuery, QpState, SendFlags, SendOp, SendWr,
    Time, UdTarget, WcStatus,
};
use ferroce_wire::{Operation, Syndrome};

use crate::pair::{BASE, Host, Knobs, Pair, Sent, av, wr};

/// Address in host 1's memory that host 0 writes to and reads from.
pub const REMOTE: u64 = BASE + 0x4_0000;
/// Offset in memory of the receives of host 1, and of the READ data of host 0.
pub const INBOX: u64 = 0x8_0000;

impl Pair {
    /// Returns a connected pair with some parameters changed.
    pub fn with(change: impl FnOnce(&mut Knobs)) -> Pair {
        let mut knobs = Knobs::default();
        change(&mut knobs);
        Pair::new(&knobs)
    }

    pub fn send(&mut self, wr_id: u64, length: u32) {
        self.post_op(wr_id, SendOp::Send { imm: None }, 0, length);
    }

    pub fn write(&mut self, wr_id: u64, length: u32) {
        let op = self.write_op(None);
        self.post_op(wr_id, op, 0, length);
    }

    /// Posts a WRITE from host 1 to host 0.
    pub fn write_back(&mut self, wr_id: u64, length: u32) {
        let op = SendOp::Write {
            remote_addr: REMOTE,
            rkey: self.hosts[0].mr.rkey(),
            imm: None,
        };
        let sges = [self.hosts[1].sge(0, length)];
        self.post(1, wr(wr_id, op, &sges));
    }

    pub fn read(&mut self, wr_id: u64, length: u32) {
        let op = self.read_op();
        self.post_op(wr_id, op, INBOX, length);
    }

    pub fn fetch_add(&mut self, wr_id: u64, add: u64) {
        let op = SendOp::FetchAdd {
            remote_addr: REMOTE,
            rkey: self.rkey(),
            add,
        };
        self.post_op(wr_id, op, INBOX, 8);
    }

    /// Posts an operation on host 0, with local memory at an offset.
    pub fn post_op(&mut self, wr_id: u64, op: SendOp, offset: u64, length: u32) {
        self.post_op_with_flags(wr_id, op, offset, length, SendFlags::empty());
    }

    pub fn post_op_with_flags(
        &mut self,
        wr_id: u64,
        op: SendOp,
        offset: u64,
        length: u32,
        flags: SendFlags,
    ) {
        let sges = [self.hosts[0].sge(offset, length)];
        let wr = wr(wr_id, op, &sges);
        self.post(0, SendWr { flags, ..wr });
    }

    /// Returns the target of a datagram from host 0.
    pub fn target(&self, destination: IpAddr, remote_qpn: u32) -> UdTarget {
        let host = &self.hosts[0];
        UdTarget {
            ah: AddressHandle::new(host.pd.clone(), av(host.address, destination)),
            remote_qpn,
            remote_qkey: 0x1111,
        }
    }

    /// Posts a datagram to host 1.
    pub fn datagram(&mut self, wr_id: u64, length: u32) {
        let target = self.target(self.hosts[1].address, self.hosts[1].qpn);
        self.datagram_to(wr_id, length, target);
    }

    pub fn datagram_to(&mut self, wr_id: u64, length: u32, target: UdTarget) {
        let sges = [self.hosts[0].sge(0, length)];
        let mut wr = wr(wr_id, SendOp::Send { imm: None }, &sges);
        wr.ud = Some(target);
        self.post(0, wr);
    }

    /// Posts a receive on host 1.
    pub fn recv(&mut self, wr_id: u64, length: u32) {
        let sge = self.hosts[1].sge(INBOX, length);
        self.post_recv(1, wr_id, &[sge]);
    }

    pub fn rkey(&self) -> u32 {
        self.hosts[1].mr.rkey()
    }

    pub fn write_op(&self, imm: Option<u32>) -> SendOp {
        SendOp::Write {
            remote_addr: REMOTE,
            rkey: self.rkey(),
            imm,
        }
    }

    pub fn read_op(&self) -> SendOp {
        SendOp::Read {
            remote_addr: REMOTE,
            rkey: self.rkey(),
        }
    }

    /// True if the data of a WRITE of host 0 is in host 1's memory.
    pub fn was_written(&self, length: usize) -> bool {
        self.hosts[1].ram.get(REMOTE, length) == self.hosts[0].ram.get(BASE, length)
    }

    /// True if the data of a SEND of host 0 is in host 1's receive.
    pub fn was_received(&self, length: usize) -> bool {
        self.hosts[1].ram.get(BASE + INBOX, length) == self.hosts[0].ram.get(BASE, length)
    }

    /// True if the data of a READ of host 0 is in host 0's memory.
    pub fn was_read(&self, length: usize) -> bool {
        self.hosts[0].ram.get(BASE + INBOX, length) == self.hosts[1].ram.get(REMOTE, length)
    }

    /// Polls all completions of a host; returns their work request ids and statuses.
    pub fn done(&self, side: usize) -> Vec<(u64, WcStatus)> {
        let all = self.hosts[side].completions();
        all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Returns names and PSNs of the packets sent since the last call.
    pub fn trace(&mut self) -> Vec<String> {
        self.log.drain(..).map(|sent| sent.summary()).collect()
    }

    /// Takes all packets of a host off the wire, including those it has to send now.
    pub fn take(&mut self, side: usize) -> Vec<Sent> {
        self.flush(side);
        let (taken, rest): (Vec<Sent>, Vec<Sent>) =
            self.wire.drain(..).partition(|sent| sent.from == side);
        self.wire = rest.into();
        taken
    }

    /// Lets time pass, and fires the timers on the way.
    pub fn wait(&mut self, nanos: u64) {
        let until = self.now.after_nanos(nanos);
        while self.next_timer().is_some_and(|next| next <= until) {
            self.fire_next_timer();
            self.run();
        }
        self.now = until;
    }

    /// Lets host 0's ACK timeout expire. Its loss probes are dropped.
    pub fn expire_ack_timeout(&mut self) {
        let retries = |pair: &Pair| {
            let counters = &pair.hosts[0].counters;
            counters.get(Counter::CompleterRetryErr) + counters.get(Counter::RetryExceededErr)
        };
        let before = retries(self);
        while retries(self) == before {
            let probes = self.take(0).len();
            self.log.truncate(self.log.len() - probes);
            assert!(self.fire_next_timer(), "no timer runs");
        }
    }

    /// Returns the time of the next timer of either host.
    pub fn next_timer(&self) -> Option<Time> {
        let timers = self.hosts.iter().filter_map(|h| h.engine.next_timeout());
        timers.min()
    }

    /// Checks with a READ that the connection works.
    pub fn assert_connected(&mut self) {
        self.assert_connected_after(0);
    }

    /// Checks the connection as above, with `pending` earlier requests still to complete.
    pub fn assert_connected_after(&mut self, pending: usize) {
        self.read(0xcafe, 100);
        self.run_until_idle();
        let done = self.done(0);
        assert_eq!(done.len(), pending + 1);
        assert!(done.iter().all(|done| done.1 == WcStatus::Success));
        assert!(self.was_read(100));
        assert_eq!(self.states(), [QpState::Rts; 2]);
    }

    pub fn states(&self) -> [QpState; 2] {
        [self.hosts[0].state(), self.hosts[1].state()]
    }
}

impl Host {
    pub fn query(&self) -> QpQuery {
        self.engine.query_qp(self.qpn).unwrap()
    }

    /// Returns all asynchronous events of the queue pair.
    pub fn qp_events(&self) -> Vec<QpEvent> {
        let kind = |event: &Event| match event {
            Event::Qp { kind, .. } => Some(*kind),
            _ => None,
        };
        self.events.iter().filter_map(kind).collect()
    }

    /// Returns all reported failures.
    pub fn failures(&self) -> Vec<Failure> {
        let failure = |event: &Event| match event {
            Event::Failure(failure) => Some(failure.clone()),
            _ => None,
        };
        self.events.iter().filter_map(failure).collect()
    }

    /// Returns the text of the only reported failure.
    pub fn failure_reason(&self) -> String {
        let failures = self.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        failures[0].reason.to_string()
    }
}

impl Sent {
    /// Returns name and PSN: `SEND_FIRST 1000`, `ACK 1003`, `NAK 60 1000`.
    pub fn summary(&self) -> String {
        let packet = self.packet();
        let operation = packet.opcode().operation();
        let name = match packet.aeth().map(|aeth| aeth.syndrome) {
            _ if operation != Operation::Acknowledge => operation.name().into(),
            Some(Syndrome::Ack { .. }) | None => "ACK".to_string(),
            Some(other) => format!("NAK {:02x}", other.byte()),
        };
        format!("{name} {}", packet.psn().value())
    }

    pub fn is(&self, operation: Operation) -> bool {
        self.packet().opcode().operation() == operation
    }

    pub fn psn(&self) -> u32 {
        self.packet().psn().value()
    }
}

/// Returns a predicate that is true for the first packet that `which` selects.
pub fn first_match(mut which: impl FnMut(&Sent) -> bool) -> impl FnMut(&Sent) -> bool {
    let mut over = false;
    move |sent| !over && which(sent) && std::mem::replace(&mut over, true) != over
}
