//! The negotiation between initiator and responder.

use ferroce_iwarp::Time;
use ferroce_iwarp::mpa::{
    Answer, ArgumentError, Flags, FrameError, FrameKind, Initiator, MAX_READS, Offer, Params,
    Replied, Request, Responder, Role, Rtr, SetupError,
};
use ferroce_iwarp::terminate::Code;

const START: Time = Time::from_nanos(1_000);

fn after(seconds: u64) -> Time {
    START.after_nanos(seconds * 1_000_000_000)
}

fn initiator(offer: &Offer) -> Initiator {
    Initiator::new(START, offer).unwrap()
}

/// Returns a responder that has received the Request, and the Request.
fn asked(offer: &Offer) -> (Responder, Request) {
    let mut responder = Responder::new(START);
    let request = responder.receive(&initiator(offer).request());
    (responder, request.unwrap().expect("a whole Request"))
}

/// Sets a connection up. Returns what each end got.
fn set_up(offer: &Offer, answer: &Answer) -> (Params, Params) {
    let (mut responder, _) = asked(offer);
    let (reply, passive) = responder.accept(answer).unwrap();
    match initiator(offer).receive(&reply).unwrap() {
        Replied::Accepted { taken, params, .. } if taken == reply.len() => (params, passive),
        other => panic!("{other:?}"),
    }
}

/// Returns the initiator's error for a Reply with this fourth of a header.
fn replied(offer: &Offer, fields: &[u8]) -> Result<Replied, SetupError> {
    initiator(offer).receive(&[b"MPA ID Rep Frame", fields].concat())
}

fn depths(ird: u16, ord: u16) -> Offer {
    Offer {
        ird,
        ord,
        ..Offer::default()
    }
}

fn answer(ird: u16, ord: u16) -> Answer {
    Answer {
        ird,
        ord,
        ..Answer::default()
    }
}

// RFC 5044 7.1: each frame may arrive in any number of TCP segments.
#[test]
fn frames_cut_at_every_byte_are_received() {
    let offer = Offer {
        private_data: b"hello".to_vec(),
        ..depths(4, 5)
    };
    let request = initiator(&offer).request();
    for cut in 0..request.len() {
        let mut responder = Responder::new(START);
        let (a, b) = request.split_at(cut);
        assert_eq!(responder.receive(a), Ok(None));
        let got = responder.receive(b).unwrap().expect("a whole Request");
        assert_eq!((got.ird, got.ord), (5, 4));
        assert_eq!(got.private_data.as_bytes(), b"hello");
        let (reply, _) = responder.accept(&answer(5, 4)).unwrap();
        let mut initiator = initiator(&offer);
        for byte in &reply[..reply.len() - 1] {
            assert_eq!(initiator.receive(&[*byte]), Ok(Replied::Wait));
        }
        let last = initiator.receive(&reply[reply.len() - 1..]).unwrap();
        assert!(matches!(last, Replied::Accepted { taken: 1, .. }));
    }
}

// RFC 6581 9.1 and siw: the responder reports its view of the depths to the program.
#[test]
fn responder_reports_depths_from_its_own_view() {
    let (_, request) = asked(&depths(3, 7));
    assert_eq!((request.ird, request.ord), (7, 3));
    let frame = b"MPA ID Req Frame\x10\x02\x00\x04\x3f\xff\x3f\xff";
    let request = Responder::new(START).receive(frame).unwrap().unwrap();
    assert_eq!((request.ird, request.ord), (MAX_READS, MAX_READS), "0x3fff");
}

// RFC 6581 9.1: no end has more Reads outstanding than the other holds.
#[test]
fn responders_ord_is_lowered_to_the_initiators_ird() {
    let (active, passive) = set_up(&depths(2, 0), &answer(0, 9));
    assert_eq!((active.ird, passive.ord), (2, 2));
}

// siw: relaxed negotiation raises the IRD instead of failing.
#[test]
fn responders_ird_is_raised_to_the_initiators_ord() {
    let (active, passive) = set_up(&depths(0, 6), &answer(1, 0));
    assert_eq!((active.ord, passive.ird), (6, 6));
    let (active, passive) = set_up(&depths(0, 6), &answer(9, 0));
    assert_eq!((active.ord, passive.ird), (9, 9), "as siw adopts it");
}

// RFC 6581 9.1 and siw: the initiator adopts the depths of the Reply.
#[test]
fn initiator_adopts_the_depths_of_the_reply() {
    let reply = replied(&depths(1, 1), &[0x10, 2, 0, 4, 0, 9, 0, 8]).unwrap();
    let Replied::Accepted { params, .. } = reply else {
        panic!("{reply:?}");
    };
    assert_eq!((params.ird, params.ord), (8, 9));
}

// RFC 6581 9.1: TERMINATE if the initiator cannot hold the responder's Reads.
#[test]
fn responders_ord_beyond_the_limit_is_insufficient_ird() {
    let error = replied(&depths(1, 1), &[0x10, 2, 0, 4, 0, 1, 0, 129]).unwrap_err();
    assert_eq!(error, SetupError::InsufficientIrd { asked: 129 });
    assert_eq!(error.code(), Some(Code::MPA_INSUFFICIENT_IRD));
}

// RFC 6581 section 6: the Reply to an enhanced Request has revision 2 and flag S.
#[test]
fn enhanced_request_needs_an_enhanced_reply() {
    for fields in [&[0x00, 2, 0, 0], &[0x10, 1, 0, 0]] {
        let error = replied(&depths(1, 1), fields).unwrap_err();
        let revision = fields[1];
        assert_eq!(error, SetupError::NotEnhanced { revision });
        assert_eq!(error.code(), Some(Code::MPA_INVALID_FRAME));
    }
}

// RFC 5044 7.1.1: revision 1 exchanges no depths, so each program's own ones hold.
#[test]
fn revision_1_keeps_the_depths_of_the_programs() {
    let offer = Offer {
        enhanced: false,
        ..depths(3, 4)
    };
    assert_eq!(&initiator(&offer).request()[16..], [0, 1, 0, 0]);
    let (active, passive) = set_up(&offer, &answer(5, 6));
    assert_eq!((active.ird, active.ord), (3, 4));
    assert_eq!((passive.ird, passive.ord), (5, 6));
}

// RFC 5044 7.1: CRCs are used if the initiator asks for them. siw does not ask.
#[test]
fn crc_is_on_if_the_initiator_asks() {
    for crc in [false, true] {
        let offer = Offer {
            crc,
            ..Offer::default()
        };
        let (active, passive) = set_up(&offer, &Answer::default());
        assert_eq!((active.crc, passive.crc), (crc, crc));
    }
}

// RFC 5044 7.1: the responder may ask for CRCs that the initiator did not ask for.
#[test]
fn crc_is_on_if_the_reply_asks() {
    let reply = replied(&depths(1, 1), &[0x50, 2, 0, 4, 0, 1, 0, 1]).unwrap();
    assert!(matches!(reply, Replied::Accepted { params, .. } if params.crc));
}

// RFC 5044 7.1: the responder turns CRCs on although the initiator does not ask.
#[test]
fn crc_is_on_if_the_responder_asks() {
    let answer = Answer {
        crc: true,
        ..Answer::default()
    };
    let (active, passive) = set_up(&Offer::default(), &answer);
    assert_eq!((active.crc, passive.crc), (true, true));
}

// siw: a Request that asks for markers is answered with flag R and without flag M.
#[test]
fn request_for_markers_is_rejected() {
    let mut responder = Responder::new(START);
    let frame = b"MPA ID Req Frame\x90\x02\x00\x04\x00\x01\x00\x01";
    assert_eq!(responder.receive(frame), Err(SetupError::Markers));
    let reply = responder.refusal().unwrap();
    assert_eq!(&reply[16..18], [0x30, 2]);
    let got = initiator(&Offer::default()).receive(&reply);
    assert!(matches!(got, Ok(Replied::Rejected { .. })));
}

// siw: a Reply that asks for markers ends the connection.
#[test]
fn reply_with_markers_is_refused() {
    let got = replied(&depths(1, 1), &[0x90, 2, 0, 4, 0, 1, 0, 1]);
    assert_eq!(got, Err(SetupError::Markers));
}

// RFC 5044 7.1.1: flag R rejects, with private data of the responder.
#[test]
fn rejection_carries_private_data() {
    let offer = Offer::default();
    let (mut responder, _) = asked(&offer);
    let reply = responder.reject(b"no").unwrap();
    let got = initiator(&offer).receive(&reply).unwrap();
    assert!(matches!(got, Replied::Rejected { private_data } if private_data.as_bytes() == b"no"));
    assert_eq!(
        responder.accept(&Answer::default()).unwrap_err(),
        ArgumentError::NoRequest
    );
}

// siw: the Reply repeats the flags of the Request, unknown ones too.
#[test]
fn reply_repeats_the_flags_of_the_request() {
    let mut responder = Responder::new(START);
    let frame = b"MPA ID Req Frame\x5f\x02\x00\x04\x00\x01\x00\x01";
    responder.receive(frame).unwrap().unwrap();
    let (reply, _) = responder.accept(&answer(1, 1)).unwrap();
    assert_eq!(&reply[..18], b"MPA ID Rep Frame\x5f\x02");
    assert!(Flags::from_bits_retain(0x5f00).contains(Flags::GSO));
}

// RFC 6581 9.2: the responder picks one RTR frame; siw prefers the Write.
#[test]
fn peer_to_peer_mode_agrees_on_one_rtr_frame() {
    for (offered, agreed) in [
        (vec![Rtr::Write, Rtr::Read], Rtr::Write),
        (vec![Rtr::Read], Rtr::Read),
    ] {
        let offer = Offer {
            rtr: offered,
            ..depths(0, 0)
        };
        let (active, passive) = set_up(&offer, &answer(0, 0));
        assert_eq!((active.rtr, passive.rtr), (Some(agreed), Some(agreed)));
        // siw: the RTR frame may be a Read, so the ORD is at least 1.
        assert_eq!((active.ord, passive.ird), (1, 1));
        assert_eq!(
            (active.role, passive.role),
            (Role::Initiator, Role::Responder)
        );
    }
}

// RFC 6581 9.2: TERMINATE if the responder picks none of the offered RTR frames.
#[test]
fn peer_without_a_matching_rtr_frame_is_refused() {
    let offer = Offer {
        rtr: vec![Rtr::Read],
        ..depths(1, 1)
    };
    for ord in [0x0001u16, 0x8001] {
        let [high, low] = ord.to_be_bytes();
        let error = replied(&offer, &[0x10, 2, 0, 4, 0x80, 1, high, low]).unwrap_err();
        assert_eq!(error, SetupError::NoMatchingRtr);
        assert_eq!(error.code(), Some(Code::MPA_NO_MATCHING_RTR));
    }
}

// RFC 5044 7.1.2: the initiator sends nothing between its Request and the Reply.
#[test]
fn bytes_behind_the_request_are_refused() {
    let mut bytes = initiator(&Offer::default()).request();
    bytes.extend([0, 0, 0]);
    let extra = SetupError::Frame(FrameError::Extra(3));
    assert_eq!(Responder::new(START).receive(&bytes), Err(extra));
    let (mut responder, _) = asked(&Offer::default());
    let extra = SetupError::Frame(FrameError::Extra(1));
    assert_eq!(responder.receive(&[0]), Err(extra));
}

// Captures of siw show a responder that sends right after its Reply.
#[test]
fn bytes_behind_the_reply_belong_to_the_stream() {
    let (mut responder, _) = asked(&Offer::default());
    let (mut reply, _) = responder.accept(&answer(1, 1)).unwrap();
    let length = reply.len();
    reply.extend([0, 0x16, 0x41, 0x43]);
    let got = initiator(&Offer::default()).receive(&reply).unwrap();
    assert!(matches!(got, Replied::Accepted { taken, .. } if taken == length));
}

// siw: a Reply without the key is answered with TERMINATE; a Request is not answered.
#[test]
fn peer_of_another_protocol_is_recognised_by_its_first_byte() {
    let error = Responder::new(START).receive(b"GET /").unwrap_err();
    let expected = FrameKind::Request;
    assert_eq!(error, SetupError::Frame(FrameError::Key { expected }));
    let error = initiator(&Offer::default()).receive(b"SSH").unwrap_err();
    assert_eq!(error.code(), Some(Code::MPA_INVALID_FRAME));
}

// siw: 5 s for the Request, 10 s for the Reply.
#[test]
fn silent_peer_is_dropped_after_siws_timeout() {
    let mut responder = Responder::new(START);
    responder.receive(b"MPA ID Req").unwrap();
    assert_eq!(responder.deadline(), Some(after(5)));
    assert_eq!(responder.check_deadline(after(4)), Ok(()));
    let timeout = SetupError::Timeout(FrameKind::Request);
    assert_eq!(responder.check_deadline(after(5)), Err(timeout.clone()));
    assert_eq!(
        timeout.to_string(),
        "the peer sent no MPA Request within 5 s"
    );
    let initiator = initiator(&Offer::default());
    assert_eq!(initiator.deadline(), after(10));
    assert_eq!(
        initiator.check_deadline(after(10)),
        Err(SetupError::Timeout(FrameKind::Reply))
    );
}

// The program may take its time to accept: only the peer has a deadline.
#[test]
fn program_has_no_deadline_to_answer() {
    let (responder, _) = asked(&Offer::default());
    assert_eq!(responder.deadline(), None);
    assert_eq!(responder.check_deadline(after(1000)), Ok(()));
}

#[test]
fn depths_beyond_the_limit_are_refused() {
    let error = Initiator::new(START, &depths(129, 0)).unwrap_err();
    assert_eq!(error.to_string(), "IRD is 129; at most 128 is possible");
    let (mut responder, _) = asked(&Offer::default());
    assert!(responder.accept(&answer(0, 129)).is_err());
    assert!(responder.accept(&answer(0, 1)).is_ok(), "still waiting");
}
