//! Forged messages.

use ferroce_cm::message::{Drep, Dreq, Message, Rej, Rep, Rtu, Subject};
use ferroce_cm::{Address, Ignored, Mad, PrivateData, Reason, State};

use crate::pair::*;

fn mad(message: Message) -> [u8; 256] {
    Mad {
        tid: 1,
        modifier: 0,
        message,
    }
    .encode()
}

fn dreq(local_id: u32, remote_id: u32, remote_qpn: u32) -> Message {
    Message::Dreq(Dreq {
        local_id,
        remote_id,
        remote_qpn,
        private_data: PrivateData::EMPTY,
    })
}

fn drep(local_id: u32, remote_id: u32) -> Message {
    Message::Drep(Drep {
        local_id,
        remote_id,
        private_data: PrivateData::EMPTY,
    })
}

fn rtu(local_id: u32, remote_id: u32) -> Message {
    Message::Rtu(Rtu {
        local_id,
        remote_id,
        private_data: PrivateData::EMPTY,
    })
}

fn rej(local_id: u32, remote_id: u32, subject: Subject) -> Rej {
    Rej {
        local_id,
        remote_id,
        subject,
        ari_len: 0,
        reason: Reason::CONSUMER,
        ari: [0; 72],
        private_data: PrivateData::EMPTY,
    }
}

#[test]
fn messages_from_another_address_are_ignored() {
    let (mut pair, a, b) = Pair::connected();
    let (ours, theirs) = (b.comm_id(), a.comm_id());
    let messages = [
        dreq(theirs, ours, B_QPN),
        drep(theirs, ours),
        rtu(theirs, ours),
        Message::Rej(rej(theirs, ours, Subject::Other)),
        Message::Rej(rej(theirs, ours, Subject::Rep)),
    ];
    let elsewhere = [
        Address {
            local: B,
            remote: [192, 0, 2, 66].into(),
        },
        Address {
            local: [192, 0, 2, 67].into(),
            remote: A,
        },
    ];
    for message in messages {
        for address in elsewhere {
            let result = pair.b.receive(pair.now, address, &mad(message));
            assert_eq!(result, Err(Ignored::Address), "{message:?}");
        }
    }
    assert_eq!(pair.b.state(b), Some(State::Established));
    assert_eq!(poll_events(&mut pair.b), []);
    assert_eq!(sent(&mut pair.b), []);
}

#[test]
fn messages_with_other_ids_are_ignored() {
    let (mut pair, a, b) = Pair::connected();
    let (ours, theirs) = (b.comm_id(), a.comm_id());
    for (theirs, ours) in [(theirs ^ 1, ours), (theirs, ours ^ 1), (0, ours)] {
        for message in [
            dreq(theirs, ours, B_QPN),
            drep(theirs, ours),
            rtu(theirs, ours),
            Message::Rej(rej(theirs, ours, Subject::Other)),
            Message::Rej(rej(theirs, ours, Subject::Req)),
        ] {
            let result = pair.b.receive(pair.now, from_b(), &mad(message));
            assert_eq!(result, Err(Ignored::UnknownId), "{message:?}");
        }
    }
    assert_eq!(pair.b.state(b), Some(State::Established));
    assert_eq!(poll_events(&mut pair.b), []);
}

#[test]
fn a_dreq_must_name_our_queue_pair() {
    let (mut pair, a, b) = Pair::connected();
    let forged = mad(dreq(a.comm_id(), b.comm_id(), B_QPN + 1));
    let result = pair.b.receive(pair.now, from_b(), &forged);
    assert_eq!(result, Err(Ignored::Qpn));
    assert_eq!(pair.b.state(b), Some(State::Established));
    assert_eq!(sent(&mut pair.b), []);
}

#[test]
fn a_rej_of_the_req_is_ignored_after_the_rep() {
    let (mut pair, a, b) = Pair::connected();
    let forged = mad(Message::Rej(rej(b.comm_id(), a.comm_id(), Subject::Req)));
    let result = pair.a.receive(pair.now, from_a(), &forged);
    assert_eq!(result, Err(Ignored::UnknownId));
    assert_eq!(pair.a.state(a), Some(State::Established));
}

#[test]
fn a_rej_for_timeout_must_name_the_peers_adapter_and_id() {
    let (mut pair, a, b) = Pair::accepted();
    sent(&mut pair.b);
    let timeout = |guid: u64, id| {
        let rej = Rej {
            reason: Reason::TIMEOUT,
            ..rej(id, 0, Subject::Other)
        };
        mad(Message::Rej(rej.with_ari(&guid.to_be_bytes())))
    };
    for forged in [
        timeout(A_GUID + 1, a.comm_id()),
        timeout(A_GUID, a.comm_id() ^ 1),
    ] {
        let result = pair.b.receive(pair.now, from_b(), &forged);
        assert_eq!(result, Err(Ignored::UnknownId));
    }
    assert_eq!(pair.b.state(b), Some(State::RepSent));
    let real = timeout(A_GUID, a.comm_id());
    pair.b.receive(pair.now, from_b(), &real).unwrap();
    assert_eq!(pair.b.state(b), None);
}

#[test]
fn a_rep_from_another_address_is_ignored() {
    let (mut pair, a, b) = Pair::accepted();
    let good = sent(&mut pair.b)[0];
    let Message::Rep(rep) = good.message else {
        panic!("{good:?}");
    };
    let forged = Rep {
        local_id: b.comm_id() ^ 1,
        qpn: 0x666,
        ..rep
    };
    let elsewhere = Address {
        local: A,
        remote: [192, 0, 2, 66].into(),
    };
    let result = pair
        .a
        .receive(pair.now, elsewhere, &mad(Message::Rep(forged)));
    assert_eq!(result, Err(Ignored::Address));
    assert_eq!(pair.a.state(a), Some(State::ReqSent));
    pair.a.receive(pair.now, from_a(), &good.encode()).unwrap();
    assert_eq!(pair.a.qp_parameters(a).unwrap().remote_qpn, B_QPN);
}

#[test]
fn a_second_rep_does_not_replace_the_first() {
    let (mut pair, a, b) = Pair::accepted();
    let good = sent(&mut pair.b)[0];
    pair.a.receive(pair.now, from_a(), &good.encode()).unwrap();
    let Message::Rep(rep) = good.message else {
        panic!("{good:?}");
    };
    let other = Rep {
        local_id: b.comm_id() ^ 1,
        qpn: 0x666,
        ..rep
    };
    let result = pair
        .a
        .receive(pair.now, from_a(), &mad(Message::Rep(other)));
    assert_eq!(result, Err(Ignored::UnknownId));
    assert_eq!(pair.a.qp_parameters(a).unwrap().remote_qpn, B_QPN);
}

#[test]
fn a_req_from_another_address_is_not_stale() {
    let (mut pair, _, b) = Pair::connected();
    let mut params = request();
    params.address.local = [192, 0, 2, 66].into();
    pair.a.connect(pair.now, &params);
    let mut forged = sent(&mut pair.a)[0];
    if let Message::Req(req) = &mut forged.message {
        req.qpn = A_QPN;
    }
    let elsewhere = Address {
        local: B,
        remote: [192, 0, 2, 66].into(),
    };
    pair.b
        .receive(pair.now, elsewhere, &forged.encode())
        .unwrap();
    assert_eq!(pair.b.state(b), Some(State::Established), "not stale");
}

#[test]
fn messages_with_id_zero_are_ignored() {
    let mut pair = Pair::new();
    pair.a.connect(pair.now, &request());
    let mut forged = sent(&mut pair.a)[0];
    if let Message::Req(req) = &mut forged.message {
        req.local_id = 0;
    }
    let result = pair.b.receive(pair.now, from_b(), &forged.encode());
    assert_eq!(result, Err(Ignored::UnknownId));
    let result = pair.b.receive(pair.now, from_b(), &mad(rtu(0, 0)));
    assert_eq!(result, Err(Ignored::UnknownId));
}
