//! rdma-core's own Python tests, which python3-pyverbs brings along as documentation.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::case::Case;
use crate::place::Place;

/// How many must pass: the rest needs hardware.
const PASS: usize = 140;
/// Where the package has them, most of them compressed.
const PACKAGED: &str = "usr/share/doc/rdma-core/tests";
/// What they said, in the programs' scratch folder.
const LOG: &str = "pyverbs.log";

pub(super) fn case() -> Case {
    Case::script("pyverbs", "run_tests.py --dev rxe0 --gid 1 -v", run).patience(600)
}

fn run(place: &Place) -> Result<String> {
    let tests = unpack(&place.user.scratch)?.join("run_tests.py");
    let tests = tests.to_str().context("a path that is not text")?;
    let words = [
        "python3", "-W", "ignore", tests, "--dev", "rxe0", "--port", "1", "--gid", "1", "-v",
    ];
    let _pages = HugePages::reserve();
    let output = place.user.program(&words).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    fs::write(place.user.scratch.join(LOG), &said)?;
    let passed = Results::of(&said).passed;
    ensure!(passed >= PASS, "{passed} tests pass, {PASS} should\n{said}");
    ensure!(output.status.success(), "some tests fail\n{said}");
    Ok(said)
}

/// Huge pages for those tests that want some, given back at the end.
struct HugePages {
    before: String,
}

impl HugePages {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";

    /// None where we may not, or somebody else has seen to it.
    fn reserve() -> Option<HugePages> {
        let before = fs::read_to_string(Self::POOL).ok()?;
        let free = before.trim() == "0";
        (free && fs::write(Self::POOL, "32").is_ok()).then_some(HugePages { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _was_ours_to_set = fs::write(Self::POOL, &self.before);
    }
}

/// A copy of the tests that Python can read.
fn unpack(scratch: &Path) -> Result<PathBuf> {
    let mut from = Path::new("/").join(PACKAGED);
    if !from.exists() {
        // Slim images leave documentation out.
        let download = "apt-get download python3-pyverbs && dpkg-deb -x python3-pyverbs_*.deb .";
        shell(download, scratch)?;
        from = scratch.join(PACKAGED);
    }
    let from = from.to_str().context("a path that is not text")?;
    shell(
        &format!(
            "rm -rf tests && cp -rL '{from}' tests && gunzip tests/*.gz && chmod -R a+rX tests"
        ),
        scratch,
    )?;
    Ok(scratch.join("tests"))
}

fn shell(script: &str, folder: &Path) -> Result<()> {
    let output = Command::new("sh")
        .args(["-c", script])
        .current_dir(folder)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script}: {said}");
    Ok(())
}

/// What became of the tests that are not for one vendor's hardware.
#[derive(Default)]
struct Results<'a> {
    passed: usize,
    /// Those that were not run, by the reason they gave.
    skipped: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Results<'a> {
    /// Reads `name (module.class)`, then, perhaps on a line of its own behind a
    /// description, `... outcome`.
    fn of(said: &'a str) -> Results<'a> {
        let mut results = Results::default();
        let mut test = "";
        for line in said.lines() {
            if line.starts_with("test_") {
                test = line.split(" ... ").next().unwrap_or(line);
            }
            let Some((_, outcome)) = line.rsplit_once(" ... ") else {
                continue;
            };
            if ["mlx5", "efa"].iter().any(|vendor| test.contains(vendor)) {
                continue;
            }
            if outcome == "ok" {
                results.passed += 1;
            } else if let Some(reason) = outcome.strip_prefix("skipped ") {
                let reason = reason.trim_matches(['\'', '"']);
                results.skipped.entry(reason).or_default().push(test);
            }
        }
        results
    }
}

/// What is behind the reasons that tests give.
const WHY: [(&str, &str); 5] = [
    (
        "Allocating dmabuf",
        "They share memory with a graphics device, and there is none.",
    ),
    (
        "Extended CQ is not supported",
        "They are about tag matching, which an adapter does in hardware: a completion queue for it is refused.",
    ),
    (
        "Must be run by root on Ethernet",
        "They send and steer raw Ethernet frames; a program on UDP sockets has none.",
    ),
    ("To Create RAW QP", "Likewise: raw Ethernet frames."),
    ("cuda-python", "They share memory with a CUDA device."),
];

/// A document about the last run, if there was one.
pub(crate) fn document(place: &Place) -> Option<String> {
    let said = fs::read_to_string(place.user.scratch.join(LOG)).ok()?;
    let results = Results::of(&said);
    let skipped: usize = results.skipped.values().map(Vec::len).sum();
    let mut text = format!(
        "# rdma-core's Python tests\n\n\
         The tests that Debian's python3-pyverbs brings along, those for the hardware of one vendor left\n\
         out: **{} pass, none fails, {skipped} say that they cannot run here**, and why. Written by\n\
         `cargo xtask programs --write docs/COMPATIBILITY.md`.\n",
        results.passed
    );
    for (reason, tests) in &results.skipped {
        let _ = writeln!(text, "\n## {reason}\n");
        let known = WHY.iter().find(|(start, _)| reason.starts_with(start));
        if let Some((_, why)) = known {
            let _ = writeln!(text, "{why}\n");
        }
        for test in tests {
            let _ = writeln!(text, "- `{test}`");
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_unittest_says_is_understood() {
        let said = "\
test_a (tests.test_addr.AHTest.test_a)
Test something. ... ok
test_b (tests.test_addr.AHTest.test_b) ... ok
test_c (tests.test_mlx5_cq.Mlx5Test.test_c)
Test something of theirs. ... ok
test_d (tests.test_qp.QPTest.test_d) ... skipped 'No such hardware'
test_e (tests.test_qp.QPTest.test_e) ... FAIL
Ran 5 tests in 1.0s
";
        let results = Results::of(said);
        assert_eq!(results.passed, 2);
        let skipped: Vec<_> = results.skipped.into_iter().collect();
        let test = "test_d (tests.test_qp.QPTest.test_d)";
        assert_eq!(skipped, [("No such hardware", vec![test])]);
    }
}
