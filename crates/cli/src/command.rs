//! The subcommands.

use anyhow::Result;
use clap::Subcommand;

use crate::demo::DemoArgs;
use crate::link::LinkArgs;
use crate::output::Format;
use crate::stat::StatArgs;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show that it works: two processes, every operation, every byte checked
    Demo(DemoArgs),
    /// Add, delete and show links
    Link(LinkArgs),
    /// Show counters
    #[command(visible_alias = "statistic")]
    Stat(StatArgs),
}

impl Command {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        match self {
            Command::Demo(args) => args.run(),
            Command::Link(args) => args.run(format),
            Command::Stat(args) => args.run(format),
        }
    }
}
