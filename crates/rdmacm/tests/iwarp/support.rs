//! Connections in this process: channels, ids, queue pairs and messages.

use std::net::SocketAddr;
use std::sync::Arc;

use ferroce_device::transport::{
    Access, QpCap, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, WcStatus,
};
use ferroce_device::{Buffer, Cq, Qp};
use ferroce_rdmacm::{
    ConnParams, Event, EventChannel, EventKind, Id, PortSpace, QpConfig, RESOLVE_TIMEOUT,
};
use ferroce_testnet::{deadline, isolated};

use crate::ferroced;

pub(crate) fn on_siw(name: &str, body: impl FnOnce(&mut ferroced::Ferroced)) {
    isolated(name, || {
        let mut ferroced = ferroced::Ferroced::start();
        ferroced::add_link_of("siw", "siw0", "lo");
        body(&mut ferroced);
    });
}

/// Returns the next event, which must come soon.
pub(crate) fn next(channel: &EventChannel) -> Event {
    deadline::readable(channel, "an event");
    channel.next().expect("an event")
}

pub(crate) fn channels() -> [EventChannel; 2] {
    [(); 2].map(|()| EventChannel::new().expect("a channel"))
}

pub(crate) fn new_id(channel: &EventChannel) -> Id {
    Id::new(channel, PortSpace::Tcp, QpType::Rc).expect("an id")
}

pub(crate) fn listener(channel: &EventChannel, address: &str, backlog: u32) -> (Id, SocketAddr) {
    let id = new_id(channel);
    id.bind(address.parse().expect("an address"))
        .expect("bound");
    id.listen(backlog).expect("listening");
    let address = id.local_addr().expect("bound");
    (id, address)
}

pub(crate) fn queue_pair(id: &Id) -> (Arc<Qp>, Arc<Cq>) {
    let link = id.device().expect("resolved");
    let cq = link.device().create_cq(64, None).expect("a queue");
    let config = QpConfig {
        pd: None,
        send_cq: &cq,
        recv_cq: &cq,
        cap: cap(),
        sq_sig_all: true,
    };
    (id.create_qp(&config).expect("a queue pair"), cq)
}

pub(crate) fn cap() -> QpCap {
    QpCap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    }
}

/// Returns an id that has requested a connection.
pub(crate) fn connect(channel: &EventChannel, to: SocketAddr) -> (Id, Arc<Qp>, Arc<Cq>) {
    let id = new_id(channel);
    id.resolve_addr(None, to, RESOLVE_TIMEOUT)
        .expect("resolving");
    assert!(matches!(next(channel).kind, EventKind::AddressResolved));
    id.resolve_route().expect("resolving");
    assert!(matches!(next(channel).kind, EventKind::RouteResolved));
    let (qp, cq) = queue_pair(&id);
    let params = ConnParams::with_private_data(b"hello");
    id.connect(&params).expect("requested");
    (id, qp, cq)
}

/// Takes a request of a listener.
pub(crate) fn request(channel: &EventChannel) -> Id {
    match next(channel).kind {
        EventKind::ConnectRequest { id, params } => {
            assert_eq!(params.private_data, b"hello", "the exact length");
            id
        }
        other => panic!("{other:?}"),
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) id: Id,
    pub(crate) qp: Arc<Qp>,
    pub(crate) cq: Arc<Cq>,
}

/// Connects two ends through a listener.
pub(crate) fn pair(here: &EventChannel, there: &EventChannel, address: &str) -> (Id, [End; 2]) {
    let (listening, mut to) = listener(there, address, 4);
    if to.ip().is_unspecified() {
        to.set_ip([127, 0, 0, 1].into());
    }
    let (id, qp, cq) = connect(here, to);
    let active = End { id, qp, cq };
    let id = request(there);
    assert_eq!(id.local_addr(), Some(to));
    let (qp, cq) = queue_pair(&id);
    let passive = End { id, qp, cq };
    let params = ConnParams::with_private_data(b"welcome");
    passive.id.accept(&params).expect("accepted");
    match next(here).kind {
        EventKind::Established(Some(params)) => assert_eq!(params.private_data, b"welcome"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(next(there).kind, EventKind::Established(None)));
    assert_eq!(passive.id.peer_addr(), active.id.local_addr());
    for end in [&active, &passive] {
        let state = end.qp.query().expect("it lives").attr.state;
        assert_eq!(state, QpState::Rts);
    }
    (listening, [active, passive])
}

/// Waits for a completion. Returns its status and its number of bytes.
pub(crate) fn completion(end: &End) -> (u64, WcStatus, u32) {
    let mut found = None;
    deadline::until("a completion", || {
        end.cq
            .poll(1, |wc| found = Some((wc.wr_id, wc.status, wc.byte_len)));
        found.is_some()
    });
    found.expect("a completion")
}

pub(crate) fn buffer(end: &End, length: usize) -> Buffer {
    let link = end.id.device().expect("resolved");
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    Buffer::new(link.device(), link.pd(), length, access).expect("memory")
}

pub(crate) fn post(end: &End, wr_id: u64, op: SendOp, from: &Buffer, length: usize) {
    end.qp
        .post_send(SendWr {
            wr_id,
            op,
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&[from.sge(0, length as u32)]),
            ud: None,
            xrc_srq: 0,
        })
        .expect("posted");
}

/// SENDs a message to the other end, and compares it there.
pub(crate) fn send_message(from: &End, to: &End, length: usize) {
    let (source, sink) = (buffer(from, length), buffer(to, length));
    let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
    source.write(0, &bytes);
    let sges = &[sink.sge(0, length as u32)];
    to.qp.post_recv(&RecvWr { wr_id: 7, sges }).expect("posted");
    post(from, 8, SendOp::Send { imm: None }, &source, length);
    assert_eq!(completion(to), (7, WcStatus::Success, length as u32));
    let (wr_id, status, _) = completion(from);
    assert_eq!((wr_id, status), (8, WcStatus::Success));
    let mut got = vec![0; length];
    sink.read(0, &mut got);
    assert!(got == bytes, "the message differs");
}
