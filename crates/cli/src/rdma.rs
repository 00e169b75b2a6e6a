//! `rdma`: the command of iproute2, if this executable is called by that name.
//!
//! Words may be shortened (`rdma res sh qp`), and options may come anywhere. The output has
//! iproute2's words in iproute2's order, and every failure exits with status 1.

mod batch;
mod dev;
mod filter;
mod monitor;
mod resource;
mod row;
mod statistic;
mod system;
mod words;

pub(crate) use resource::programs_on;

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::{CommandFactory, Parser};
use ferroce_control::LinkInfo;

use crate::arguments::arguments;
use crate::daemon;
use crate::link;
use crate::output::{self, Format};
use words::Words;

/// Show and change RDMA devices, links, resources and statistics.
#[derive(Debug, Parser)]
#[command(
    name = "rdma",
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "rdma [OPTIONS] { dev | link | resource | monitor | statistic | system } COMMAND
       rdma [-force] -batch FILE",
    long_about = "\
Shows and changes RDMA devices and links, and shows the objects and counters of programs. Syntax \
and output are those of iproute2's rdma. The links are those of `ferroce link`, not the kernel's.

`ferroce run` and `ferroce shell` put this command first on PATH. Elsewhere, call `ferroce` through \
a symbolic link named rdma.

Words may be shortened, as in `rdma res sh qp`."
)]
struct Rdma {
    /// Print details; given twice, also those of the driver
    #[arg(short, long, action = clap::ArgAction::Count)]
    details: u8,

    /// Print JSON instead of text
    #[arg(short, long)]
    json: bool,

    /// Print indented JSON
    #[arg(short, long)]
    pretty: bool,

    /// Continue after a command of a batch file fails; delete links that programs use
    #[arg(short, long)]
    force: bool,

    /// Read commands from a file, or from standard input if FILE is `-`
    #[arg(short, long, value_name = "FILE")]
    batch: Option<PathBuf>,

    /// Print driver-specific data; this driver has none
    #[arg(short, long, hide = true)]
    raw: bool,

    /// Ignored: the output has no colours
    #[arg(short, long, hide = true, num_args = 0..=1, require_equals = true)]
    color: Option<Option<String>>,

    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,

    /// Print the usage
    #[arg(short, long)]
    help: bool,

    #[arg(hide = true)]
    words: Vec<String>,
}

/// The kinds of objects that `resource` shows.
pub(crate) const RESOURCES: [&str; 7] = resource::NAMES;

/// Returns the definition of the command line, for the man page.
pub(crate) fn command() -> clap::Command {
    let objects = [
        dev::USAGE,
        LINK_USAGE,
        resource::USAGE,
        monitor::USAGE,
        statistic::USAGE,
        system::USAGE,
    ];
    let lines = objects.iter().flat_map(|usage| usage.lines());
    let lines = lines.map(
        |line| match line.trim_start_matches("Usage:").trim_start() {
            // The usage of `resource` names the command once.
            line if line.starts_with("resource") => format!("    rdma {line}\n"),
            line => format!("    {line}\n"),
        },
    );
    let objects: String = lines.collect();
    Rdma::command().after_long_help(format!(
        "OBJECTS\n{objects}\nEXIT STATUS\n    0 on success, 1 on failure\n\nEXAMPLES\n{EXAMPLES}"
    ))
}

const EXAMPLES: &str = "    \
    rdma link add rxe0 type rxe netdev eth0
    rdma link
    rdma resource show qp link rxe0/1
    rdma statistic show link rxe0/1
    rdma -batch links.txt";

/// The options that all commands share.
#[derive(Debug, Clone, Copy)]
struct SharedOptions {
    format: Format,
    force: bool,
}

const USAGE: &str = "\
Usage: rdma [ OPTIONS ] OBJECT { COMMAND | help }
       rdma [ -f[orce] ] -b[atch] FILE
where  OBJECT := { dev | link | resource | monitor | statistic | system | help }
       OPTIONS := { -V[ersion] | -d[etails] | -j[son] | -p[retty] | -f[orce] }
This rdma is part of Ferroce: its links are those of `ferroce link`.
";

const LINK_USAGE: &str = "\
Usage: rdma link show [DEV/PORT_INDEX]
       rdma link add NAME type rxe|siw netdev NETDEV [mtu N] [crc on|off] [lids on|off] [patience S] [speed N] [local on|off]
       rdma link delete NAME
";

/// Parses the command line and runs the command.
pub(crate) fn run() -> Result<()> {
    let typed = arguments()?.into_iter().map(with_two_dashes);
    let arguments = match Rdma::try_parse_from(std::iter::once("rdma".to_owned()).chain(typed)) {
        Ok(arguments) => arguments,
        Err(error) => {
            let text = error.to_string();
            let text = text.trim_start_matches("error: ").trim_end().to_owned();
            bail!("{text}\n{USAGE}");
        }
    };
    if arguments.version {
        let version = env!("CARGO_PKG_VERSION");
        return output::write(&format!("rdma utility, ferroce-{version}\n"));
    }
    let options = SharedOptions {
        format: Format {
            json: arguments.json,
            pretty: arguments.pretty,
            details: arguments.details > 0,
        },
        force: arguments.force,
    };
    if arguments.help {
        return output::write(USAGE);
    }
    match &arguments.batch {
        Some(file) => batch::run(file, arguments.force, |words| perform(words, options)),
        None => perform(&arguments.words, options),
    }
}

/// Runs one command.
fn perform(words: &[String], options: SharedOptions) -> Result<()> {
    let mut words = Words::new(words);
    let objects = [
        "dev",
        "link",
        "resource",
        "monitor",
        "statistic",
        "system",
        "help",
    ];
    match words.command("object", &objects, None)? {
        Some("dev") => dev::run(words, options),
        Some("link") => link(words, options),
        Some("resource") => resource::run(words, options),
        Some("monitor") => monitor::run(words, options),
        Some("statistic") => statistic::run(words, options),
        Some("system") => system::run(words, options),
        _ => output::write(USAGE),
    }
}

/// Runs `ferroce resource`, which is `rdma resource`.
pub(crate) fn resource(words: &[String], format: Format) -> Result<()> {
    let options = SharedOptions {
        format,
        force: false,
    };
    resource::run(Words::new(words), options)
}

/// Adds the second dash to a long option. iproute2's manual writes long options with one
/// dash (`-batch`, `-Version`), and clap expects two.
fn with_two_dashes(argument: String) -> String {
    let long = [
        "batch", "color", "details", "force", "help", "json", "pretty", "raw", "version",
    ];
    let name = argument.strip_prefix('-').unwrap_or_default();
    let name = name.split('=').next().unwrap_or_default().to_lowercase();
    // One or two letters are short options: `-d`, `-dd`, `-jp`.
    let is_long = name.len() > 2 && long.iter().any(|long| long.starts_with(&name));
    match is_long {
        true => {
            let value = argument.find('=').map_or("", |at| &argument[at..]);
            let full = long.iter().find(|long| long.starts_with(&name));
            format!("--{}{value}", full.unwrap_or(&""))
        }
        false => argument,
    }
}

/// Returns all links, or the link named `only`. Fails if no link has that name.
fn links(only: Option<&str>) -> Result<Vec<LinkInfo>> {
    let all = match daemon::connect()? {
        Some(mut connection) => connection.links()?,
        None => Vec::new(),
    };
    link::show::chosen(all, only)
}

fn link(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    let commands = ["show", "list", "add", "delete", "help"];
    match words.command("link command", &commands, Some("show"))? {
        Some("add") => match words.rest() {
            [] => bail!("Please provide the name of a link to add\n{LINK_USAGE}"),
            // iproute2 prints the usage, too.
            [_name] => output::write(LINK_USAGE),
            rest => link::add(rest).map_err(|error| {
                // Errors of `ferroce link add` quote its usage: name this command instead.
                let text = format!("{error:#}");
                anyhow!("{}", text.replace("ferroce link add", "rdma link add"))
            }),
        },
        Some("delete") => {
            let name = words.next().map(link::show::link_name).transpose()?;
            let Some(name) = name else {
                bail!("Please provide the name of a link to delete\n{LINK_USAGE}");
            };
            words.end()?;
            link::delete(name.to_owned(), options.force)
        }
        Some("help") => output::write(LINK_USAGE),
        _ => {
            let only = words.next();
            words.end()?;
            link::show::run(only, options.format)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn long_options_with_one_dash_are_accepted() {
        for (typed, meant) in [
            ("-batch", "--batch"),
            ("-Version", "--version"),
            ("-ver", "--version"),
            ("-color=never", "--color=never"),
            ("-d", "-d"),
            ("-dd", "-dd"),
            ("-jp", "-jp"),
            ("-b", "-b"),
            ("--batch", "--batch"),
            ("-", "-"),
            ("batch", "batch"),
        ] {
            assert_eq!(super::with_two_dashes(typed.into()), meant, "{typed}");
        }
    }

    #[test]
    fn clap_accepts_the_definition() {
        super::Rdma::command().debug_assert();
    }
}
