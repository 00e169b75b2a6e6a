//! Names of links: what `ferroce link add` takes.

/// The longest name, as in the kernel.
pub const MAX_NAME: usize = 63;

/// Why a name will not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No name at all.
    #[error("the name of a link cannot be empty")]
    Empty,
    /// Too long.
    #[error("link name `{0}` is too long: at most {MAX_NAME} characters")]
    TooLong(String),
    /// A character that would hurt in a path, a command line or a table.
    #[error(
        "link name `{0}` is not valid: letters, digits, `_`, `-` and `.` will do, \
         beginning with a letter, a digit or `_` (for example rxe0)"
    )]
    Invalid(String),
}

/// Checks the name of a link. Names appear in paths, in tables separated by
/// spaces and as `NAME/PORT`, so they are kept to what is harmless there.
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
    fn names_from_guides_are_fine() {
        for name in ["rxe0", "rxe_ens3", "siw0", "roce.100", "r-1", "0", "_x"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        assert_eq!(check_name(&"x".repeat(MAX_NAME)), Ok(()));
    }

    #[test]
    fn harmful_names_are_not() {
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
