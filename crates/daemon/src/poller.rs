//! Waits for descriptors with epoll.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::time::Timespec;

/// The meaning of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Listener,
    Netlink,
    /// The socket that refreshes the mirror of sysfs.
    Readers,
    /// The sockets of slot 0.
    Qp1,
    /// The socket for readers of metrics.
    Metrics,
    /// The connection of a reader of metrics.
    Reader(u64),
    /// The connection of a client.
    Client(u64),
    /// The process of an owner; readable when it has ended.
    Process(u64),
    /// The process of a client; readable when it has ended.
    Peer(u64),
}

/// A ready descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) token: Token,
    /// True if there is data to read, or the other end has closed.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The descriptors to wait for.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(64),
        })
    }

    /// Waits for data to read on `fd`, too.
    pub(crate) fn add(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, token.into(), EventFlags::IN)?)
    }

    /// Starts or stops to wait for room to write.
    pub(crate) fn want_write(&self, fd: impl AsFd, token: Token, write: bool) -> io::Result<()> {
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, write);
        Ok(epoll::modify(&self.epoll, fd, token.into(), flags)?)
    }

    /// Stops waiting on `fd`. Closing it does not suffice: duplicates stay registered.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until a descriptor is ready or the time `until` has come.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> io::Result<Vec<Ready>> {
        let timeout = until.map(|until| timespec(until.saturating_duration_since(now())));
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, timeout.as_ref()) {
            Ok(_) => Ok(self.events.iter().map(ready).collect()),
            Err(rustix::io::Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the present time.
#[allow(clippy::disallowed_methods, reason = "deadlines of waiting requests")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

fn ready(event: &Event) -> Ready {
    let flags = event.flags;
    let gone = EventFlags::HUP | EventFlags::ERR;
    Ready {
        token: Token::from_data(event.data),
        readable: flags.intersects(EventFlags::IN | gone),
        writable: flags.contains(EventFlags::OUT),
    }
}

/// Data of the first reader of metrics; smaller numbers are tokens without a number.
const FIRST_READER: u64 = 8;

impl Token {
    fn from_data(data: EventData) -> Token {
        let id = data.u64() >> 2;
        match data.u64() & 3 {
            0 if id == 0 => Token::Listener,
            0 if id == 1 => Token::Netlink,
            0 if id == 2 => Token::Qp1,
            0 if id == 3 => Token::Readers,
            0 if id == 4 => Token::Metrics,
            0 => Token::Reader(id - FIRST_READER),
            1 => Token::Client(id),
            2 => Token::Process(id),
            _ => Token::Peer(id),
        }
    }
}

impl From<Token> for EventData {
    fn from(token: Token) -> EventData {
        EventData::new_u64(match token {
            Token::Listener => 0,
            Token::Netlink => 1 << 2,
            Token::Qp1 => 2 << 2,
            Token::Readers => 3 << 2,
            Token::Metrics => 4 << 2,
            Token::Reader(id) => (id + FIRST_READER) << 2,
            Token::Client(id) => id << 2 | 1,
            Token::Process(id) => id << 2 | 2,
            Token::Peer(id) => id << 2 | 3,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_decoded_to_itself() {
        for token in [
            Token::Listener,
            Token::Netlink,
            Token::Qp1,
            Token::Readers,
            Token::Metrics,
            Token::Reader(0),
            Token::Reader(1 << 40),
            Token::Client(1),
            Token::Client(1 << 40),
            Token::Process(7),
            Token::Peer(8),
        ] {
            assert_eq!(Token::from_data(token.into()), token);
        }
    }
}
