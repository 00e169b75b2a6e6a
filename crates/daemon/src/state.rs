//! The state file, from which the next ferroced continues.
//!
//! ferroced writes it at every change, so it can be killed at any time. The file holds the
//! links, their GID tables, the counters of ended programs, and the owners of slots. It is
//! valid only until the next reboot and in one network namespace, which it names.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ferroce_control::{CounterValues, LinkConfig, SlotKind, sockopt};
use rustix::fs::{CWD, RenameFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::gids::GidTable;
use crate::process::ProcessId;

/// The file's length is a multiple of this, enough for some hundred owners.
const RESERVE: usize = 64 << 10;
/// Version of the format.
const FORMAT: u32 = 1;

/// The contents of the state file.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    format: u32,
    place: Place,
    pub(crate) next_index: u32,
    pub(crate) links: Vec<SavedLink>,
    pub(crate) owners: Vec<SavedOwner>,
}

/// The boot and network namespace for which a state is valid.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// The kernel's boot ID.
    boot: String,
    /// The cookie of the network namespace.
    netns: u64,
}

/// A saved link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedLink {
    pub(crate) config: LinkConfig,
    pub(crate) index: u32,
    pub(crate) ifindex: u32,
    pub(crate) gids: GidTable,
    pub(crate) totals: BTreeMap<String, u64>,
    /// The faults in force.
    #[serde(default)]
    pub(crate) faults: String,
}

/// A saved owner of slots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SavedOwner {
    pub(crate) process: ProcessId,
    pub(crate) program: String,
    /// Index of the link.
    pub(crate) link: u32,
    #[serde(default)]
    pub(crate) kind: SlotKind,
    pub(crate) slots: Vec<u8>,
}

impl Place {
    /// Returns the present boot and network namespace.
    pub(crate) fn here() -> Place {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
        // Before Linux 5.14 only the inode in the directory's name identifies it.
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

    /// Reads the state of an earlier ferroced. Returns `None` if there is no valid one.
    pub(crate) fn load(path: &Path, place: &Place) -> Option<State> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the state file");
                return None;
            }
        };
        match serde_json::from_slice::<State>(&bytes) {
            Ok(state) if state.format == FORMAT && state.place == *place => Some(state),
            Ok(_) => {
                tracing::info!("the state file is of another boot, network namespace or version");
                None
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the state file is damaged");
                None
            }
        }
    }

    /// Writes the state, so that a reader finds either the old or the new one. Two files are
    /// written in turn and never get shorter. So saving works even on a full disk.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        let spare = State::spare(path);
        let mut text = serde_json::to_vec(self)?;
        text.resize(text.len().next_multiple_of(RESERVE), b' ');
        overwrite(&spare, &mut text)?;
        match rustix::fs::renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            // The first save, or the file system cannot exchange files.
            Err(_) => {
                fs::rename(&spare, path)?;
                overwrite(&spare, &mut text)
            }
        }
    }

    /// Returns the path of the file that is written next.
    pub(crate) fn spare(path: &Path) -> PathBuf {
        path.with_extension("new")
    }
}

/// Overwrites a file without freeing its disk space.
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
    fn saved_state_is_loaded_in_its_namespace_only() {
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
                speed: None,
                local: true,
                strict: String::new(),
                profile: String::new(),
            },
            index: 3,
            ifindex: 1,
            gids: GidTable::default(),
            totals: [("sent_pkts".to_owned(), 9)].into(),
            faults: "loss 1%".into(),
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
