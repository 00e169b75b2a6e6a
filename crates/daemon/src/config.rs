//! The file `links.toml`: links that ferroced creates at every start. Users may edit it.
//!
//! ```toml
//! [[link]]
//! name = "rxe0"
//! netdev = "eth0"
//! type = "rxe"    # the default
//! mtu = 1024      # by default the largest for the netdev
//! crc = true      # the default
//! lids = false    # the default
//! patience = 0    # the default
//! speed = 100000  # in Mb/s; by default the netdev's
//! local = true    # the default
//! ```
//!
//! | user | file |
//! | --- | --- |
//! | all users, if set | `$FERROCE_CONFIG_DIR/links.toml` |
//! | root | `/etc/ferroce/links.toml` |
//! | a user | `$XDG_CONFIG_HOME/ferroce/links.toml`, else `~/.config/ferroce/links.toml` |
//!
//! Errors name the line. Edits by `ferroce config` keep comments and order.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ferroce_control::link::{MAX_SPEED, MTUS};
use ferroce_control::{LinkConfig, check_name};
use ferroce_strict::{Mode, Profile};
use serde::Deserialize;
use toml::Spanned;
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

/// Environment variable with the directory of the file.
pub const CONFIG_DIR_VARIABLE: &str = "FERROCE_CONFIG_DIR";
/// Name of the file.
pub const FILE: &str = "links.toml";

const SYSTEM_DIR: &str = "/etc/ferroce";
/// First lines of a new file.
const BEGINNING: &str = "\
# Links that ferroced creates when it starts, as soon as their netdev exists.
# `ferroce config check` finds mistakes; `ferroce config --help` explains the file.
";

/// Error of the configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or written.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The contents are invalid.
    #[error("{}: line {line}: {reason}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, starting with 1.
        line: usize,
        /// The reason.
        reason: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    #[serde(default)]
    link: Vec<Spanned<Entry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<String>,
    netdev: Spanned<String>,
    #[serde(rename = "type")]
    kind: Option<Spanned<String>>,
    mtu: Option<Spanned<i64>>,
    crc: Option<bool>,
    lids: Option<bool>,
    patience: Option<u32>,
    speed: Option<Spanned<u32>>,
    local: Option<bool>,
    strict: Option<Spanned<String>>,
    profile: Option<Spanned<String>>,
}

/// Returns the path of this user's file.
pub fn path() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let dir = if let Some(dir) = variable(CONFIG_DIR_VARIABLE) {
        PathBuf::from(dir)
    } else if rustix::process::geteuid().is_root() {
        SYSTEM_DIR.into()
    } else if let Some(dir) = variable("XDG_CONFIG_HOME") {
        Path::new(&dir).join("ferroce")
    } else {
        Path::new(&variable("HOME").unwrap_or_default()).join(".config/ferroce")
    };
    dir.join(FILE)
}

/// Reads the links of a file. Returns none if there is no file.
///
/// # Errors
/// If the file cannot be read, or is invalid.
pub fn load(path: &Path) -> Result<Vec<LinkConfig>, ConfigError> {
    let text = read(path)?;
    parse(&text).map_err(|(at, reason)| ConfigError::Content {
        path: path.into(),
        line: line_of(&text, at),
        reason,
    })
}

/// Adds a link to a file, or replaces the one of that name or on that netdev.
///
/// # Errors
/// If the file cannot be read or written, or is invalid.
pub fn remember(path: &Path, link: &LinkConfig) -> Result<(), ConfigError> {
    let mut entry = Table::new();
    entry["name"] = value(&link.name);
    entry["netdev"] = value(&link.netdev);
    if link.kind != "rxe" {
        entry["type"] = value(&link.kind);
    }
    if let Some(mtu) = link.mtu {
        entry["mtu"] = value(i64::from(mtu));
    }
    if link.crc != crc_by_default(&link.kind) {
        entry["crc"] = value(link.crc);
    }
    if link.lids {
        entry["lids"] = value(true);
    }
    if link.patience > 0 {
        entry["patience"] = value(i64::from(link.patience));
    }
    if let Some(speed) = link.speed {
        entry["speed"] = value(i64::from(speed));
    }
    if !link.local {
        entry["local"] = value(link.local);
    }
    if !link.strict.is_empty() {
        entry["strict"] = value(&link.strict);
    }
    if !link.profile.is_empty() {
        entry["profile"] = value(&link.profile);
    }
    edit(path, |links| {
        links.retain(|other| {
            let kind = other.get("type").and_then(|kind| kind.as_str());
            let same_kind = kind.unwrap_or("rxe") == link.kind;
            let is_replaced = same_kind && is_about(other, &link.netdev);
            !is_about(other, &link.name) && !is_replaced
        });
        links.push(entry);
        true
    })?;
    Ok(())
}

/// Removes the links of that name, or on that netdev, from a file. Returns true if there was
/// one.
///
/// # Errors
/// If the file cannot be read or written, or is invalid.
pub fn forget(path: &Path, name: &str) -> Result<bool, ConfigError> {
    edit(path, |links| {
        let before = links.len();
        links.retain(|link| !is_about(link, name));
        links.len() != before
    })
}

fn is_about(entry: &Table, name: &str) -> bool {
    let has = |key| entry.get(key).and_then(Item::as_str) == Some(name);
    has("name") || has("netdev")
}

/// Changes a file with `change`, which returns false to leave the file as it is.
fn edit(path: &Path, change: impl FnOnce(&mut ArrayOfTables) -> bool) -> Result<bool, ConfigError> {
    load(path)?;
    let failed = |error| ConfigError::File {
        path: path.into(),
        error,
    };
    let mut text = read(path)?;
    if text.is_empty() {
        text = BEGINNING.into();
    }
    let mut document: DocumentMut = text
        .parse()
        .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    let links = document
        .entry("link")
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    let Some(links) = links.as_array_of_tables_mut() else {
        let reason = "`link` is not a list of [[link]]";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, reason)));
    };
    if !change(links) {
        return Ok(false);
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    // A ferroced that starts now reads the old file or the new one, never a part.
    let new = path.with_extension("toml.new");
    fs::write(&new, document.to_string()).map_err(failed)?;
    fs::rename(&new, path).map_err(failed)?;
    Ok(true)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(ConfigError::File {
            path: path.into(),
            error,
        }),
    }
}

/// Parses the file. Returns the links, or offset and reason of the first error.
fn parse(text: &str) -> Result<Vec<LinkConfig>, (usize, String)> {
    let contents: Contents = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        (at, error.message().to_owned())
    })?;
    let mut seen = BTreeMap::new();
    let mut links = Vec::new();
    for entry in contents.link {
        let entry = entry.into_inner();
        let wrong = |span: Range<usize>, reason: String| Err((span.start, reason));
        if let Err(error) = check_name(entry.name.as_ref()) {
            return wrong(entry.name.span(), error.to_string());
        }
        let kind = entry.kind.as_ref().map_or("rxe", |kind| kind.as_ref());
        for (what, name) in [("name", &entry.name), ("netdev", &entry.netdev)] {
            // A netdev can have a link of each type.
            let of_kind = if what == "netdev" { kind } else { "" };
            let key = (what, of_kind.to_owned(), name.as_ref().clone());
            if let Some(first) = seen.insert(key, name.span().start) {
                let (name, first) = (name.as_ref(), line_of(text, first));
                let reason = format!("{what} `{name}` appears twice, first in line {first}");
                return wrong(entry.name.span(), reason);
            }
        }
        if let Some(kind) = &entry.kind
            && !matches!(kind.as_ref().as_str(), "rxe" | "siw")
        {
            let kind_name = kind.as_ref();
            let reason =
                format!("type `{kind_name}` is not known; use type rxe (RoCE) or siw (iWARP)");
            return wrong(kind.span(), reason);
        }
        let mtu = match &entry.mtu {
            None => None,
            Some(mtu) => match MTUS
                .iter()
                .find(|known| i64::from(**known) == *mtu.as_ref())
            {
                Some(known) => Some(*known),
                None => {
                    let known: Vec<String> = MTUS.iter().map(u32::to_string).collect();
                    let reason = format!("mtu {} is not one of {}", mtu.as_ref(), known.join(", "));
                    return wrong(mtu.span(), reason);
                }
            },
        };
        let speed = match entry.speed {
            Some(speed) if !(1..=MAX_SPEED).contains(speed.as_ref()) => {
                let reason = format!("speed {} is not between 1 and {MAX_SPEED}", speed.as_ref());
                return wrong(speed.span(), reason);
            }
            speed => speed.map(Spanned::into_inner),
        };
        if let Some(strict) = &entry.strict
            && let Err(error) = strict.as_ref().parse::<Mode>()
        {
            return wrong(strict.span(), error.to_string());
        }
        if let Some(profile) = &entry.profile
            && let Err(error) = Profile::named(profile.as_ref())
        {
            return wrong(profile.span(), error.to_string());
        }
        let word = |word: Option<Spanned<String>>| {
            let word = word.map(Spanned::into_inner);
            word.filter(|word| word != "off").unwrap_or_default()
        };
        links.push(LinkConfig {
            strict: word(entry.strict),
            profile: word(entry.profile),
            name: entry.name.into_inner(),
            crc: entry.crc.unwrap_or(crc_by_default(kind)),
            kind: kind.into(),
            netdev: entry.netdev.into_inner(),
            mtu,
            lids: entry.lids.unwrap_or(false),
            patience: entry.patience.unwrap_or(0),
            speed,
            local: entry.local.unwrap_or(true),
        });
    }
    Ok(links)
}

/// Returns true if links of this type check CRCs unless told otherwise. siw does not: TCP has
/// a checksum.
fn crc_by_default(kind: &str) -> bool {
    kind != "siw"
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    before.filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests;
