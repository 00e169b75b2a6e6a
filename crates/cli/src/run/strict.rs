//! The options of `ferroce run` about strict mode and profiles.

use clap::Args;
use ferroce_strict::{
    Mode, PROFILE_VARIABLE, Profile, STRICT_VARIABLE, UnknownMode, UnknownProfile,
};

/// Options about the differences between this device and real adapters.
#[derive(Debug, Args)]
pub(super) struct StrictOptions {
    /// Warn of mistakes that hardware would punish; with `=error`, make the verbs fail (see
    /// STRICT below)
    #[arg(
        long,
        value_name = "MODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        value_parser = mode
    )]
    strict: Option<Mode>,

    /// Show and enforce the limits of a real adapter: mlx5, efa or rxe
    #[arg(long, value_name = "ADAPTER", value_parser = profile)]
    profile: Option<String>,
}

impl StrictOptions {
    /// Returns the environment of the program.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let strict = self.strict.map(|mode| (STRICT_VARIABLE, mode.to_string()));
        let profile = self.profile.clone().map(|name| (PROFILE_VARIABLE, name));
        strict.into_iter().chain(profile).collect()
    }
}

fn mode(word: &str) -> Result<Mode, UnknownMode> {
    word.parse()
}

fn profile(name: &str) -> Result<String, UnknownProfile> {
    Profile::named(name)?;
    Ok(name.to_owned())
}
