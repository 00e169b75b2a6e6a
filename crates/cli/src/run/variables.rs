//! Variables of Ferroce in the environment that the program will have.
//!
//! The libraries can only fail a call for a wrong value, and the program then shows an error number
//! at most. So `ferroce run` refuses the value before the program starts.

use std::env::VarError;

use anyhow::{Context, Result, bail};
use ferroce_control::MAX_SHARDS;
use ferroce_control::path::{RECORDER_VARIABLE, TYPE_VARIABLE};

/// A variable whose value has to be one of a few.
struct Variable {
    name: &'static str,
    is_valid: fn(&str) -> bool,
    /// The valid values, for the error.
    values: &'static str,
}

const VARIABLES: [Variable; 4] = [
    Variable {
        name: "FERROCE_WIRE",
        is_valid: |value| matches!(value, "local" | "udp" | "tcp"),
        values: "`udp` or `tcp` for the network between programs of this host, or `local` for shared \
                 memory",
    },
    Variable {
        name: "FERROCE_SHARDS",
        is_valid: |value| {
            value
                .parse()
                .is_ok_and(|count| (1..=MAX_SHARDS).contains(&count))
        },
        values: "a number from 1 to 60",
    },
    Variable {
        name: TYPE_VARIABLE,
        is_valid: |value| matches!(value, "rxe" | "siw"),
        values: "`rxe` or `siw`",
    },
    Variable {
        name: RECORDER_VARIABLE,
        is_valid: |value| matches!(value, "0" | "1"),
        values: "`0` for no records, or `1` for those of the local wire, too",
    },
];

/// Refuses values that the libraries do not know. `lookup` returns the value of a variable.
pub(super) fn check(lookup: impl Fn(&str) -> Result<String, VarError>) -> Result<()> {
    for variable in &VARIABLES {
        let name = variable.name;
        let value = match lookup(name) {
            Err(VarError::NotPresent) => continue,
            value => value.with_context(|| format!("the value of {name} is no text"))?,
        };
        if !value.is_empty() && !(variable.is_valid)(&value) {
            bail!("{name} is `{value}`; use {}, or unset it", variable.values);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(name: &str, value: &str) -> Result<()> {
        check(|asked| match asked == name {
            true => Ok(value.to_owned()),
            false => Err(VarError::NotPresent),
        })
    }

    #[test]
    fn known_values_and_unset_variables_are_accepted() {
        for (name, value) in [
            ("FERROCE_WIRE", "udp"),
            ("FERROCE_WIRE", "local"),
            ("FERROCE_WIRE", ""),
            ("FERROCE_SHARDS", "60"),
            ("FERROCE_TYPE", "siw"),
            ("FERROCE_RECORDER", "0"),
            ("HOME", "/nowhere"),
        ] {
            checked(name, value).unwrap();
        }
    }

    #[test]
    fn unknown_values_are_refused_with_the_known_ones() {
        for (name, value, remedy) in [
            ("FERROCE_WIRE", "ucp", "`udp`"),
            ("FERROCE_SHARDS", "many", "a number from 1 to 60"),
            ("FERROCE_SHARDS", "0", "a number from 1 to 60"),
            ("FERROCE_SHARDS", "61", "a number from 1 to 60"),
            ("FERROCE_TYPE", "roce", "`rxe` or `siw`"),
            ("FERROCE_RECORDER", "yes", "`1`"),
        ] {
            let error = checked(name, value).unwrap_err().to_string();
            let start = format!("{name} is `{value}`; use ");
            assert!(
                error.starts_with(&start) && error.contains(remedy),
                "{error}"
            );
        }
        assert_eq!(MAX_SHARDS, 60, "the text names it");
    }
}
