//! The simulated programs: they post work requests, some of which must fail.

use ferroce_objects::{
    Access, BindMw, MemRef, MwKind, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
};

use super::arena::{BASE, Pattern, REGISTERED};
use super::conn::{Expected, Posted, Receive};
use super::world::World;

/// Bytes of a receive.
const RECEIVE: u32 = 4000;
/// Posts per connection end that are outstanding at most.
const DEPTH: usize = 20;

impl World {
    /// Posts something at random.
    pub(super) fn post(&mut self, number: usize, end: usize) -> Result<(), String> {
        let this = &self.conns[number].ends[end];
        if !this.ready {
            return Ok(());
        }
        if self.rng.percent(35) {
            return self.post_receive(number, end);
        }
        if this.sends.len() >= DEPTH || self.conns[number].fault.is_some() {
            return Ok(());
        }
        match self.rng.below(100) {
            0..40 => self.post_message(number, end),
            40..65 => self.post_write(number, end),
            65..85 => self.post_read(number, end),
            85..96 => self.post_read_and_forward(number, end),
            _ if self.rng.percent(self.faults * 30) => self.post_bad(number, end),
            _ => Ok(()),
        }
    }

    fn post_receive(&mut self, number: usize, end: usize) -> Result<(), String> {
        let wr_id = self.new_id();
        let shared = self.hosts[end].srq.clone();
        let this = &self.conns[number].ends[end];
        if this.receives.len() >= DEPTH || self.hosts[end].shared.len() >= 60 {
            return Ok(());
        }
        let host = &mut self.hosts[end];
        let start = host.arena.target(RECEIVE, None);
        let lkey = host.mr.lkey();
        let first = 1 + self.rng.below(u64::from(RECEIVE) - 1) as u32;
        let sge = |addr, length| Sge { addr, length, lkey };
        let sges = [
            sge(start, first),
            sge(start + u64::from(first), RECEIVE - first),
        ];
        let wr = RecvWr { wr_id, sges: &sges };
        let receive = Receive {
            wr_id,
            start,
            length: RECEIVE,
        };
        match shared {
            Some(srq) => {
                srq.post(&wr).map_err(|e| e.to_string())?;
                host.shared.push(receive);
            }
            None => {
                let this = &mut self.conns[number].ends[end];
                let posted = host.engine.post_recv(self.now, this.qpn, &wr);
                posted.map_err(|e| e.to_string())?;
                this.receives.push_back(receive);
            }
        }
        Ok(())
    }

    /// Returns true if the peer has a receive for one more message, and claims it.
    fn claim_receive(&mut self, number: usize, end: usize) -> bool {
        let peer = &mut self.hosts[1 - end];
        let this = &self.conns[number].ends[1 - end];
        match peer.srq.is_some() {
            true => {
                let free = peer.shared.len() > peer.shared_claims;
                peer.shared_claims += usize::from(free);
                free
            }
            false => this.receives.len() > this.expected.len(),
        }
    }

    fn length(&mut self, most: u32) -> u32 {
        match self.rng.below(5) {
            0 => self.rng.below(4) as u32,
            1 => self.rng.below(300) as u32,
            _ => self.rng.below(u64::from(most) + 1) as u32,
        }
    }

    fn post_message(&mut self, number: usize, end: usize) -> Result<(), String> {
        if !self.claim_receive(number, end) {
            return Ok(());
        }
        let (length, pattern) = (self.length(RECEIVE), Pattern(self.new_id()));
        let invalidates = self.rng.percent(20).then(|| self.bind_window(number, end));
        let op = match invalidates {
            Some(rkey) => SendOp::SendInvalidate { rkey },
            None => SendOp::Send { imm: None },
        };
        self.run.invalidates += u64::from(invalidates.is_some());
        let start = self.hosts[end].arena.source(length, pattern);
        self.expect(number, end, length, pattern, invalidates);
        self.submit(number, end, op, SendFlags::empty(), start, length, None)
    }

    /// Notes that the peer will receive a message.
    fn expect(
        &mut self,
        number: usize,
        end: usize,
        length: u32,
        pattern: Pattern,
        invalidates: Option<u32>,
    ) {
        let conn = &mut self.conns[number];
        let writes = std::mem::take(&mut conn.ends[end].writes);
        conn.ends[1 - end].expected.push_back(Expected {
            length,
            pattern,
            invalidates,
            writes,
        });
        self.run.sends += 1;
    }

    /// Binds a window of the peer, which a message will invalidate.
    fn bind_window(&mut self, number: usize, end: usize) -> u32 {
        let qpn = self.conns[number].ends[1 - end].qpn;
        let peer = &mut self.hosts[1 - end];
        let mw = peer
            .regions
            .alloc_mw(&peer.pd, MwKind::Type2B)
            .expect("room");
        let bind = BindMw {
            rkey: mw.rkey(),
            mw,
            mr: Some(peer.mr.clone()),
            addr: BASE,
            length: 64,
            access: Access::REMOTE_WRITE,
        };
        peer.regions.bind(&peer.pd, qpn, &bind).expect("valid")
    }

    fn post_write(&mut self, number: usize, end: usize) -> Result<(), String> {
        let (length, pattern) = (self.length(20_000), Pattern(self.new_id()));
        let start = self.hosts[end].arena.source(length, pattern);
        let peer = &mut self.hosts[1 - end];
        let remote_addr = peer.arena.target(length, Some(pattern));
        let rkey = peer.mr.rkey();
        let op = SendOp::Write {
            remote_addr,
            rkey,
            imm: None,
        };
        self.conns[number].ends[end]
            .writes
            .push((remote_addr, length, pattern));
        self.run.writes += 1;
        self.submit(number, end, op, SendFlags::empty(), start, length, None)
    }

    fn post_read(&mut self, number: usize, end: usize) -> Result<(), String> {
        let (length, pattern) = (self.length(20_000), Pattern(self.new_id()));
        self.submit_read(number, end, length, pattern).map(|_| ())
    }

    /// Posts a READ. Returns its sink.
    fn submit_read(
        &mut self,
        number: usize,
        end: usize,
        length: u32,
        pattern: Pattern,
    ) -> Result<Option<u64>, String> {
        let qpn = self.conns[number].ends[end].qpn;
        let query = self.hosts[end].engine.query_qp(qpn);
        if query.is_ok_and(|query| query.attr.max_rd_atomic == 0) {
            return Ok(None);
        }
        let peer = &mut self.hosts[1 - end];
        let remote_addr = peer.arena.source(length, pattern);
        let rkey = peer.mr.rkey();
        let sink = self.hosts[end].arena.target(length, Some(pattern));
        let op = SendOp::Read { remote_addr, rkey };
        let read = Some((sink, length, pattern));
        self.run.reads += 1;
        self.submit(number, end, op, SendFlags::empty(), sink, length, read)?;
        Ok(Some(sink))
    }

    /// Posts a READ and, behind a fence, a message with the bytes that were read.
    fn post_read_and_forward(&mut self, number: usize, end: usize) -> Result<(), String> {
        if self.conns[number].ends[end].sends.len() + 2 > DEPTH {
            return Ok(());
        }
        let (length, pattern) = (self.length(RECEIVE), Pattern(self.new_id()));
        let Some(sink) = self.submit_read(number, end, length, pattern)? else {
            return Ok(());
        };
        if !self.claim_receive(number, end) {
            return Ok(());
        }
        self.expect(number, end, length, pattern, None);
        self.run.fences += 1;
        let op = SendOp::Send { imm: None };
        self.submit(number, end, op, SendFlags::FENCE, sink, length, None)
    }

    /// Posts a work request that must fail and end the connection.
    fn post_bad(&mut self, number: usize, end: usize) -> Result<(), String> {
        let length = 1 + self.length(5000);
        let pattern = Pattern(self.new_id());
        let start = self.hosts[end].arena.source(length, pattern);
        let kind = self.rng.below(4);
        let peer = &mut self.hosts[1 - end];
        let rkey = peer.mr.rkey();
        let (op, fault, lkey) = match kind {
            0 => {
                // Each segment is checked on its own: those before the last one may succeed.
                // Several such WRITEs overlap, so the content of the range is not known.
                let remote_addr = BASE + REGISTERED - u64::from(length) + 1;
                peer.arena.allow(remote_addr, length - 1, None);
                let op = SendOp::Write {
                    remote_addr,
                    rkey,
                    imm: None,
                };
                (op, "a WRITE out of bounds", None)
            }
            1 | 2 => {
                let at = peer.arena.source(length, pattern);
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
                let (memory, bytes) = (MemRef::host(at), length.into());
                let mr = peer.regions.register(&peer.pd, memory, bytes, at, access);
                let mr = mr.map_err(|e| e.to_string())?;
                peer.regions.deregister(&mr).map_err(|e| e.to_string())?;
                peer.arena.bury(at, length);
                let (remote_addr, rkey) = (at, mr.rkey());
                match kind {
                    1 => (
                        SendOp::Read { remote_addr, rkey },
                        "a READ of a dead STag",
                        None,
                    ),
                    _ => {
                        let op = SendOp::Write {
                            remote_addr,
                            rkey,
                            imm: None,
                        };
                        (op, "a WRITE to a dead STag", None)
                    }
                }
            }
            _ => (SendOp::Send { imm: None }, "an invalid lkey", Some(0x77)),
        };
        self.trace(|| format!("connection {number}: end {end} posts {fault}"));
        self.conns[number].fault.get_or_insert(fault);
        self.run.faults += 1;
        let lkey = lkey.unwrap_or(self.hosts[end].mr.lkey());
        // A READ writes nowhere: its sink is no target of the arena.
        self.submit_with(
            number,
            end,
            op,
            SendFlags::empty(),
            (start, length, lkey),
            None,
        )
    }

    #[allow(clippy::too_many_arguments)] // the parts of one work request
    fn submit(
        &mut self,
        number: usize,
        end: usize,
        op: SendOp,
        flags: SendFlags,
        start: u64,
        length: u32,
        read: Option<(u64, u32, Pattern)>,
    ) -> Result<(), String> {
        let lkey = self.hosts[end].mr.lkey();
        self.submit_with(number, end, op, flags, (start, length, lkey), read)
    }

    fn submit_with(
        &mut self,
        number: usize,
        end: usize,
        op: SendOp,
        mut flags: SendFlags,
        (addr, length, lkey): (u64, u32, u32),
        read: Option<(u64, u32, Pattern)>,
    ) -> Result<(), String> {
        let wr_id = self.new_id();
        let asks = self.rng.percent(60);
        let one_element = read.is_some() || matches!(op, SendOp::Read { .. });
        let carries_payload = !one_element;
        flags.set(SendFlags::SIGNALED, asks);
        flags.set(SendFlags::SOLICITED, self.rng.percent(20));
        let first = match one_element || length == 0 {
            true => length,
            false => self.rng.below(u64::from(length) + 1) as u32,
        };
        let sge = |addr, length| Sge { addr, length, lkey };
        let sges = [
            sge(addr, first),
            sge(addr + u64::from(first), length - first),
        ];
        let sges = &sges[..if one_element { 1 } else { 2 }];
        let wr = SendWr {
            wr_id,
            op,
            flags,
            data: SendData::Sges(sges),
            ud: None,
            xrc_srq: 0,
        };
        let host = &mut self.hosts[end];
        let this = &mut self.conns[number].ends[end];
        let query = host.engine.query_qp(this.qpn).map_err(|e| e.to_string())?;
        this.payload += u64::from(length) * u64::from(carries_payload);
        this.sends.push_back(Posted {
            wr_id,
            signaled: asks || query.sq_sig_all,
            payload: this.payload,
            read,
        });
        let posted = host.engine.post_send(self.now, this.qpn, wr);
        posted.map_err(|error| format!("a valid post is refused: {error}"))
    }
}
