//! Names of links.

/// The longest name, as in the kernel.
pub const MAX_NAME: usize = 63;

/// Reason why a name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("the name of a link cannot be empty")]
    Empty,
    /// The name is longer than [`MAX_NAME`].
    #[error("link name `{0}` is too long: at most {MAX_NAME} characters")]
    TooLong(String),
    /// The name contains a character that is unsafe in a path, a command line or a table.
    #[error(
        "link name `{0}` is not valid: use letters, digits, `_`, `-` and `.`, \
         and start with a letter, a digit or `_` (for example rxe0)"
    )]
    Invalid(String),
}

/// Checks the name of a link. Names appear in paths, in tables with spaces between columns,
/// and as `NAME/PORT`.
///
/// # Errors
/// If the name is empty, too long or has an unsafe character.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let shown = || name.chars().take(80).collect::<String>();
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    let mut bytes = name.bytes();
    let first = bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !first || !bytes.all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
        return Err(NameError::Invalid(shown()));
    }
    if name.len() > MAX_NAME {
        return Err(NameError::TooLong(shown()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_guides_are_accepted() {
        for name in ["rxe0", "rxe_ens3", "siw0", "roce.100", "r-1", "0", "_x"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        assert_eq!(check_name(&"x".repeat(MAX_NAME)), Ok(()));
    }

    #[test]
    fn unsafe_names_are_refused() {
        for name in ["a/1", "..", ".", "-j", "a b", "a\n", "é", "a%d", "\0"] {
            assert!(
                matches!(check_name(name), Err(NameError::Invalid(_))),
                "{name:?}"
            );
        }
        assert_eq!(check_name(""), Err(NameError::Empty));
        let long = "x".repeat(MAX_NAME + 1);
        assert!(matches!(check_name(&long), Err(NameError::TooLong(_))));
    }
}
