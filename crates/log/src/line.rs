//! The text of one message: `2026-01-31T23:59:58.000123Z  WARN module: words name=value`.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// The format of lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// Whether the module's name stands in the line.
    pub(crate) modules: bool,
    /// Whether the level has a colour, for terminals.
    pub(crate) colours: bool,
}

/// Returns the line of an event, with its newline. `time` is in microseconds since 1970, UTC.
pub(crate) fn line(event: &Event<'_>, format: Format, time: u64) -> String {
    let mut line = Line(String::with_capacity(160));
    let metadata = event.metadata();
    // Writing to a string cannot fail; the `Debug` of a value can, and leaves a shorter line.
    let _cut = timestamp(&mut line.0, time);
    let _cut = level(&mut line.0, *metadata.level(), format.colours);
    if format.modules {
        let _cut = write!(line.0, " {}:", metadata.target());
    }
    event.record(&mut line);
    line.0.push('\n');
    line.0
}

fn level(line: &mut String, level: Level, colours: bool) -> fmt::Result {
    if !colours {
        return write!(line, " {:>5}", level.as_str());
    }
    let colour = match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG => 34,
        Level::TRACE => 35,
    };
    write!(line, " \x1b[{colour}m{:>5}\x1b[0m", level.as_str())
}

/// Writes a time as RFC 3339 does.
fn timestamp(line: &mut String, micros: u64) -> fmt::Result {
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    write!(
        line,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
    )
}

/// The date that is `days` days after 1970-01-01. Years are counted from March, so that
/// the leap day is a year's last day.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468; // from 0000-03-01
    const DAYS_IN_400_YEARS: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, day) = (days / DAYS_IN_400_YEARS, days % DAYS_IN_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // 153 days in five months that begin with March or August.
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + next, month, day_of_month)
}

/// A line that grows by fields. Control characters are escaped: a peer's name must not forge a
/// second line or speak to the terminal.
struct Line(String);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if character.is_control() {
                self.0.extend(character.escape_default());
            } else {
                self.0.push(character);
            }
        }
        Ok(())
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _cut = match field.name() {
            "message" => write!(self, " {value:?}"),
            name => write!(self, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_follow_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000007Z"),
            (951_782_399, "2000-02-28T23:59:59.000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000007Z"),
            (951_868_800, "2000-03-01T00:00:00.000007Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000007Z"),
            (1_798_761_600, "2027-01-01T00:00:00.000007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000007Z"),
        ] {
            let mut text = String::new();
            timestamp(&mut text, seconds * 1_000_000 + 7).unwrap();
            assert_eq!(text, expected);
        }
    }
}
