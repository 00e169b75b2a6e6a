//! The command line.

use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use crate::command::Command;
use crate::output::Format;

/// Soft-RoCE in user space: RDMA without an RDMA NIC, a kernel module or root.
#[derive(Debug, Parser)]
#[command(
    name = "ferroce",
    version,
    infer_subcommands = true,
    long_about = "\
Ferroce is Soft-RoCE in user space. This command makes links, which are RDMA devices on top of \
ordinary netdevs, and shows them and their counters, in the words of iproute2's `rdma`.

Everybody can do this; root is not needed. Links live in a daemon, ferroced, which is started \
when the first link is added and ends when the last one is deleted. There is one for each network \
namespace and user.",
    after_long_help = "\
ENVIRONMENT
    FERROCE_RUNTIME_DIR   where to find ferroced's control socket (see `ferroced --help`)
    FERROCE_CONFIG_DIR    where links.toml is (see `ferroce config --help`)
    FERROCE_LOG           what a ferroced that is started logs: error, warn, info, debug

EXIT STATUS
    0 if it worked, 1 if not, 2 if the command line makes no sense

OTHER NAMES
    Called as rdma, rxe_cfg or rxe_init.sh it does what those do; `ferroce run` and `ferroce shell`
    put these names first on PATH.

EXAMPLES
    ferroce doctor
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

pub(crate) fn run() -> Result<ExitCode> {
    let Cli { format, command } = Cli::try_parse().unwrap_or_else(|error| complain(&error));
    command.run(format)
}

/// Says what is wrong with the command line, as clap does; of commands that are none,
/// which ones are.
fn complain(error: &clap::Error) -> ! {
    if error.kind() != ErrorKind::InvalidSubcommand {
        error.exit();
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let known = known_commands(&Cli::command(), &words).join(", ");
    let text = error.to_string();
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    eprint!("{first}; known are {known}\n{rest}");
    std::process::exit(error.exit_code());
}

/// The commands that could have stood where an unknown one stands.
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

/// The whole command line, for man pages.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
