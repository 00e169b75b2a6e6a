//! The state of a stream socket, and its changes by events and completions.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use ferroce_rdmacm::{EventKind, Unreachable};
use rustix::event::PollFlags;

use super::iomap::Iomaps;
use super::options::Options;
use crate::cm::{Id, Request};
use crate::connection::{ConnChanges, Connection};
use crate::wait::Waiters;
use crate::wire::Greeting;
use crate::{Errno, Result};

/// The phase of a socket's life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    New,
    Listening,
    /// The peer's address is being resolved.
    Address,
    /// The route is being resolved.
    Route,
    /// The REQ is sent.
    Connecting,
    /// The REP is sent; the RTU has not arrived.
    Accepting,
    Open,
    /// The connection has ended or was refused, or the socket is closed.
    Closed,
}

/// The part of a stream socket that its lock protects.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) phase: Phase,
    pub(super) was_open: bool,
    pub(super) bound: bool,
    /// True while a thread waits for ferroced in `bind`, `listen` or `connect`. It does not
    /// hold the lock meanwhile.
    pub(super) calls_ferroced: bool,
    /// True while the receiving direction is open.
    pub(super) readable: bool,
    /// True while the sending direction is open.
    pub(super) writable: bool,
    /// True if the program, not the peer, ended the sending direction.
    pub(super) shut_by_us: bool,
    /// The error that the next call reports.
    pub(super) error: Option<Errno>,
    pub(super) iomaps: Iomaps,
    pub(super) connection: Option<Connection>,
    pub(super) requests: VecDeque<(Request, Greeting)>,
    pub(super) waiters: Waiters,
    pub(super) options: Options,
}

impl State {
    pub(super) fn new(options: Options) -> State {
        State {
            phase: Phase::New,
            was_open: false,
            bound: false,
            calls_ferroced: false,
            readable: false,
            writable: false,
            shut_by_us: false,
            error: None,
            iomaps: Iomaps::default(),
            connection: None,
            requests: VecDeque::new(),
            waiters: Waiters::default(),
            options,
        }
    }

    /// True between `connect` or `accept` and the established connection.
    pub(super) fn is_opening(&self) -> bool {
        use Phase::*;
        matches!(self.phase, Address | Route | Connecting | Accepting)
    }

    /// Ends the connection. The first error is kept for the next call.
    pub(super) fn close(&mut self, error: Option<Errno>) {
        self.phase = Phase::Closed;
        self.readable = false;
        self.writable = false;
        self.error = self.error.or(error);
        self.waiters.wake_all();
    }

    /// Returns the descriptor of the completion channel, or -1.
    pub(super) fn completions(&self) -> RawFd {
        match (&self.connection, self.phase) {
            (Some(connection), Phase::Open | Phase::Accepting) => connection.queue.fd().as_raw_fd(),
            _ => -1,
        }
    }

    pub(super) fn arm(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.queue.arm();
        }
    }

    /// Takes completion events, after which the queue is not armed. Wakes the threads that
    /// sleep until an event, so that one of them arms the queue again: the calling thread
    /// may have what it waits for.
    pub(super) fn take_completion_events(&mut self) {
        if let Some(connection) = &mut self.connection
            && connection.queue.take_events()
        {
            self.waiters.wake_all();
        }
    }

    /// Takes completions, and events of the connection manager. On an open connection events
    /// are taken only if `events` is set: looking for them costs a system call.
    pub(super) fn step(&mut self, id: &Id, events: bool) {
        if events || self.is_opening() {
            self.take_events(id);
        }
        self.progress();
    }

    fn progress(&mut self) {
        let (Phase::Open | Phase::Accepting, Some(connection)) = (self.phase, &mut self.connection)
        else {
            return;
        };
        let changes = connection.progress();
        if changes.any {
            if self.phase == Phase::Accepting {
                // A completion shows that the peer has the REP: its RTU is late or lost.
                self.open();
            }
            self.apply(changes);
        }
    }

    fn apply(&mut self, changes: ConnChanges) {
        if changes.shut {
            self.readable = false;
        }
        if changes.gone || (changes.shut && !self.writable) {
            self.close(None);
        } else if let Some(errno) = changes.broken {
            self.close(Some(errno));
        }
        self.waiters.wake_all();
    }

    fn take_events(&mut self, id: &Id) {
        while self.requests.is_empty() {
            match id.event() {
                Ok(Some(event)) => self.event(id, event),
                Ok(None) => return,
                Err(errno) => {
                    tracing::warn!("cannot read the rdma_cm events of an rsocket: {errno}");
                    return;
                }
            }
        }
    }

    fn event(&mut self, id: &Id, kind: EventKind) {
        tracing::debug!("event {kind:?} in phase {:?}", self.phase);
        let result = match (self.phase, kind) {
            (Phase::Listening, EventKind::ConnectRequest { id, params }) => {
                self.request(Request(id), &params.private_data);
                Ok(())
            }
            (Phase::Address, EventKind::AddressResolved) => self.find_route(id),
            (Phase::Route, EventKind::RouteResolved) => self.request_connection(id),
            (Phase::Connecting, EventKind::Established(reply)) => {
                self.answered(&reply.unwrap_or_default().private_data)
            }
            (Phase::Accepting, EventKind::Established(_)) => {
                self.open();
                Ok(())
            }
            (Phase::Open, EventKind::Disconnected { .. }) => {
                // The peer's Disconnect message may be among the completions.
                self.progress();
                match self.phase {
                    Phase::Open => Err(Errno::CONNRESET),
                    _ => Ok(()),
                }
            }
            (Phase::Accepting, EventKind::Disconnected { .. }) => {
                self.progress();
                Err(Errno::CONNRESET)
            }
            (Phase::New | Phase::Closed, _) => Ok(()),
            (_, kind) => failure(&kind),
        };
        if let Err(errno) = result {
            self.close(Some(errno));
        }
    }

    fn request(&mut self, request: Request, private_data: &[u8]) {
        match Greeting::decode(private_data) {
            Ok(greeting) => self.requests.push_back((request, greeting)),
            Err(error) => tracing::info!("a connection request is rejected: {}", error.0),
        }
        self.waiters.wake_all();
    }

    fn find_route(&mut self, id: &Id) -> Result<()> {
        self.phase = Phase::Route;
        // RoCE has one path to a peer, so the program's path records are checked only.
        if let Some(route) = &self.options.route {
            check_path(route)?;
        }
        id.resolve_route()
    }

    fn request_connection(&mut self, id: &Id) -> Result<()> {
        let connection = Connection::new(id, self.options.plan())?;
        id.connect(&connection.greeting().encode())?;
        self.connection = Some(connection);
        self.phase = Phase::Connecting;
        Ok(())
    }

    fn answered(&mut self, private_data: &[u8]) -> Result<()> {
        let greeting = Greeting::decode(private_data).map_err(|error| {
            tracing::info!("the listener is not an rsocket: {}", error.0);
            Errno::CONNREFUSED
        })?;
        if let Some(connection) = &mut self.connection {
            connection.begin(greeting);
        }
        self.open();
        Ok(())
    }

    fn open(&mut self) {
        self.phase = Phase::Open;
        self.was_open = true;
        self.readable = true;
        self.writable = true;
        self.waiters.wake_all();
        self.progress();
    }

    /// Returns the poll events that are `wanted` and present, and HUP and ERR if present.
    pub(super) fn ready(&self, wanted: PollFlags) -> PollFlags {
        const INPUT: PollFlags = PollFlags::IN.union(PollFlags::RDNORM);
        const OUTPUT: PollFlags = PollFlags::OUT.union(PollFlags::WRNORM);
        let unread = self.connection.as_ref().is_some_and(|c| c.unread() > 0);
        let mut ready = PollFlags::empty();
        match self.phase {
            Phase::New => ready |= OUTPUT | PollFlags::HUP,
            Phase::Listening if !self.requests.is_empty() => ready |= INPUT,
            Phase::Open => {
                if unread || !self.readable {
                    ready |= INPUT;
                }
                if !self.readable {
                    ready |= PollFlags::RDHUP;
                }
                if !self.writable || self.connection.as_ref().is_some_and(Connection::writable) {
                    ready |= OUTPUT;
                }
            }
            Phase::Closed => {
                ready |= INPUT | OUTPUT | PollFlags::RDHUP;
                // Programs stop reading at HUP, so unread bytes come first.
                if !unread {
                    ready |= PollFlags::HUP;
                }
                if self.error.is_some() {
                    ready |= PollFlags::ERR;
                }
            }
            _ => {}
        }
        ready & (wanted | PollFlags::HUP | PollFlags::ERR)
    }
}

/// Returns the error of an event that ends an attempt to connect.
fn failure(kind: &EventKind) -> Result<()> {
    match *kind {
        EventKind::Rejected { .. } | EventKind::Refused { .. } => Err(Errno::CONNREFUSED),
        // The listener has accepted and closed before our RTU. rdma_cm says EINVAL, as the kernel does.
        EventKind::ConnectError {
            errno: libc::EINVAL,
            ..
        } => Err(Errno::CONNRESET),
        EventKind::AddressError { errno }
        | EventKind::RouteError { errno }
        | EventKind::ConnectError { errno, .. }
        | EventKind::Unreachable(Unreachable::Errno(errno))
            if errno > 0 =>
        {
            Err(Errno::from_raw_os_error(errno))
        }
        EventKind::AddressError { .. }
        | EventKind::RouteError { .. }
        | EventKind::ConnectError { .. }
        | EventKind::Unreachable(_) => Err(Errno::HOSTUNREACH),
        EventKind::DeviceRemoved => Err(Errno::NETDOWN),
        _ => Ok(()),
    }
}

/// Checks path records (`struct ibv_path_data`): one must be usable in both directions.
fn check_path(records: &[u8]) -> Result<()> {
    const LENGTH: usize = 72;
    /// GMP, PRIMARY and BIDIRECTIONAL.
    const USABLE: u32 = 0b10_1011;
    let (records, rest) = records.as_chunks::<LENGTH>();
    let flags =
        |record: &[u8; LENGTH]| record.first_chunk().map(|flags| u32::from_ne_bytes(*flags));
    let usable = records.iter().any(|record| flags(record) == Some(USABLE));
    match usable && rest.is_empty() {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_that_ends_before_it_is_established_is_reset() {
        let failed = |errno| {
            let params = None;
            failure(&EventKind::ConnectError { errno, params })
        };
        assert_eq!(failed(libc::EINVAL), Err(Errno::CONNRESET));
        assert_eq!(failed(libc::ETIMEDOUT), Err(Errno::TIMEDOUT));
    }
}
