//! What most tests say, in few words: host 0 asks, host 1 answers.

use std::net::IpAddr;

use ferroce_transport::{
    AddressHandle, Counter, Event, Failure, QpEvent, QpQuery, QpState, SendFlags, SendOp, SendWr,
    Time, UdTarget, WcStatus,
};
use ferroce_wire::{Operation, Syndrome};

use crate::pair::{BASE, Host, Knobs, Pair, Sent, av, wr};

/// Where host 1 lets itself be written and read.
pub const REMOTE: u64 = BASE + 0x4_0000;
/// Where host 1 receives, and host 0 puts what it reads: an offset.
pub const INBOX: u64 = 0x8_0000;

impl Pair {
    /// Connected with other than the usual choices.
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

    /// As [`Pair::write`], the other way: from host 1 to host 0.
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

    /// Posts to host 0, with local memory at an offset.
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

    /// Where datagrams of host 0 go.
    pub fn target(&self, destination: IpAddr, remote_qpn: u32) -> UdTarget {
        let host = &self.hosts[0];
        UdTarget {
            ah: AddressHandle::new(host.pd.clone(), av(host.address, destination)),
            remote_qpn,
            remote_qkey: 0x1111,
        }
    }

    /// Sends a datagram to host 1.
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

    /// Posts a receive to host 1.
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

    /// Whether a WRITE of host 0 has arrived whole.
    pub fn was_written(&self, length: usize) -> bool {
        self.hosts[1].ram.get(REMOTE, length) == self.hosts[0].ram.get(BASE, length)
    }

    /// Whether a SEND of host 0 has arrived whole.
    pub fn was_received(&self, length: usize) -> bool {
        self.hosts[1].ram.get(BASE + INBOX, length) == self.hosts[0].ram.get(BASE, length)
    }

    /// Whether host 0 has read what host 1 has.
    pub fn was_read(&self, length: usize) -> bool {
        self.hosts[0].ram.get(BASE + INBOX, length) == self.hosts[1].ram.get(REMOTE, length)
    }

    /// Completions of a host: which, and how it went.
    pub fn done(&self, side: usize) -> Vec<(u64, WcStatus)> {
        let all = self.hosts[side].completions();
        all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    /// Names and PSNs of the packets sent since this was last asked.
    pub fn trace(&mut self) -> Vec<String> {
        self.log.drain(..).map(|sent| sent.summary()).collect()
    }

    /// Puts onto the wire what a host has to send, and takes it from there.
    pub fn take(&mut self, side: usize) -> Vec<Sent> {
        self.flush(side);
        let (taken, rest): (Vec<Sent>, Vec<Sent>) =
            self.wire.drain(..).partition(|sent| sent.from == side);
        self.wire = rest.into();
        taken
    }

    /// Lets time pass, and timers act that come up on the way.
    pub fn wait(&mut self, nanos: u64) {
        let until = self.now.after_nanos(nanos);
        while self.next_timer().is_some_and(|next| next <= until) {
            self.fire_next_timer();
            self.run();
        }
        self.now = until;
    }

    /// Lets host 0's ACK timeout expire: its loss probes are lost too.
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

    pub fn next_timer(&self) -> Option<Time> {
        let timers = self.hosts.iter().filter_map(|h| h.engine.next_timeout());
        timers.min()
    }

    /// Lets a READ go to and fro, to see that the connection works.
    pub fn assert_connected(&mut self) {
        self.assert_connected_after(0);
    }

    /// As before, with so many requests still to complete.
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

    /// Asynchronous events of the queue pair so far.
    pub fn qp_events(&self) -> Vec<QpEvent> {
        let kind = |event: &Event| match event {
            Event::Qp { kind, .. } => Some(*kind),
            _ => None,
        };
        self.events.iter().filter_map(kind).collect()
    }

    /// Failures so far.
    pub fn failures(&self) -> Vec<Failure> {
        let failure = |event: &Event| match event {
            Event::Failure(failure) => Some(failure.clone()),
            _ => None,
        };
        self.events.iter().filter_map(failure).collect()
    }

    /// Why the queue pair failed, in words.
    pub fn failure_reason(&self) -> String {
        let failures = self.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        failures[0].reason.to_string()
    }
}

impl Sent {
    /// Name and PSN: `SEND_FIRST 1000`, `ACK 1003`, `NAK 60 1000`.
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

/// True the first time that `which` is.
pub fn first_match(mut which: impl FnMut(&Sent) -> bool) -> impl FnMut(&Sent) -> bool {
    let mut over = false;
    move |sent| !over && which(sent) && std::mem::replace(&mut over, true) != over
}
