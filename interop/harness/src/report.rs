//! The report: the outcome of each case, on standard output and as a document.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The outcome of a case.
pub enum Outcome {
    /// The case worked.
    Works,
    /// The case worked at this attempt.
    WorksAtTry(u32),
    /// The case failed: the reason, and the folder with its output.
    Fails(String, PathBuf),
}

struct Row {
    program: &'static str,
    name: String,
    works: bool,
    tries: u32,
}

/// The outcomes of all cases so far.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a case and prints its outcome.
    pub fn add(&mut self, program: &'static str, name: &str, outcome: Outcome, time: Duration) {
        let verdict = match outcome {
            Outcome::Works | Outcome::WorksAtTry(_) => "ok",
            Outcome::Fails(..) => "FAILED",
        };
        let seconds = time.as_secs_f64();
        println!("{verdict:<6} {seconds:6.2} s  {program:<13} {name}");
        if let Outcome::Fails(why, kept) = &outcome {
            println!("       {why}; output: {}", kept.display());
        }
        self.rows.push(Row {
            program,
            name: name.to_owned(),
            works: !matches!(outcome, Outcome::Fails(..)),
            tries: match outcome {
                Outcome::WorksAtTry(tries) => tries,
                _ => 1,
            },
        });
    }

    /// Returns true if there are cases and all of them work.
    pub fn all_work(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(|row| row.works)
    }

    /// Returns the programs in order, each with its numbers of working cases and of all cases.
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

    /// Prints the number of working cases of each program.
    pub fn summarise(&self) {
        println!();
        for (program, works, of) in self.programs() {
            println!("{program:<14} {works:>4} of {of:>4}");
        }
        let works = self.rows.iter().filter(|row| row.works).count();
        println!("{:<14} {works:>4} of {:>4}", "together", self.rows.len());
    }

    /// Returns a Markdown document: `head`, a table of programs, and a list of all cases.
    pub fn markdown(&self, head: &str) -> String {
        let mut text = String::from(head);
        text.push_str("| program | commands tried | work |\n| --- | ---: | ---: |\n");
        for (program, works, of) in self.programs() {
            let _ = writeln!(text, "| {program} | {of} | {works} |");
        }
        for (program, ..) in self.programs() {
            let _ = writeln!(text, "\n## {program}\n");
            for row in self.rows.iter().filter(|row| row.program == program) {
                let mark = match (row.works, row.tries) {
                    (false, _) => "**fails**".to_owned(),
                    (true, 1) => "works".to_owned(),
                    (true, tries) => format!("works, at try {tries}"),
                };
                let _ = writeln!(text, "- `{}`: {mark}", row.name);
            }
        }
        text
    }
}

/// Returns the name of the folder that keeps the output of a case.
pub fn keep_name(program: &str, name: &str) -> String {
    let text = format!("{program}-{name}");
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    text.chars().map(plain).take(100).collect()
}

/// Copies all files of a folder to another.
///
/// # Errors
/// If one cannot be copied.
pub fn keep(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}
