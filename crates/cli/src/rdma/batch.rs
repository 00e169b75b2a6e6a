//! `rdma -batch FILE`: runs the commands of a file, one per line.
//!
//! The syntax is iproute2's: `#` starts a comment, a backslash at the end of a line joins it
//! with the next, and quotes keep words together.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Runs the commands of a file, or of standard input if the file is `-`. Stops at the first
/// command that fails, unless `force` is set.
pub(super) fn run(
    file: &Path,
    force: bool,
    perform: impl Fn(&[String]) -> Result<()>,
) -> Result<()> {
    let text = match file == Path::new("-") {
        true => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map(|_| text)
        }
        false => fs::read_to_string(file),
    };
    let text = text.with_context(|| format!("Cannot read commands from {}", file.display()))?;
    let mut failed = 0;
    for (number, line) in lines(&text) {
        let result = match words(&line)? {
            words if words.is_empty() => continue,
            words => perform(&words),
        };
        let Err(error) = result else {
            continue;
        };
        eprintln!("error: {error:#}");
        let place = format!("Command failed {}:{number}", file.display());
        if !force {
            bail!("{place}");
        }
        eprintln!("{place}");
        failed += 1;
    }
    match failed {
        0 => Ok(()),
        1 => bail!("1 command failed"),
        failed => bail!("{failed} commands failed"),
    }
}

/// Removes comments and joins continued lines. Each line has the number of its first part.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let (part, goes_on) = match line.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        let entry = open.get_or_insert_with(|| (index + 1, String::new()));
        entry.1.push_str(part);
        entry.1.push(' ');
        if !goes_on {
            all.extend(open.take());
        }
    }
    all.extend(open);
    all
}

/// Splits a line into words.
fn words(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars() {
        match (quote, character) {
            (Some(open), character) if character == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, character) if character.is_whitespace() => words.extend(word.take()),
            (_, character) => word.get_or_insert_default().push(character),
        }
    }
    if let Some(quote) = quote {
        bail!("the quote {quote} is not closed in: {}", line.trim());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_syntax_is_that_of_iproute2() {
        let text = "link\n# a comment\nlink add rxe0 \\\n  type rxe # more\n\ndev\n";
        let read: Vec<(usize, Vec<String>)> = lines(text)
            .into_iter()
            .map(|(number, line)| (number, words(&line).unwrap()))
            .filter(|(_, words)| !words.is_empty())
            .collect();
        let expected = [
            (1, vec!["link"]),
            (3, vec!["link", "add", "rxe0", "type", "rxe"]),
            (6, vec!["dev"]),
        ];
        let expected = expected.map(|(number, words)| {
            let words: Vec<String> = words.into_iter().map(String::from).collect();
            (number, words)
        });
        assert_eq!(read, expected);
        assert_eq!(words("a 'b c' \"\"").unwrap(), ["a", "b c", ""]);
        assert!(words("link 'rxe0").is_err());
    }
}
