//! The subcommands.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::capture::CaptureArgs;
use crate::complete::CompleteArgs;
use crate::config::ConfigArgs;
use crate::demo::DemoArgs;
use crate::devinfo::DevinfoArgs;
use crate::doctor::DoctorArgs;
use crate::explain::ExplainArgs;
use crate::generate::GenerateArgs;
use crate::gids::GidsArgs;
use crate::link::LinkArgs;
use crate::output::Format;
use crate::ping::PingArgs;
use crate::resource::ResourceArgs;
use crate::run::{RunArgs, ShellArgs};
use crate::stat::StatArgs;
use crate::top::TopArgs;

/// A subcommand with its arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    // The description of each command is that of its `Args` type.
    Capture(CaptureArgs),
    #[command(hide = true)]
    Complete(CompleteArgs),
    Config(ConfigArgs),
    Demo(DemoArgs),
    Devinfo(DevinfoArgs),
    Doctor(DoctorArgs),
    Explain(ExplainArgs),
    #[command(hide = true)]
    Generate(GenerateArgs),
    Gids(GidsArgs),
    Link(LinkArgs),
    Ping(PingArgs),
    Resource(ResourceArgs),
    Run(RunArgs),
    Shell(ShellArgs),
    #[command(visible_alias = "statistic")]
    Stat(StatArgs),
    Top(TopArgs),
}

impl Command {
    /// Runs the command and returns the exit status.
    pub(crate) fn run(self, format: Format) -> Result<ExitCode> {
        let done = match self {
            Command::Doctor(args) => return args.run(format),
            Command::Capture(args) => args.run(),
            Command::Complete(args) => args.run(crate::cli::command()),
            Command::Config(args) => args.run(),
            Command::Demo(args) => args.run(),
            Command::Devinfo(args) => args.run(format),
            Command::Explain(args) => args.run(format),
            Command::Generate(args) => args.run(&crate::cli::command()),
            Command::Gids(args) => args.run(format),
            Command::Link(args) => args.run(format),
            Command::Ping(args) => args.run(),
            Command::Resource(args) => args.run(format),
            Command::Run(args) => return args.run(),
            Command::Shell(args) => return args.run(),
            Command::Stat(args) => args.run(format),
            Command::Top(args) => args.run(),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}
