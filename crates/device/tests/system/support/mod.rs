//! What the tests are made of.

pub(crate) mod endpoint;
pub(crate) mod ferroced;
pub(crate) mod introduction;
pub(crate) mod pages;
pub(crate) mod puppet;

use ferroce_device::transport::QpType;
use ferroce_testnet::isolated;

pub(crate) use endpoint::Endpoint;
pub(crate) use ferroced::Ferroced;
pub(crate) use introduction::Introduction;
pub(crate) use puppet::Puppet;

/// The link of most tests.
pub(crate) const LINK: &str = "rxe0";
/// Index of 127.0.0.1 on `lo`, and of the first IPv4 address elsewhere.
pub(crate) const V4: u8 = 1;
/// Index of ::1 on `lo`.
pub(crate) const V6: u8 = 0;

/// Runs a test in a network of its own, with a ferroced and a link on `lo`.
pub(crate) fn on_loopback(name: &str, body: impl FnOnce(Ferroced)) {
    isolated(name, || {
        let ferroced = Ferroced::start();
        ferroced::add_link(LINK, "lo");
        body(ferroced);
    });
}

/// This process and another, connected.
pub(crate) fn pair(kind: QpType, gid_index: u8) -> (Endpoint, Puppet) {
    let mut ours = Endpoint::open(kind, gid_index);
    let mut theirs = Puppet::start(kind, gid_index);
    theirs.connect(&ours.introduction());
    ours.connect(&theirs.introduction);
    (ours, theirs)
}

/// Bytes that depend on where they are and on `seed`.
pub(crate) fn pattern(seed: u32, length: u32) -> Vec<u8> {
    let salt = seed.wrapping_mul(0x85eb_ca6b);
    (0..length)
        .map(|at| ((at ^ salt).wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect()
}
