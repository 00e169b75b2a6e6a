//! The table of cases: programs and their command lines.

mod fio;
mod iser;
mod libfabric;
mod migration;
mod mpi;
mod perftest;
mod persistent;
mod pingpong;
pub(crate) mod pyverbs;
pub(crate) mod pyverbs_document;
mod qperf;
mod rdmacm;
mod rsockets;
mod siw;
mod sysfs;
mod ucx;
mod unittest;
mod utils;

use std::path::Path;

use crate::case::Case;

/// Returns all cases in order. With sources of rdma-core also their rping, and their Python
/// tests if pyverbs is built.
pub(crate) fn all(rdma_core: Option<&Path>) -> Vec<Case> {
    let mut cases = utils::cases();
    cases.extend(pingpong::cases());
    cases.extend(perftest::cases());
    cases.extend(qperf::cases());
    cases.extend(rdmacm::cases());
    cases.extend(rsockets::cases());
    cases.extend(siw::cases());
    cases.extend(sysfs::cases());
    cases.extend(ucx::cases());
    cases.extend(mpi::cases());
    cases.extend(libfabric::cases());
    cases.extend(fio::cases());
    cases.extend(iser::cases());
    cases.extend(migration::cases());
    cases.extend(rdma_core.map(persistent::at_once));
    cases.push(pyverbs::case());
    let newer = rdma_core.filter(|_| pyverbs::missing(rdma_core).is_none());
    cases.extend(newer.map(pyverbs::newer));
    cases
}

/// TCP ports for servers. No port is used twice, because a closed socket may linger.
struct Ports(u16);

impl Ports {
    fn next(&mut self) -> u16 {
        self.0 += 1;
        self.0
    }
}
