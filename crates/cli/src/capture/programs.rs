//! The programs that ferroced introduces, also after a restart of ferroced.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;
use ferroce_control::protocol::CaptureOptions;
use ferroce_control::{Connection, Error, Watch, find_daemon, runtime_dirs};

use super::is_readable;
use super::sources::Sources;

/// The source of programs to capture.
pub(super) struct Programs {
    daemon: Daemon,
    options: CaptureOptions,
}

enum Daemon {
    Connected(Box<Connection>),
    /// ferroced has ended. Its runtime directories change when it starts again.
    Awaited(Vec<Watch>),
}

impl Programs {
    /// Takes a connection that captures.
    pub(super) fn new(connection: Connection, options: CaptureOptions) -> Programs {
        Programs {
            daemon: Daemon::Connected(Box::new(connection)),
            options,
        }
    }

    /// Adds the programs that ferroced has introduced.
    pub(super) fn introduce(&mut self, sources: &mut Sources) -> Result<()> {
        loop {
            match &mut self.daemon {
                Daemon::Connected(connection) => match connection.try_captured() {
                    Ok(Some(program)) => sources.add(program)?,
                    Ok(None) => return Ok(()),
                    Err(Error::Closed) => {
                        eprintln!("ferroced has ended; programs that run are captured further");
                        let dirs = runtime_dirs()?;
                        let watches = dirs.iter().filter_map(|dir| Watch::new(dir.path()).ok());
                        self.daemon = Daemon::Awaited(watches.collect());
                        // It may have started before the watches.
                        self.connect()?;
                    }
                    Err(error) => return Err(error.into()),
                },
                Daemon::Awaited(watches) => {
                    if !watches.iter().any(is_readable) {
                        return Ok(());
                    }
                    watches.iter().for_each(Watch::clear);
                    self.connect()?;
                }
            }
        }
    }

    /// Connects to the next ferroced, if there is one.
    fn connect(&mut self) -> Result<()> {
        // A ferroced that starts or ends refuses connections.
        let Ok(Some(mut connection)) = find_daemon() else {
            return Ok(());
        };
        match connection.capture(self.options.clone()) {
            Ok(()) => {}
            // It has ended meanwhile.
            Err(Error::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        eprintln!("ferroced runs again; programs that start are captured");
        self.daemon = Daemon::Connected(Box::new(connection));
        Ok(())
    }

    /// Returns the descriptors that become readable with news.
    pub(super) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match &self.daemon {
            Daemon::Connected(connection) => vec![connection.as_fd()],
            Daemon::Awaited(watches) => watches.iter().map(AsFd::as_fd).collect(),
        }
    }
}
