//! Reads the verbose output of Python's unittest.

use std::collections::BTreeMap;

/// Modules with tests for the hardware of one vendor.
const VENDORS: [&str; 2] = ["tests.test_mlx5", "tests.test_efa"];

/// Outcomes of the tests that are not for one vendor's hardware.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Results<'a> {
    pub(super) passed: usize,
    /// Tests that were not run, by the reason that they gave.
    pub(super) skipped: BTreeMap<&'a str, Vec<&'a str>>,
    /// Tests that failed or ended with an error.
    pub(super) failed: Vec<&'a str>,
}

impl<'a> Results<'a> {
    /// Reads `name (module.class)`, then `... outcome`.
    ///
    /// A description may stand between the two, on a line of its own. Text that the test
    /// prints pushes the outcome to a later line.
    pub(super) fn of(said: &'a str) -> Results<'a> {
        let mut results = Results::default();
        let mut test = "";
        for line in said.lines() {
            if line.starts_with("test_") {
                test = line.split(" ... ").next().unwrap_or(line);
            }
            let outcome = line.rsplit_once(" ... ").map_or(line, |(_, last)| last);
            if results.count(test, outcome) {
                test = "";
            }
        }
        results
    }

    /// Counts the outcome of a test; false if this text is no outcome.
    fn count(&mut self, test: &'a str, outcome: &'a str) -> bool {
        let skipped = outcome.strip_prefix("skipped ");
        let failed = matches!(outcome, "FAIL" | "ERROR");
        if test.is_empty() || !(outcome == "ok" || failed || skipped.is_some()) {
            return false;
        }
        if VENDORS.iter().any(|vendor| test.contains(vendor)) {
            return true;
        }
        if let Some(reason) = skipped {
            let reason = reason.trim_matches(['\'', '"']);
            self.skipped.entry(reason).or_default().push(test);
        } else if failed {
            self.failed.push(test);
        } else {
            self.passed += 1;
        }
        true
    }

    /// Returns the failed tests, and the line that names the error of each.
    pub(super) fn errors(said: &'a str) -> Vec<(&'a str, &'a str)> {
        let mut errors: Vec<(&str, &str)> = Vec::new();
        for line in said.lines() {
            let heading = ["ERROR: ", "FAIL: "]
                .iter()
                .find_map(|h| line.strip_prefix(h));
            if let Some(test) = heading {
                errors.push((test, ""));
            } else if let Some((_, error)) = errors.last_mut()
                && !line.starts_with([' ', '-', '='])
                && line.contains("Error: ")
            {
                *error = line;
            }
        }
        errors.retain(|(test, _)| !VENDORS.iter().any(|vendor| test.contains(vendor)));
        errors
    }

    /// Number of tests that were not run.
    pub(super) fn skips(&self) -> usize {
        self.skipped.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_named_by_test() {
        let said = "\
test_a (tests.test_qp.A) ... ERROR
======================================================================
ERROR: test_a (tests.test_qp.A)
----------------------------------------------------------------------
Traceback (most recent call last):
  File \"test_qp.py\", line 1, in test_a
pyverbs.pyverbs_error.PyverbsRDMAError: Failed to modify QP state to RTS. Errno: 22, Invalid argument
======================================================================
ERROR: test_b (tests.test_mlx5_cq.B)
----------------------------------------------------------------------
ValueError: no
======================================================================
FAIL: test_c (tests.test_qp.C)
----------------------------------------------------------------------
AssertionError: 1 != 0

----------------------------------------------------------------------
Ran 3 tests in 1.0s
";
        let modify = "pyverbs.pyverbs_error.PyverbsRDMAError: Failed to modify QP state to RTS. Errno: 22, Invalid argument";
        assert_eq!(
            Results::errors(said),
            [
                ("test_a (tests.test_qp.A)", modify),
                ("test_c (tests.test_qp.C)", "AssertionError: 1 != 0"),
            ]
        );
    }

    #[test]
    fn outcomes_are_counted_by_test() {
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
        assert_eq!(results.failed, ["test_e (tests.test_qp.QPTest.test_e)"]);
        let skipped: Vec<_> = results.skipped.into_iter().collect();
        let test = "test_d (tests.test_qp.QPTest.test_d)";
        assert_eq!(skipped, [("No such hardware", vec![test])]);
    }

    #[test]
    fn output_of_a_test_does_not_hide_its_outcome() {
        let said = "\
test_a (tests.test_fork.ForkAPITest.test_a) ... is_fork_initialized() = 2
ok
test_b (tests.test_fork.ForkAPITest.test_b) ... about to end
ERROR
ok
";
        let results = Results::of(said);
        assert_eq!(results.passed, 1);
        assert_eq!(
            results.failed,
            ["test_b (tests.test_fork.ForkAPITest.test_b)"]
        );
    }

    #[test]
    fn only_the_module_tells_the_vendor() {
        let said = "\
test_default (tests.test_parent_domain.Traffic.test_default) ... ok
test_a (tests.test_efadv.EfaTest.test_a) ... ok
";
        assert_eq!(Results::of(said).passed, 1);
    }
}
