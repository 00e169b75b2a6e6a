//! The mode of strict checks.

use core::fmt;
use core::str::FromStr;

/// The consequence of a finding.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Nothing is checked.
    #[default]
    Off,
    /// A finding is a warning on standard error.
    Warn,
    /// The verb fails, or the work request completes with an error.
    Error,
}

/// A word that is not a mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownMode(String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "strict `{}` is not valid; use `on`, `error` or `off`",
            self.0
        )
    }
}

impl core::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Mode, UnknownMode> {
        match word {
            "off" | "" => Ok(Mode::Off),
            "on" => Ok(Mode::Warn),
            "error" => Ok(Mode::Error),
            other => Err(UnknownMode(other.into())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Off => "off",
            Mode::Warn => "on",
            Mode::Error => "error",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_modes_are_those_of_the_command_line() {
        for mode in [Mode::Off, Mode::Warn, Mode::Error] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "yes".parse::<Mode>().unwrap_err().to_string();
        assert!(error.contains("`yes`") && error.contains("`on`"), "{error}");
    }
}
