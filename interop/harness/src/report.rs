//! What came of it, for people.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What came of a case.
pub enum Outcome {
    /// As it should.
    Works,
    /// The same, at this try.
    WorksAtTry(u32),
    /// Why not, and where what it said is kept.
    Fails(String, PathBuf),
}

struct Row {
    program: &'static str,
    name: String,
    works: bool,
    tries: u32,
}

/// All cases so far.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// Adds a case, and says at once what came of it.
    pub fn add(&mut self, program: &'static str, name: &str, outcome: Outcome, time: Duration) {
        let verdict = match outcome {
            Outcome::Works | Outcome::WorksAtTry(_) => "ok",
            Outcome::Fails(..) => "FAILED",
        };
        let seconds = time.as_secs_f64();
        println!("{verdict:<6} {seconds:6.2} s  {program:<13} {name}");
        if let Outcome::Fails(why, kept) = &outcome {
            println!("       {why}; what it said: {}", kept.display());
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

    /// Whether there were cases, and all work.
    pub fn all_work(&self) -> bool {
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

    /// Prints how many work, program by program.
    pub fn summarise(&self) {
        println!();
        for (program, works, of) in self.programs() {
            println!("{program:<14} {works:>4} of {of:>4}");
        }
        let works = self.rows.iter().filter(|row| row.works).count();
        println!("{:<14} {works:>4} of {:>4}", "together", self.rows.len());
    }

    /// A document: what `head` says, then a table, then every case.
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

/// A folder's name for what a case said.
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
