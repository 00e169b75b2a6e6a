//! `ferroce config`: links that are there after every start.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use ferroce_control::{LinkConfig, LinkInfo, Request};
use ferroce_daemon::config;

use crate::{daemon, output};

/// Show and change which links are made at every start.
#[derive(Debug, Args)]
#[command(
    long_about = "\
Links that are added vanish with the machine, as those of the kernel do, unless the configuration \
names them. ferroced makes those when it is started with --configured, as its systemd units do, \
and as soon as their netdev has an address.",
    after_long_help = "\
FILES
    /etc/ferroce/links.toml                root's
    $XDG_CONFIG_HOME/ferroce/links.toml    a user's (~/.config/ferroce/links.toml)

        [[link]]
        name = \"rxe0\"
        netdev = \"eth0\"
        type = \"rxe\"    # the default
        mtu = 1024      # by default what the netdev allows
        crc = true      # the default
        lids = false    # the default
        patience = 0    # the default

ENVIRONMENT
    FERROCE_CONFIG_DIR    replaces the directory of the file

EXAMPLES
    ferroce link add rxe0 type rxe netdev eth0
    ferroce config save               remember all links there are
    ferroce config check              is the file right?
    ferroce config apply              make what is missing, now
    systemctl enable --now ferroced   and at every start"
)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show the links of the configuration (the default)
    Show,
    /// Look for mistakes, and name the line
    Check {
        /// Another file
        file: Option<std::path::PathBuf>,
    },
    /// Remember all links there are now, or some of them
    Save {
        /// Only these
        links: Vec<String>,
    },
    /// Forget links, by name or netdev
    Forget {
        /// Which
        #[arg(required = true)]
        links: Vec<String>,
    },
    /// Make the links of the configuration that are missing
    Apply,
    /// Show where the file is
    Path,
}

impl ConfigArgs {
    pub(crate) fn run(self) -> Result<()> {
        let path = config::path();
        match self.command {
            None | Some(ConfigCommand::Show) => {
                let lines = config::load(&path)?.into_iter().map(line);
                output::write(&lines.collect::<String>())
            }
            Some(ConfigCommand::Check { file: Some(file) }) if !file.exists() => {
                bail!("{}: no such file", file.display())
            }
            Some(ConfigCommand::Check { file }) => check(file.unwrap_or(path)),
            Some(ConfigCommand::Save { links }) => save(&links),
            Some(ConfigCommand::Forget { links }) => {
                for link in links {
                    if !config::forget(&path, &link)? {
                        bail!("{}: `{link}` is not in it", path.display());
                    }
                }
                Ok(())
            }
            Some(ConfigCommand::Apply) => apply(),
            Some(ConfigCommand::Path) => output::write(&format!("{}\n", path.display())),
        }
    }
}

/// A link as `ferroce link add` would be told.
fn line(link: LinkConfig) -> String {
    let mut line = format!(
        "link {} type {} netdev {}",
        link.name, link.kind, link.netdev
    );
    if let Some(mtu) = link.mtu {
        line += &format!(" mtu {mtu}");
    }
    if !link.crc {
        line += " crc off";
    }
    if link.lids {
        line += " lids on";
    }
    if link.patience > 0 {
        line += &format!(" patience {}", link.patience);
    }
    line + "\n"
}

fn check(path: std::path::PathBuf) -> Result<()> {
    if !path.exists() {
        return output::write(&format!("{}: there is none\n", path.display()));
    }
    let links = config::load(&path)?;
    let netdevs = ferroce_daemon::survey()?;
    for link in &links {
        match netdevs.iter().find(|netdev| netdev.name == link.netdev) {
            None => eprintln!(
                "note: netdev {} is not there: link {} will wait for it",
                link.netdev, link.name
            ),
            Some(netdev) if netdev.addresses.is_empty() => eprintln!(
                "note: netdev {} has no address: link {} will wait for one",
                link.netdev, link.name
            ),
            Some(_) => {}
        }
    }
    let count = links.len();
    let word = if count == 1 { "link" } else { "links" };
    output::write(&format!(
        "{}: {count} {word}, no mistakes\n",
        path.display()
    ))
}

fn save(only: &[String]) -> Result<()> {
    let links = match daemon::connect()? {
        Some(mut connection) => connection.links()?,
        None => Vec::new(),
    };
    if let Some(name) = only.iter().find(|n| links.iter().all(|l| l.name != **n)) {
        let names: Vec<String> = links.into_iter().map(|link| link.name).collect();
        bail!("no link `{name}`; {}", crate::link::show::there_is(&names));
    }
    for link in links {
        if only.is_empty() || only.contains(&link.name) {
            config::remember(&config::path(), &configured(link))?;
        }
    }
    Ok(())
}

/// How to make a link that is there.
pub(crate) fn configured(link: LinkInfo) -> LinkConfig {
    LinkConfig {
        name: link.name,
        kind: link.kind,
        netdev: link.netdev,
        mtu: link.mtu,
        crc: link.crc,
        lids: link.lids,
        patience: link.patience,
    }
}

fn apply() -> Result<()> {
    let wanted = config::load(&config::path())?;
    if wanted.is_empty() {
        return Ok(());
    }
    let mut connection = daemon::connect_or_start()?;
    let there = connection.links()?;
    let mut failed = Vec::new();
    for link in wanted {
        if there.iter().any(|other| other.name == link.name) {
            continue;
        }
        let name = link.name.clone();
        if let Err(error) = connection.perform(&Request::LinkAdd(link)) {
            failed.push(format!("{name}: {error}"));
        }
    }
    match &failed[..] {
        [] => Ok(()),
        failed => bail!("{}", failed.join("\nerror: ")),
    }
}
