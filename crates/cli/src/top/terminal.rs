//! The terminal: raw mode and the alternate screen while the command runs.
//!
//! A frame is written as a whole, with one system call, once in an interval and after each key:
//! 2 KB at 80x24. ratatui would compare frames and write differences. It depends on second
//! versions of syn, and on a crate under a licence that deny.toml does not allow.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::keys::{self, Key};

/// Enters the alternate screen and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Undoes [`ENTER`].
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The look of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Style {
    #[default]
    Plain,
    Bold,
    Reverse,
    Dim,
    Red,
}

/// A line of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) style: Style,
}

/// A terminal in raw mode. Dropping it restores the former mode.
#[derive(Debug)]
pub(super) struct Terminal {
    before: Termios,
}

impl Terminal {
    pub(super) fn enter() -> Result<Terminal> {
        let before = tcgetattr(io::stdin()).context("the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw).context("the terminal")?;
        let terminal = Terminal { before };
        write(ENTER)?;
        Ok(terminal)
    }

    /// Returns columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            // A serial line does not know its size.
            _ => (80, 24),
        }
    }

    /// Writes a frame.
    pub(super) fn draw(&mut self, lines: &[Line]) -> Result<()> {
        let mut frame = String::from("\x1b[H");
        for (at, line) in lines.iter().enumerate() {
            let code = match line.style {
                Style::Plain => "0",
                Style::Bold => "1",
                Style::Reverse => "7",
                Style::Dim => "2",
                Style::Red => "31",
            };
            let end = if at + 1 < lines.len() { "\r\n" } else { "" };
            // The line is erased first: after its last column the cursor stays there. Writing to
            // a string does not fail.
            let _ = write!(frame, "\x1b[K\x1b[0;{code}m{}\x1b[0m{end}", line.text);
        }
        write(&frame)
    }

    /// Reads the keys that were pressed. The end of input counts as Ctrl-C.
    pub(super) fn read_keys(&mut self) -> Result<Vec<Key>> {
        let mut bytes = [0; 256];
        match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(0) => Ok(vec![Key::Interrupt]),
            Ok(length) => Ok(keys::parse(&bytes[..length])),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _it_may_be_gone = write(LEAVE);
        let _it_may_be_gone = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

fn write(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}
