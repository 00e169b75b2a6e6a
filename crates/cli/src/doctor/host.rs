//! Checks of the kernel's features and limits.

use std::fs;

use super::{Finding, State};

/// Receive buffer size that `ferroce-net` requests for its sockets.
const WISHED_RECEIVE: u64 = 8 << 20;
/// Send buffer size that `ferroce-net` requests for its sockets.
const WISHED_SEND: u64 = 4 << 20;

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![kernel()];
    findings.push(segmentation());
    findings.extend([
        buffer("rmem_max", "receive", WISHED_RECEIVE),
        buffer("wmem_max", "send", WISHED_SEND),
    ]);
    findings
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let text = format!("Linux {release}, {cpus} processors; no module, no root, no memlock needed");
    match cpus {
        1 => Finding::new("kernel", State::Note, text)
            .remedy("Both ends of a transfer poll, so one processor makes them slow. Use two."),
        _ => Finding::ok("kernel", text),
    }
}

fn segmentation() -> Finding {
    let features = ferroce_net::probe();
    let mut missing = Vec::new();
    for (there, what) in [
        (features.gso, "UDP_SEGMENT (GSO, Linux 4.18)"),
        (features.gro, "UDP_GRO (Linux 5.0)"),
        (features.mmsg, "recvmmsg and sendmmsg"),
        (features.ipv6, "IPv6"),
    ] {
        if !there {
            missing.push(what);
        }
    }
    match &missing[..] {
        [] => Finding::ok("features", "GSO, GRO, recvmmsg, IPv6"),
        missing => {
            let text = format!("not available: {}", missing.join(", "));
            let remedy = "RDMA works without them, but slower. A newer kernel, or a sandbox with \
                          fewer restrictions, provides them.";
            Finding::new("features", State::Note, text).remedy(remedy)
        }
    }
}

fn buffer(name: &'static str, what: &str, wished: u64) -> Finding {
    let path = format!("/proc/sys/net/core/{name}");
    let Some(limit) = read(&path).and_then(|text| text.parse::<u64>().ok()) else {
        // Network namespaces other than the first do not have this file.
        return Finding::ok(
            "buffers",
            format!("net.core.{name} cannot be read in this network namespace"),
        );
    };
    let text = format!("{what} buffers up to {} KiB (net.core.{name})", limit >> 10);
    match limit >= wished {
        true => Finding::ok("buffers", text),
        false => Finding::new("buffers", State::Note, text).remedy(format!(
            "Bursts of many queue pairs may overflow the buffer. To avoid retransmissions, as root:\n\
             sysctl -w net.core.{name}={wished}"
        )),
    }
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}
