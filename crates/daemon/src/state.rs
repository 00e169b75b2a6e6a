//! What a ferroced leaves behind for the next one: a file in the runtime directory.
//!
//! It is written whenever something in it changes, so ferroced can be killed at any
//! moment. It says which links there are, which address has which GID index, what
//! ended programs have counted, and who owns which slots. It is worth nothing after
//! a reboot or in another network namespace, and says which it was written for.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ferroce_control::{CounterValues, LinkConfig, sockopt};
use rustix::fs::{CWD, RenameFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::gids::GidTable;
use crate::process::ProcessId;

/// The file has a multiple of this length: room for some hundred owners.
const RESERVE: usize = 64 << 10;
/// Changes whenever the contents do.
const FORMAT: u32 = 1;

/// The contents.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    format: u32,
    place: Place,
    pub(crate) next_index: u32,
    pub(crate) links: Vec<SavedLink>,
    pub(crate) owners: Vec<SavedOwner>,
}

/// Where and when it is valid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The kernel's number for this boot.
    boot: String,
    /// The kernel's number for the network namespace.
    netns: u64,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedLink {
    pub(crate) config: LinkConfig,
    pub(crate) index: u32,
    pub(crate) ifindex: u32,
    pub(crate) gids: GidTable,
    pub(crate) totals: BTreeMap<String, u64>,
}

/// A program with slots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedOwner {
    pub(crate) process: ProcessId,
    pub(crate) program: String,
    /// The index of its link.
    pub(crate) link: u32,
    pub(crate) slots: Vec<u8>,
}

impl Place {
    /// Here and now.
    pub(crate) fn here() -> Place {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
        // Before Linux 5.14 the inode in the directory's name must do.
        let netns = socket.ok().and_then(|s| sockopt::netns_cookie(s).ok());
        Place {
            boot: boot.trim().to_owned(),
            netns: netns.unwrap_or(0),
        }
    }
}

impl State {
    pub(crate) fn new(
        place: Place,
        next_index: u32,
        links: Vec<SavedLink>,
        owners: Vec<SavedOwner>,
    ) -> State {
        State {
            format: FORMAT,
            place,
            next_index,
            links,
            owners,
        }
    }

    /// Reads what another ferroced has left here; None if it left nothing that counts.
    pub(crate) fn load(path: &Path, place: &Place) -> Option<State> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the old state");
                return None;
            }
        };
        match serde_json::from_slice::<State>(&bytes) {
            Ok(state) if state.format == FORMAT && state.place == *place => Some(state),
            Ok(_) => {
                tracing::info!("the old state is from another boot, namespace or version");
                None
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the old state is damaged");
                None
            }
        }
    }

    /// Writes it, so that a reader sees either the old one or the new one. The two files
    /// change places and never get shorter, so that a disk that becomes full meanwhile
    /// keeps nothing from being written.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        let spare = State::spare(path);
        let mut text = serde_json::to_vec(self)?;
        text.resize(text.len().next_multiple_of(RESERVE), b' ');
        overwrite(&spare, &mut text)?;
        match rustix::fs::renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            // There is no other yet, or the file system cannot exchange files.
            Err(_) => {
                fs::rename(&spare, path)?;
                overwrite(&spare, &mut text)
            }
        }
    }

    /// The file that is written next.
    pub(crate) fn spare(path: &Path) -> PathBuf {
        path.with_extension("new")
    }
}

/// Replaces the contents of a file without giving up the room that it has.
fn overwrite(path: &Path, text: &mut Vec<u8>) -> io::Result<()> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    let mut file = options.mode(0o600).open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    text.resize(text.len().max(length), b' ');
    file.write_all(text)
}

impl SavedLink {
    pub(crate) fn counters(&self) -> CounterValues {
        CounterValues::from_named(self.totals.iter().map(|(name, v)| (name.as_str(), *v)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ferroce-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_is_written_is_read_where_it_counts() {
        let folder = folder("state");
        let path = folder.join("state.json");
        let place = Place::here();
        assert_eq!(State::load(&path, &place), None, "nothing yet");
        let link = SavedLink {
            config: LinkConfig {
                name: "rxe0".into(),
                kind: "rxe".into(),
                netdev: "lo".into(),
                mtu: Some(1024),
                crc: false,
                lids: false,
                patience: 0,
            },
            index: 3,
            ifindex: 1,
            gids: GidTable::default(),
            totals: [("sent_pkts".to_owned(), 9)].into(),
        };
        let state = State::new(place.clone(), 4, vec![link], Vec::new());
        state.save(&path).unwrap();
        assert_eq!(State::load(&path, &place), Some(state));
        let shorter = State::new(place.clone(), 5, Vec::new(), Vec::new());
        for _ in 0..3 {
            shorter.save(&path).unwrap();
            assert_eq!(State::load(&path, &place).as_ref(), Some(&shorter));
        }
        let length = |path: &Path| fs::metadata(path).unwrap().len();
        assert_eq!(length(&path), length(&State::spare(&path)));
        let elsewhere = Place {
            netns: place.netns + 1,
            ..place.clone()
        };
        assert_eq!(State::load(&path, &elsewhere), None);
        fs::write(&path, b"{\"format\":1").unwrap();
        assert_eq!(State::load(&path, &place), None, "damaged");
        fs::remove_dir_all(folder).unwrap();
    }
}
