//! A table: columns, rows, their order, and numbers in few characters.

use std::cmp::Ordering;
use std::time::Duration;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Width in characters.
    pub(super) width: usize,
    pub(super) is_number: bool,
    /// True if the column is shown only where lines are longer than 80 characters.
    pub(super) is_extra: bool,
}

/// A cell: its text, and its place in the order of the column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    rank: Rank,
}

#[derive(Debug, Clone, PartialEq)]
enum Rank {
    Number(f64),
    Text,
}

/// A row. Its key stays the same from sample to sample.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) key: (String, u32, u32),
    pub(super) cells: Vec<Cell>,
    /// True for a queue pair or link that needs attention.
    pub(super) is_bad: bool,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Cell {
        let (text, rank) = (text.into(), Rank::Text);
        Cell { text, rank }
    }

    pub(super) fn number(text: String, number: f64) -> Cell {
        let rank = Rank::Number(number);
        Cell { text, rank }
    }

    /// Returns a cell with a count or a rate.
    pub(super) fn count(count: f64) -> Cell {
        Cell::number(short(count), count)
    }

    pub(super) fn order(&self, other: &Cell) -> Ordering {
        match (&self.rank, &other.rank) {
            (Rank::Number(mine), Rank::Number(theirs)) => mine.total_cmp(theirs),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// Writes a count in at most five characters: `999`, `1.5k`, `12.3M`.
pub(super) fn short(count: f64) -> String {
    let (mut count, mut unit) = (count, "");
    for next in ["k", "M", "G", "T"] {
        if count < 999.5 {
            break;
        }
        (count, unit) = (count / 1000.0, next);
    }
    match unit {
        "" => format!("{count:.0}"),
        _ if count < 99.95 => format!("{count:.1}{unit}"),
        _ => format!("{count:.0}{unit}"),
    }
}

/// Writes a number of bytes in at most five characters: `512`, `64K`, `1.5M`.
pub(super) fn bytes(bytes: u32) -> String {
    match bytes {
        0..1024 => format!("{bytes}"),
        1024..0x10_0000 => format!("{}K", bytes / 1024),
        _ => format!("{:.1}M", f64::from(bytes) / f64::from(1 << 20)),
    }
}

/// Writes a duration in at most five characters: `850us`, `12ms`, `3.4s`, `120s`.
pub(super) fn duration(duration: Duration) -> String {
    let us = duration.as_micros();
    match us {
        0..1000 => format!("{us}us"),
        1000..10_000 => format!("{:.1}ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{}ms", us / 1000),
        1_000_000..100_000_000 => format!("{:.1}s", us as f64 / 1e6),
        _ => format!("{}s", us / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_into_five_characters() {
        for (count, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (1_500_000.0, "1.5M"),
        ] {
            assert_eq!(short(count), text);
        }
        for (count, text) in [(1023, "1023"), (65_536, "64K"), (3 << 19, "1.5M")] {
            assert_eq!(bytes(count), text);
        }
        for (us, text) in [
            (850, "850us"),
            (1500, "1.5ms"),
            (12_000, "12ms"),
            (3_400_000, "3.4s"),
            (120_000_000, "120s"),
        ] {
            assert_eq!(duration(Duration::from_micros(us)), text);
        }
        assert_eq!(bytes(u32::MAX).len(), 7, "no window is that large");
    }

    #[test]
    fn numbers_are_ordered_by_value_and_texts_by_alphabet() {
        let (nine, ten) = (Cell::count(9.0), Cell::count(10.0));
        assert_eq!(nine.order(&ten), Ordering::Less);
        let (a, b) = (Cell::text("10"), Cell::text("9"));
        assert_eq!(a.order(&b), Ordering::Less);
    }
}
