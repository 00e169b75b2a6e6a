//! The ping-pong programs of ibverbs-utils.

use super::Ports;
use crate::case::{CALLERS, Case};

/// A program with its options and message sizes.
struct Tool {
    name: &'static str,
    options: &'static [&'static str],
    sizes: &'static [u32],
    reliable: bool,
}

const TOOLS: [Tool; 4] = [
    Tool {
        name: "ibv_rc_pingpong",
        options: &["", "-c", "-e", "-e -c"],
        sizes: &[1, 4096, 1 << 20],
        reliable: true,
    },
    Tool {
        name: "ibv_uc_pingpong",
        options: &["", "-c", "-e"],
        sizes: &[1, 4096, 1 << 20],
        reliable: false,
    },
    Tool {
        name: "ibv_ud_pingpong",
        options: &["", "-c", "-e"],
        sizes: &[1, 1024],
        reliable: false,
    },
    Tool {
        name: "ibv_srq_pingpong",
        options: &["", "-c", "-e"],
        sizes: &[1, 4096, 1 << 20],
        reliable: true,
    },
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(18_500);
    let mut cases = Vec::new();
    for tool in &TOOLS {
        for caller in CALLERS {
            for (mtu, gid) in [(1500, 1), (1500, 2), (9000, 1), (9000, 2)] {
                for options in tool.options(mtu, gid) {
                    let command = format!("{} -d rxe0 -g {gid} -p {{port}} {options}", tool.name);
                    let case = Case::pair(tool.name, caller, ports.next(), command.trim_end());
                    let mut case = case.mtu(mtu).expect("usec/iter");
                    if !tool.reliable {
                        case = case.may_lose();
                    }
                    if options.contains("-s 1 ") || options.contains("-s 4096") {
                        case = case.packets("send");
                    }
                    let usual = [(1500, 1), (9000, 2)].contains(&(mtu, gid));
                    if usual && (options.contains("-s 4096") || options.contains("-s 1024")) {
                        case = case.short();
                    }
                    cases.push(case);
                }
            }
        }
    }
    cases
}

impl Tool {
    /// Returns the options of all runs: every option with IPv4 and MTU 1500, all sizes
    /// everywhere.
    fn options(&self, mtu: u32, gid: u8) -> Vec<String> {
        let all = if (mtu, gid) == (1500, 1) {
            self.options
        } else {
            &self.options[..1]
        };
        let options = all.iter().map(|options| format!("-n 100 {options}"));
        let largest = (mtu == 9000 && self.name == "ibv_ud_pingpong").then_some(4096);
        let sizes = self.sizes.iter().copied().chain(largest);
        // ibv_srq_pingpong has sixteen queue pairs by default, and a fixed timeout that is too
        // short for so many long messages from an emulated machine.
        let one = self.name == "ibv_srq_pingpong";
        let sized = |size: u32| match one && size > 4096 {
            true => format!("-q 1 {}", sized(size)),
            false => sized(size),
        };
        options.chain(sizes.map(sized)).collect()
    }
}

/// Returns options that validate the data of at most 100 iterations, 4 MiB in total.
fn sized(size: u32) -> String {
    let iterations = ((4 << 20) / size).clamp(8, 100);
    format!("-c -s {size} -n {iterations}")
}
