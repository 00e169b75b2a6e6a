//! Command-line arguments as text.

use std::ffi::OsString;

use anyhow::{Result, anyhow};

/// Returns the arguments after the program's name. Fails if one of them is not UTF-8.
pub(crate) fn arguments() -> Result<Vec<String>> {
    as_text(std::env::args_os().skip(1))
}

fn as_text(arguments: impl Iterator<Item = OsString>) -> Result<Vec<String>> {
    let text = |(index, argument): (usize, OsString)| {
        argument.into_string().map_err(|argument| {
            anyhow!(
                "argument {} ({argument:?}) is not UTF-8 text; names of links and netdevs are \
                 letters, digits and punctuation",
                index + 1
            )
        })
    };
    arguments.enumerate().map(text).collect()
}

/// Parses a number in decimal, or in hexadecimal with `0x` in front.
pub(crate) fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}; write it as 65553 or 0x10011"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn argument_that_is_not_utf8_is_named() {
        let bad = OsString::from_vec(b"rxe\xff".to_vec());
        let error = as_text(["link".into(), bad].into_iter()).unwrap_err();
        let expected = r#"argument 2 ("rxe\xFF") is not UTF-8 text"#;
        assert!(error.to_string().starts_with(expected), "{error}");
        let good = ["link".into(), "rxe0".into()].into_iter();
        assert_eq!(as_text(good).unwrap(), ["link", "rxe0"]);
    }
}
