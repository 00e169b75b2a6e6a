//! From the command line to the loop.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use ferroce_control::path::SOCKET;
use ferroce_control::{Watch, unix};
use ferroce_log::{BadDirective, Filter, Logger, VARIABLE};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::Timespec;
use sd_notify::NotifyState;
use tracing::level_filters::LevelFilter;

use crate::access::Access;
use crate::background;
use crate::listener::{Lock, LockError};
use crate::log::Log;
use crate::options::Options;
use crate::poller::now;
use crate::server::Server;

/// How long one that was started at the same time as another waits for the other.
const OTHER: Duration = Duration::from_secs(10);

/// The whole program.
pub fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not by `eprintln`, which panics if it cannot write.
            let _unheard = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs ferroced as the options say: until it ends, or until it is in the background.
///
/// # Errors
/// If it cannot start, or the system fails it.
pub fn run(options: &Options) -> Result<()> {
    if !options.foreground {
        return background::start(options);
    }
    let access = Access::new(options.group.as_deref())?;
    let log = start_logging(if options.detached {
        LevelFilter::WARN
    } else {
        LevelFilter::INFO
    })?;
    // What `ps` shows, whatever the file is called.
    let _ = rustix::thread::set_name(c"ferroced");
    let _ = rustix::process::umask(Mode::from_raw_mode(0o077));
    raise_file_limit();
    let Some(lock) = take_lock(options)? else {
        // Another one was faster, and is ready.
        return background::report_ready(&log, None);
    };
    let log_file = lock.log_file();
    if options.detached {
        background::leave_session()?;
    }
    let mut server = Server::new(lock, access, options.exit_when_unused)?;
    // A service manager knows by itself when to end one in the foreground.
    if options.detached || options.exit_when_unused {
        let interval = Duration::from_millis(options.namespace_check_ms);
        server.leave_with_last_tenant(interval);
    }
    if options.configured {
        server.make_configured()?;
    }
    if options.detached {
        background::report_ready(&log, Some(&log_file))?;
    }
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "the service manager does not hear that we are ready");
    }
    Ok(server.run()?)
}

/// Takes the runtime directory, from another ferroced if told so. None if another has it
/// and is ready; one that was started by hand complains instead.
fn take_lock(options: &Options) -> Result<Option<Lock>> {
    let until = now() + OTHER;
    loop {
        let error = match Lock::take() {
            Ok(lock) => return Ok(Some(lock)),
            Err(error) => error,
        };
        let LockError::Taken(dir) = &error else {
            return Err(error.into());
        };
        if !(options.exit_when_unused || options.replace) || now() >= until {
            return Err(error.into());
        }
        if options.replace {
            Lock::end_holder(dir)?;
        }
        // Watching first: what happens between two looks is not missed.
        let watch = match Watch::new(dir) {
            Ok(watch) => watch,
            // The other one is ending, and has just taken it away.
            Err(error) if error.errno() == libc::ENOENT => continue,
            Err(error) => return Err(error.into()),
        };
        // Without a hello: the other one waits on for whoever it was started for.
        if !options.replace && unix::connect(&dir.join(SOCKET)).is_ok() {
            return Ok(None);
        }
        // The other one may also be about to end, which nothing announces.
        wait_briefly(&watch)?;
    }
}

fn wait_briefly(watch: &Watch) -> Result<()> {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let mut fds = [PollFd::new(watch, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Starts the log with `FERROCE_LOG`, or with the default level if the variable is not set.
fn start_logging(default: LevelFilter) -> Result<Log, BadDirective> {
    let log = Log::default();
    let filter = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => Filter::parse(&text)?,
        _ => Filter::level(default),
    };
    let writer = log.clone();
    // A process that has a logger already, such as a test, keeps it.
    let _has_one = Logger::new(filter, move |line| writer.line(line))
        .without_modules()
        .with_colours(std::io::stderr().is_terminal())
        .start();
    Ok(log)
}

/// A full machine has a thousand descriptors, and as many lie in the socket escrow.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}
