//! Calls that iWARP, or siw, does not support: both ends must give the same answers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ferroce_harness::deadline;

use crate::case::{Caller, Case};
use crate::network::{GUEST, HOST};
use crate::run::Site;

/// Questions of `refusals.py` that Ferroce answers in another way than siw: the answer of siw, and
/// that of Ferroce. Ferroce can do more than siw, or refuses a call earlier.
const DIFFERENT: [(&str, &str, &str); 9] = [
    ("ibv_create_qp_ex RC with send_ops_flags", NO, YES),
    ("ibv_reg_mr ON_DEMAND", "EINVAL", YES),
    ("ibv_rereg_mr access", NO, YES),
    ("ibv_modify_srq with a size", NO, YES),
    ("ibv_create_cq_ex", NO, YES),
    ("ibv_resize_cq", NO, YES),
    ("ibv_alloc_parent_domain", NO, YES),
    ("ibv_query_rt_values_ex", NO, YES),
    // siw's library does not look, and the kernel ends the connection. Kernel programs get EINVAL.
    (
        "post_send READ of two elements",
        "completes with status 5",
        "EINVAL",
    ),
];

const YES: &str = "works";
/// EOPNOTSUPP, by Python's name for its number.
const NO: &str = "ENOTSUP";

pub(super) fn cases() -> Vec<Case> {
    let mut case = Case::pair("refusals", Caller::Ferroce, 0, "refusals.py siw0").on_siw();
    case.script = Some(run);
    vec![case]
}

/// Asks the same questions at both ends, and compares the answers.
fn run(site: &mut Site, case: &Case, folder: &Path) -> Result<()> {
    let until = deadline(case.patience);
    let mut answers = Vec::new();
    for (side, address, what) in [
        (Caller::Kernel, GUEST[0], "server"),
        (Caller::Ferroce, HOST[0], "client"),
    ] {
        let command = format!("/usr/bin/python3 refusals.py siw0 {address}");
        let mut running = site.spawn(side, &command, folder, what)?;
        running.wait_for_success(until).context(what)?;
        answers.push(parse(&running.output()?));
    }
    let differences = compare(&answers[0], &answers[1]);
    ensure!(
        differences.is_empty(),
        "the answers of siw and Ferroce differ:\n{}",
        differences.join("\n")
    );
    Ok(())
}

/// Returns the answer to each question.
fn parse(said: &str) -> BTreeMap<String, String> {
    let lines = said.lines().filter(|line| !line.starts_with("event: "));
    let pairs = lines.filter_map(|line| line.split_once(": "));
    pairs.map(|(q, a)| (q.to_owned(), a.to_owned())).collect()
}

/// Returns a line for each question whose answers are not the expected ones.
fn compare(siw: &BTreeMap<String, String>, ours: &BTreeMap<String, String>) -> Vec<String> {
    let none = String::from("no answer");
    let questions = siw
        .keys()
        .chain(ours.keys().filter(|q| !siw.contains_key(*q)));
    let mut differences = Vec::new();
    for question in questions {
        let theirs = siw.get(question).unwrap_or(&none);
        let our = ours.get(question).unwrap_or(&none);
        let known = DIFFERENT.iter().find(|(known, ..)| known == question);
        let expected = known.map_or((theirs.as_str(), theirs.as_str()), |(_, s, o)| (s, o));
        if (theirs.as_str(), our.as_str()) != expected {
            differences.push(format!("{question}: siw {theirs}, Ferroce {our}"));
        }
    }
    differences
}
