//! `ferroce config`: the links that ferroced creates at every start.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use ferroce_control::{LinkConfig, LinkInfo, Request};
use ferroce_daemon::config;

use crate::{daemon, output};

/// Show and change the links that are created at every start.
#[derive(Debug, Args)]
#[command(
    long_about = "\
A link lasts until it is deleted or the machine restarts, like a link of the kernel. Links in the \
configuration file are created again at every start: `ferroced --configured`, which the systemd \
units run, adds each of them as soon as its netdev has an address.",
    after_long_help = "\
FILES
    /etc/ferroce/links.toml                for root
    $XDG_CONFIG_HOME/ferroce/links.toml    for other users (~/.config/ferroce/links.toml)

        [[link]]
        name = \"rxe0\"
        netdev = \"eth0\"
        type = \"rxe\"    # the default
        mtu = 1024      # default: the largest that the netdev allows
        crc = true      # the default
        lids = false    # the default
        patience = 0    # the default
        speed = 100000  # in Mb/s; default: the netdev's
        local = true    # the default
        strict = \"on\"   # or \"error\"; default: off
        profile = \"mlx5\"    # or efa, rxe; default: off

ENVIRONMENT
    FERROCE_CONFIG_DIR    directory of links.toml, instead of those above

EXAMPLES
    ferroce link add rxe0 type rxe netdev eth0
    ferroce config save               write all present links to the file
    ferroce config check              look for mistakes in the file
    ferroce config apply              add the missing links now
    systemctl enable --now ferroced   add them at every start"
)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Show the links of the configuration (the default)
    #[command(after_long_help = "\
EXAMPLES
    ferroce config show
        link rxe0 type rxe netdev eth0")]
    Show,
    /// Check the configuration for mistakes, and name the line of each
    #[command(after_long_help = "\
EXAMPLES
    ferroce config check
    ferroce config check ./links.toml")]
    Check {
        /// Check this file instead
        file: Option<std::path::PathBuf>,
    },
    /// Write the present links to the configuration
    #[command(after_long_help = "\
EXAMPLES
    ferroce config save
    ferroce config save rxe0")]
    Save {
        /// Save only these links
        links: Vec<String>,
    },
    /// Remove links from the configuration
    #[command(after_long_help = "\
EXAMPLES
    ferroce config forget rxe0
    ferroce config forget eth0")]
    Forget {
        /// Names or netdevs of the links
        #[arg(required = true)]
        links: Vec<String>,
    },
    /// Add the links of the configuration that do not exist yet
    #[command(after_long_help = "\
EXAMPLES
    ferroce config apply")]
    Apply,
    /// Show the path of the configuration file
    #[command(after_long_help = "\
EXAMPLES
    ${EDITOR:-vi} $(ferroce config path)")]
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
                bail!("{}: this file does not exist", file.display())
            }
            Some(ConfigCommand::Check { file }) => check(file.unwrap_or(path)),
            Some(ConfigCommand::Save { links }) => save(&links),
            Some(ConfigCommand::Forget { links }) => {
                for link in links {
                    if !config::forget(&path, &link)? {
                        bail!(
                            "{}: no link or netdev `{link}` in this file; \
                             `ferroce config show` lists its links",
                            path.display()
                        );
                    }
                }
                Ok(())
            }
            Some(ConfigCommand::Apply) => apply(),
            Some(ConfigCommand::Path) => output::write(&format!("{}\n", path.display())),
        }
    }
}

/// Formats a link with the words of `ferroce link add`.
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
    if let Some(speed) = link.speed {
        line += &format!(" speed {speed}m");
    }
    if !link.local {
        line += " local off";
    }
    if !link.strict.is_empty() {
        line += &format!(" strict {}", link.strict);
    }
    if !link.profile.is_empty() {
        line += &format!(" profile {}", link.profile);
    }
    line + "\n"
}

fn check(path: std::path::PathBuf) -> Result<()> {
    if !path.exists() {
        return output::write(&format!("{}: this file does not exist\n", path.display()));
    }
    let links = config::load(&path)?;
    let netdevs = ferroce_daemon::list_netdevs()?;
    for link in &links {
        match netdevs.iter().find(|netdev| netdev.name == link.netdev) {
            None => eprintln!(
                "note: netdev {} does not exist: link {} will be added when it appears",
                link.netdev, link.name
            ),
            Some(netdev) if netdev.addresses.is_empty() => eprintln!(
                "note: netdev {} has no address: link {} will be added when it has one",
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
        let links = crate::link::show::list_existing(&names);
        bail!("link {name} does not exist; {links}");
    }
    for link in links {
        if only.is_empty() || only.contains(&link.name) {
            config::remember(&config::path(), &configured(link))?;
        }
    }
    Ok(())
}

/// Returns the configuration that recreates a link.
pub(crate) fn configured(link: LinkInfo) -> LinkConfig {
    LinkConfig {
        name: link.name,
        kind: link.kind,
        netdev: link.netdev,
        mtu: link.mtu,
        crc: link.crc,
        lids: link.lids,
        patience: link.patience,
        speed: link.speed,
        local: link.local,
        strict: link.strict,
        profile: link.profile,
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
