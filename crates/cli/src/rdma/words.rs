//! Parser for the words of a command line. Each keyword may be shortened.

use anyhow::{Result, bail};

/// The words that are not parsed yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words<'a>(&'a [String]);

impl<'a> Words<'a> {
    pub(super) fn new(words: &'a [String]) -> Words<'a> {
        Words(words)
    }

    pub(super) fn rest(self) -> &'a [String] {
        self.0
    }

    pub(super) fn peek(self) -> Option<&'a str> {
        self.0.first().map(String::as_str)
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Fails if words are left.
    pub(super) fn end(self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(word) => bail!("Unknown parameter '{word}'."), // as iproute2
        }
    }

    /// Consumes the next word if it is the start of a known word. Returns the first match.
    pub(super) fn one_of(&mut self, known: &[&'static str]) -> Option<&'static str> {
        let found = completed(self.peek()?, known)?;
        self.next();
        Some(found)
    }

    /// Consumes the next word, which must be a known one. Returns `default` at the end.
    pub(super) fn command(
        &mut self,
        what: &str,
        known: &[&'static str],
        default: Option<&'static str>,
    ) -> Result<Option<&'static str>> {
        match self.next() {
            None => Ok(default),
            Some(word) => match completed(word, known) {
                Some(found) => Ok(Some(found)),
                None => bail!("Unknown {what} '{word}'. Known: {}", known.join(", ")),
            },
        }
    }
}

fn completed(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let mut known = known.iter().copied();
    known.find(|known| !word.is_empty() && known.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_may_be_shortened() {
        let line = ["res".to_owned(), "sh".to_owned(), "rxe0".to_owned()];
        let mut words = Words::new(&line);
        let known = ["dev", "resource"];
        assert_eq!(
            words.command("object", &known, None).unwrap(),
            Some("resource")
        );
        assert_eq!(words.one_of(&["show"]), Some("show"));
        assert_eq!(words.one_of(&["qp"]), None);
        let error = words.command("object", &known, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Unknown object 'rxe0'. Known: dev, resource"
        );
    }
}
