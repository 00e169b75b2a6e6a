//! What came of it, for people.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::case::Case;

/// What came of a case.
pub(crate) enum Outcome {
    Works,
    /// Why not, and where what it said is kept.
    Fails(String, PathBuf),
}

struct Row {
    program: &'static str,
    name: String,
    works: bool,
}

/// All cases so far.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a case, and says at once what came of it.
    pub(crate) fn add(&mut self, case: &Case, outcome: Outcome, time: Duration) {
        let verdict = match outcome {
            Outcome::Works => "ok",
            Outcome::Fails(..) => "FAILED",
        };
        let seconds = time.as_secs_f64();
        println!(
            "{verdict:<6} {seconds:6.2} s  {:<13} {}",
            case.program, case.name
        );
        if let Outcome::Fails(why, kept) = &outcome {
            println!("       {why}; what it said: {}", kept.display());
        }
        self.rows.push(Row {
            program: case.program,
            name: case.name.clone(),
            works: matches!(outcome, Outcome::Works),
        });
    }

    pub(crate) fn all_work(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.works)
    }

    /// Programs in order, with how many of their cases work, of how many.
    fn programs(&self) -> Vec<(&'static str, usize, usize)> {
        let mut programs: Vec<(&'static str, usize, usize)> = Vec::new();
        for row in &self.rows {
            let at = programs.iter().position(|(name, ..)| *name == row.program);
            let at = at.unwrap_or_else(|| {
                programs.push((row.program, 0, 0));
                programs.len() - 1
            });
            programs[at].1 += usize::from(row.works);
            programs[at].2 += 1;
        }
        programs
    }

    pub(crate) fn summarise(&self) {
        println!();
        for (program, works, of) in self.programs() {
            println!("{program:<14} {works:>4} of {of:>4}");
        }
        let works = self.rows.iter().filter(|row| row.works).count();
        println!("{:<14} {works:>4} of {:>4}", "together", self.rows.len());
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from(HEAD);
        text.push_str("| program | commands tried | work |\n| --- | ---: | ---: |\n");
        for (program, works, of) in self.programs() {
            let _ = writeln!(text, "| {program} | {of} | {works} |");
        }
        for (program, ..) in self.programs() {
            let _ = writeln!(text, "\n## {program}\n");
            for row in self.rows.iter().filter(|row| row.program == program) {
                let mark = if row.works { "works" } else { "**fails**" };
                let _ = writeln!(text, "- `{}`: {mark}", row.name);
            }
        }
        text
    }
}

const HEAD: &str = "\
# Programs that run on Ferroce

Each line below is a command that `cargo xtask test` runs, unmodified programs of the distribution,
server and client on one host, as an ordinary user, and checks what they say. `rxe0` is a link on an
Ethernet device (GID 0 link-local IPv6, 1 IPv4, 2 IPv6), `rxe1` one on loopback. This file is written
by `cargo xtask programs --write docs/COMPATIBILITY.md`.

";

/// A folder's name for what a case said.
pub(crate) fn file_name(case: &Case) -> String {
    let text = format!("{}-{}", case.program, case.name);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    text.chars().map(plain).take(100).collect()
}
