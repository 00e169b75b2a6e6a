//! Results, printed as a table or as comma-separated values.

use core::fmt::{self, Write as _};

/// The goal for a figure.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Goal {
    /// At most this multiple of the reference.
    Ratio(f64),
    /// At least this multiple of the reference.
    AtLeast(f64),
    /// At most this value, in the row's unit.
    Most(f64),
    /// At least this value, in the row's unit.
    Least(f64),
}

/// One figure of a report.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The measured operation.
    pub what: String,
    /// The side or place of the measurement.
    pub side: &'static str,
    /// The measured value.
    pub value: f64,
    /// The value in the fastest tenth of all rounds, if there were rounds.
    pub fastest: Option<f64>,
    /// The unit of the values.
    pub unit: &'static str,
    /// The reference: its name, its value, and the ratio to it.
    pub against: Option<(&'static str, f64, f64)>,
    /// The goal, if there is one.
    pub goal: Option<Goal>,
}

impl Row {
    /// Returns whether the goal is met; `None` if there is no goal.
    pub fn met(&self) -> Option<bool> {
        Some(match self.goal? {
            Goal::Ratio(most) => self.against?.2 <= most,
            Goal::AtLeast(least) => self.against?.2 >= least,
            Goal::Most(most) => self.value <= most,
            Goal::Least(least) => self.value >= least,
        })
    }

    fn verdict(&self) -> &'static str {
        match self.met() {
            None => "",
            Some(true) => "ok",
            Some(false) => "MISSED",
        }
    }

    pub(crate) fn cells(&self) -> [String; 8] {
        let (name, other, ratio) = match self.against {
            None => Default::default(),
            Some((name, value, ratio)) => (
                name.to_owned(),
                format!("{value:.1} {}", self.unit),
                format!("{ratio:.2} x"),
            ),
        };
        let goal = match self.goal {
            None => String::new(),
            Some(Goal::Ratio(most)) => format!("<= {most} x"),
            Some(Goal::AtLeast(least)) => format!(">= {least} x"),
            Some(Goal::Most(most)) => format!("<= {most} {}", self.unit),
            Some(Goal::Least(least)) => format!(">= {least} {}", self.unit),
        };
        [
            self.what.clone(),
            self.side.to_owned(),
            format!("{:.1} {}", self.value, self.unit),
            self.fastest
                .map_or(String::new(), |ns| format!("{ns:.1} {}", self.unit)),
            if other.is_empty() {
                other
            } else {
                format!("{name} {other}")
            },
            ratio,
            goal,
            self.verdict().to_owned(),
        ]
    }
}

const TITLES: [&str; 8] = [
    "operation",
    "side",
    "cost",
    "fastest 10 %",
    "compared with",
    "ratio",
    "goal",
    "verdict",
];

/// All figures of a benchmark run.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Titles of the columns.
    pub titles: [&'static str; 8],
    /// The figures, in the order of their measurement.
    pub rows: Vec<Row>,
}

impl Default for Report {
    fn default() -> Report {
        Report {
            titles: TITLES,
            rows: Vec::new(),
        }
    }
}

impl Report {
    /// Returns the report as comma-separated values with a header line.
    pub fn csv(&self) -> String {
        let mut out = String::from(
            "operation,side,value,fastest,unit,against,against_value,ratio,goal,verdict\n",
        );
        for row in &self.rows {
            let (name, value, ratio) = match row.against {
                None => Default::default(),
                Some((name, value, ratio)) => (name, format!("{value:.2}"), format!("{ratio:.3}")),
            };
            let goal = match row.goal {
                None => String::new(),
                Some(Goal::Ratio(most)) => format!("ratio {most}"),
                Some(Goal::AtLeast(least)) => format!("at least {least}"),
                Some(Goal::Most(most)) => format!("value {most}"),
                Some(Goal::Least(least)) => format!("value at least {least}"),
            };
            let Row {
                what,
                side,
                value: own,
                unit,
                ..
            } = row;
            let fastest = row.fastest.map_or(String::new(), |ns| format!("{ns:.2}"));
            let verdict = row.verdict();
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "\"{what}\",{side},{own:.2},{fastest},{unit},{name},{value},{ratio},{goal},{verdict}"
            );
        }
        out
    }

    /// Returns a one-line summary of the goals met and missed.
    pub fn summary(&self) -> String {
        let judged: Vec<&Row> = self.rows.iter().filter(|row| row.met().is_some()).collect();
        let missed: Vec<String> = judged
            .iter()
            .filter(|row| row.met() == Some(false))
            .map(|row| match row.against {
                Some((name, ..)) => format!("{} ({}, {name})", row.what, row.side),
                None => format!("{} ({})", row.what, row.side),
            })
            .collect();
        let met = judged.len() - missed.len();
        let total = judged.len();
        if total == 0 {
            "None of these has a goal.".to_owned()
        } else if missed.is_empty() {
            format!("{met} of {total} goals met.")
        } else {
            format!("{met} of {total} goals met; missed: {}.", missed.join(", "))
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table: Vec<[String; 8]> = core::iter::once(self.titles.map(str::to_owned))
            .chain(self.rows.iter().map(Row::cells))
            .collect();
        let widths: Vec<usize> = (0..TITLES.len())
            .map(|column| table.iter().map(|row| row[column].len()).max().unwrap_or(0))
            .collect();
        for row in &table {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                // Numbers are aligned to the right.
                if (2..=5).contains(&column) {
                    write!(line, "{cell:>width$}  ")?;
                } else {
                    write!(line, "{cell:<width$}  ")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let row = Row {
            what: "4 KiB WRITE".into(),
            side: "sender",
            value: 600.0,
            fastest: Some(590.0),
            unit: "ns",
            against: Some(("memcpy + CRC", 500.0, 1.2)),
            goal: Some(Goal::Ratio(1.5)),
        };
        let slow = Row {
            what: "64 B SEND".into(),
            against: None,
            goal: Some(Goal::Most(250.0)),
            ..row.clone()
        };
        Report {
            rows: vec![row, slow],
            ..Report::default()
        }
    }

    #[test]
    fn table_and_summary_name_missed_goals() {
        let text = report().to_string();
        assert!(text.contains("1.20 x  <= 1.5 x"), "{text}");
        assert!(
            text.lines().nth(2).is_some_and(|l| l.ends_with("MISSED")),
            "{text}"
        );
        assert_eq!(
            report().summary(),
            "1 of 2 goals met; missed: 64 B SEND (sender)."
        );
    }

    #[test]
    fn every_csv_line_has_as_many_fields_as_the_header() {
        let csv = report().csv();
        let fields: Vec<usize> = csv.lines().map(|l| l.split(',').count()).collect();
        assert_eq!(fields, [10, 10, 10]);
    }
}
