//! rdma-core's own Python tests: those of the distribution, and those of newer sources.
//!
//! python3-pyverbs contains its tests as documentation. Newer sources have more tests, which
//! call more of the ABI. They run if a folder with these sources and a built pyverbs exists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_harness::{Running, deadline};

use super::unittest::Results;
use crate::case::Case;
use crate::place::Place;

/// Number of the distribution's tests that must pass if there are no huge pages.
const PASS: usize = 131;
/// Number of rdma-core 65's tests that must pass.
const PASS_NEWER: usize = 189;
/// Folder with the tests in python3-pyverbs; most of them are compressed.
const PACKAGED: &str = "usr/share/doc/rdma-core/tests";
/// Time after which the tests count as hanging.
const PATIENCE: Duration = Duration::from_secs(600);
/// Files with the output of the tests, in the programs' scratch folder.
pub(super) const LOG: &str = "pyverbs.log";
pub(super) const LOG_NEWER: &str = "pyverbs-newer.log";
pub(super) const LOG_SIW: &str = "pyverbs-siw.log";
/// File with the version of the sources, beside the output.
pub(super) const VERSION_NEWER: &str = "pyverbs-newer.version";

/// Number of the distribution's tests that must pass on a link of type siw.
const PASS_SIW: usize = 28;

/// A run of the tests.
struct Run<'a> {
    /// Folder of the tests.
    tests: &'a Path,
    /// Folder of pyverbs, unless it is the distribution's.
    modules: Option<&'a Path>,
    log: &'static str,
    link_type: &'static str,
    /// Options that name device and GID.
    options: [&'static str; 4],
    /// Number of tests that must pass.
    pass: usize,
    /// Errors with which tests may fail: beginnings of the line that names the error.
    may_fail: &'static [&'static str],
}

/// Errors of the tests that also fail on the kernel's siw. On iWARP, queue pairs are connected by
/// rdma_cm only. The last one is about the state of a new queue pair, which siw reports as RESET.
const MAY_FAIL_ON_SIW: [&str; 2] = [
    "pyverbs.pyverbs_error.PyverbsRDMAError: Failed to modify QP state to RTS. Errno: 22",
    "AssertionError: <ibv_qp_state.IBV_QPS_INIT: 1> != 0",
];

/// Options for a link of type rxe.
const ON_RXE: [&str; 4] = ["--dev", "rxe0", "--gid", "1"];
/// Options for a link of type siw, whose only GID is its MAC address.
const ON_SIW: [&str; 4] = ["--dev", "siw0", "--gid", "0"];

/// The distribution's Python, which both builds of pyverbs are for.
const PYTHON: [&str; 3] = ["/usr/bin/python3", "-W", "ignore"];

/// Prints the files that are mapped once pyverbs is loaded.
const MAPPED: &str = "import pyverbs.device, pyverbs.cmid; print(open('/proc/self/maps').read())";

/// Returns the case with the tests of the distribution's python3-pyverbs.
pub(super) fn case() -> Case {
    let run = |place: &Place| {
        let run = Run {
            tests: &unpack(&place.user.scratch)?,
            modules: None,
            log: LOG,
            link_type: "rxe",
            options: ON_RXE,
            pass: PASS,
            may_fail: &[],
        };
        run.perform(place)
    };
    Case::script("pyverbs", "run_tests.py --dev rxe0 --gid 1 -v", run)
}

/// Returns the case with the same tests on a link of type siw.
pub(super) fn on_siw() -> Case {
    let run = |place: &Place| {
        let run = Run {
            tests: &unpack(&place.user.scratch)?,
            modules: None,
            log: LOG_SIW,
            link_type: "siw",
            options: ON_SIW,
            pass: PASS_SIW,
            may_fail: &MAY_FAIL_ON_SIW,
        };
        run.perform(place)
    };
    Case::script("pyverbs", "run_tests.py --dev siw0 --gid 0 -v", run)
}

/// Returns the case with the tests of these sources and the pyverbs built from them.
pub(super) fn newer(rdma_core: &Path) -> Case {
    let rdma_core = rdma_core.to_owned();
    let run = move |place: &Place| {
        let sources = rdma_core.canonicalize()?;
        let modules = sources.join("build/python");
        check_library(place, &sources, &modules)?;
        fs::write(place.user.scratch.join(VERSION_NEWER), version(&sources)?)?;
        let run = Run {
            tests: &sources.join("tests"),
            modules: Some(&modules),
            log: LOG_NEWER,
            link_type: "rxe",
            options: ON_RXE,
            pass: PASS_NEWER,
            may_fail: &[],
        };
        run.perform(place)
    };
    let name = "run_tests.py --dev rxe0 --gid 1 -v, of newer sources";
    Case::script("pyverbs", name, run)
}

/// Returns the reason why newer tests cannot run, if there is one.
pub(crate) fn missing(rdma_core: Option<&Path>) -> Option<String> {
    let Some(folder) = rdma_core else {
        return Some("FERROCE_RDMA_CORE names no folder with sources of rdma-core".to_owned());
    };
    for part in ["tests/run_tests.py", "build/python/pyverbs"] {
        let part = folder.join(part);
        if !part.exists() {
            return Some(format!("there is no {}", part.display()));
        }
    }
    None
}

impl Run<'_> {
    /// Runs the tests; returns their output.
    fn perform(&self, place: &Place) -> Result<String> {
        let tests = self.tests.join("run_tests.py");
        let mut words = PYTHON.to_vec();
        words.push(tests.to_str().context("a path that is not text")?);
        words.extend(self.options);
        words.extend(["--port", "1", "-v"]);
        let _pages = HugePages::reserve();
        let mut command = python(place, &words, self.modules);
        command.env("FERROCE_TYPE", self.link_type);
        let mut running = Running::spawn(&mut command, &place.user.scratch, self.log)?;
        let ended = running.wait_for_success(deadline(PATIENCE));
        let said = running.output()?;
        let last = said.lines().last().unwrap_or("nothing");
        let results = Results::of(&said);
        let causes = said.split_once("\n======").map_or("", |(_, causes)| causes);
        let errors = Results::errors(&said);
        let is_known = |error: &str| self.may_fail.iter().any(|known| error.starts_with(known));
        let known = errors.iter().filter(|(_, error)| is_known(error)).count();
        ensure!(
            results.failed.len() == known,
            "tests fail: {:?}\n{causes}",
            results.failed
        );
        if known == 0 {
            ended.with_context(|| format!("the last line of run_tests.py: {last}"))?;
        }
        ensure!(
            said.lines().any(|line| line.starts_with("Ran ")),
            "run_tests.py ended early: {last}"
        );
        let (passed, pass) = (results.passed, self.pass);
        ensure!(
            passed >= pass,
            "{passed} tests pass, {pass} should; skipped: {:?}",
            results.skipped
        );
        Ok(said)
    }
}

fn python(place: &Place, words: &[&str], modules: Option<&Path>) -> Command {
    let mut command = place.user.program(words);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(modules) = modules {
        command.env("PYTHONPATH", modules);
    }
    command
}

/// Checks that pyverbs loads Ferroce's library, and not the one that was built with pyverbs.
fn check_library(place: &Place, sources: &Path, modules: &Path) -> Result<()> {
    let mut words = PYTHON.to_vec();
    words.extend(["-c", MAPPED]);
    let output = python(place, &words, Some(modules)).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "pyverbs of {} cannot be loaded by an ordinary user with {}: {errors}",
        modules.display(),
        PYTHON[0]
    );
    let mapped = String::from_utf8_lossy(&output.stdout);
    ensure!(
        mapped.contains("/libferroce.so"),
        "pyverbs did not load libferroce.so"
    );
    let theirs = mapped.lines().find_map(|line| {
        let file = &line[line.find('/')?..];
        let replaced = ["/libibverbs.so.", "/librdmacm.so."];
        let theirs = Path::new(file).starts_with(sources);
        (theirs && replaced.iter().any(|name| file.contains(name))).then_some(file)
    });
    ensure!(
        theirs.is_none(),
        "pyverbs loaded {theirs:?} instead of Ferroce's library; \
         its modules must have a RUNPATH, which LD_LIBRARY_PATH overrides, and no RPATH"
    );
    Ok(())
}

/// Returns the version of these sources of rdma-core.
fn version(sources: &Path) -> Result<String> {
    let build = fs::read_to_string(sources.join("CMakeLists.txt"))?;
    let mut words = build.split("set(PACKAGE_VERSION \"").skip(1);
    let version = words.next().and_then(|rest| rest.split('"').next());
    let version = version.context("CMakeLists.txt does not set PACKAGE_VERSION")?;
    Ok(version.to_owned())
}

/// Huge pages for the tests that need them. Dropping it releases the pages.
struct HugePages {
    before: String,
}

impl HugePages {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";

    /// Reserves huge pages. Returns `None` without the permission, or if some are reserved.
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

/// Copies the tests to a folder, and decompresses them for Python.
fn unpack(scratch: &Path) -> Result<PathBuf> {
    let mut from = Path::new("/").join(PACKAGED);
    if !from.exists() {
        // Slim container images have no documentation.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_sources_or_builds_are_named() {
        let folder = std::env::temp_dir().join(format!("pyverbs-missing-{}", std::process::id()));
        let unset = missing(None).expect("no folder");
        assert!(unset.contains("FERROCE_RDMA_CORE"), "{unset}");
        fs::create_dir_all(folder.join("tests")).expect("a folder");
        fs::write(folder.join("tests/run_tests.py"), "").expect("a file");
        let unbuilt = missing(Some(&folder)).expect("no build");
        assert!(unbuilt.ends_with("build/python/pyverbs"), "{unbuilt}");
        fs::create_dir_all(folder.join("build/python/pyverbs")).expect("a folder");
        assert_eq!(missing(Some(&folder)), None);
        fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
