//! Encoding and decoding of messages.

use ferroce_control::protocol::{
    MAX_REPLY, SlotGrant, SlotKind, decode, decode_numbered, encode, encode_numbered,
};
use ferroce_control::{Gid, LinkConfig, LinkEvent, LinkEventKind, LinkInfo, Reply, Request};
use proptest::prelude::*;

fn link(gids: u32) -> LinkInfo {
    LinkInfo {
        name: "x".repeat(63),
        index: u32::MAX,
        kind: "rxe".into(),
        netdev: "fifteen-letters".into(),
        ifindex: u32::MAX,
        up: true,
        carrier: false,
        netdev_mtu: u32::MAX,
        mtu: Some(4096),
        active_mtu: 4096,
        speed_mbps: Some(u32::MAX),
        mac: [255; 6],
        crc: true,
        lids: true,
        patience: 60,
        speed: Some(400_000),
        faults: "loss 1%".into(),
        local: true,
        strict: "error".into(),
        profile: "mlx5".into(),
        gids: (0..gids)
            .map(|index| Gid {
                index,
                address: "2001:1db8:1111:2222:3333:4444:5555:6666".parse().unwrap(),
                ifindex: u32::MAX,
                netdev: "fifteen-letters".into(),
                tentative: true,
            })
            .collect(),
    }
}

#[test]
fn longest_reply_fits() {
    let event = Reply::Event(LinkEvent {
        kind: LinkEventKind::GidChange,
        link: link(1024),
    });
    let length = encode(&event).len();
    assert!(length <= MAX_REPLY, "{length}");
}

#[test]
fn message_is_decoded_to_itself() {
    let requests = [
        Request::Links,
        Request::Shutdown,
        Request::Resume {
            attachment: 3,
            link: "siw0".into(),
            kind: SlotKind::Streams,
            slots: vec![1, 255],
        },
        Request::LinkAdd(LinkConfig {
            name: "rxe0".into(),
            kind: "rxe".into(),
            netdev: "lo".into(),
            mtu: None,
            crc: true,
            lids: true,
            patience: 60,
            speed: Some(100_000),
            local: false,
            strict: "on".into(),
            profile: String::new(),
        }),
        Request::LinkSet {
            name: "rxe0".into(),
            rename: None,
            mtu: None,
            crc: None,
            lids: Some(true),
            patience: Some(60),
            speed: Some(0),
            local: Some(false),
            strict: Some("off".into()),
            profile: None,
        },
    ];
    for request in requests {
        assert_eq!(decode::<Request>(&encode(&request)).unwrap(), request);
        for number in [None, Some(0), Some(u64::MAX)] {
            let bytes = encode_numbered(number, &request);
            let decoded = decode_numbered::<Request>(&bytes).unwrap();
            assert_eq!(decoded, (number, request.clone()));
        }
    }
    let reply = Reply::Attached {
        attachment: 3,
        link: link(3),
        slots: vec![SlotGrant { slot: 7, v6: true }],
    };
    assert_eq!(decode::<Reply>(&encode(&reply)).unwrap(), reply);
}

proptest! {
    #[test]
    fn random_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_numbered::<Request>(&bytes);
        let _ = decode_numbered::<Reply>(&bytes);
    }

    /// A message with some bytes changed or cut off.
    #[test]
    fn damaged_messages_cause_no_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let attach = Request::Attach { attachment: 1, link: "rxe0".into(), shards: 3 };
        let mut bytes = encode_numbered(Some(7), &attach);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let _ = decode_numbered::<Request>(&bytes);
        let mut reply = encode_numbered(Some(7), &Reply::Link(link(2)));
        reply.truncate(cut.index(reply.len() + 1));
        let _ = decode_numbered::<Reply>(&reply);
    }
}
