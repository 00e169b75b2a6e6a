//! Steps: a heading, something that runs, and how long it took.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Announces, runs and times a step.
pub(crate) fn step(title: &str, body: impl FnOnce() -> Result<()>) -> Result<()> {
    heading(title);
    let start = now();
    body().with_context(|| title.to_owned())?;
    eprintln!("   done in {}", words(now() - start));
    Ok(())
}

/// As [`step`], but whatever it runs has the last word.
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
    // Cargo names itself to what it runs.
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

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("xtask lies in the repository root")
        .to_owned()
}

fn heading(title: &str) {
    eprintln!("\n== {title}");
}

/// A duration as a person would say it.
fn words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[allow(clippy::disallowed_methods)] // a tool that tells people how long things took
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(words(Duration::from_millis(1234)), "1.2 s");
        assert_eq!(words(Duration::from_secs(59)), "59 s");
        assert_eq!(words(Duration::from_secs(125)), "2 min 5 s");
    }
}
