//! Strict mode: tells a program what hardware would do differently.
//!
//! `ferroce-strict` has the rules. This module collects the values that they need, finds the
//! place in the program, prints the warning, and makes the verb fail in mode `error`. Functions
//! that post and poll are replaced when a context is opened in strict mode, so that other
//! contexts pay nothing for it.

pub(crate) mod connect;
pub(crate) mod hooks;
pub(crate) mod memory;
mod place;

use core::ffi::c_int;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use ferroce_device::{LinkInfo, observed};
use ferroce_strict::work::dropped_datagram;
use ferroce_strict::{
    Check, Finding, Ledger, Mode, PROFILE_VARIABLE, Profile, STRICT_VARIABLE, Severity,
};

use crate::errno::{name, refuse};
use place::Place;

/// The posted work of this process.
static LEDGER: Mutex<Ledger> = Mutex::new(Ledger::new());
/// Places that have been reported.
static REPORTED: Mutex<BTreeSet<(Check, usize)>> = Mutex::new(BTreeSet::new());
/// Number of warnings.
static WARNINGS: AtomicU32 = AtomicU32::new(0);
/// True if a context of this process is in strict mode.
static USED: AtomicBool = AtomicBool::new(false);

/// The settings of a context.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Settings {
    /// The consequence of findings.
    pub(crate) mode: Mode,
    /// The adapter whose limits are in force.
    pub(crate) profile: Option<&'static Profile>,
    /// The process that opened the context.
    process: u32,
}

impl Settings {
    /// Returns the settings of a new context: those of the environment, or those of the link.
    pub(crate) fn of(link: &LinkInfo) -> Settings {
        static MODE: OnceLock<Option<Mode>> = OnceLock::new();
        static PROFILE: OnceLock<Option<Option<&'static Profile>>> = OnceLock::new();
        let mode = *MODE.get_or_init(|| {
            let word = std::env::var(STRICT_VARIABLE).ok()?;
            understood(STRICT_VARIABLE, word.parse())
        });
        let profile = *PROFILE.get_or_init(|| {
            let word = std::env::var(PROFILE_VARIABLE).ok()?;
            understood(PROFILE_VARIABLE, Profile::named(&word))
        });
        let mode = mode.unwrap_or_else(|| link.strict.parse().unwrap_or_default());
        let of_link = || Profile::named(&link.profile).unwrap_or_default();
        if mode != Mode::Off {
            USED.store(true, Ordering::Relaxed);
            observed::begin();
        }
        Settings {
            mode,
            profile: profile.unwrap_or_else(of_link).filter(|_| !link.is_iwarp()),
            process: std::process::id(),
        }
    }

    /// True if the functions that post and poll must be replaced.
    pub(crate) fn are_active(&self) -> bool {
        self.is_strict() || self.profile.is_some()
    }

    /// True in strict mode.
    pub(crate) fn is_strict(&self) -> bool {
        self.mode != Mode::Off
    }

    /// True in a child of the process that opened the context.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Reports findings. The first one makes the verb fail in mode `error`.
    pub(crate) fn report(
        &self,
        verb: &str,
        errno: c_int,
        findings: impl IntoIterator<Item = Finding>,
    ) -> Result<(), c_int> {
        if !self.is_strict() {
            return Ok(());
        }
        let mut result = Ok(());
        for finding in findings {
            if finding.severity == Severity::Note {
                tracing::info!("strict: {verb}: {}", finding.what);
                continue;
            }
            let fails = self.mode == Mode::Error;
            let failure = fails.then(|| format!("{verb} fails with {}", name(errno)));
            write(verb, failure.as_deref(), &finding, &[]);
            if fails && result.is_ok() {
                result = Err(refuse(errno, format_args!("strict: {}", finding.what)));
            }
        }
        result
    }

    /// Reports a finding about a send that was posted at this call stack and has completed.
    /// Returns true if the completion must become an error.
    fn report_completion(&self, finding: &Finding, posted_at: &[usize]) -> bool {
        let fails = self.mode == Mode::Error;
        let failure = fails.then_some("the completion gets the status IBV_WC_GENERAL_ERR");
        write("ibv_poll_cq", failure, finding, posted_at);
        fails
    }
}

/// Warns of datagrams that were dropped because their receives are too short. No call can fail for
/// it: the datagram is lost.
fn report_short_receives() {
    for short in observed::take_short_receives() {
        let finding = dropped_datagram(short.qpn, short.room, short.needed);
        write("ibv_poll_cq", None, &finding, &[]);
    }
}

/// Returns the value of a variable, or names the mistake on standard error.
fn understood<T, E: core::fmt::Display>(variable: &str, value: Result<T, E>) -> Option<T> {
    value
        .map_err(|error| say(&format!("ferroce: {variable}: {error}\n")))
        .ok()
}

/// Prints a warning, once for each place.
fn write(verb: &str, failure: Option<&str>, finding: &Finding, posted_at: &[usize]) {
    let (place, posted) = (Place::here(), Place::of(posted_at));
    // One place may poll for all others.
    let key = match posted_at {
        [] => place.key(),
        _ => posted.key(),
    };
    let key = (finding.check, key);
    // After a fork another thread of the parent may have held the lock.
    let is_new = match REPORTED.try_lock() {
        Ok(mut reported) => reported.insert(key),
        Err(TryLockError::Poisoned(reported)) => reported.into_inner().insert(key),
        Err(TryLockError::WouldBlock) => true,
    };
    if is_new {
        WARNINGS.fetch_add(1, Ordering::Relaxed);
        say(&finding.text(verb, failure, &place.lines(), &posted.lines()));
    }
}

/// Writes to standard error, which may be closed.
fn say(text: &str) {
    let _closed = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
}

/// Writes a line about the checks, when the process exits.
pub(crate) fn tell() {
    let is_quiet = std::env::var_os(ferroce_control::path::QUIET_VARIABLE).is_some();
    if !USED.load(Ordering::Relaxed) || is_quiet {
        return;
    }
    report_short_receives();
    let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let (program, warnings) = (program.trim_end(), WARNINGS.load(Ordering::Relaxed));
    let word = if warnings == 1 { "warning" } else { "warnings" };
    let mut line = format!("strict: {program}: {warnings} {word}");
    let split = observed::split_writes();
    if split > 0 {
        line += &format!("; {split} packets were written last bytes first");
    }
    say(&(line + "\n"));
}

fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner)
}
