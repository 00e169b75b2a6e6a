//! The state of an open link while the process has no slots of it.
//!
//! No thread runs before the first queue pair. ferroced sends events of the link on a
//! connection of its own, and threads of the program receive them: those that query the link,
//! and those that take asynchronous events. The descriptor of a device's events becomes readable
//! when a message arrives on the connection, even if the message makes no event. If ferroced
//! ends, the descriptor becomes readable when another one starts.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferroce_control::client::LinkUser;
use ferroce_control::path::netns_inode;
use ferroce_control::{Connection, LinkEventKind, LinkInfo, Watch, watch_link};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::error::Error;
use crate::fork::NotForChildren;
use crate::supervisor::Supervisor;

/// The connection on which events of a link arrive.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    /// Network namespace of the link.
    netns: u64,
    /// Readable when [`LinkWatch::receive`] has something to do.
    epoll: OwnedFd,
    source: Mutex<Source>,
    /// True once another part of the process follows the link.
    has_ended: AtomicBool,
}

#[derive(Debug)]
enum Source {
    /// Events arrive on this connection.
    Connected(Connection, #[allow(dead_code)] NotForChildren),
    /// ferroced has ended. The watch reports another one.
    Awaiting(PathBuf, Option<Watch>),
    Ended,
}

impl LinkWatch {
    /// Opens a link in the network namespace of this thread. Returns its state as well.
    pub(crate) fn open(netns: u64, name: &str) -> Result<(LinkWatch, LinkInfo), Error> {
        let (connection, link) = watch_link(name)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let watch = LinkWatch {
            netns,
            epoll: epoll.map_err(|error| Error::system("epoll")(error.into()))?,
            source: Mutex::new(Source::Ended),
            has_ended: AtomicBool::new(false),
        };
        watch.connect(&mut watch.lock(), connection);
        Ok((watch, link))
    }

    /// Receives the events that have arrived.
    pub(crate) fn receive(&self, supervisor: &Supervisor) {
        if self.has_ended.load(Ordering::Acquire) {
            return;
        }
        let mut source = self.lock();
        loop {
            match &mut *source {
                Source::Connected(connection, _) => match connection.try_event() {
                    Ok(None) => return,
                    Ok(Some(event)) => {
                        let is_last = event.kind == LinkEventKind::Removed;
                        supervisor.changed(event);
                        if is_last {
                            return self.end_with(&mut source);
                        }
                    }
                    Err(error) => {
                        tracing::debug!("no events of the link: {error}");
                        let dir = connection.dir().to_owned();
                        self.disconnect(&source);
                        *source = Source::Awaiting(dir, None);
                        if self.reconnect(&mut source, supervisor).is_err() {
                            return;
                        }
                    }
                },
                Source::Awaiting(_, Some(watch)) if !is_readable(watch.as_fd()) => return,
                Source::Awaiting(..) => {
                    if self.reconnect(&mut source, supervisor).is_err() {
                        return;
                    }
                }
                Source::Ended => return,
            }
        }
    }

    /// Fails if no ferroced runs that has the link. Does nothing after the watch has ended.
    pub(crate) fn check(&self, supervisor: &Supervisor) -> Result<(), Error> {
        self.receive(supervisor);
        let mut source = self.lock();
        match &*source {
            Source::Awaiting(..) => self.reconnect(&mut source, supervisor),
            Source::Connected(..) | Source::Ended => Ok(()),
        }
    }

    /// Ends the watch: from now on another part of the process follows the link.
    pub(crate) fn end(&self) {
        self.end_with(&mut self.lock());
    }

    fn end_with(&self, source: &mut Source) {
        self.disconnect(source);
        *source = Source::Ended;
        self.has_ended.store(true, Ordering::Release);
    }

    /// Tries to find another ferroced after one has ended, and reports changes of the link since
    /// then.
    fn reconnect(&self, source: &mut Source, supervisor: &Supervisor) -> Result<(), Error> {
        let Source::Awaiting(dir, watch) = source else {
            return Ok(());
        };
        check_netns(self.netns)?;
        // First the watch, then the attempt: no start of a ferroced is missed.
        match watch {
            Some(watch) => watch.clear(),
            None => {
                *watch = Watch::new(dir).ok();
                if let Some(watch) = watch {
                    self.watch(watch.as_fd());
                }
            }
        }
        let before = supervisor.link();
        match watch_link(&before.name) {
            Ok((connection, link)) if link.index == before.index => {
                self.disconnect(source);
                self.connect(source, connection);
                supervisor.catch_up(link);
                Ok(())
            }
            Ok(_) | Err(ferroce_control::Error::Refused { .. }) => {
                self.end_with(source);
                supervisor.removed();
                Err(gone(&before.name))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn connect(&self, source: &mut Source, connection: Connection) {
        self.watch(connection.as_fd());
        let mut not_for_children = NotForChildren::default();
        not_for_children.add(connection.as_fd());
        *source = Source::Connected(connection, not_for_children);
    }

    /// Stops watching the descriptor of a source.
    fn disconnect(&self, source: &Source) {
        let fd = match source {
            Source::Connected(connection, _) => connection.as_fd(),
            Source::Awaiting(_, Some(watch)) => watch.as_fd(),
            Source::Awaiting(_, None) | Source::Ended => return,
        };
        // Closing does not suffice: a forked child may have a duplicate.
        let _not_watched = epoll::delete(&self.epoll, fd);
    }

    fn watch(&self, fd: BorrowedFd<'_>) {
        let data = epoll::EventData::new_u64(0);
        if let Err(error) = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
            tracing::warn!("events of the link may be late: {error}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Fails if this thread is in another network namespace than the link: it would find another
/// ferroced.
pub(crate) fn check_netns(netns: u64) -> Result<(), Error> {
    match netns_inode()? == netns {
        true => Ok(()),
        false => Err(Error::Control(ferroce_control::Error::Refused {
            errno: libc::EINVAL,
            message: "Invalid argument: this thread has left the network namespace in which the \
                      device was opened"
                .into(),
        })),
    }
}

/// Returns the error for a link that was deleted, or replaced by another one of its name.
pub(crate) fn gone(name: &str) -> Error {
    Error::Control(ferroce_control::Error::Refused {
        errno: libc::ENODEV,
        message: format!("No such device: link {name} was deleted after the device was opened"),
    })
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
