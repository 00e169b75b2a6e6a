//! The faults of this process: those of `FERROCE_FAULTS`, and those of its links.
//!
//! `ferroce run --faults` sets the variable for a program and its children. They share counts,
//! so that "the 3rd ACK" is one ACK of the run and not one of each process. Faults of a link
//! come from ferroced, and apply to every program on the link. A process with faults of its own
//! about packets ignores those of links.

use std::fs::File;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ferroce_control::LinkInfo;
use ferroce_faults::{COUNTS_VARIABLE, Counts, LocalCounts, MAX_RULES, Plan, VARIABLE, VerbFaults};
use ferroce_roce::VerbsError;
use ferroce_shard::{Faults, Senders};

use crate::error::Error;
use crate::mapping::{Mapping, SharedNumbers};

/// Words of a set of all UDP ports.
const PORT_WORDS: usize = (1 << 16) / 64;

/// The counts that the processes of a run share, as they lie in memory.
#[repr(C)]
pub struct CountsPage {
    rules: [[AtomicU64; 2]; MAX_RULES],
    /// The UDP ports that processes of the run send from.
    ports: [AtomicU64; PORT_WORDS],
}

impl CountsPage {
    /// Bytes of the file.
    pub const LENGTH: usize = size_of::<CountsPage>().next_multiple_of(4096);

    /// Returns the counts of a rule: selected and changed packets or calls.
    pub fn read(bytes: &[u8], rule: usize) -> Option<(u64, u64)> {
        let number = |index: usize| {
            let bytes = bytes.get(rule * 16 + index * 8..)?.first_chunk()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        Some((number(0)?, number(1)?))
    }
}

// SAFETY: `repr(C)`, and all fields are arrays of atomics, for which any bits are valid.
unsafe impl SharedNumbers for CountsPage {}

/// The faults of this process.
struct ProcessFaults {
    faults: Faults,
    verbs: Option<VerbFaults>,
    own: Arc<LocalCounts>,
}

static PROCESS: OnceLock<Option<ProcessFaults>> = OnceLock::new();

/// Returns the faults of this process; none if `FERROCE_FAULTS` is not set.
fn of_process() -> Option<&'static ProcessFaults> {
    let faults = PROCESS.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let plan = match Plan::parse(&text) {
            Ok(plan) => Arc::new(plan),
            Err(error) => {
                say(&format!(
                    "{VARIABLE}: {error}; this program runs without faults"
                ));
                return None;
            }
        };
        let own = Arc::<LocalCounts>::default();
        let shared = SharedCounts {
            page: std::env::var(COUNTS_VARIABLE)
                .ok()
                .and_then(|path| open(&path)),
            own: Arc::clone(&own),
            ports: [const { AtomicU64::new(0) }; PORT_WORDS],
        };
        let shared = Arc::new(shared);
        let counts = Arc::clone(&shared) as Arc<dyn Counts>;
        let verbs = plan.concerns_verbs();
        Some(ProcessFaults {
            verbs: verbs.then(|| VerbFaults::new(Arc::clone(&plan), Arc::clone(&counts))),
            faults: Faults {
                plan,
                counts,
                senders: shared,
            },
            own,
        })
    });
    faults.as_ref()
}

/// Maps the counts of a run.
fn open(path: &str) -> Option<Mapping<CountsPage>> {
    let mapped = File::options()
        .read(true)
        .write(true)
        .open(path)
        .and_then(|file| match file.metadata()?.len() {
            length if length >= CountsPage::LENGTH as u64 => {
                Mapping::new(&file, CountsPage::LENGTH)
            }
            _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
        });
    mapped
        .inspect_err(|error| {
            say(&format!(
                "cannot share counts with other programs of the run: {path}: {error}; schedules \
                 such as `the 3rd ACK` count in each program by itself"
            ));
        })
        .ok()
}

/// Counts a call of a verb. Returns the errno if the call must fail.
#[inline]
pub fn verb(name: &str) -> Option<i32> {
    let errno = of_process()?.verbs.as_ref()?.call(name)?;
    tracing::debug!("{name} fails: a fault is in force");
    Some(errno)
}

/// Returns true if verbs may fail on demand.
pub fn concern_verbs() -> bool {
    of_process().is_some_and(|faults| faults.verbs.is_some())
}

/// Returns a line for each fault of this process, with the number of packets or calls that it
/// changed.
pub fn report() -> Vec<String> {
    let Some(Some(process)) = PROCESS.get() else {
        return Vec::new();
    };
    let rules = process.faults.plan.rules.iter().enumerate();
    let lines = rules.map(|(index, rule)| {
        let (selected, changed) = process.own.read(index);
        let what = match (rule.is_for_packets(), rule.is_for_connection_manager()) {
            (true, _) => "packets",
            (_, true) => return format!("{}: by ferroced", rule.text),
            _ => "calls",
        };
        format!("{}: {changed} of {selected} {what}", rule.text)
    });
    lines.collect()
}

/// Refuses a link for a program with faults that are not possible there.
pub(crate) fn check(link: &LinkInfo) -> Result<(), Error> {
    let Some(process) = of_process() else {
        return Ok(());
    };
    let plan = &process.faults.plan;
    let checked = match link.is_iwarp() {
        true => plan.check_for_streams(),
        false => plan.check_for_packets(),
    };
    checked.map_err(|why| {
        say(&format!("{}: {why}", link.name));
        Error::Verbs(VerbsError::NotSupported(why))
    })
}

/// Returns the faults of packets on a link.
pub(crate) fn on_link(link: &LinkInfo) -> Option<Faults> {
    if let Some(process) = of_process()
        && process.faults.plan.concerns_packets()
    {
        return Some(process.faults.clone());
    }
    let plan = match Plan::parse(&link.faults) {
        Ok(plan) => plan,
        Err(error) => {
            tracing::warn!("link {}: {error}", link.name);
            return None;
        }
    };
    plan.concerns_packets().then(|| Faults {
        plan: Arc::new(plan),
        counts: Arc::<LocalCounts>::default(),
        senders: Arc::new(OnLink(link.gids.iter().map(|gid| gid.address).collect())),
    })
}

/// Counts that this process shares with others of its run, if it can.
struct SharedCounts {
    page: Option<Mapping<CountsPage>>,
    /// The share of this process.
    own: Arc<LocalCounts>,
    /// The ports of this process, if there is no page.
    ports: [AtomicU64; PORT_WORDS],
}

impl core::fmt::Debug for SharedCounts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SharedCounts").finish_non_exhaustive()
    }
}

impl Counts for SharedCounts {
    fn select(&self, rule: usize) -> u64 {
        let own = self.own.select(rule);
        match &self.page {
            Some(page) => page.rules[rule][0].fetch_add(1, Ordering::Relaxed) + 1,
            None => own,
        }
    }

    fn hit(&self, rule: usize) {
        self.own.hit(rule);
        if let Some(page) = &self.page {
            page.rules[rule][1].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self, rule: usize) -> (u64, u64) {
        self.own.read(rule)
    }
}

impl SharedCounts {
    fn port(&self, port: u16) -> (&AtomicU64, u64) {
        let ports = self.page.as_ref().map_or(&self.ports, |page| &page.ports);
        (&ports[usize::from(port) / 64], 1 << (port % 64))
    }
}

/// Processes of one run are known by their UDP ports.
impl Senders for SharedCounts {
    fn include(&self, _: IpAddr, port: u16) -> bool {
        let (word, bit) = self.port(port);
        word.load(Ordering::Relaxed) & bit != 0
    }

    fn add(&self, port: u16) {
        let (word, bit) = self.port(port);
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Programs on one link are known by their addresses.
#[derive(Debug)]
struct OnLink(Vec<IpAddr>);

impl Senders for OnLink {
    fn include(&self, source: IpAddr, _: u16) -> bool {
        self.0.contains(&source)
    }

    fn add(&self, _: u16) {}
}

/// Writes a line to standard error, which may be closed.
fn say(message: &str) {
    let line = format!("ferroce: {message}\n");
    let _closed = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}
