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
    tries: u32,
    /// The reason why it failed, and the folder with its output.
    failure: Option<(String, PathBuf)>,
}

/// Lines of a file that the summary shows of a failed case.
const LAST_LINES: usize = 15;

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
            tries: match outcome {
                Outcome::WorksAtTry(tries) => tries,
                _ => 1,
            },
            failure: match outcome {
                Outcome::Fails(why, kept) => Some((why, kept)),
                _ => None,
            },
        });
    }

    /// Returns true if there are cases and all of them work.
    pub fn all_work(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(Row::works)
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
            programs[at].1 += usize::from(row.works());
            programs[at].2 += 1;
        }
        programs
    }

    /// Prints the number of working cases of each program, and the end of the output of those
    /// that failed.
    pub fn summarise(&self) {
        println!();
        for (program, works, of) in self.programs() {
            println!("{program:<14} {works:>4} of {of:>4}");
        }
        let works = self.rows.iter().filter(|row| row.works()).count();
        println!("{:<14} {works:>4} of {:>4}", "together", self.rows.len());
        for row in &self.rows {
            if let Some((why, kept)) = &row.failure {
                println!("\nFAILED  {} {}: {why}", row.program, row.name);
                print!("{}", last_lines(kept));
            }
        }
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
                let mark = match (row.works(), row.tries) {
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

impl Row {
    fn works(&self) -> bool {
        self.failure.is_none()
    }
}

/// Returns the last lines of each file in a folder.
fn last_lines(folder: &Path) -> String {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    files.sort();
    let mut text = String::new();
    for file in files {
        let said = fs::read(&file).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        let _to_a_string = writeln!(text, "--- end of {}", file.display());
        for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
            let _to_a_string = writeln!(text, "    {line}");
        }
    }
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_shows_the_end_of_the_output_of_a_failed_case() {
        let folder = std::env::temp_dir().join(format!("ferroce-report-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        fs::write(folder.join("client"), lines.join("\n")).expect("a file");
        let text = last_lines(&folder);
        fs::remove_dir_all(&folder).expect("the folder");
        assert!(text.contains("client\n    line 85\n"), "{text}");
        assert!(text.ends_with("    line 99\n"), "{text}");
    }
}
