//! The subcommands.

use anyhow::Result;
use clap::Subcommand;

use crate::demo::DemoArgs;
use crate::link::LinkArgs;
use crate::output::Format;
use crate::run::{RunArgs, ShellArgs};
use crate::stat::StatArgs;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    // Each brings its own description.
    Demo(DemoArgs),
    Link(LinkArgs),
    Run(RunArgs),
    Shell(ShellArgs),
    #[command(visible_alias = "statistic")]
    Stat(StatArgs),
}

impl Command {
    pub(crate) fn run(self, format: Format) -> Result<()> {
        match self {
            Command::Demo(args) => args.run(),
            Command::Link(args) => args.run(format),
            Command::Run(args) => args.run(),
            Command::Shell(args) => args.run(),
            Command::Stat(args) => args.run(format),
        }
    }
}
