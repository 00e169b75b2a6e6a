//! Properties of decoding arbitrary bytes as a MAD. Used by proptest and by the fuzzer in
//! `fuzz/`.

use ferroce_cm::message::Message;
use ferroce_cm::{DecodeError, IpHeader, IpHeaderOr, MAD_LEN, Mad};

/// Decodes and re-encodes the bytes. The result must decode to the same message, and may
/// differ from the input only in reserved bits, which become zero.
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
        assert_eq!(ours & !theirs, 0, "byte {at} has additional bits");
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
