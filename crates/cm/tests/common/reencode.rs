//! What must hold for any bytes that are taken for a MAD: for proptest here,
//! and for the fuzzer in `fuzz/`.

use ferroce_cm::message::Message;
use ferroce_cm::{DecodeError, IpHeader, IpHeaderOr, MAD_LEN, Mad};

/// Decodes and encodes; what comes out means the same, and differs only in bits
/// that mean nothing.
pub(crate) fn check(bytes: &[u8]) {
    let mad = match Mad::decode(bytes) {
        Ok(mad) => mad,
        Err(DecodeError::Length(len)) => {
            assert_eq!(len, bytes.len());
            assert_ne!(len, MAD_LEN);
            return;
        }
        Err(_) => return,
    };
    let again = mad.encode();
    assert_eq!(Mad::decode(&again), Ok(mad));
    for (at, (ours, theirs)) in again.iter().zip(bytes).enumerate() {
        assert_eq!(ours & !theirs, 0, "byte {at} got bits that it did not have");
    }
    match mad.message {
        Message::Req(m) => header(&m.private_data),
        Message::SidrReq(m) => header(&m.private_data),
        Message::Rej(m) => assert!(m.ari().len() <= 72),
        _ => {}
    }
}

fn header<const N: usize>(data: &[u8; N]) {
    if let IpHeaderOr::Ip(header) = IpHeader::parse(data) {
        let mut again = *data;
        header.emit(&mut again);
        assert_eq!(IpHeader::parse(&again), IpHeaderOr::Ip(header));
    }
}
