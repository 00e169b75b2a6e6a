//! The log, which is bounded and never blocks. A line that cannot be written is dropped.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// Size at which the log file is renamed, replacing the one before.
pub(crate) const MAX_LOG: u64 = 512 << 10;
/// Extension of the renamed log file.
pub(crate) const OLD_SUFFIX: &str = "old";
/// Longest line. A writable pipe takes as much without blocking (PIPE_BUF).
const MAX_LINE: usize = 4096;

/// The log: standard error, which is the log file of a ferroced in the background.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The log file, if standard error is one.
    file: Option<PathBuf>,
    /// Length of the log file.
    length: u64,
    /// Lines dropped since the last written one.
    lost: u64,
}

impl Log {
    /// Redirects standard output and standard error to a file. Without a file, or if it cannot
    /// be opened, messages are dropped.
    pub(crate) fn move_to(&self, path: Option<&Path>) -> io::Result<()> {
        let file = path.map(open);
        if let (Some(path), Some(Err(error))) = (path, &file) {
            tracing::warn!(path = %path.display(), %error, "cannot open the log file");
        }
        match file.and_then(Result::ok) {
            Some(file) => {
                let mut state = self.state();
                state.length = file.metadata().map_or(0, |metadata| metadata.len());
                state.file = path.map(Path::to_owned);
                redirect(&file)
            }
            None => redirect(&File::options().write(true).open("/dev/null")?),
        }
    }

    /// Writes one message.
    pub(crate) fn line(&self, line: &[u8]) {
        self.state().line(line);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, line: &[u8]) {
        if self.file.is_some() && self.length + line.len() as u64 > MAX_LOG {
            self.rotate();
        }
        if self.lost > 0 {
            let note = format!("({} messages were dropped here)\n", self.lost);
            if self.write(note.as_bytes()) {
                self.lost = 0;
            }
        }
        if !self.write(line) {
            self.lost += 1;
        }
    }

    fn write(&mut self, line: &[u8]) -> bool {
        let cut = &line[..line.len().min(MAX_LINE)];
        // ferroced does not wait for a full pipe or a full disk.
        let written = is_writable() && rustix::io::write(rustix::stdio::stderr(), cut).is_ok();
        if written {
            self.length += cut.len() as u64;
        }
        written
    }

    /// Starts a new file. If the old one cannot be renamed, truncates it.
    fn rotate(&mut self) {
        let Some(path) = &self.file else { return };
        let _full = fs::rename(path, path.with_extension(OLD_SUFFIX));
        let new = open(path).and_then(|file| {
            file.set_len(0)?;
            redirect(&file)
        });
        if new.is_err() {
            let _not_a_file = rustix::fs::ftruncate(rustix::stdio::stderr(), 0);
        }
        self.length = 0;
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).open(path)
}

fn redirect(file: &File) -> io::Result<()> {
    rustix::stdio::dup2_stderr(file)?;
    rustix::stdio::dup2_stdout(file)?;
    Ok(())
}

fn is_writable() -> bool {
    let stderr = rustix::stdio::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec::default();
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
        && fds[0].revents().contains(PollFlags::OUT)
}
