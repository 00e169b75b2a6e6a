//! Programs on links of type siw: iWARP over TCP, beside the RoCE links.

use super::{Ports, pyverbs, rsockets};
use crate::case::Case;
use crate::place::{LINK_V4, LINK_V6};

/// rping: options of the server, of the client and of both.
const PINGS: [(&str, &str, &str); 5] = [
    ("-a 10.77.0.1", "-a 10.77.0.1", ""),
    ("", "-a 10.77.0.1 -I 10.77.0.1", " -S 65535"),
    ("-a 127.0.0.1", "-a 127.0.0.1", ""),
    ("-a ::0", "-a fd77::1", ""),
    ("-a ::1", "-a ::1", ""),
];

/// ucmatose: options of both sides, and the server's address for the client.
const CONNECTIONS: [(&str, &str); 4] = [
    ("", LINK_V4),
    ("", "127.0.0.1"),
    ("-b 10.77.0.1 -c 10 -C 50 -S 65536", LINK_V4),
    ("-c 100 -C 1 -S 1", LINK_V4),
];

/// perftest, whose connections are made through librdmacm.
/// On iWARP, ib_send_bw grants credits for receives by RDMA WRITE, which makes no event. With `-e`
/// both ends can wait for an event, without credits, for ever. As many receives as messages
/// (`-r 1000`) need no credits.
const TESTS: [&str; 14] = [
    "ib_send_bw -R",
    "ib_send_bw -R -a -n 20",
    "ib_send_bw -R -b -e -r 1000",
    "ib_send_bw -R -q 4",
    "ib_send_lat -R",
    "ib_send_lat -R -e",
    "ib_write_bw -R",
    "ib_write_bw -R -q 4",
    "ib_write_bw -R -s 1048576 -n 100",
    "ib_write_lat -R",
    "ib_read_bw -R",
    "ib_read_bw -R -a -n 20",
    "ib_read_lat -R",
    "ib_read_lat -R -e",
];

/// Output of a perftest client whose server listens too late (see the module `perftest`): with
/// iWARP the status is an error of TCP, ECONNREFUSED.
const REFUSED: &str = "RDMA_CM_EVENT_REJECTED; error: -111.";

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(18_400);
    let mut cases = vec![
        Case::single_command("ibv_devinfo", "ibv_devinfo -d siw0 -v").expect("iWARP (1)"),
        Case::single_command("ibv_devices", "ibv_devices").expect("siw1"),
    ];
    for (server, client, both) in PINGS {
        let both = format!("-p {{port}} -v -C 100 -V{both}");
        let (server, client) = (
            format!("rping -s {server} {both}"),
            format!("rping -c {client} {both}"),
        );
        let case = Case::with_cm_server("rping", ports.next(), &server, &client);
        cases.push(case.expect("ping data: rdma-ping-99: "));
    }
    for (options, peer) in CONNECTIONS {
        let server = format!("ucmatose -p {{port}} {options}");
        let client = format!("{server} -s {peer}");
        let case = Case::with_cm_server("ucmatose", ports.next(), &server, &client);
        cases.push(
            case.expect("data transfers complete\n")
                .expect("return status 0\n"),
        );
    }
    for peer in [LINK_V4, LINK_V6] {
        let server = match peer {
            LINK_V6 => "rdma_server -p {port} -s ::",
            _ => "rdma_server -p {port}",
        };
        let client = format!("rdma_client -p {{port}} -s {peer}");
        let case = Case::with_cm_server("rdma_client", ports.next(), server, &client);
        cases.push(case.expect("rdma_client: end 0\n"));
    }
    for test in TESTS {
        let count = if test.contains("-n ") { "" } else { " -n 1000" };
        let server = format!("{test} -F -p {{port}}{count}");
        let client = format!("{server} {LINK_V4}");
        let what = match test.contains("_bw") {
            true => "BW average[MB/sec]",
            false => "#bytes #iterations",
        };
        let case = Case::with_cm_server("perftest", ports.next(), &server, &client);
        cases.push(case.expect(what).retry_if_printed(REFUSED).patience(60));
    }
    for options in ["-T b -T v", "-T a -T v", "-S 1 -C 1000 -T v"] {
        let common = format!("rstream -p {{port}} -S 65536 -I 10 -C 100 {options}");
        let client = format!("{common} -s {{peer}}");
        let case = Case::with_cm_server("rstream", ports.next(), &common, &client);
        cases.push(case.expect("custom"));
    }
    let server = "riostream -p {port} -S 65536 -I 10 -C 10 -T v";
    let client = format!("{server} -s {{peer}}");
    cases.push(Case::with_cm_server("riostream", ports.next(), server, &client).expect("custom"));
    cases.push(rsockets::copy("siw"));
    // A link of type siw shares TCP's ports: a server that forks cannot have the same one twice.
    cases.extend(rsockets::preloaded(&mut ports, false));
    cases.push(pyverbs::on_siw());
    cases.into_iter().map(Case::on_siw).collect()
}
