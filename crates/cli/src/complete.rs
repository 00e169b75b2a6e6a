//! `ferroce complete`: prints the words that may come next on a command line. The completion
//! scripts of the shells call it, so that completion knows the present links and netdevs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::Result;
use clap::Args;
use ferroce_control::link::MTUS;
use ferroce_control::list_links;

use crate::{output, rdma};

/// Print the words that may come next on a command line of ferroce
#[derive(Debug, Args)]
pub(crate) struct CompleteArgs {
    /// The words after `ferroce`, up to the one that is being typed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

impl CompleteArgs {
    pub(crate) fn run(self, ferroce: clap::Command) -> Result<()> {
        let (typed, before) = match self.words.split_last() {
            Some((typed, before)) => (typed.as_str(), before),
            None => ("", &[][..]),
        };
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let words = next_words(ferroce, &before, typed, &System);
        let fits = words.into_iter().filter(|word| word.starts_with(typed));
        output::write(&fits.map(|word| word + "\n").collect::<String>())
    }
}

/// Source of the names that completion offers. Tests replace it.
trait NameSource {
    fn links(&self) -> Vec<String>;
    fn netdevs(&self) -> Vec<String>;
    /// Programs on PATH whose names start with `beginning`.
    fn programs(&self, beginning: &str) -> Vec<String>;
}

struct System;

impl NameSource for System {
    fn links(&self) -> Vec<String> {
        let links = list_links().unwrap_or_default();
        links.into_iter().map(|link| link.name).collect()
    }

    fn netdevs(&self) -> Vec<String> {
        let netdevs = ferroce_daemon::list_netdevs().unwrap_or_default();
        netdevs.into_iter().map(|netdev| netdev.name).collect()
    }

    fn programs(&self, beginning: &str) -> Vec<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut names = BTreeSet::new();
        for dir in std::env::split_paths(&path) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let is_program = |file: fs::Metadata| file.permissions().mode() & 0o111 != 0;
                if let Ok(name) = entry.file_name().into_string()
                    && name.starts_with(beginning)
                    && fs::metadata(entry.path()).is_ok_and(is_program)
                {
                    names.insert(name);
                }
            }
        }
        names.into_iter().collect()
    }
}

/// Returns the words that may follow `before`. The list is empty where any word is valid.
fn next_words(
    mut ferroce: clap::Command,
    before: &[&str],
    typed: &str,
    system: &impl NameSource,
) -> Vec<String> {
    ferroce.build();
    let mut at = &ferroce;
    let mut path = Vec::new();
    let mut words = Vec::new();
    for word in before {
        match at.find_subcommand(word) {
            Some(inner) if words.is_empty() => {
                at = inner;
                path.push(inner.get_name());
            }
            _ if word.starts_with('-') && *word != "--" => {}
            _ => words.push(*word),
        }
    }
    // The value of an option.
    let last = before.last().copied().unwrap_or_default();
    if last == "--netdev" {
        return system.netdevs();
    }
    // Behind `run`, the first word is a program; the words after it belong to that program.
    let program = words.iter().position(|word| *word == "--");
    if path == ["run"] && !typed.starts_with('-') {
        let begun = words.len() - program.map_or(0, |_| 1);
        return match begun {
            0 if !typed.is_empty() => system.programs(typed),
            _ => Vec::new(),
        };
    }
    if program.is_some() {
        return Vec::new();
    }
    if typed.starts_with('-') {
        let options = at.get_arguments().filter(|option| !option.is_hide_set());
        let names = options.filter_map(|option| option.get_long());
        return names.map(|name| format!("--{name}")).collect();
    }
    let mut found = Vec::new();
    if words.is_empty() {
        let commands = at.get_subcommands().filter(|inner| !inner.is_hide_set());
        found.extend(commands.map(|inner| inner.get_name().to_owned()));
    }
    found.extend(arguments(&path, &words, system));
    found
}

/// Returns the words that may follow a command and some of its arguments.
fn arguments(path: &[&str], words: &[&str], system: &impl NameSource) -> Vec<String> {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match (path, words) {
        (["link", "add"], [_name, pairs @ ..]) => {
            let keys = [
                "type", "netdev", "mtu", "crc", "lids", "patience", "speed", "local", "strict",
                "profile",
            ];
            pair(&keys, pairs, system)
        }
        (["link", "set"], [_name, pairs @ ..]) => {
            let keys = [
                "name", "mtu", "crc", "lids", "patience", "speed", "local", "strict", "profile",
            ];
            pair(&keys, pairs, system)
        }
        (["link", "set" | "delete" | "show"] | ["stat" | "top" | "gids" | "devinfo"], []) => {
            system.links()
        }
        (["config", "save" | "forget"], _) => system.links(),
        (["resource"], []) => texts(&["show"]),
        (["resource"], ["show"]) => {
            let mut found: Vec<String> = texts(&rdma::RESOURCES);
            found.extend(system.links());
            found
        }
        (["resource"], ["show", _, .., "link" | "dev"]) => system.links(),
        (["resource"], ["show", "qp" | "cm_id"]) => texts(&["link"]),
        (["resource"], ["show", kind]) if rdma::RESOURCES.contains(kind) => texts(&["dev"]),
        _ => Vec::new(),
    }
}

/// Returns the words that may follow a list of keys and values: a value for the last key, or
/// the keys that are not used yet.
fn pair(keys: &[&str], pairs: &[&str], system: &impl NameSource) -> Vec<String> {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match pairs.chunks(2).last() {
        Some(["type"]) => texts(&["rxe", "siw"]),
        Some(["netdev"]) => system.netdevs(),
        Some(["mtu"]) => MTUS.iter().map(ToString::to_string).collect(),
        Some(["crc" | "lids" | "local"]) => texts(&["on", "off"]),
        Some(["strict"]) => texts(&["on", "error", "off"]),
        Some(["profile"]) => texts(&["mlx5", "efa", "rxe", "off"]),
        Some([_]) => Vec::new(),
        _ => {
            let used: Vec<&&str> = pairs.iter().step_by(2).collect();
            let free = keys.iter().filter(|key| !used.contains(key));
            free.map(|key| (*key).to_owned()).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl NameSource for Fixed {
        fn links(&self) -> Vec<String> {
            vec!["rxe0".into(), "rxe1".into()]
        }

        fn netdevs(&self) -> Vec<String> {
            vec!["lo".into(), "eth0".into()]
        }

        fn programs(&self, beginning: &str) -> Vec<String> {
            vec![format!("{beginning}_devices")]
        }
    }

    fn found(line: &str) -> String {
        let mut before: Vec<&str> = line.split(' ').collect();
        let typed = before.pop().unwrap_or_default();
        let words = next_words(crate::cli::command(), &before, typed, &Fixed);
        let fits = words.into_iter().filter(|word| word.starts_with(typed));
        fits.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn next_words_depend_on_the_words_before() {
        for (line, words) in [
            ("li", "link"),
            ("gen", ""),
            ("comp", ""),
            ("link ", "add set delete show help"),
            ("link delete ", "rxe0 rxe1"),
            ("link show rxe1", "rxe1"),
            ("link delete --f", "--force"),
            ("stat ", "rxe0 rxe1"),
            ("gids ", "rxe0 rxe1"),
            ("devinfo rxe0 ", ""),
            ("link add ", ""),
            (
                "link add rxe2 ",
                "type netdev mtu crc lids patience speed local strict profile",
            ),
            ("link add rxe2 type ", "rxe siw"),
            ("link add rxe2 type rxe netdev ", "lo eth0"),
            (
                "link add rxe2 type rxe netdev lo ",
                "mtu crc lids patience speed local strict profile",
            ),
            ("link add rxe2 type rxe netdev lo crc ", "on off"),
            ("link set ", "rxe0 rxe1"),
            (
                "link set rxe0 ",
                "name mtu crc lids patience speed local strict profile",
            ),
            ("link set rxe0 lids ", "on off"),
            ("link set rxe0 strict ", "on error off"),
            ("link set rxe0 profile m", "mlx5"),
            ("link set rxe0 patience ", ""),
            ("link set rxe0 patience 60 l", "lids local"),
            ("link set rxe0 mtu 1", "1024"),
            ("run --net", "--netdev"),
            ("run --netdev ", "lo eth0"),
            ("run --gu", ""),
            ("run -- ibv", "ibv_devices"),
            ("run ibv", "ibv_devices"),
            ("run -- ibv_devinfo r", ""),
            ("resource show q", "qp"),
            ("resource show r", "rxe0 rxe1"),
            ("resource show qp link ", "rxe0 rxe1"),
            ("-j link delete rxe0", "rxe0"),
        ] {
            assert_eq!(found(line), words, "{line}");
        }
    }
}
