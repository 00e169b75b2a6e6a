//! `ferroce capture` on a link of type siw: TCP segments that tshark dissects as iWARP.

mod common;

use std::process::{Command, Stdio};

use common::capture::{end, start, tshark};
use common::{Cleanup, ok};

/// Reads, writes and sends by rping. It listens on TCP port 7174.
const RPING: &str = "rping -s -a ADDRESS -C 3 -S 9000 & server=$!
    until grep -q ':1C06 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server; done
    rping -c -a ADDRESS -C 3 -S 9000 -V
    wait $server || true";

/// Runs rping over siw0. Returns false if it is not installed.
fn rping(address: &str) -> bool {
    if !std::path::Path::new("/usr/bin/rping").exists() {
        let line = "*** SKIPPED: rping is not installed ***";
        assert!(std::env::var_os("CI").is_none(), "{line}");
        eprintln!("{line}");
        return false;
    }
    let output = Command::new(common::FERROCE)
        .args(["run", "--", "sh", "-ec", &RPING.replace("ADDRESS", address)])
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    true
}

#[test]
fn tshark_dissects_iwarp_without_a_complaint() {
    let name = "tshark_dissects_iwarp_without_a_complaint";
    common::with_libraries(name, || {
        let _cleanup = Cleanup;
        for (crc, address) in [("off", "127.0.0.1"), ("on", "127.0.0.1"), ("off", "::1")] {
            ok(&format!(
                "ferroce link add siw0 type siw netdev lo crc {crc}"
            ));
            let file = common::config_dir().with_extension("pcapng");
            let capture = start(&format!("siw0 -w {}", file.display()));
            if !rping(address) {
                return;
            }
            let said = end(capture);
            assert!(said.contains(" packets, 0 lost"), "{said}");
            ok("ferroce link delete siw0");
            let complaint = "_ws.malformed or _ws.expert.severity >= warning or \
                             tcp.analysis.retransmission or tcp.analysis.out_of_order";
            let Some(complaints) = tshark(&file, &["-Y", complaint]) else {
                return;
            };
            assert_eq!(complaints, "", "CRC {crc}, {address}");
            let frames = |filter: &str| {
                let text = tshark(&file, &["-Y", filter]).expect("tshark runs");
                text.lines().count()
            };
            // The setup, and of each round: two READ or WRITE, and their messages.
            assert_eq!((frames("iwarp_mpa.req"), frames("iwarp_mpa.rep")), (1, 1));
            let opcodes = tshark(&file, &["-T", "fields", "-e", "iwarp_rdma.opcode"]);
            let opcodes = opcodes.expect("tshark runs");
            for opcode in ["0x00", "0x01", "0x02", "0x03"] {
                let count = opcodes.lines().filter(|line| *line == opcode).count();
                assert!(count >= 3, "opcode {opcode}: {opcodes}");
            }
            assert!(frames("tcp.flags.syn == 1") == 2 && frames("tcp.flags.fin == 1") == 2);
            if crc == "on" {
                assert_eq!(frames("iwarp_mpa.crc_check"), frames("iwarp_mpa.fpdu"));
            }
        }
    });
}
