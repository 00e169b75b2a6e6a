//! `rxe_cfg`: the command of early Soft-RoCE releases, if this executable is called by that
//! name.
//!
//! Links that it adds go into the configuration file ([`ferroce_daemon::config`]), unless
//! `-n` is given.

mod table;

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser};
use ferroce_control::link::{MTUS, largest_mtu};
use ferroce_control::{Connection, LinkConfig, LinkInfo, Request};
use ferroce_daemon::config;

use crate::arguments::arguments;
use crate::{daemon, output};

const USAGE: &str = "\
Usage:
  rxe_cfg [options] [status [rxeN]]      show netdevs and their links (the default)
  rxe_cfg [options] start                add the configured links, set their netdevs up
  rxe_cfg [options] stop                 delete all links
  rxe_cfg [options] persistent           show the netdevs in the configuration
  rxe_cfg [options] add ethN             add a link on ethN
  rxe_cfg [options] remove ethN|rxeN|all delete a link, or all
  rxe_cfg [options] crc enable|disable   compute and check ICRCs, or do not
  rxe_cfg [options] mtu [rxeN] SIZE      set the largest payload of a packet
  rxe_cfg [options] help                 show this text
Options:
  -n   do not change the configuration
  -l   show only netdevs with a carrier
  -f   remove: also while programs use the link; mtu: at most what the netdev allows
  -v   report each change
  -h   show this text
Example:
  rxe_cfg add eth0
This rxe_cfg is part of Ferroce: it loads no kernel module and needs no root.
";

/// Add, delete and show links, with the commands of early Soft-RoCE.
#[derive(Debug, Parser)]
#[command(
    name = "rxe_cfg",
    disable_help_flag = true,
    override_usage = "rxe_cfg [OPTIONS] [status [rxeN] | start | stop | persistent | help]
       rxe_cfg [OPTIONS] add ethN
       rxe_cfg [OPTIONS] remove ethN|rxeN|all
       rxe_cfg [OPTIONS] crc enable|disable
       rxe_cfg [OPTIONS] mtu [rxeN] SIZE",
    long_about = "\
Adds, deletes and shows links. Links that it adds go into the configuration, so that `ferroced \
--configured` adds them again at every start. It loads no kernel module and needs no root.

`ferroce run` and `ferroce shell` put this command first on PATH. Elsewhere, call `ferroce` through \
a symbolic link named rxe_cfg."
)]
struct RxeCfg {
    /// Do not change the configuration
    #[arg(short = 'n')]
    forgetful: bool,
    /// Show only netdevs with a carrier
    #[arg(short = 'l')]
    with_carrier: bool,
    /// With remove: also while programs use the link. With mtu: at most what the netdev allows
    #[arg(short = 'f')]
    force: bool,
    /// Report each change
    #[arg(short = 'v')]
    verbose: bool,
    /// Show the usage
    #[arg(short = 'h')]
    help: bool,
    /// Ignored: the Ethernet type of RoCEv1
    #[arg(short = 'p')]
    protocol: Option<String>,
    #[arg(hide = true)]
    words: Vec<String>,
}

/// Returns the definition of the command line, for the man page.
pub(crate) fn command() -> clap::Command {
    let commands = USAGE.lines().skip(1).take_while(|line| *line != "Options:");
    let commands: String = commands
        .map(|line| format!("    {}\n", line.trim().replace("[options] ", "")))
        .collect();
    RxeCfg::command().after_long_help(format!(
        "COMMANDS\n{commands}\nEXIT STATUS\n    0 on success, 1 on failure\n\nEXAMPLES\n    \
         rxe_cfg add eth0\n    rxe_cfg status\n    rxe_cfg remove rxe0"
    ))
}

/// Parses the command line and runs the command.
pub(crate) fn run() -> Result<()> {
    let typed = arguments()?.into_iter();
    let options = match RxeCfg::try_parse_from(std::iter::once("rxe_cfg".to_owned()).chain(typed)) {
        Ok(options) => options,
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            bail!("{}\n{USAGE}", line.trim_start_matches("error: "));
        }
    };
    if options.help {
        return output::write(USAGE);
    }
    if let Some(protocol) = &options.protocol {
        eprintln!("note: -p {protocol} is ignored: it is for RoCEv1, and links use RoCEv2");
    }
    let words: Vec<&str> = options.words.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["status"] => options.status(None),
        ["status", link] => options.status(Some(link)),
        ["start"] => options.start(),
        ["stop"] => options.remove("all", false),
        ["persistent"] => persistent(),
        ["add", netdev] => options.add(netdev),
        ["remove", name] => options.remove(name, !options.forgetful),
        ["crc", "enable"] => options.change(None, |_| Ok((None, Some(true)))),
        ["crc", "disable"] => options.change(None, |_| Ok((None, Some(false)))),
        ["crc", other] => bail!("crc `{other}` is not valid; use `enable` or `disable`"),
        ["mtu", size] => options.mtu(None, size),
        ["mtu", link, size] => options.mtu(Some(link), size),
        ["help"] => output::write(USAGE),
        ["debug", ..] => bail!(
            "rxe_cfg debug is not supported; set FERROCE_LOG=debug instead (see `ferroced --help`)"
        ),
        ["add" | "remove" | "crc" | "mtu"] => {
            bail!("`rxe_cfg {}` needs an argument\n{USAGE}", words[0])
        }
        [other, ..] => bail!("unknown command `{other}`\n{USAGE}"),
    }
}

impl RxeCfg {
    fn status(&self, only: Option<&str>) -> Result<()> {
        let netdevs = ferroce_daemon::list_netdevs().context("cannot list netdevs")?;
        let links = links()?;
        if let Some(name) = only
            && !links.iter().any(|link| link.name == name)
        {
            bail!("link {name} does not exist; {}", list_existing(&links));
        }
        output::write(&table::text(&netdevs, &links, only, self.with_carrier))
    }

    fn start(&self) -> Result<()> {
        let remembered = config::load(&config::path())?;
        let mut failed = Vec::new();
        if !remembered.is_empty() {
            let mut connection = daemon::connect_or_start()?;
            let there = connection.links()?;
            for config in remembered {
                let same = |l: &LinkInfo| l.name == config.name || l.netdev == config.netdev;
                self.set_up(&config.netdev);
                if there.iter().any(same) {
                    continue;
                }
                let name = config.name.clone();
                match connection.perform(&Request::LinkAdd(config)) {
                    Ok(()) => self.say(&format!("added {name}")),
                    Err(error) => failed.push(format!("{name}: {error}")),
                }
            }
        }
        self.status(None)?;
        match &failed[..] {
            [] => Ok(()),
            failed => bail!("{}", failed.join("; ")),
        }
    }

    /// Sets a netdev up that is down. Prints a note if that is not permitted.
    fn set_up(&self, name: &str) {
        let netdevs = ferroce_daemon::list_netdevs().unwrap_or_default();
        if !netdevs
            .iter()
            .any(|netdev| netdev.name == name && !netdev.up)
        {
            return;
        }
        let output = Command::new("ip")
            .args(["link", "set", "dev", name, "up"])
            .output();
        match output {
            Ok(output) if output.status.success() => self.say(&format!("set {name} up")),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                eprintln!("note: {name} stays down: {}", why.trim());
            }
            Err(error) => eprintln!("note: {name} stays down: cannot run ip: {error}"),
        }
    }

    fn add(&self, netdev: &str) -> Result<()> {
        let mut connection = daemon::connect_or_start()?;
        let config = add_next(&mut connection, netdev)?;
        self.say(&format!("added {} on {netdev}", config.name));
        if !self.forgetful {
            config::remember(&config::path(), &config).with_context(|| {
                let name = &config.name;
                format!("link {name} was added, but will be missing after a restart")
            })?;
        }
        Ok(())
    }

    fn remove(&self, wanted: &str, forget: bool) -> Result<()> {
        let mut links = links()?;
        if wanted != "all" {
            let named = |link: &LinkInfo| link.name == wanted || link.netdev == wanted;
            let forgotten = forget && config::forget(&config::path(), wanted)?;
            if !links.iter().any(named) {
                match forgotten {
                    true => return Ok(()),
                    false => bail!(
                        "no link is named {wanted} or uses a netdev {wanted}; {}",
                        list_existing(&links)
                    ),
                }
            }
            links.retain(named);
        }
        let Some(mut connection) = daemon::connect()? else {
            return Ok(());
        };
        for link in links {
            let (name, force) = (link.name.clone(), self.force);
            connection.perform(&Request::LinkDelete { name, force })?;
            self.say(&format!("removed {}", link.name));
            if forget {
                config::forget(&config::path(), &link.name)?;
            }
        }
        Ok(())
    }

    fn mtu(&self, link: Option<&str>, size: &str) -> Result<()> {
        let known = MTUS.map(|mtu| mtu.to_string()).join(", ");
        let valid = size.parse().ok().filter(|size| MTUS.contains(size));
        let size: u32 = valid.with_context(|| format!("mtu `{size}` is not one of {known}"))?;
        self.change(link, |link| {
            let largest = largest_mtu(link.netdev_mtu);
            let size = if self.force { size.min(largest) } else { size };
            Ok((Some(size), None))
        })
    }

    /// Changes one link, or all. `to` returns the new MTU and ICRC setting of a link.
    fn change(
        &self,
        only: Option<&str>,
        to: impl Fn(&LinkInfo) -> Result<(Option<u32>, Option<bool>)>,
    ) -> Result<()> {
        let links = links()?;
        let chosen = |link: &&LinkInfo| only.is_none_or(|only| link.name == only);
        if !links.iter().any(|link| chosen(&link)) {
            let name = only.unwrap_or("rxe0");
            bail!("link {name} does not exist; {}", list_existing(&links));
        }
        let mut connection =
            daemon::connect()?.context("ferroced has just ended, and its links with it")?;
        let path = config::path();
        let remembered = config::load(&path)?;
        for link in links.iter().filter(chosen) {
            let (mtu, crc) = to(link)?;
            let name = link.name.clone();
            connection.perform(&Request::LinkSet {
                name,
                rename: None,
                mtu,
                crc,
                lids: None,
                patience: None,
                speed: None,
                local: None,
                strict: None,
                profile: None,
            })?;
            let known = remembered.iter().find(|config| config.name == link.name);
            if let Some(config) = known.filter(|_| !self.forgetful) {
                let config = LinkConfig {
                    mtu: mtu.or(config.mtu),
                    crc: crc.unwrap_or(config.crc),
                    ..config.clone()
                };
                config::remember(&path, &config)?;
            }
        }
        Ok(())
    }

    /// Prints a line if `-v` is given.
    fn say(&self, line: &str) {
        if self.verbose {
            eprintln!("{line}");
        }
    }
}

/// Adds a link on a netdev under the first free name of rxe0, rxe1, ...
pub(crate) fn add_next(connection: &mut Connection, netdev: &str) -> Result<LinkConfig> {
    let links = connection.links()?;
    let name = (0..)
        .map(|number| format!("rxe{number}"))
        .find(|name| links.iter().all(|link| link.name != *name))
        .context("all link names rxe0, rxe1, ... are taken")?;
    let config = LinkConfig {
        name,
        kind: "rxe".into(),
        netdev: netdev.into(),
        mtu: None,
        crc: true,
        lids: false,
        patience: 0,
        speed: None,
        local: true,
        strict: String::new(),
        profile: String::new(),
    };
    connection.perform(&Request::LinkAdd(config.clone()))?;
    Ok(config)
}

fn persistent() -> Result<()> {
    let remembered = config::load(&config::path())?;
    let lines = remembered.iter().map(|link| format!("{}\n", link.netdev));
    output::write(&lines.collect::<String>())
}

fn links() -> Result<Vec<LinkInfo>> {
    match daemon::connect()? {
        Some(mut connection) => Ok(connection.links()?),
        None => Ok(Vec::new()),
    }
}

/// Returns the end of an error message: the links that exist, or how to add one.
fn list_existing(links: &[LinkInfo]) -> String {
    let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
    match &names[..] {
        [] => "there are no links; `rxe_cfg add ethN` adds one".into(),
        names => format!("existing links: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn clap_accepts_the_definition() {
        super::RxeCfg::command().debug_assert();
    }
}
