//! The five ping-pong programs of ibverbs-utils.

use super::Ports;
use crate::case::Case;

/// GIDs of each kind: IPv4, IPv6 and link-local IPv6 over Ethernet, IPv4 and IPv6 over
/// loopback.
const GIDS: [(&str, u8); 5] = [
    ("rxe0", 1),
    ("rxe0", 2),
    ("rxe0", 0),
    ("rxe1", 1),
    ("rxe1", 0),
];
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// A program with its options, message sizes and path MTUs.
struct Tool {
    name: &'static str,
    /// Options of each run.
    options: &'static [&'static str],
    sizes: &'static [u32],
    mtus: &'static [u32],
}

const TOOLS: [Tool; 5] = [
    Tool {
        name: "ibv_rc_pingpong",
        options: &[
            "", "-c", "-e", "-o", "-O", "-o -P", "-t", "-j", "-N", "-e -c -N", "-r 1", "-l 3",
        ],
        sizes: &[1, 1000, 65536, 1 << 20],
        mtus: &MTUS,
    },
    Tool {
        name: "ibv_uc_pingpong",
        options: &["", "-c", "-e"],
        sizes: &[1, 1000, 65536, 1 << 20],
        mtus: &MTUS,
    },
    Tool {
        name: "ibv_ud_pingpong",
        options: &["", "-c", "-e"],
        sizes: &[1, 1000, 4096],
        mtus: &[],
    },
    Tool {
        name: "ibv_srq_pingpong",
        options: &["", "-c", "-e", "-o", "-q 1", "-q 64"],
        sizes: &[1, 1000, 65536],
        mtus: &MTUS,
    },
    Tool {
        name: "ibv_xsrq_pingpong",
        options: &["", "-e", "-o"],
        sizes: &[1, 1000, 65536],
        mtus: &MTUS,
    },
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(18_600);
    TOOLS
        .iter()
        .flat_map(|tool| {
            let mut options: Vec<String> = Vec::new();
            options.extend(tool.options.iter().map(|o| format!("-d rxe0 -g 1 {o}")));
            options.extend(GIDS[1..].iter().map(|(d, g)| format!("-d {d} -g {g}")));
            let check = if tool.options.contains(&"-c") {
                " -c"
            } else {
                ""
            };
            options.extend(
                tool.sizes
                    .iter()
                    .map(|size| format!("-d rxe0 -g 1{check} -s {size} -n {}", iterations(*size))),
            );
            options.extend(tool.mtus.iter().map(|mtu| format!("-d rxe0 -g 1 -m {mtu}")));
            options
                .into_iter()
                .map(|options| {
                    let command = format!("{} -p {{port}} {options}", tool.name);
                    let case = Case::pair(tool.name, ports.next(), &command);
                    match tool.name {
                        "ibv_xsrq_pingpong" => case,
                        _ => case.expect("usec/iter"),
                    }
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the number of iterations: 8 MiB in total, at least 20 and at most 500.
fn iterations(size: u32) -> u32 {
    ((8 << 20) / size.max(1)).clamp(20, 500)
}
