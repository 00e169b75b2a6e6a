//! Writes docs/PYVERBS.md: the results of rdma-core's Python tests.

use std::fmt::Write as _;
use std::fs;

use super::pyverbs::{LOG, LOG_NEWER, LOG_SIW, VERSION_NEWER};
use super::unittest::Results;
use crate::place::Place;

const HEAD: &str = "\
# rdma-core's Python tests

To repeat these tests: `cargo xtask programs --only pyverbs`. The tests of newer sources need a folder with
rdma-core's sources, as `cargo xtask programs -- --help` describes.

Each test that skips itself is listed below its reason. Tests for the hardware of one vendor are left out.
`cargo xtask programs --write docs/COMPATIBILITY.md` writes this file, too.
";

/// The sections of the document.
const PACKAGED: &str = "\n## Tests of Debian's python3-pyverbs\n";
const NEWER: &str = "\n## Tests of newer sources\n";
const SIW: &str = "\n## Tests of Debian's python3-pyverbs on a link of type siw\n";

/// The results of the kernel's siw, from a run in the guest of `cargo xtask interop`.
const KERNELS_SIW: &str = "\
| | pass | fail | skip themselves |
| --- | ---: | ---: | ---: |
| the kernel's siw (Linux 6.1, rdma-core 44, run by hand in the guest of `cargo xtask interop`) | 25 | 7 | 139 |
";

/// The reasons of failures on links of type siw.
const WHY_SIW: &str = "\
All tests that pass on the kernel's siw pass on Ferroce. The failed tests connect queue pairs with `ibv_modify_qp`, which fails with both
drivers: on iWARP only rdma_cm connects. More of them fail on Ferroce, because siw has no extended queue pairs and completion queues,
and their tests skip themselves there. `test_query_rc_qp` fails with both, too: it expects another state of a new queue pair.
";

/// Explanations of the reasons that tests give for skipping, by the start of the reason.
const WHY: [(&str, &str); 12] = [
    (
        "Allocating dmabuf",
        "These tests share memory with a graphics device, and the test machine has none.",
    ),
    (
        "DM dmabuf export",
        "Ferroce's device memory is memory of the program. Only a kernel driver can create a dma-buf of it.",
    ),
    (
        "Device does not report CC_DMA_BOUNCE",
        "These tests are for confidential guests, where an adapter cannot access the guest's memory.",
    ),
    (
        "Device rxe0 doesn't have net interface",
        "These tests look for the netdev in the folder `device/net` of the device in sysfs. rxe0 has no such folder, because\n\
         it is not a PCI device; the kernel's rxe has none either. Newer versions of these tests use `rdma link`, and pass.",
    ),
    (
        "Extended CQ is not supported",
        "These tests need tag matching, a hardware feature. Ferroce refuses to create a completion queue for it.",
    ),
    (
        "Must be run by root on Ethernet",
        "These tests send and steer raw Ethernet frames. Ferroce uses UDP sockets and cannot send such frames.",
    ),
    (
        "No PHC",
        "These tests compare time stamps with the PTP clock of an adapter. Ferroce has no such clock.",
    ),
    (
        "Operation not supported (Failed to create DMA Handle",
        "DMA handles carry hints for the PCIe bus (TPH) to an adapter. The kernel's rxe refuses them, too.",
    ),
    (
        "The process must have CAP_NET_RAW",
        "These tests send and steer raw Ethernet frames. The exception is `test_create_ud_qp_with_privileged_qkey`, which\n\
         passes for a user with CAP_NET_RAW.",
    ),
    (
        "There are no huge pages",
        "These tests run if huge pages are reserved, or if root runs `cargo xtask programs`.",
    ),
    (
        "To Create RAW QP",
        "These tests send raw Ethernet frames. Ferroce uses UDP sockets and cannot send such frames.",
    ),
    (
        "cuda-python",
        "These tests share memory with a CUDA device, and the test machine has none.",
    ),
];

/// Returns the document about the last runs, or `None` if no test has run. Sections of tests
/// that have not run are copied from the `old` document.
pub(crate) fn document(place: &Place, old: &str) -> Option<String> {
    let read = |name| fs::read_to_string(place.user.scratch.join(name)).ok();
    let (packaged, newer, siw) = (read(LOG), read(LOG_NEWER), read(LOG_SIW));
    if packaged.is_none() && newer.is_none() && siw.is_none() {
        return None;
    }
    let version = read(VERSION_NEWER).unwrap_or_default();
    let packaged = packaged.map(|said| section("", &Results::of(&said)));
    let newer = newer.map(|said| section(&format!(" of rdma-core {version}"), &Results::of(&said)));
    let siw = siw.map(|said| siw_section(&Results::of(&said)));
    Some(compose([packaged, newer, siw], old))
}

fn compose([packaged, newer, siw]: [Option<String>; 3], old: &str) -> String {
    let mut text = HEAD.to_owned();
    for (heading, section) in [(PACKAGED, packaged), (NEWER, newer), (SIW, siw)] {
        text.push_str(heading);
        text.push_str(&section.unwrap_or_else(|| old_section(old, heading)));
    }
    text
}

/// Returns the text below a heading of the old document.
fn old_section(old: &str, heading: &str) -> String {
    match old.split_once(heading) {
        Some((_, rest)) => rest.split("\n## ").next().unwrap_or(rest).to_owned(),
        None => "\nNot run when this file was written.\n".to_owned(),
    }
}

/// Returns the section about links of type siw: numbers of both drivers, and the failed tests.
fn siw_section(results: &Results) -> String {
    let (passed, failed, skipped) = (results.passed, results.failed.len(), results.skips());
    let mut text =
        format!("\n{KERNELS_SIW}| Ferroce | {passed} | {failed} | {skipped} |\n\n{WHY_SIW}");
    for test in &results.failed {
        let _ = write!(text, "\n- fails: `{test}`");
    }
    text.push('\n');
    text
}

/// Returns a section: the numbers, then the skipped tests by reason.
fn section(origin: &str, results: &Results) -> String {
    let (passed, failed, skipped) = (results.passed, results.failed.len(), results.skips());
    let all = passed + failed + skipped;
    let fail = match failed {
        0 => "none fails".to_owned(),
        number => format!("{number} fail"),
    };
    let mut text = format!(
        "\nOf {all} tests{origin}, **{passed} pass, {fail}, {skipped} skip themselves**.\n"
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
        let old = |text: &str| Some(format!("\nold {text}\n"));
        let both = compose([old("a"), old("b"), old("c")], "");
        let first = compose([Some("\nnew a\n".into()), None, None], &both);
        assert!(first.contains("old c"), "{first}");
        assert!(
            first.contains("new a") && first.contains("old b"),
            "{first}"
        );
        assert!(!first.contains("old a"), "{first}");
        let second = compose([None, Some("\nnew b\n".into()), None], &first);
        assert!(
            second.contains("new a") && second.contains("new b"),
            "{second}"
        );
        assert!(!second.contains("old b"), "{second}");
        assert!(compose([None, None, None], "").contains("Not run"));
    }
}
