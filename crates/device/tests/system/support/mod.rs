//! Helpers of the system tests.

pub(crate) mod endpoint;
#[path = "../../../../abi/tests/common/ferroced.rs"]
pub(crate) mod ferroced;
pub(crate) mod puppet;

use ferroce_device::transport::QpType;
use ferroce_testnet::isolated;

pub(crate) use endpoint::Endpoint;
pub(crate) use ferroce_endpoint::{Introduction, pattern};
pub(crate) use ferroced::Ferroced;
pub(crate) use puppet::Puppet;

/// The link of most tests.
pub(crate) const LINK: &str = "rxe0";
/// Index of 127.0.0.1 on `lo`, and of the first IPv4 address elsewhere.
pub(crate) const V4: u8 = 1;
/// Index of ::1 on `lo`.
pub(crate) const V6: u8 = 0;

/// Runs a test in its own network namespace, with a ferroced and a link on `lo`.
pub(crate) fn on_loopback(name: &str, body: impl FnOnce(Ferroced)) {
    isolated(name, || {
        let ferroced = Ferroced::start();
        ferroced::add_link(LINK, "lo");
        body(ferroced);
    });
}

/// Returns an end in this process, connected to an end in another process.
pub(crate) fn pair(kind: QpType, gid_index: u8) -> (Endpoint, Puppet) {
    let mut ours = Endpoint::open(kind, gid_index);
    let mut theirs = Puppet::start(kind, gid_index);
    theirs.connect(&ours.introduction());
    ours.connect(&theirs.introduction);
    (ours, theirs)
}
