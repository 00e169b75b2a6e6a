//! Writes docs/PYVERBS.md: what became of each of rdma-core's Python tests.

use std::fmt::Write as _;
use std::fs;

use super::pyverbs::{LOG, LOG_NEWER, VERSION_NEWER};
use super::unittest::Results;
use crate::place::Place;

const HEAD: &str = "\
# rdma-core's Python tests

Tests for the hardware of one vendor are left out. Written by
`cargo xtask programs --write docs/COMPATIBILITY.md`; the second part needs a folder with newer sources,
as `cargo xtask programs -- --help` describes.
";

/// The sections of the document.
const PACKAGED: &str = "\n## Tests of Debian's python3-pyverbs\n";
const NEWER: &str = "\n## Tests of newer sources\n";

/// Explanations of the reasons that tests give, by how the reasons begin.
const WHY: [(&str, &str); 12] = [
    (
        "Allocating dmabuf",
        "They share memory with a graphics device, and there is none.",
    ),
    (
        "DM dmabuf export",
        "Device memory is memory of the program here; only a driver in the kernel can make a dma-buf of it.",
    ),
    (
        "Device does not report CC_DMA_BOUNCE",
        "They are for confidential guests, whose adapters cannot reach the guest's memory.",
    ),
    (
        "Device rxe0 doesn't have net interface",
        "They look for the netdev in the folder `device/net` of the device in sysfs. rxe0 has none, because it is no PCI\n\
         device; neither has the kernel's rxe. Newer versions of the same tests ask `rdma link`, and pass.",
    ),
    (
        "Extended CQ is not supported",
        "They are about tag matching, which an adapter does in hardware: a completion queue for it is refused.",
    ),
    (
        "Must be run by root on Ethernet",
        "They send and steer raw Ethernet frames; a program on UDP sockets has none.",
    ),
    (
        "No PHC",
        "They compare time stamps with the PTP clock of an adapter.",
    ),
    (
        "Operation not supported (Failed to create DMA Handle",
        "DMA handles carry hints for the PCIe bus (TPH) to an adapter. rxe refuses them, too.",
    ),
    (
        "The process must have CAP_NET_RAW",
        "They send and steer raw Ethernet frames. The exception is `test_create_ud_qp_with_privileged_qkey`, which\n\
         passes for a user with CAP_NET_RAW.",
    ),
    (
        "There are no huge pages",
        "They run where the pool of huge pages is not empty, or root runs `cargo xtask programs`.",
    ),
    ("To Create RAW QP", "Likewise: raw Ethernet frames."),
    ("cuda-python", "They share memory with a CUDA device."),
];

/// A document about the last runs, if there was one. Sections of tests that have not run
/// are kept from the `old` document.
pub(crate) fn document(place: &Place, old: &str) -> Option<String> {
    let read = |name| fs::read_to_string(place.user.scratch.join(name)).ok();
    let (packaged, newer) = (read(LOG), read(LOG_NEWER));
    if packaged.is_none() && newer.is_none() {
        return None;
    }
    let version = read(VERSION_NEWER).unwrap_or_default();
    let packaged = packaged.map(|said| section("", &Results::of(&said)));
    let newer = newer.map(|said| section(&format!(" of rdma-core {version}"), &Results::of(&said)));
    Some(compose(packaged, newer, old))
}

fn compose(packaged: Option<String>, newer: Option<String>, old: &str) -> String {
    let mut text = HEAD.to_owned();
    for (heading, section) in [(PACKAGED, packaged), (NEWER, newer)] {
        text.push_str(heading);
        text.push_str(&section.unwrap_or_else(|| kept(old, heading)));
    }
    text
}

/// The text below a heading of the old document.
fn kept(old: &str, heading: &str) -> String {
    match old.split_once(heading) {
        Some((_, rest)) => rest.split("\n## ").next().unwrap_or(rest).to_owned(),
        None => "\nNot run when this file was written.\n".to_owned(),
    }
}

/// Numbers, then the tests that were skipped, by reason.
fn section(origin: &str, results: &Results) -> String {
    let (passed, failed, skipped) = (results.passed, results.failed.len(), results.skips());
    let all = passed + failed + skipped;
    let fail = match failed {
        0 => "none fails".to_owned(),
        number => format!("{number} fail"),
    };
    let mut text = format!(
        "\nOf {all} tests{origin}, **{passed} pass, {fail}, {skipped} say that they cannot run here**.\n"
    );
    for test in &results.failed {
        let _ = writeln!(text, "\n- **fails**: `{test}`");
    }
    for (reason, tests) in &results.skipped {
        let _ = writeln!(text, "\n### {reason}\n");
        let known = WHY.iter().find(|(start, _)| reason.starts_with(start));
        if let Some((_, why)) = known {
            let _ = writeln!(text, "{why}\n");
        }
        for test in tests {
            let _ = writeln!(text, "- `{test}`");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_that_have_not_run_are_kept() {
        let both = compose(Some("\nold a\n".into()), Some("\nold b\n".into()), "");
        let first = compose(Some("\nnew a\n".into()), None, &both);
        assert!(
            first.contains("new a") && first.contains("old b"),
            "{first}"
        );
        assert!(!first.contains("old a"), "{first}");
        let second = compose(None, Some("\nnew b\n".into()), &first);
        assert!(
            second.contains("new a") && second.contains("new b"),
            "{second}"
        );
        assert!(!second.contains("old b"), "{second}");
        assert!(compose(None, None, "").contains("Not run"));
    }
}
