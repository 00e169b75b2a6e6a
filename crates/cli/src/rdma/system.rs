//! `rdma system`: shows how devices and network namespaces are related.

use anyhow::{Result, bail};

use super::SharedOptions;
use super::row::{self, Row};
use super::words::Words;
use crate::output;

pub(super) const USAGE: &str = "\
Usage: rdma system show [ netns ]
       rdma system set netns { shared | exclusive }
       rdma system set privileged-qkey { on | off }
";

pub(super) fn run(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    match words.command("system command", &["show", "set", "help"], Some("show"))? {
        Some("help") => output::write(USAGE),
        Some("set") => set(words),
        _ => {
            words.one_of(&["netns"]);
            words.end()?;
            let row = Row::default()
                .with("netns", "exclusive")
                .with("copy-on-fork", "on");
            row::show(&[row], options.format)
        }
    }
}

fn set(mut words: Words<'_>) -> Result<()> {
    let parameter = words.command("parameter", &["netns", "privileged-qkey"], None)?;
    match (parameter, words.next()) {
        (None, _) => output::write(USAGE),
        // This is always the case.
        (Some("netns"), Some("exclusive")) => words.end(),
        (Some("netns"), Some("shared")) => bail!(
            "Operation not supported: a link serves only the network namespace where it was \
             added; add another link in the other namespace"
        ),
        (Some("netns"), other) => bail!(
            "netns '{}': valid options are: {{ shared | exclusive }}",
            other.unwrap_or_default()
        ),
        // This is always the case.
        (_, Some("on")) => words.end(),
        (_, Some("off")) => bail!(
            "Operation not supported: privileged-qkey is always on; any program may use a Q_Key \
             with its highest bit set, because ferroced serves the programs of one user"
        ),
        (_, other) => bail!(
            "privileged-qkey '{}': valid options are: {{ on | off }}",
            other.unwrap_or_default()
        ),
    }
}
