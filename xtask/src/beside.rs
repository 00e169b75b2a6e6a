//! `cargo xtask bench engine --beside DIR`: compares a benchmark with an older build of it.
//!
//! The two executables alternate, so that a change of the machine's load affects both. Each
//! figure is the median of its runs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The number of runs of each executable.
const RUNS: usize = 5;

/// One figure of a benchmark.
struct Row {
    /// Operation and side, such as `4 KiB WRITE (sender)`.
    name: String,
    unit: String,
    /// One value for each run.
    values: Vec<f64>,
}

/// Runs both executables alternately and returns the table of their figures.
pub(crate) fn compare(before: &Path, after: &Path, args: &[String]) -> Result<String> {
    let mut rows = [Vec::new(), Vec::new()];
    for run in 1..=RUNS {
        eprintln!("   run {run} of {RUNS}");
        // The first of each pair may find a cooler processor, so the order alternates, too.
        let order = if run % 2 == 1 { [0, 1] } else { [1, 0] };
        for which in order {
            let program = [before, after][which];
            collect(&mut rows[which], &csv_of(program, args)?)?;
        }
    }
    Ok(table(&rows[0], &rows[1]))
}

fn csv_of(program: &Path, args: &[String]) -> Result<String> {
    let output = Command::new(program)
        .arg("--csv")
        .args(args)
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{}: {}\n{}",
        program.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).context("the figures are not text")
}

/// Adds the figures of one run: `"operation",side,value,fastest,unit,...`.
fn collect(rows: &mut Vec<Row>, csv: &str) -> Result<()> {
    for line in csv.lines().skip(1) {
        let (operation, rest) = line
            .strip_prefix('"')
            .and_then(|line| line.split_once("\","))
            .with_context(|| format!("not a line of figures: {line}"))?;
        let fields: Vec<&str> = rest.split(',').collect();
        let [side, value, _fastest, unit, against, ..] = fields[..] else {
            anyhow::bail!("not a line of figures: {line}");
        };
        // A figure that is compared with several references has a line for each of them.
        let name = match against {
            "" => format!("{operation} ({side})"),
            _ => format!("{operation} ({side}, {against})"),
        };
        let value = value.parse().with_context(|| line.to_owned())?;
        match rows.iter_mut().find(|row| row.name == name) {
            Some(row) => row.values.push(value),
            None => rows.push(Row {
                name,
                unit: unit.to_owned(),
                values: vec![value],
            }),
        }
    }
    Ok(())
}

fn table(before: &[Row], after: &[Row]) -> String {
    let width = after.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = format!(
        "{:width$}  {:>10}  {:>10}  {:>6}\n",
        "median", "before", "after", "ratio"
    );
    for row in after {
        let now = median(&row.values);
        let former = before.iter().find(|former| former.name == row.name);
        let (value, ratio) = match former.map(|former| median(&former.values)) {
            Some(value) if value > 0.0 => (format!("{value:.1}"), format!("{:.2}", now / value)),
            Some(value) => (format!("{value:.1}"), "-".into()),
            None => ("-".into(), "-".into()),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:width$}  {value:>10}  {now:>10.1}  {ratio:>6}  {}",
            row.name, row.unit
        );
    }
    text
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_compared_by_name() {
        let run = |value: f64| {
            format!("operation,...\n\"4 KiB WRITE, many\",sender,{value:.2},1.0,ns,memcpy,9,1,,\n")
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for value in [30.0, 10.0, 20.0] {
            collect(&mut before, &run(value)).unwrap();
            collect(&mut after, &run(value / 2.0)).unwrap();
        }
        let none = "operation\n\"allocations\",both,0.0,,,,,,,\n";
        collect(&mut before, none).unwrap();
        collect(&mut after, none).unwrap();
        collect(&mut after, "operation\n\"new\",side,3.0,,Gb/s,,,,,\n").unwrap();
        let text = table(&before, &after);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert!(
            lines[1].ends_with(&["20.0", "10.0", "0.50", "ns"]),
            "{text}"
        );
        assert!(lines[2].ends_with(&["(both)", "0.0", "0.0", "-"]), "{text}");
        assert!(lines[3].ends_with(&["-", "3.0", "-", "Gb/s"]), "{text}");
        assert!(collect(&mut after, "operation\nwords\n").is_err());
    }
}
