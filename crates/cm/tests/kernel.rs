//! Compares our messages with those captured from the kernel in the same situation. They are
//! equal byte for byte, except for random numbers.

#[path = "common/captured.rs"]
mod captured;

use std::time::Duration;

use captured::{Captured, mads};
use ferroce_cm::message::{Message, Rep, Req};
use ferroce_cm::{
    Accept, Address, Cm, Config, Event, Ignored, ListenAddress, Mad, PrivateData, Request,
};

const NOW: Duration = Duration::ZERO;
const CONNECTIONS: [&str; 4] = ["cmatose-v4", "rping-v4", "rping-v6", "rsocket-v4"];

fn node(ca_guid: u64) -> Cm {
    Cm::new(Config::new(ca_guid), [5; 32])
}

/// Returns the addresses as the receiver of a captured message sees them.
fn received(captured: &Captured) -> Address {
    Address {
        local: captured.destination,
        remote: captured.source,
    }
}

fn find<T>(name: &str, pick: impl Fn(&Message) -> Option<T>) -> (Captured, Mad, T) {
    let found = mads(name).into_iter().find_map(|captured| {
        let mad = Mad::decode(&captured.bytes).unwrap();
        let message = pick(&mad.message)?;
        Some((captured, mad, message))
    });
    found.unwrap_or_else(|| panic!("{name}: no such message"))
}

fn req(name: &str) -> (Captured, Mad, Req) {
    find(name, |message| match message {
        Message::Req(req) => Some(*req),
        _ => None,
    })
}

fn rep(name: &str) -> (Captured, Mad, Rep) {
    find(name, |message| match message {
        Message::Rep(rep) => Some(*rep),
        _ => None,
    })
}

#[test]
fn a_req_without_a_listener_gets_the_kernels_rej() {
    let (captured, _, req) = req("cm-reject-v4");
    let mut cm = node(1);
    cm.receive(NOW, received(&captured), &captured.bytes)
        .unwrap();
    let ours = cm.poll_transmit().unwrap();
    assert_eq!(ours.address, received(&captured));
    let theirs = &mads("cm-reject-v4")[1];
    assert_eq!(ours.mad[..], theirs.bytes[..]);
    assert!(cm.is_idle(), "state is left of {req:?}");
}

#[test]
fn our_req_equals_the_kernels() {
    for name in CONNECTIONS {
        let (captured, mad, req) = req(name);
        let address = Address {
            local: captured.source,
            remote: captured.destination,
        };
        let request = Request {
            srq: req.srq,
            flow_control: req.flow_control,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            path_mtu: req.path_mtu,
            packet_life_time: 18,
            flow_label: req.primary.flow_label,
            private_data: req.private_data,
            ..Request::new(address, req.service_id, req.qpn)
        };
        let mut cm = node(req.ca_guid);
        cm.connect(NOW, &request);
        let ours = cm.poll_transmit().unwrap();
        let mut ours = Mad::decode(&ours.mad[..]).unwrap();
        ours.tid = mad.tid;
        if let Message::Req(ours) = &mut ours.message {
            ours.local_id = req.local_id;
            ours.starting_psn = req.starting_psn;
        }
        assert_eq!(ours.encode()[..], captured.bytes[..], "{name}: {ours:?}");
    }
}

#[test]
fn our_rep_equals_the_kernels() {
    for name in CONNECTIONS {
        let (request, _, req) = req(name);
        let (reply, _, rep) = rep(name);
        let mut cm = node(rep.ca_guid);
        cm.listen(req.service_id, ListenAddress::Any, 1).unwrap();
        cm.receive(NOW, received(&request), &request.bytes).unwrap();
        let Some(Event::Request(incoming)) = cm.poll_event() else {
            panic!("{name}: no request");
        };
        assert_eq!(incoming.ip.unwrap().source, request.source);
        assert_eq!(incoming.user_data().len(), 56);
        let accept = Accept {
            srq: rep.srq,
            flow_control: rep.flow_control,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            rnr_retry_count: rep.rnr_retry_count,
            private_data: rep.private_data,
            ..Accept::new(rep.qpn)
        };
        cm.accept(NOW, incoming.conn, &accept).unwrap();
        let ours = cm.poll_transmit().unwrap();
        let mut ours = Mad::decode(&ours.mad[..]).unwrap();
        if let Message::Rep(ours) = &mut ours.message {
            ours.local_id = rep.local_id;
            ours.starting_psn = rep.starting_psn;
        }
        assert_eq!(ours.encode()[..], reply.bytes[..], "{name}: {ours:?}");
    }
}

#[test]
fn a_dreq_for_a_connection_that_is_gone_gets_the_kernels_drep() {
    for name in CONNECTIONS {
        let all = mads(name);
        let [.., dreq, drep] = &all[..] else {
            panic!("{name}: too short");
        };
        let mut cm = node(1);
        let result = cm.receive(NOW, received(dreq), &dreq.bytes);
        assert_eq!(result, Err(Ignored::UnknownId));
        let ours = cm.poll_transmit().unwrap();
        assert_eq!(ours.mad[..], drep.bytes[..], "{name}");
    }
}

#[test]
fn the_kernels_rtu_establishes_our_connection() {
    let name = "rping-v4";
    let (request, _, req) = req(name);
    let rtu = find(name, |m| matches!(m, Message::Rtu(_)).then_some(()));
    let mut cm = node(1);
    cm.listen(req.service_id, ListenAddress::Any, 1).unwrap();
    cm.receive(NOW, received(&request), &request.bytes).unwrap();
    let Some(Event::Request(incoming)) = cm.poll_event() else {
        panic!("no request");
    };
    let conn = incoming.conn;
    cm.accept(NOW, conn, &Accept::new(7)).unwrap();
    let mut mad = rtu.1;
    if let Message::Rtu(rtu) = &mut mad.message {
        rtu.remote_id = conn.comm_id();
        assert_eq!(rtu.private_data, PrivateData::EMPTY);
    }
    cm.receive(NOW, received(&request), &mad.encode()).unwrap();
    assert_eq!(cm.poll_event(), Some(Event::Established { conn }));
}
