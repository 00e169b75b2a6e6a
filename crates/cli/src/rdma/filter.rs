//! Filters: the words that select rows, such as `lqpn 0-6`, `pid 30489` or `state RTS`.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::row::Row;
use super::words::Words;

/// The conditions on the command line. A row must satisfy all of them.
#[derive(Debug)]
pub(super) struct Filter<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Filter<'a> {
    /// Parses pairs of a name and a value. Each name must be one of `known`.
    pub(super) fn parse(mut words: Words<'a>, known: &[&str]) -> Result<Filter<'a>> {
        let mut conditions = Vec::new();
        while let Some(name) = words.next() {
            if !known.contains(&name) {
                bail!(
                    "Unknown filter '{name}'. Known filters: link, dev, {}",
                    known.join(", ")
                );
            }
            let value = words.next();
            let value =
                value.with_context(|| format!("the value of filter '{name}' is missing"))?;
            conditions.push((name, value));
        }
        Ok(Filter(conditions))
    }

    /// Returns true if the row satisfies all conditions.
    pub(super) fn admits(&self, row: &Row) -> bool {
        let fits = |(name, wanted): &(&str, &str)| {
            row.get(name)
                .is_some_and(|value| wanted.split(',').any(|wanted| matches(value, wanted)))
        };
        self.0.iter().all(fits)
    }
}

fn matches(value: &Value, wanted: &str) -> bool {
    match value {
        Value::Number(number) => {
            let Some(number) = number.as_u64() else {
                return false;
            };
            match wanted.split_once('-') {
                None => wanted.parse() == Ok(number),
                Some((low, high)) => match (low.parse(), high.parse()) {
                    (Ok(low), Ok(high)) => (low..=high).contains(&number),
                    _ => false,
                },
            }
        }
        Value::String(text) => text.eq_ignore_ascii_case(wanted),
        // A list matches if one of its values does.
        Value::Array(values) => values.iter().any(|value| matches(value, wanted)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_ranges_and_text_matches_exactly() {
        let row = Row::of_port(0, "rxe0", 1)
            .with("lqpn", 17)
            .with("state", "RTS")
            .with_key("qp-type", Some(vec!["RC", "UD"]));
        for (line, admitted) in [
            ("", true),
            ("lqpn 17", true),
            ("lqpn 16-18", true),
            ("lqpn 1,3-20", true),
            ("lqpn 18", false),
            ("lqpn 17 state RTS", true),
            ("state ERR", false),
            ("rqpn 3", false),
            ("qp-type RC", true),
            ("qp-type uc,ud", true),
            ("qp-type UC", false),
        ] {
            let line: Vec<String> = line.split_whitespace().map(String::from).collect();
            let known = ["lqpn", "rqpn", "state", "qp-type"];
            let filter = Filter::parse(Words::new(&line), &known).unwrap();
            assert_eq!(filter.admits(&row), admitted, "{line:?}");
        }
        let line = ["speed".to_owned(), "9".to_owned()];
        assert!(Filter::parse(Words::new(&line), &["lqpn"]).is_err());
    }
}
