//! A core whose peer is a TCP socket of the test.

#![allow(
    clippy::disallowed_methods,
    reason = "the peer of a connection is a socket"
)]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use ferroce_iwarp::CloseCause;
use ferroce_iwarp::mpa::{Params, Role};
use ferroce_roce::{
    Access, AttrMask, Counters, Cq, Event, Memory, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr,
    Regions, SendData, SendFlags, SendOp, SendWr, Time, WcStatus,
};
use ferroce_shard::Process;
use rustix::net::sockopt;

use super::{Observer, Segment, StreamCore, StreamSetup, StreamUser, Wire};
use crate::memory::ProcessMemory;

pub(super) const NOW: Time = Time::from_nanos(1);
/// An FPDU with the first SEND of a stream, of no bytes.
pub(super) const EMPTY_SEND: [u8; 24] = [
    0, 18, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// A process that ignores events.
pub(super) struct Quiet(ProcessMemory);

impl Quiet {
    pub(super) fn new() -> Quiet {
        // SAFETY: no work request of the tests names memory.
        Quiet(unsafe { ProcessMemory::current() })
    }
}

impl Process for Quiet {
    fn memory(&self) -> &dyn Memory {
        &self.0
    }

    fn report(&mut self, _: Event) {}
}

impl Observer for Quiet {
    fn captures(&self) -> bool {
        false
    }

    fn segment(&mut self, _: u32, _: &Segment<'_>) {}
}

impl StreamUser for () {
    fn established(&self) {}

    fn closed(&self, _: CloseCause) {}
}

/// Returns a core with a connected queue pair, its number and its completion queue, and the peer.
pub(super) fn connected(
    process: &mut Quiet,
    role: Role,
    wire: Wire,
) -> (StreamCore, u32, Arc<Cq>, TcpStream) {
    let regions = Arc::new(Regions::new([1; 32]));
    let mut core = StreamCore::new(1, &regions, Arc::new(Counters::default())).unwrap();
    let cq = Cq::new(1, 16).unwrap();
    let init = QpInit {
        qp_type: QpType::Rc,
        pd: Some(regions.alloc_pd()),
        send_cq: Some(Arc::clone(&cq)),
        recv_cq: Some(Arc::clone(&cq)),
        srq: None,
        xrcd: None,
        cap: QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: true,
    };
    let (qpn, _) = core.engine.create_qp(&init).unwrap();
    let attr = QpAttr {
        state: QpState::Init,
        access: Access::REMOTE_WRITE,
        ..QpAttr::default()
    };
    let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
    core.engine.modify_qp(NOW, qpn, &attr, mask).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, _) = listener.accept().unwrap();
    let setup = StreamSetup {
        socket: socket.into(),
        params: Params {
            role,
            crc: false,
            ird: 1,
            ord: 1,
            rtr: None,
        },
        request: Vec::new(),
        reply: Vec::new(),
        received: Vec::new(),
        user: Arc::new(()),
    };
    core.connect(NOW, process, qpn, setup, wire).unwrap();
    (core, qpn, cq, peer)
}

/// Posts a receive without memory, with the number 1.
pub(super) fn post_receive(core: &mut StreamCore, qpn: u32) {
    let receive = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    core.engine.post_recv(NOW, qpn, &receive).unwrap();
}

/// Posts a SEND of no bytes, with the number 2.
pub(super) fn post_send(core: &mut StreamCore, qpn: u32) {
    let send = SendWr {
        wr_id: 2,
        op: SendOp::Send { imm: None },
        flags: SendFlags::empty(),
        data: SendData::Sges(&[]),
        ud: None,
        xrc_srq: 0,
    };
    core.engine.post_send(NOW, qpn, send).unwrap();
}

/// Takes all completions, in the order of their numbers.
pub(super) fn completions(cq: &Cq) -> Vec<(u64, WcStatus)> {
    let mut completed = Vec::new();
    cq.poll(16, |wc| completed.push((wc.wr_id, wc.status)));
    completed.sort_by_key(|(wr_id, _)| *wr_id);
    completed
}

#[test]
fn failed_send_loses_no_message_that_arrived_before() {
    let mut process = Quiet::new();
    let (mut core, qpn, cq, mut peer) = connected(&mut process, Role::Initiator, Wire::Tcp);
    post_receive(&mut core, qpn);
    peer.write_all(&EMPTY_SEND).unwrap();
    // The peer resets the connection.
    sockopt::set_socket_linger(&peer, Some(core::time::Duration::ZERO)).unwrap();
    drop(peer);
    post_send(&mut core, qpn);
    core.transmit(NOW, &mut process);
    assert_eq!(
        completions(&cq),
        [(1, WcStatus::Success), (2, WcStatus::WrFlush)]
    );
}
