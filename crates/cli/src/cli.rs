//! The command line of `ferroce`.

use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::arguments::arguments;
use crate::command::Command;
use crate::output::Format;

/// Soft-RoCE in user space: RDMA without an RDMA NIC, a kernel module or root.
#[derive(Debug, Parser)]
#[command(
    name = "ferroce",
    version,
    infer_subcommands = true,
    long_about = "\
Ferroce is Soft-RoCE in user space. This command runs RDMA programs, manages links and shows \
their state and counters. A link is an RDMA device on top of an ordinary netdev. The syntax of \
`ferroce link`, `stat` and `resource` is that of iproute2's `rdma`.

No command needs root. A daemon, ferroced, holds the links. It starts when the first link is \
added and ends when the last link is deleted. One ferroced serves a network namespace: the \
first to start owns UDP port 4791 there, so a second user needs root's ferroced (see \
`ferroced --help`).",
    after_long_help = "\
ENVIRONMENT
    FERROCE_RUNTIME_DIR   directory of ferroced's control socket (see `ferroced --help`)
    FERROCE_CONFIG_DIR    directory of links.toml (see `ferroce config --help`)
    FERROCE_LOG           messages of programs under `ferroce run`, and of a ferroced that
                          a command starts: a level (off, error, warn, info, debug,
                          trace), MODULE=LEVEL such as ferroce_net=debug, or several with
                          commas

EXIT STATUS
    0 on success, 1 on failure, 2 if the command line is invalid

OTHER NAMES
    Called as rdma, rxe_cfg or rxe_init.sh, this program acts as the command of that name.
    `ferroce run` and `ferroce shell` put these names first on PATH.

EXAMPLES
    ferroce doctor
    ferroce run -- ibv_devinfo
    ferroce link add rxe0 type rxe netdev eth0
    ferroce link
    ferroce stat rxe0
    ferroce link delete rxe0"
)]
struct Cli {
    #[command(flatten)]
    format: Format,

    #[command(subcommand)]
    command: Command,
}

/// Parses the command line and runs the command.
pub(crate) fn run() -> Result<ExitCode> {
    let Cli { format, command } = Cli::try_parse().unwrap_or_else(|error| report_and_exit(&error));
    command.run(format)
}

/// Prints clap's error and exits. For an unknown command, also lists the known ones.
fn report_and_exit(error: &clap::Error) -> ! {
    match (error.kind(), arguments()) {
        (ErrorKind::InvalidSubcommand, _) => {}
        (ErrorKind::InvalidUtf8, Err(not_text)) => {
            eprintln!("error: {not_text}");
            std::process::exit(error.exit_code());
        }
        _ => error.exit(),
    }
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words.map(|word| word.display().to_string()).collect();
    let known = known_commands(&Cli::command(), &words).join(", ");
    let text = error.to_string();
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    eprint!("{first}; known are {known}\n{rest}");
    std::process::exit(error.exit_code());
}

/// Returns the commands that are valid in place of the unknown one.
fn known_commands(command: &clap::Command, words: &[String]) -> Vec<String> {
    let mut at = command;
    for word in words.iter().filter(|word| !word.starts_with('-')) {
        match at.find_subcommand(word) {
            Some(inner) => at = inner,
            None => break,
        }
    }
    let visible = at.get_subcommands().filter(|c| !c.is_hide_set());
    visible.map(|c| c.get_name().to_owned()).collect()
}

/// Returns the definition of the command line, for man pages and completion.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn clap_accepts_the_definition() {
        super::Cli::command().debug_assert();
    }
}
