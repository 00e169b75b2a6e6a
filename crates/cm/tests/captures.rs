//! Messages captured from the Linux kernel: they are decoded, re-encoded byte for byte, and
//! have the values that the kernel is known to send.

#[path = "common/captured.rs"]
mod captured;

use std::collections::BTreeMap;
use std::net::IpAddr;

use captured::{Captured, mads};
use ferroce_cm::message::{Message, SidrStatus, Subject, Transport};
use ferroce_cm::{Gid, IpHeader, IpHeaderOr, Mad, PortSpace, Reason, ack_timeout};

/// Each capture that has CM messages, and their number, counted by another tool.
const CAPTURES: &[(&str, usize)] = &[
    ("cm-reject-v4", 2),
    ("cmatose-v4", 5),
    ("nvme-discover-v4", 5),
    ("nvme-rw-v4", 10),
    ("rping-v4", 5),
    ("rping-v6", 5),
    ("rsocket-v4", 5),
    ("udaddy-v4", 2),
];

fn messages(name: &str) -> Vec<(Captured, Mad)> {
    let decode = |c: Captured| {
        let mad = Mad::decode(&c.bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        (c, mad)
    };
    mads(name).into_iter().map(decode).collect()
}

fn all() -> Vec<(Captured, Mad)> {
    CAPTURES.iter().flat_map(|(n, _)| messages(n)).collect()
}

#[test]
fn captures_contain_the_expected_number_of_messages() {
    let found: Vec<_> = CAPTURES.iter().map(|(n, _)| (*n, mads(n).len())).collect();
    assert_eq!(found, CAPTURES);
}

#[test]
fn no_other_capture_has_messages() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire/tests/data/captures");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(name) = name.strip_suffix(".pcap") else {
            continue;
        };
        if !CAPTURES.iter().any(|(known, _)| *known == name) {
            assert_eq!(mads(name).len(), 0, "{name}");
        }
    }
}

#[test]
fn every_message_is_reencoded_byte_for_byte() {
    for (captured, mad) in all() {
        assert_eq!(mad.encode()[..], captured.bytes[..], "{mad:?}");
    }
}

#[test]
fn captures_contain_the_expected_attributes() {
    let mut seen = BTreeMap::<u16, usize>::new();
    for (_, mad) in all() {
        *seen.entry(mad.message.attribute()).or_default() += 1;
    }
    let expected = [
        (0x10, 8),
        (0x12, 1),
        (0x13, 7),
        (0x14, 7),
        (0x15, 7),
        (0x16, 7),
        (0x17, 1),
        (0x18, 1),
    ];
    assert_eq!(seen, BTreeMap::from(expected));
}

#[test]
fn gids_and_rdma_cm_header_of_a_req_equal_its_ip_addresses() {
    for (captured, mad) in all() {
        let Message::Req(req) = mad.message else {
            continue;
        };
        assert_eq!(req.primary.local_gid, Gid::from(captured.source));
        assert_eq!(req.primary.remote_gid, Gid::from(captured.destination));
        let IpHeaderOr::Ip(header) = IpHeader::parse(&req.private_data) else {
            panic!("no header: {req:?}");
        };
        assert_eq!(header.source, captured.source);
        assert_eq!(header.destination, captured.destination);
        let (space, port) = PortSpace::of_service(req.service_id).unwrap();
        assert_eq!(space, PortSpace::Tcp);
        let label = u32::from(header.source_port) * 31 + u32::from(port);
        assert_eq!(req.primary.flow_label, label & 0xf_ffff);

        let mut rewritten = req.private_data.0;
        rewritten[..IpHeader::LEN].fill(0xff);
        header.emit(&mut rewritten);
        assert_eq!(rewritten, req.private_data.0);
    }
}

#[test]
fn a_req_of_the_kernel_has_its_default_timeouts() {
    for (_, mad) in all() {
        if let Message::Req(req) = mad.message {
            assert_eq!(req.transport, Transport::Rc);
            // Linux 6.1 uses a packet life time of 18. Newer kernels use 16, for which the
            // timeout is 17.
            assert_eq!(req.primary.ack_timeout, ack_timeout(18, 15));
            assert_eq!(req.remote_response_timeout, 20);
            assert_eq!(req.local_response_timeout, 20);
            assert_eq!(req.max_cm_retries, 15);
            assert_eq!(req.pkey, 0xffff);
            assert_eq!(req.path_mtu, 3);
            assert_eq!(req.primary.hop_limit, 64);
            assert_eq!(req.primary.local_lid, 0xffff);
            // The kernel writes the ID into the transaction ID in host byte order, which was
            // little endian on these machines.
            assert_eq!((mad.tid as u32).swap_bytes(), req.local_id);
        }
    }
}

#[test]
fn answers_repeat_the_transaction_id_and_communication_ids() {
    let (mut tid, mut active, mut passive) = (0, 0, 0);
    for (_, mad) in messages("rping-v4") {
        match mad.message {
            Message::Req(m) => (tid, active) = (mad.tid, m.local_id),
            Message::Rep(m) => {
                passive = m.local_id;
                assert_eq!((mad.tid, m.remote_id), (tid, active));
            }
            Message::Rtu(m) => {
                assert_eq!((mad.tid, m.local_id, m.remote_id), (tid, active, passive));
            }
            Message::Dreq(m) => {
                tid = mad.tid;
                assert_eq!(m.local_id.min(m.remote_id), active.min(passive));
            }
            Message::Drep(m) => {
                assert_eq!(mad.tid, tid);
                assert_eq!(m.local_id.max(m.remote_id), active.max(passive));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_req_without_a_listener_gets_reason_8_and_local_id_0() {
    let messages = messages("cm-reject-v4");
    let [(_, request), (_, answer)] = &messages[..] else {
        panic!("{} messages", messages.len());
    };
    let (Message::Req(req), Message::Rej(rej)) = (request.message, answer.message) else {
        panic!("{answer:?}");
    };
    assert_eq!(rej.reason, Reason::INVALID_SERVICE_ID);
    assert_eq!(rej.subject, Subject::Req);
    assert_eq!((rej.local_id, rej.remote_id), (0, req.local_id));
    assert_eq!(rej.ari_len, 0);
    assert_eq!(answer.tid, request.tid);
}

#[test]
fn a_sidr_rep_of_the_kernel_has_the_default_qkey() {
    let messages = messages("udaddy-v4");
    let (Message::SidrReq(req), Message::SidrRep(rep)) =
        (messages[0].1.message, messages[1].1.message)
    else {
        panic!("{:?}", messages[1].1);
    };
    assert_eq!(rep.request_id, req.request_id);
    assert_eq!(rep.service_id, req.service_id);
    assert_eq!(rep.status, SidrStatus::VALID);
    assert_eq!(Some(rep.qkey), PortSpace::Udp.default_qkey());
    assert_eq!(messages[0].1.tid, messages[1].1.tid);
    let IpHeaderOr::Ip(header) = IpHeader::parse(&req.private_data) else {
        panic!("no header");
    };
    assert_eq!(
        header.destination,
        "198.51.100.12".parse::<IpAddr>().unwrap()
    );
}
