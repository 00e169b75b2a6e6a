//! perftest: bandwidth and latency of every operation.
//!
//! Messages are few and small, so that an emulated machine needs only a few seconds. The
//! ACK timeout is one second: with a shorter one, a kernel that waits for its processor
//! retransmits again and again, and with sixteen queue pairs its rxe then also sends
//! messages twice, as new ones.

use super::Ports;
use crate::case::{CALLERS, Case};

/// Programs, the operation that the capture must contain, and their options.
const TESTS: [(&str, &str, &[&str]); 8] = [
    (
        "ib_send_bw",
        "send",
        &[
            "",
            "-b",
            "-q 16",
            "-c UC -s 1024",
            "-c UD -s 1024",
            "-e",
            "-b -q 16 -s 512",
        ],
    ),
    (
        "ib_send_lat",
        "send",
        &["", "-c UC", "-c UD", "-s 8192", "-e"],
    ),
    (
        "ib_write_bw",
        "write",
        &["", "-b", "-q 16", "-c UC -s 1024", "-b -q 16 -s 512"],
    ),
    ("ib_write_lat", "write", &["", "-c UC", "-s 8192"]),
    (
        "ib_read_bw",
        "read",
        &["", "-b", "-q 16", "-o 1", "-b -q 16 -s 512"],
    ),
    ("ib_read_lat", "read", &["", "-s 8192", "-e"]),
    (
        "ib_atomic_bw",
        "atomic",
        &["", "-b", "-q 16", "-A CMP_AND_SWAP", "-b -q 16"],
    ),
    ("ib_atomic_lat", "atomic", &["", "-A CMP_AND_SWAP", "-e"]),
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_000);
    let mut cases = Vec::new();
    for (test, operation, option_sets) in TESTS {
        for caller in CALLERS {
            for (index, options) in option_sets.iter().enumerate() {
                for (mtu, gid) in [(1500, 1), (1500, 2), (9000, 1)] {
                    // Only the first options and those with sixteen queue pairs run with every MTU
                    // and GID.
                    let everywhere = index == 0 || *options == "-q 16";
                    if !everywhere && (mtu, gid) != (1500, 1) {
                        continue;
                    }
                    // A multiple of perftest's CQ moderation; otherwise it may end too early.
                    let count = if options.contains("16") { 100 } else { 200 };
                    let size = if options.contains("-s ")
                        || !test.ends_with("_bw")
                        || operation == "atomic"
                    {
                        ""
                    } else {
                        "-s 8192 "
                    };
                    let command = format!(
                        "{test} -d rxe0 -x {gid} -F -u 18 -p {{port}} -n {count} {size}{options}"
                    );
                    let what = match test.ends_with("_bw") {
                        true => "BW average[MB/sec]",
                        false => "#bytes #iterations",
                    };
                    let case = Case::pair("perftest", caller, ports.next(), command.trim_end());
                    let mut case = case.mtu(mtu).expect(what);
                    // With events, the kernel's end of a latency test sometimes never wakes up.
                    if options.contains("-c U") || test.ends_with("_lat") && *options == "-e" {
                        case = case.may_lose();
                    }
                    if index == 0 {
                        case = case.packets(operation);
                    }
                    if everywhere && (mtu, gid) == (1500, 1) {
                        case = case.short();
                    }
                    cases.push(case);
                }
            }
        }
    }
    cases
}
