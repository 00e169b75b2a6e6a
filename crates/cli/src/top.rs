//! `ferroce top`: a screen of links, programs and queue pairs that is refreshed each second.
//!
//! [`sample`] reads the state through ferroced, as `ferroce stat` and `rdma resource` do.
//! [`tables`] makes rows of two samples. [`screen`] holds selection, sorting and filter, handles
//! keys and draws with ratatui's widgets; it does no I/O. ratatui writes to the terminal and reads
//! keys from it.
//!
//! A thread takes the samples: a program that is stopped answers late, and keys must work
//! meanwhile.

mod sample;
mod screen;
mod table;
mod tables;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, poll};

use crate::explain;
use crate::link::show::link_name;
use sample::Sample;
use screen::{Action, Screen};

/// Watch links, programs and queue pairs on a screen
#[derive(Debug, Args)]
#[command(
    long_about = "\
Shows links, programs or queue pairs with their rates, like top(1), until `q`. It needs no root, and \
programs need no restart. Each refresh asks every program for its queue pairs, as `rdma resource \
show qp` does; between refreshes programs do no work for it.

Queue pairs have these columns: packets sent and received a second (from their PSNs), retries and RNR \
NAKs since the queue pair was created, congestion window in bytes, smoothed round trip, and the time \
for which the oldest unacknowledged packet has been waiting. Queue pairs of type siw have no such \
numbers: TCP has them.",
    after_long_help = "\
KEYS
    tab, 1, 2, 3    queue pairs, programs, links
    up, down, j, k  select a row
    < and >         sort by the column to the left or right; r reverses the order
    /               filter: rows that contain the text, also in columns that only a wider
                    screen shows, such as the peer; enter keeps it, escape removes it
    e, enter        explain the selected queue pair; escape returns
    q, Ctrl-C       quit

EXAMPLES
    ferroce top
        all queue pairs of this network namespace
    ferroce top rxe0 --interval 0.2
        those of one link, five times a second
    ferroce top --filter ib_send_bw
        those of one program"
)]
pub(crate) struct TopArgs {
    /// Show only this link: NAME or NAME/PORT
    #[arg(value_name = "LINK")]
    link: Option<String>,

    /// Seconds between two refreshes
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,

    /// Show only rows that contain this text
    #[arg(short, long, value_name = "TEXT")]
    filter: Option<String>,
}

impl TopArgs {
    pub(crate) fn run(self) -> Result<()> {
        let link = self.link.as_deref().map(link_name).transpose()?;
        ensure!(
            (0.05..=3600.0).contains(&self.interval),
            "an interval of {} s is not valid; use 0.05 to 3600",
            self.interval
        );
        ensure!(
            io::stdin().is_terminal() && io::stdout().is_terminal(),
            "this is no terminal; `ferroce stat --watch` prints rates as lines, \
             and `ferroce -j resource show qp` queue pairs as JSON"
        );
        // Errors such as an unknown link are printed before the screen changes.
        let first = sample::take(link)?;
        let signals = ferroce_control::catch_end().context("signals")?;
        let samples = Samples::start(link, Duration::from_secs_f64(self.interval))?;
        let mut screen = Screen::new(self.filter.unwrap_or_default());
        screen.update(first);
        let mut terminal = ratatui::try_init().context("the terminal")?;
        let shown = show(&mut terminal, &mut screen, &samples, &signals);
        // An error is printed on the former screen.
        ratatui::restore();
        shown
    }
}

/// Draws the screen after each sample and key until the user or a signal ends it.
fn show(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    samples: &Samples,
    signals: &OwnedFd,
) -> Result<()> {
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        match wait(signals, &samples.wakeup)? {
            Wake::Ended => return Ok(()),
            Wake::Sample => {
                rustix::io::read(&samples.wakeup, &mut [0; 64])?;
                for sample in samples.receiver.try_iter() {
                    match sample {
                        Ok(sample) => screen.update(sample),
                        Err(error) => screen.note(format!("{error:#}")),
                    }
                }
            }
            Wake::Input => {
                while event::poll(Duration::ZERO)? {
                    // A change of the size needs no more than the next frame.
                    let Event::Key(key) = event::read()? else {
                        continue;
                    };
                    match screen.press(key) {
                        Action::None => {}
                        Action::Quit => return Ok(()),
                        Action::Explain { pid, qpn } => {
                            let story = explain::story_of(qpn, pid);
                            let story = story.unwrap_or_else(|error| format!("{error:#}"));
                            screen.explain(&story);
                        }
                    }
                }
            }
        }
    }
}

/// The reason to wake up.
enum Wake {
    /// A signal ends the command.
    Ended,
    Sample,
    /// A key, or another size of the terminal, which SIGWINCH announces.
    Input,
}

fn wait(signals: &OwnedFd, wakeup: &OwnedFd) -> Result<Wake> {
    let stdin = io::stdin();
    let fds = [signals.as_fd(), stdin.as_fd(), wakeup.as_fd()];
    loop {
        let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Wake::Input),
            Err(error) => return Err(error.into()),
        }
        let [ended, input, sampled] = polled.map(|fd| !fd.revents().is_empty());
        match (ended, input, sampled) {
            (true, ..) => return Ok(Wake::Ended),
            (_, true, _) => return Ok(Wake::Input),
            (.., true) => return Ok(Wake::Sample),
            _ => {}
        }
    }
}

/// The thread that takes samples.
struct Samples {
    receiver: Receiver<Result<Sample>>,
    /// A pipe; readable when there is a sample.
    wakeup: OwnedFd,
}

impl Samples {
    fn start(link: Option<&str>, interval: Duration) -> Result<Samples> {
        let (wakeup, waker) = rustix::pipe::pipe()?;
        let (sender, receiver) = channel();
        let link = link.map(str::to_owned);
        #[allow(
            clippy::disallowed_methods,
            reason = "keys work while a program is slow"
        )]
        let _runs_until_the_end =
            std::thread::spawn(move || take_samples(link.as_deref(), interval, &sender, &waker));
        Ok(Samples { receiver, wakeup })
    }
}

fn take_samples(
    link: Option<&str>,
    interval: Duration,
    sender: &Sender<Result<Sample>>,
    waker: &OwnedFd,
) {
    loop {
        #[allow(
            clippy::disallowed_methods,
            reason = "the interval that the user chose"
        )]
        std::thread::sleep(interval);
        let sent = sender.send(sample::take(link));
        if sent.is_err() || rustix::io::write(waker, &[0]).is_err() {
            return;
        }
    }
}
