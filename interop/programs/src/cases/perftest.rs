//! perftest: bandwidth and latency of every operation.

use super::Ports;
use crate::case::Case;
use crate::place::LINK_V4;

const TESTS: [(&str, &[&str]); 8] = [
    (
        "ib_send_bw",
        &[
            "",
            "-c UC",
            "-c UD",
            "-c XRC",
            "--use-srq",
            "-a",
            "-b",
            "-e",
            "-l 8",
            "-q 16",
            "-I 32 -s 16",
            "-b -q 4 -e",
            "-c UC -b -n 5000",
            "-c UD -b -n 5000",
            "-c UC -a",
            "-c UD -g -x 2",
        ],
    ),
    (
        "ib_send_lat",
        &[
            "",
            "-c UC",
            "-c UD",
            "-c XRC",
            "--use-srq",
            "-a",
            "-e",
            "-I 0",
        ],
    ),
    (
        "ib_write_bw",
        &[
            "",
            "-c UC",
            "-a",
            "-b",
            "-l 8",
            "-q 16",
            "-I 32 -s 16",
            "-s 1048576 -n 50",
        ],
    ),
    ("ib_write_lat", &["", "-c UC", "-a", "-I 0"]),
    ("ib_read_bw", &["", "-a", "-b", "-e", "-q 16", "-o 1"]),
    ("ib_read_lat", &["", "-a", "-e"]),
    (
        "ib_atomic_bw",
        &[
            "",
            "-A CMP_AND_SWAP",
            "-A FETCH_AND_ADD",
            "-b",
            "-e",
            "-q 16",
        ],
    ),
    ("ib_atomic_lat", &["", "-A CMP_AND_SWAP", "-e"]),
];

/// Tests that connect through librdmacm. They connect twice: the first connection exchanges
/// the parameters. For the second one, the server listens again only after it has told the
/// client to connect, which may be too late. That happens with any driver; Ferroce lets the
/// request wait half a second for the listener. The refused client then retries with an id and
/// a channel that it has freed, until perftest's commit "Fix crashes and logical flaws in
/// RDMA CM connection retry". So both are started again if that happened.
const CONNECTED: [&str; 12] = [
    "ib_send_bw -R",
    "ib_send_bw -R -c UD",
    "ib_send_bw -R --use-srq -q 4",
    "ib_send_lat -R",
    "ib_send_lat -R -c UD",
    "ib_write_bw -R -q 4",
    "ib_write_bw -z",
    "ib_write_lat -R",
    "ib_read_bw -R",
    "ib_read_lat -R",
    "ib_atomic_bw -R",
    "ib_atomic_lat -R",
];

/// Output of a client whose server listens too late.
const REFUSED: &str = "RDMA_CM_EVENT_REJECTED; error: 8.";

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(19_000);
    let mut cases = Vec::new();
    for (test, options) in TESTS {
        for options in options {
            let count = match options {
                o if o.contains("-n ") => "",
                o if o.contains("-a") && !o.contains("-A") => "-n 20",
                // A multiple of perftest's CQ moderation; otherwise it may end too early.
                _ => "-n 1000",
            };
            // perftest's default multicast groups are IPv6 groups.
            let gid = if options.contains("-x ") { "" } else { "-x 1" };
            let command = format!("{test} -d rxe0 {gid} -F -p {{port}} {count} {options}");
            let what = match test.ends_with("_bw") {
                true => "BW average[MB/sec]",
                false => "#bytes #iterations",
            };
            cases.push(Case::pair("perftest", ports.next(), &command).expect(what));
        }
    }
    for device in [
        "-d rxe0 -x 2",
        "-d rxe0 -x 0",
        "-d rxe1 -x 1",
        "-d rxe1 -x 0",
    ] {
        let command = format!("ib_write_bw {device} -F -p {{port}} -n 1000");
        cases.push(Case::pair("perftest", ports.next(), &command).expect("BW average[MB/sec]"));
    }
    for test in CONNECTED {
        let server = format!("{test} -F -p {{port}} -n 1000");
        let client = format!("{server} {LINK_V4}");
        let what = match test.contains("_bw") {
            true => "BW average[MB/sec]",
            false => "#bytes #iterations",
        };
        let case = Case::with_cm_server("perftest", ports.next(), &server, &client);
        let case = case.expect(what);
        cases.push(match test.contains("-c UD") {
            // Datagrams may be lost, too, and a client that waits for one prints nothing.
            true => case.may_lose(),
            false => case.retry_if_printed(REFUSED),
        });
    }
    cases
}
