//! `rxe_cfg`, which people remember from the first years of Soft-RoCE: this executable
//! under that name.
//!
//! What it adds it remembers, in the file of [`ferroce_daemon::config`], unless told
//! otherwise with `-n`.

mod table;

use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser};
use ferroce_control::link::{MTUS, largest_mtu};
use ferroce_control::{Connection, LinkConfig, LinkInfo, Request};
use ferroce_daemon::config;

use crate::{daemon, output};

const USAGE: &str = "\
Usage:
  rxe_cfg [options] [status [rxeN]]      show netdevs and their links (the default)
  rxe_cfg [options] start                set remembered netdevs up, make their links
  rxe_cfg [options] stop                 delete all links
  rxe_cfg [options] persistent           show the netdevs that are remembered
  rxe_cfg [options] add ethN             make a link on ethN
  rxe_cfg [options] remove ethN|rxeN|all delete a link
  rxe_cfg [options] crc enable|disable   compute and check ICRCs, or do not
  rxe_cfg [options] mtu [rxeN] SIZE      carry at most SIZE bytes in a packet
  rxe_cfg [options] help                 this text
Options:
  -n   do not remember, or forget
  -l   show only netdevs with a carrier
  -f   even while programs use it; with mtu: the largest that fits
  -v   say more
  -h   this text
This rxe_cfg is Ferroce's: no kernel module is loaded, and root is not needed.
";

/// Make, delete and show links, as the first years of Soft-RoCE did.
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
Makes, deletes and shows links, and remembers those it makes: `ferroced --configured` makes them \
at every start. `ferroce run` and `ferroce shell` put this command first on PATH; elsewhere it is \
`ferroce` called by the name rxe_cfg. No kernel module is loaded, and root is not needed."
)]
struct RxeCfg {
    /// Do not remember, or forget
    #[arg(short = 'n')]
    forgetful: bool,
    /// Show only netdevs with a carrier
    #[arg(short = 'l')]
    with_carrier: bool,
    /// Even while programs use it; with mtu: the largest that fits
    #[arg(short = 'f')]
    force: bool,
    /// Say more
    #[arg(short = 'v')]
    verbose: bool,
    /// Show the usage
    #[arg(short = 'h')]
    help: bool,
    /// An Ethernet type, from before RoCEv2: means nothing here
    #[arg(short = 'p')]
    protocol: Option<String>,
    #[arg(hide = true)]
    words: Vec<String>,
}

/// The command line, for the manual.
pub(crate) fn command() -> clap::Command {
    let commands = USAGE.lines().skip(1).take_while(|line| *line != "Options:");
    let commands: String = commands
        .map(|line| format!("    {}\n", line.trim().replace("[options] ", "")))
        .collect();
    RxeCfg::command().after_long_help(format!(
        "COMMANDS\n{commands}\nEXIT STATUS\n    0 if it worked, 1 if not\n\nEXAMPLES\n    \
         rxe_cfg add eth0\n    rxe_cfg status\n    rxe_cfg remove rxe0"
    ))
}

/// Does what the command line says.
pub(crate) fn run() -> Result<()> {
    let options = match RxeCfg::try_parse() {
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
        eprintln!("note: -p {protocol} means nothing here: RoCEv2 is UDP, on port 4791");
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
        ["crc", other] => bail!("crc `{other}` is neither enable nor disable"),
        ["mtu", size] => options.mtu(None, size),
        ["mtu", link, size] => options.mtu(Some(link), size),
        ["help"] => output::write(USAGE),
        ["debug", ..] => bail!("debug is a matter of FERROCE_LOG (see `ferroced --help`)"),
        ["add" | "remove" | "crc" | "mtu"] => {
            bail!("`{}` wants to know more\n{USAGE}", words[0])
        }
        [other, ..] => bail!("unknown command `{other}`\n{USAGE}"),
    }
}

impl RxeCfg {
    fn status(&self, only: Option<&str>) -> Result<()> {
        let netdevs = ferroce_daemon::survey().context("cannot list netdevs")?;
        let links = links()?;
        if let Some(name) = only
            && !links.iter().any(|link| link.name == name)
        {
            bail!("{name}: no such link; {}", there_is(&links));
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

    /// Sets a netdev up that is down. Who may not do that is told, and goes on.
    fn set_up(&self, name: &str) {
        let netdevs = ferroce_daemon::survey().unwrap_or_default();
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
            config::remember(&config::path(), &config).context("it works, but not for long")?;
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
                    false => bail!("{wanted}: no such link or netdev; {}", there_is(&links)),
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
        let size: u32 = valid.with_context(|| format!("mtu `{size}` is none of {known}"))?;
        self.change(link, |link| {
            let largest = largest_mtu(link.netdev_mtu);
            let size = if self.force { size.min(largest) } else { size };
            Ok((Some(size), None))
        })
    }

    /// Changes one link, or all.
    fn change(
        &self,
        only: Option<&str>,
        to: impl Fn(&LinkInfo) -> Result<(Option<u32>, Option<bool>)>,
    ) -> Result<()> {
        let links = links()?;
        let chosen = |link: &&LinkInfo| only.is_none_or(|only| link.name == only);
        if !links.iter().any(|link| chosen(&link)) {
            let name = only.unwrap_or("rxe0");
            bail!("{name}: no such link; {}", there_is(&links));
        }
        let mut connection = daemon::connect()?.context("ferroced has just ended")?;
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

    fn say(&self, line: &str) {
        if self.verbose {
            eprintln!("{line}");
        }
    }
}

/// Adds a link on a netdev, with the first free name of rxe0, rxe1, ...
pub(crate) fn add_next(connection: &mut Connection, netdev: &str) -> Result<LinkConfig> {
    let links = connection.links()?;
    let name = (0..)
        .map(|number| format!("rxe{number}"))
        .find(|name| links.iter().all(|link| link.name != *name))
        .context("all names are taken")?;
    let config = LinkConfig {
        name,
        kind: "rxe".into(),
        netdev: netdev.into(),
        mtu: None,
        crc: true,
        lids: false,
        patience: 0,
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

fn there_is(links: &[LinkInfo]) -> String {
    let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
    match &names[..] {
        [] => "there is none; `rxe_cfg add ethN` makes one".into(),
        names => format!("there is {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::RxeCfg::command().debug_assert();
    }
}
