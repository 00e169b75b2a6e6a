//! XRC: requests of one connection name one of many shared receive queues.

use std::sync::Arc;

use ferroce_roce::{
    Cq, MemRef, Pd, QpEvent, QpInit, QpState, QpType, RecvWr, SendOp, Srq, SrqInit, VerbsError, Wc,
    WcOpcode, WcStatus, Xrcd,
};
use ferroce_wire::Transport;

use crate::pair::{BASE, INIT, Knobs, Pair, RC_RTR, RC_RTS, all_access, av, wr};
use crate::shorthand::{INBOX, REMOTE};

const OK: WcStatus = WcStatus::Success;

/// A pair with an initiator (host 0) and a target (host 1), and two shared receive queues of
/// the target, each in its own protection domain.
struct Xrc {
    pair: Pair,
    srqs: [Arc<Srq>; 2],
    cqs: [Arc<Cq>; 2],
    pds: [Arc<Pd>; 2],
}

fn xrc() -> Xrc {
    let knobs = Knobs::default();
    let mut pair = Pair::unconnected(&knobs);
    let xrcd = Xrcd::new();
    let host = &mut pair.hosts[1];
    let pds = [host.regions.alloc_pd(), host.regions.alloc_pd()];
    let cqs = [10, 11].map(|id| Cq::new(id, 15).unwrap());
    let srq = |n: usize| {
        let init = SrqInit {
            max_wr: 8,
            max_sge: 1,
            xrc: Some((xrcd.clone(), cqs[n].clone())),
        };
        Srq::new(100 + n as u32, pds[n].clone(), init).unwrap()
    };
    let srqs = [srq(0), srq(1)];
    let target = QpInit {
        qp_type: QpType::XrcTarget,
        pd: None,
        send_cq: None,
        recv_cq: None,
        xrcd: Some(xrcd),
        ..host.qp_init(&knobs)
    };
    host.qpn = host.engine.create_qp(&target).unwrap().0;
    let host = &mut pair.hosts[0];
    let initiator = QpInit {
        qp_type: QpType::XrcInitiator,
        recv_cq: None,
        ..host.qp_init(&knobs)
    };
    host.qpn = host.engine.create_qp(&initiator).unwrap().0;
    for side in 0..2 {
        connect(&mut pair, side);
    }
    Xrc {
        pair,
        srqs,
        cqs,
        pds,
    }
}

fn connect(pair: &mut Pair, side: usize) {
    use ferroce_roce::AttrMask;
    let (rtr, rts) = match side {
        0 => (crate::pair::RTR, RC_RTS),
        _ => (RC_RTR, crate::pair::RTS | AttrMask::TIMEOUT),
    };
    let mut attr = Knobs::default().attr;
    attr.av = Some(av(pair.hosts[side].address, pair.hosts[1 - side].address));
    attr.dest_qpn = pair.hosts[1 - side].qpn;
    for (state, mask) in [
        (QpState::Init, INIT),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ] {
        attr.state = state;
        pair.modify(side, &attr, mask);
    }
}

impl Xrc {
    /// Posts a receive to SRQ `n`, in memory of its protection domain.
    fn recv(&self, n: usize, wr_id: u64) {
        let regions = &self.pair.hosts[1].regions;
        let at = BASE + INBOX + 0x1_0000 * n as u64;
        let mr = regions
            .register(&self.pds[n], MemRef::host(at), 5000, at, all_access())
            .unwrap();
        let sge = ferroce_roce::Sge {
            addr: at,
            length: 5000,
            lkey: mr.lkey(),
        };
        self.srqs[n]
            .post(&RecvWr {
                wr_id,
                sges: &[sge],
            })
            .unwrap();
    }

    fn post(&mut self, wr_id: u64, op: SendOp, length: u32, srq: u32) {
        let sges = [self.pair.hosts[0].sge(0, length)];
        let mut wr = wr(wr_id, op, &sges);
        wr.xrc_srq = srq;
        self.pair.post(0, wr);
    }

    fn received(&self, n: usize) -> Vec<Wc> {
        let mut all = Vec::new();
        self.cqs[n].poll(usize::MAX, |wc| all.push(wc));
        all
    }

    /// Returns a key for [`REMOTE`] in the protection domain of SRQ `n`.
    fn key(&self, n: usize) -> u32 {
        let regions = &self.pair.hosts[1].regions;
        let mr = regions.register(
            &self.pds[n],
            MemRef::host(REMOTE),
            4096,
            REMOTE,
            all_access(),
        );
        mr.unwrap().rkey()
    }
}

const SEND: SendOp = SendOp::Send { imm: Some(5) };

#[test]
fn one_xrc_connection_serves_several_srqs() {
    let mut xrc = xrc();
    for wr_id in 0..2 {
        xrc.recv(0, 70 + wr_id);
        xrc.recv(1, 80 + wr_id);
    }
    for (wr_id, srq) in [(1, 100), (2, 101), (3, 101), (4, 100)] {
        xrc.post(wr_id, SEND, 3000, srq);
    }
    xrc.pair.run();
    assert_eq!(xrc.pair.done(0), [(1, OK), (2, OK), (3, OK), (4, OK)]);
    for (n, first) in [(0, 70), (1, 80)] {
        let got = xrc.received(n);
        let ids: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status, wc.imm)).collect();
        assert_eq!(ids, [(first, OK, 5), (first + 1, OK, 5)]);
        assert!(
            got.iter()
                .all(|wc| wc.opcode == WcOpcode::Recv && wc.byte_len == 3000)
        );
        assert!(got.iter().all(|wc| wc.qpn == xrc.pair.hosts[1].qpn));
        let at = BASE + INBOX + 0x1_0000 * n as u64;
        let sent = xrc.pair.hosts[0].ram.get(BASE, 3000);
        assert_eq!(xrc.pair.hosts[1].ram.get(at, 3000), sent);
    }
    assert_eq!(xrc.pair.done(1), [], "the target has no completion queue");
}

#[test]
fn xrc_requests_name_an_srq_and_responses_do_not() {
    let mut xrc = xrc();
    xrc.recv(1, 7);
    xrc.post(1, SEND, 3000, 101);
    xrc.pair.run();
    for sent in &xrc.pair.log {
        let packet = sent.packet();
        assert_eq!(packet.opcode().transport(), Transport::Xrc);
        let number = packet.xrceth().map(|eth| eth.srq_number);
        assert_eq!(number, (sent.from == 0).then_some(101));
    }
}

#[test]
fn keys_are_checked_against_the_protection_domain_of_the_named_srq() {
    for (owner, named) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
        for n in 0..3 {
            let mut xrc = xrc();
            let (remote_addr, rkey) = (REMOTE, xrc.key(owner));
            let op = match n {
                0 => SendOp::Write {
                    remote_addr,
                    rkey,
                    imm: None,
                },
                1 => SendOp::Read { remote_addr, rkey },
                _ => SendOp::FetchAdd {
                    remote_addr,
                    rkey,
                    add: 1,
                },
            };
            xrc.post(1, op, if n == 2 { 8 } else { 3000 }, 100 + named);
            xrc.pair.run();
            let allowed = owner as u32 == named;
            let status = if allowed { OK } else { WcStatus::RemoteAccess };
            assert_eq!(xrc.pair.done(0), [(1, status)]);
            if !allowed {
                assert_eq!(xrc.pair.hosts[1].qp_events(), [QpEvent::AccessError]);
                assert!(
                    xrc.pair.hosts[1]
                        .failure_reason()
                        .ends_with("belongs to another protection domain")
                );
            }
        }
    }
}

#[test]
fn lost_read_response_is_requested_again_with_the_key_of_the_srqs_domain() {
    let mut xrc = xrc();
    let op = SendOp::Read {
        remote_addr: REMOTE,
        rkey: xrc.key(0),
    };
    let sges = [xrc.pair.hosts[0].sge(INBOX, 4000)];
    let mut wr = wr(1, op, &sges);
    wr.xrc_srq = 100;
    xrc.pair.post(0, wr);
    xrc.pair.run_losing(crate::shorthand::first_match(|sent| {
        sent.from == 1 && sent.psn() == 1001
    }));
    assert_eq!(xrc.pair.done(0), [(1, OK)]);
    assert!(xrc.pair.was_read(4000));
}

#[test]
fn unknown_srq_number_is_an_invalid_request() {
    let mut xrc = xrc();
    xrc.post(1, SEND, 100, 999);
    xrc.pair.run();
    assert_eq!(xrc.pair.trace().last().unwrap(), "NAK 61 1000");
    assert_eq!(xrc.pair.done(0), [(1, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(
        xrc.pair.hosts[1].failure_reason(),
        "invalid request: no shared receive queue 0x3e7 in the XRC domain"
    );
}

#[test]
fn number_of_a_destroyed_srq_is_an_invalid_request() {
    let mut xrc = xrc();
    xrc.recv(0, 7);
    let [gone, kept] = xrc.srqs;
    drop(gone);
    xrc.srqs = [kept.clone(), kept];
    xrc.post(1, SEND, 100, 100);
    xrc.pair.run();
    assert_eq!(xrc.pair.done(0), [(1, WcStatus::RemoteInvalidRequest)]);
}

#[test]
fn empty_srq_causes_an_rnr_nak_and_no_other_srq_is_used() {
    let mut xrc = xrc();
    xrc.recv(1, 7);
    xrc.post(1, SEND, 100, 100);
    xrc.pair.run();
    assert_eq!(xrc.pair.trace().last().unwrap(), "NAK 2c 1000");
    assert_eq!(xrc.srqs[1].posted(), 1);
    xrc.recv(0, 8);
    xrc.pair.run_until_idle();
    assert_eq!(xrc.pair.done(0), [(1, OK)]);
    assert_eq!(xrc.received(0)[0].wr_id, 8);
}

#[test]
fn write_with_immediate_completes_a_receive_of_the_named_srq() {
    let mut xrc = xrc();
    xrc.recv(1, 7);
    let op = SendOp::Write {
        remote_addr: REMOTE,
        rkey: xrc.key(1),
        imm: Some(3),
    };
    xrc.post(1, op, 3000, 101);
    xrc.pair.run();
    let got = xrc.received(1)[0];
    assert_eq!(
        (got.opcode, got.byte_len, got.imm),
        (WcOpcode::RecvRdmaWithImm, 3000, 3)
    );
    assert!(xrc.pair.was_written(3000));
}

#[test]
fn message_longer_than_its_srq_receive_is_a_local_length_error() {
    let mut xrc = xrc();
    xrc.recv(0, 7);
    xrc.post(1, SEND, 6000, 100);
    xrc.pair.run();
    assert_eq!(xrc.pair.done(0), [(1, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(xrc.received(0)[0].status, WcStatus::LocalLength);
}

#[test]
fn xrc_target_refuses_sends_and_both_ends_refuse_receives() {
    let mut xrc = xrc();
    let now = xrc.pair.now;
    let send = wr(1, SEND, &[]);
    let host = &mut xrc.pair.hosts[1];
    assert!(
        host.engine.post_send(now, host.qpn, send).is_err(),
        "a target cannot send"
    );
    let receive = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    for host in &mut xrc.pair.hosts {
        let refused = host.engine.post_recv(now, host.qpn, &receive);
        assert!(matches!(refused, Err(VerbsError::Invalid(_))));
    }
}
