//! The format of MPA Request and Reply.

use ferroce_iwarp::mpa::{
    Enhanced, Flags, Frame, FrameError, FrameKind, MAX_PRIVATE_DATA, PrivateData,
};
use proptest::prelude::*;

use crate::drive;

/// siw's Request with IRD 1, ORD 1 and no private data.
const SIW_REQUEST: &[u8] = b"MPA ID Req Frame\x10\x02\x00\x04\x00\x01\x00\x01";

fn request(fields: &[u8]) -> Result<Frame, FrameError> {
    Frame::decode(&[b"MPA ID Req Frame", fields].concat(), FrameKind::Request)
}

// RFC 6581 section 6: revision 2, flag S, then IRD and ORD.
#[test]
fn request_of_siw_is_enhanced() {
    let frame = Frame::decode(SIW_REQUEST, FrameKind::Request).unwrap();
    let words = Enhanced {
        ird: 1,
        ord: 1,
        ..Enhanced::default()
    };
    assert_eq!(frame.enhanced, Some(words));
    assert_eq!((frame.flags, frame.revision), (Flags::ENHANCED, 2));
    assert_eq!(frame.encode(), SIW_REQUEST);
}

// RFC 5044 7.1.1: the key tells Request and Reply apart, and from other protocols.
#[test]
fn wrong_key_is_refused() {
    let kind = FrameKind::Reply;
    assert_eq!(
        Frame::decode(SIW_REQUEST, kind),
        Err(FrameError::Key { expected: kind })
    );
}

// RFC 5044 7.1.1 and RFC 6581 section 6: revisions 1 and 2. siw also accepts 0.
#[test]
fn revisions_0_to_2_are_accepted() {
    for revision in 0..=2 {
        assert_eq!(
            request(&[0, revision, 0, 0]).unwrap().revision,
            revision,
            "{revision}"
        );
    }
    assert_eq!(request(&[0, 3, 0, 0]), Err(FrameError::Revision(3)));
}

// siw: the length field is at most 256, although RFC 5044 allows 512.
#[test]
fn private_data_over_256_bytes_is_refused() {
    let most = [&[0, 1, 1, 0][..], &[7; 256]].concat();
    assert_eq!(request(&most).unwrap().private_data.as_bytes(), [7; 256]);
    assert_eq!(request(&[0, 1, 1, 1]), Err(FrameError::TooLong(257)));
}

// RFC 6581 section 6: the length counts the enhanced words.
#[test]
fn enhanced_words_are_part_of_the_length() {
    let frame = request(&[0x10, 2, 0, 6, 0x80, 2, 0x40, 3, 8, 9]).unwrap();
    let words = Enhanced {
        ird: 2,
        ord: 3,
        peer_to_peer: true,
        rtr_read: true,
        ..Enhanced::default()
    };
    assert_eq!(frame.enhanced, Some(words));
    assert_eq!(frame.private_data.as_bytes(), [8, 9]);
    assert_eq!(
        request(&[0x10, 2, 0, 3, 0, 0, 0]),
        Err(FrameError::NoEnhancedWords(3))
    );
}

// RFC 6581 section 6: flag S has no meaning in revision 1.
#[test]
fn revision_1_has_no_enhanced_words() {
    let frame = request(&[0x10, 1, 0, 4, 0, 1, 0, 1]).unwrap();
    assert_eq!(frame.enhanced, None);
    assert_eq!(frame.private_data.as_bytes(), [0, 1, 0, 1]);
}

#[test]
fn private_data_that_does_not_fit_is_refused_with_the_limit() {
    assert!(PrivateData::new(&[0; MAX_PRIVATE_DATA], false).is_ok());
    let error = PrivateData::new(&[0; MAX_PRIVATE_DATA], true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "256 bytes of private data; at most 252 are possible"
    );
}

proptest! {
    #[test]
    fn frames_are_reencoded_byte_for_byte(
        reply: bool, fields: [u8; 3], data in proptest::collection::vec(any::<u8>(), 0..270)
    ) {
        let kind = if reply { FrameKind::Reply } else { FrameKind::Request };
        let [flags, revision, extra] = fields;
        let length = (data.len() as u16).to_be_bytes();
        let mut frame = [&kind.key()[..], &[flags, revision % 3], &length, &data].concat();
        if extra == 0 {
            frame.pop();
        }
        drive::mpa_frame(&frame);
    }
}
