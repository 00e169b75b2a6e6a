//! Arbitrary bytes as messages between programs and ferroced. Checks that nothing panics, and
//! that a decoded message survives encoding and decoding.

#![no_main]

use ferroce_control::protocol::{decode_numbered, encode_numbered};
use ferroce_control::{Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((number, request)) = decode_numbered::<Request>(data) {
        let bytes = encode_numbered(number, &request);
        assert_eq!(decode_numbered(&bytes).ok(), Some((number, request)));
    }
    if let Ok((number, reply)) = decode_numbered::<Reply>(data) {
        let bytes = encode_numbered(number, &reply);
        assert_eq!(decode_numbered(&bytes).ok(), Some((number, reply)));
    }
});
