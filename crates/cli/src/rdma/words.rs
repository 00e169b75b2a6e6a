//! The words of a command line, one after the other, each of which may be shortened.

use anyhow::{Result, bail};

/// What is left of the command line.
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

    /// Nothing may follow.
    pub(super) fn end(self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(word) => bail!("Unknown parameter '{word}'."),
        }
    }

    /// The next word, if it is the beginning of one of these: the first of them.
    pub(super) fn one_of(&mut self, known: &[&'static str]) -> Option<&'static str> {
        let found = completed(self.peek()?, known)?;
        self.next();
        Some(found)
    }

    /// The next word, which must be one of these; `default` if there is none.
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
                None => bail!("Unknown {what} '{word}'. Known are {}", known.join(", ")),
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
    fn words_may_be_shortened() {
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
            "Unknown object 'rxe0'. Known are dev, resource"
        );
    }
}
