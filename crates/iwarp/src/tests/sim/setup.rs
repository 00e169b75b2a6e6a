//! Connections: their setup by MPA, and their end.

use ferroce_objects::{Access, AttrMask, QpAttr, QpCap, QpInit, QpState, QpType};

use super::conn::{Conn, End, Setup};
use super::pipe::Pipe;
use super::world::World;
use crate::mpa::{Answer, Initiator, Offer, Params, Replied, Responder, Rtr};

impl World {
    /// Opens a TCP connection. The setup by MPA follows in steps.
    pub(super) fn open_connection(&mut self) {
        let crc = self.rng.percent(50);
        let rtr = match self.rng.below(4) {
            0 => vec![Rtr::Write, Rtr::Read],
            1 => vec![Rtr::Read],
            _ => Vec::new(),
        };
        let depths = [0, 1, 2, 5, 16];
        let offer = Offer {
            crc,
            ird: self.rng.pick(&depths),
            ord: self.rng.pick(&depths),
            enhanced: true,
            rtr,
            private_data: vec![7; self.rng.index(100)],
        };
        let initiator = Initiator::new(self.now, &offer).expect("valid");
        let responder = Setup::Responder(Box::new(Responder::new(self.now)));
        let raw = initiator.request();
        let qpns = [self.create_qp(0), self.create_qp(1)];
        let mut active = End::new(qpns[0], Setup::Initiator(Box::new(initiator)));
        active.raw = raw;
        let capacities = [0, 1].map(|_| self.rng.pick(&[300, 2_000, 70_000, 400_000]));
        self.conns.push(Conn {
            ends: [active, End::new(qpns[1], responder)],
            pipes: capacities.map(Pipe::new),
            crc,
            mss: self.rng.pick(&[100, 536, 1448, 9000, 65_483]),
            fault: None,
            orderly: None,
        });
    }

    fn create_qp(&mut self, host: usize) -> u32 {
        let sig_all = self.rng.percent(50);
        let now = self.now;
        let host = &mut self.hosts[host];
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(host.pd.clone()),
            send_cq: Some(host.send_cq.clone()),
            recv_cq: Some(host.recv_cq.clone()),
            srq: host.srq.clone(),
            xrcd: None,
            cap: QpCap {
                max_send_wr: 24,
                max_recv_wr: 24,
                max_send_sge: 3,
                max_recv_sge: 2,
                max_inline_data: 0,
            },
            sq_sig_all: sig_all,
        };
        let (qpn, _) = host.engine.create_qp(&init).expect("room");
        let attr = QpAttr {
            state: QpState::Init,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
        host.engine.modify_qp(now, qpn, &attr, mask).expect("valid");
        qpn
    }

    /// Passes bytes to an end that is being set up.
    pub(super) fn receive_setup(&mut self, number: usize, to: usize, bytes: &[u8]) {
        match &mut self.conns[number].ends[to].setup {
            Setup::Done => {}
            Setup::Responder(responder) => {
                let asked = responder.receive(bytes).expect("a valid Request");
                let Some(asked) = asked else {
                    return;
                };
                let answer = Answer {
                    ird: asked.ird,
                    ord: asked.ord,
                    crc: false,
                    private_data: vec![1, 2, 3],
                };
                let (reply, params) = responder.accept(&answer).expect("valid");
                self.conns[number].ends[to].raw = reply;
                self.connect(number, to, params);
            }
            Setup::Initiator(initiator) => {
                let replied = initiator.receive(bytes).expect("a valid Reply");
                if let Replied::Accepted { taken, params, .. } = replied {
                    self.connect(number, to, params);
                    self.receive(number, to, &bytes[taken..]);
                }
            }
        }
    }

    fn connect(&mut self, number: usize, to: usize, params: Params) {
        let conn = &mut self.conns[number];
        conn.ends[to].setup = Setup::Done;
        let (qpn, mss) = (conn.ends[to].qpn, conn.mss);
        assert_eq!(params.crc, conn.crc);
        let connected = self.hosts[to].engine.connect(self.now, qpn, params, mss);
        connected.expect("the queue pair is not connected");
    }

    /// Closes the connections whose setup has taken too long.
    pub(super) fn give_up_setups(&mut self) {
        for conn in &mut self.conns {
            for (end, pipe) in conn.ends.iter_mut().zip(&mut conn.pipes) {
                if !end.closed && end.setup_timed_out(self.now) {
                    end.closed = true;
                    pipe.reset();
                    self.run.timeouts += 1;
                }
            }
        }
    }

    /// Damages a stream, or lets a program do something that ends its connection.
    pub(super) fn inject(&mut self, number: usize, end: usize) {
        let conn = &mut self.conns[number];
        let length = conn.pipes[end].len();
        let at = self.rng.index(length + 1);
        let fault = match self.rng.below(5) {
            0 => {
                conn.pipes[0].reset();
                conn.pipes[1].reset();
                "reset"
            }
            1 => {
                conn.pipes[end].cut(at);
                "half-close"
            }
            2 => {
                // Neither end hears from the other any more.
                conn.pipes[0].stall(u64::MAX);
                conn.pipes[1].stall(u64::MAX);
                "silence"
            }
            3 if conn.crc && conn.ends.iter().all(|end| end.ready) => {
                match conn.pipes[end].damage(at, 3) {
                    true => "corruption",
                    false => return,
                }
            }
            _ if conn.ends[end].ready => {
                let qpn = conn.ends[end].qpn;
                let ended = self.hosts[end].engine.disconnect(self.now, qpn);
                match ended {
                    Ok(()) => "disconnect",
                    Err(_) => return,
                }
            }
            _ => return,
        };
        let is_first = conn.fault.is_none();
        conn.fault.get_or_insert(fault);
        conn.orderly = None;
        if fault == "disconnect" {
            conn.ends[end].ready = false;
            conn.orderly = is_first.then_some(end);
            self.run.disconnects += u64::from(is_first);
        }
        self.run.faults += 1;
        self.trace(|| format!("connection {number}: {fault} at end {end}"));
    }

    /// Ends all connections that are left, from a random end each.
    pub(super) fn disconnect_all(&mut self) -> Result<(), String> {
        for number in 0..self.conns.len() {
            let mut end = self.rng.index(2);
            let conn = &mut self.conns[number];
            if conn.ends[end].closed {
                // The other end may not have heard of it.
                end = 1 - end;
            }
            conn.fault.get_or_insert("the end of the run");
            let qpn = conn.ends[end].qpn;
            conn.ends[end].ready = false;
            // The connection may have ended before.
            let _ = self.hosts[end].engine.disconnect(self.now, qpn);
        }
        self.observe()
    }
}
