//! Operations and error cases between two queue pairs: `flows.py` documents each flow.

use super::Ports;
use crate::case::{CALLERS, Case};

/// The flows, and for some the operations that the capture must contain.
const FLOWS: [(&str, Option<&str>); 26] = [
    ("operations", Some("send write read atomic immediate")),
    ("psn_wrap", Some("send write read atomic immediate")),
    ("pipeline", Some("send write read")),
    ("bad_key_write", Some("write")),
    ("bad_key_read", Some("read")),
    ("bad_key_atomic", Some("atomic")),
    ("range_write", None),
    ("range_read", None),
    ("permission_write", None),
    ("permission_read", None),
    ("permission_qp", None),
    ("deregistered", None),
    ("rnr", Some("send")),
    ("rnr_exceeded", None),
    ("rnr_pipeline", None),
    ("short_receive", Some("send")),
    ("window_invalidate", Some("write read invalidate")),
    ("window_range", None),
    ("window_local_invalidate", None),
    ("window_1", None),
    ("invalidate_nothing", Some("invalidate")),
    ("destroyed", None),
    ("silent", None),
    ("silent_7", None),
    ("read_replay", Some("read")),
    ("qkey_rule", None),
];

/// The flows of the short matrix. It has few, because Python starts slowly in an emulated
/// machine.
const SHORT: [&str; 8] = [
    "operations",
    "psn_wrap",
    "bad_key_write",
    "range_read",
    "rnr",
    "short_receive",
    "window_invalidate",
    "silent",
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(21_000);
    let mut cases = Vec::new();
    for (flow, packets) in FLOWS {
        for caller in CALLERS {
            let command = format!("/usr/bin/python3 flows.py {flow} --on {{side}} -p {{port}}");
            let case = Case::pair("flows", caller, ports.next(), &command);
            let mut case = case.expect("as it should be");
            case.packets = packets;
            // The kernel releases its memory window only after 50 seconds.
            if flow == "window_range" {
                case.patience *= 2;
            }
            case.short = SHORT.contains(&flow);
            cases.push(case);
        }
    }
    cases
}
