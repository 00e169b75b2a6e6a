//! The start of ferroced: options, log, lock and event loop.

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

/// Time to wait for another ferroced that starts or ends.
const OTHER_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the program `ferroced`.
pub fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `eprintln` panics if it cannot write.
            let _unheard = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs ferroced, until it ends or until it is in the background.
///
/// # Errors
/// If it cannot start, or a system call fails.
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
    // The name in `ps`, whatever the file is called.
    let _ = rustix::thread::set_name(c"ferroced");
    let _ = rustix::process::umask(Mode::from_raw_mode(0o077));
    raise_file_limit();
    let Some(lock) = take_lock(options)? else {
        // Another ferroced was faster and is ready.
        return background::report_ready(&log, None);
    };
    let log_file = lock.log_file();
    if options.detached {
        background::leave_session()?;
    }
    let mut server = Server::new(lock, access, options.exit_when_unused)?;
    // A service manager ends a ferroced in the foreground.
    if options.detached || options.exit_when_unused {
        let interval = Duration::from_millis(options.namespace_check_ms);
        server.end_with_namespace(interval);
    }
    if let Some(address) = options.metrics {
        server.serve_metrics(address)?;
    }
    if options.configured {
        server.add_configured_links()?;
    }
    if options.detached {
        background::report_ready(&log, Some(&log_file))?;
    }
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
    Ok(server.run()?)
}

/// Locks the runtime directory; with --replace, ends the ferroced that has the lock. With
/// --exit-when-unused, returns `None` if another ferroced has the lock and is ready.
fn take_lock(options: &Options) -> Result<Option<Lock>> {
    let until = now() + OTHER_TIMEOUT;
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
        // The watch starts before the check, so that no change between them is missed.
        let watch = match Watch::new(dir) {
            Ok(watch) => watch,
            // The other ferroced is ending and has removed the directory.
            Err(error) if error.errno() == libc::ENOENT => continue,
            Err(error) => return Err(error.into()),
        };
        // This sends no Hello: the other ferroced still waits for its first client.
        if !options.replace && unix::connect(&dir.join(SOCKET)).is_ok() {
            return Ok(None);
        }
        // The other ferroced may also end, which the watch does not report.
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

/// Raises the limit of open files: 256 slots need about 1000 descriptors, and as many more
/// are in the socket escrow.
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
