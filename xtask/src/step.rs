//! Steps of a command, each with a title and its duration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs a step. Prints its title before and its duration after.
pub(crate) fn step(title: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    heading(title);
    let start = now();
    body().with_context(|| title.to_owned())?;
    eprintln!("   done in {}", words(now() - start));
    Ok(())
}

/// Runs a step like [`step`], without printing the duration after the step's own output.
pub(crate) fn last_step(title: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    heading(title);
    body().with_context(|| title.to_owned())
}

/// Runs cargo in the repository root.
pub(crate) fn cargo(args: &[&str]) -> Result<()> {
    cargo_with(args, &[])
}

/// Runs cargo with additional environment variables.
pub(crate) fn cargo_with(args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let line = format!("cargo {}", args.join(" "));
    eprintln!("   $ {line}");
    // Cargo passes its own path to the programs that it runs.
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start `{line}`; is cargo installed?"))?;
    if !status.success() {
        bail!("`{line}` reported the errors above ({status})");
    }
    Ok(())
}

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("xtask lies in the repository root")
        .to_owned()
}

fn heading(title: &str) {
    eprintln!("\n== {title}");
}

/// Formats a duration.
fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[allow(clippy::disallowed_methods)] // measures the duration of steps
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_or_three_digits() {
        assert_eq!(words(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(words(Duration::from_secs(59)), "59 s");
        assert_eq!(words(Duration::from_secs(125)), "2 min 5 s");
    }
}
