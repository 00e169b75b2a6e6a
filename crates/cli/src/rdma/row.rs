//! A row of output: pairs of a name and a value, printed as text or as JSON.

use anyhow::Result;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::output::{self, Format};

/// A row of output.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// Start of the text. It replaces the first `hidden` pairs.
    head: String,
    /// Number of pairs that only JSON shows, because `head` has them.
    hidden: usize,
    pairs: Vec<(&'static str, Value)>,
    /// End of the text.
    tail: String,
    /// Pairs that only JSON shows.
    asides: Vec<(&'static str, Value)>,
    /// Values for filters that are not printed. They take precedence over printed pairs.
    keys: Vec<(&'static str, Value)>,
}

impl Row {
    /// Creates a row about a device: `dev rxe0`.
    pub(super) fn of_device(index: u32, name: &str) -> Row {
        Row::new(
            format!("dev {name} "),
            [("ifindex", index.into()), ("ifname", name.into())],
        )
    }

    /// Creates a row about a port: `link rxe0/1`.
    pub(super) fn of_port(index: u32, name: &str, port: u32) -> Row {
        Row::new(
            format!("link {name}/{port} "),
            [
                ("ifindex", index.into()),
                ("port", port.into()),
                ("ifname", name.into()),
            ],
        )
    }

    /// Creates a row about an object without a port: `link rxe0/-`.
    pub(super) fn without_port(index: u32, name: &str) -> Row {
        Row::new(
            format!("link {name}/- "),
            [("ifindex", index.into()), ("ifname", name.into())],
        )
    }

    /// Creates a row that starts with `head` in text and with `pairs` in JSON.
    pub(super) fn new<const N: usize>(head: String, pairs: [(&'static str, Value); N]) -> Row {
        Row {
            head,
            hidden: N,
            pairs: pairs.into(),
            ..Row::default()
        }
    }

    /// Adds a pair.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Row {
        self.pairs.push((name, value.into()));
        self
    }

    /// Adds a pair if there is a value.
    pub(super) fn with_some(self, name: &'static str, value: Option<impl Into<Value>>) -> Row {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds a pair that only JSON shows, and `text` at the end of the text.
    pub(super) fn with_tail(
        mut self,
        name: &'static str,
        value: impl Into<Value>,
        text: &str,
    ) -> Row {
        self.asides.push((name, value.into()));
        self.tail.push_str(text);
        self
    }

    /// Adds a value that filters see and that is not printed.
    pub(super) fn with_key(mut self, name: &'static str, value: Option<impl Into<Value>>) -> Row {
        self.keys.extend(value.map(|value| (name, value.into())));
        self
    }

    /// Returns the value that filters compare with.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let mut all = self.keys.iter().chain(&self.pairs).chain(&self.asides);
        all.find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    fn text(&self) -> String {
        let mut text = self.head.clone();
        for (name, value) in &self.pairs[self.hidden..] {
            let value = match value {
                Value::String(value) => value.clone(),
                other => other.to_string(),
            };
            text += &format!("{name} {value} ");
        }
        text + &self.tail + "\n"
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let pairs = self.pairs.iter().chain(&self.asides);
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in pairs {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// Prints rows.
pub(super) fn show(rows: &[Row], format: Format) -> Result<()> {
    if format.json || format.pretty {
        return format.write_json(rows);
    }
    output::write(&rows.iter().map(Row::text).collect::<String>())
}
