//! Arbitrary bytes as messages between programs and ferroced. Checks that nothing panics, and
//! that a decoded message survives encoding and decoding.

#![no_main]

use ferroce_control::protocol::{decode, encode};
use ferroce_control::{Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(request) = decode::<Request>(data) {
        assert_eq!(decode::<Request>(&encode(&request)).ok(), Some(request));
    }
    if let Ok(reply) = decode::<Reply>(data) {
        assert_eq!(decode::<Reply>(&encode(&reply)).ok(), Some(reply));
    }
});
