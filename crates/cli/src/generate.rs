//! `ferroce generate`: man pages and completions for shells, for who makes packages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Write man pages and completions into a directory
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The directory: becomes share/man and the like
    dir: PathBuf,
}

impl GenerateArgs {
    pub(crate) fn run(self, mut ferroce: clap::Command) -> Result<()> {
        let man = self.dir.join("man/man1");
        make(&man)?;
        let mut ferroced = ferroce_daemon::Options::command();
        for command in [&ferroce, &ferroced] {
            clap_mangen::generate_to(command.clone().disable_help_subcommand(true), &man)
                .context("cannot write man pages")?;
        }
        for (shell, place) in [
            (Shell::Bash, "bash-completion/completions"),
            (Shell::Zsh, "zsh/vendor-completions"),
            (Shell::Fish, "fish/vendor_completions.d"),
        ] {
            let dir = self.dir.join(place);
            make(&dir)?;
            let write = |command: &mut clap::Command, name: &str| -> Result<()> {
                let file = clap_complete::generate_to(shell, command, name, &dir)?;
                // Where bash looks, they have no suffix.
                if shell == Shell::Bash {
                    fs::rename(file, dir.join(name))?;
                }
                Ok(())
            };
            write(&mut ferroce, "ferroce").context("cannot write completions")?;
            write(&mut ferroced, "ferroced").context("cannot write completions")?;
        }
        Ok(())
    }
}

fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))
}
