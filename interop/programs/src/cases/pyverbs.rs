//! rdma-core's own Python tests, where their sources are at hand.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::case::Case;
use crate::place::Place;

/// How many must pass: the rest needs hardware.
const PASS: usize = 140;

/// All tests of rdma-core that are not for one vendor.
pub(super) fn case(rdma_core: &Path) -> Case {
    let sources = rdma_core.to_owned();
    let script = move |place: &Place| run(place, &sources);
    Case::script("pyverbs", "run_tests.py --dev rxe0 --gid 1 -v", script).patience(600)
}

fn run(place: &Place, sources: &Path) -> Result<String> {
    let tests = sources.join("tests/run_tests.py");
    let tests = tests.to_str().context("a path that is not text")?;
    let words = [
        "python3", "-W", "ignore", tests, "--dev", "rxe0", "--port", "1", "--gid", "1", "-v",
    ];
    let output = place.user.program(&words).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    std::fs::write(place.user.scratch.join("pyverbs.log"), &said)?;
    let generic = said
        .lines()
        .filter(|line| !line.contains("mlx5") && !line.contains("test_efa"));
    let passed = generic.filter(|line| line.ends_with("... ok")).count();
    ensure!(passed >= PASS, "{passed} tests pass, {PASS} should\n{said}");
    ensure!(output.status.success(), "some tests fail\n{said}");
    Ok(said)
}
