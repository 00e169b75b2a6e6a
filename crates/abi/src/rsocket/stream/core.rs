//! The state of a stream socket, and what changes it: events and completions.

use core::ffi::c_int;
use std::collections::VecDeque;

use rustix::event::PollFlags;

use crate::ffi::*;

use super::iomap::Iomaps;
use super::options::Options;
use crate::rsocket::connection::{Connection, News};
use crate::rsocket::id::{Event, Id, Request};
use crate::rsocket::wait::Waiters;
use crate::rsocket::wire::Greeting;

/// How far a socket has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    New,
    Listening,
    /// On the way to a peer: looking for its address, a route, its answer.
    Address,
    Route,
    Connecting,
    /// Accepted; the peer has not confirmed it yet.
    Accepting,
    Open,
    /// It was open, or should have been.
    Closed,
}

/// What is behind the lock of a stream socket.
#[derive(Debug)]
pub(crate) struct Core {
    pub(super) phase: Phase,
    pub(super) was_open: bool,
    pub(super) bound: bool,
    /// Which directions are open.
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// We said that we send no more; the peer did not.
    pub(super) shut_by_us: bool,
    /// What went wrong and was not told yet.
    pub(super) error: Option<c_int>,
    pub(super) iomaps: Iomaps,
    pub(super) connection: Option<Connection>,
    pub(super) requests: VecDeque<(Request, Greeting)>,
    pub(super) waiters: Waiters,
    pub(super) options: Options,
}

impl Core {
    pub(super) fn new(options: Options) -> Core {
        Core {
            phase: Phase::New,
            was_open: false,
            bound: false,
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

    pub(super) fn is_opening(&self) -> bool {
        use Phase::*;
        matches!(self.phase, Address | Route | Connecting | Accepting)
    }

    pub(super) fn close(&mut self, error: Option<c_int>) {
        self.phase = Phase::Closed;
        self.readable = false;
        self.writable = false;
        self.error = self.error.or(error);
        self.waiters.wake_all();
    }

    /// The descriptor of completions, or -1.
    pub(super) fn completions(&self) -> c_int {
        match (&self.connection, self.phase) {
            (Some(connection), Phase::Open | Phase::Accepting) => connection.queue.fd(),
            _ => -1,
        }
    }

    pub(super) fn arm(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.queue.arm();
        }
    }

    pub(super) fn take_completion_events(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.queue.take_events();
        }
    }

    /// Looks at completions, and at events: always while they lead to a connection,
    /// else if `events` says so, for that costs a system call.
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
        let news = connection.progress();
        if news.any {
            if self.phase == Phase::Accepting {
                // What arrives says that the confirmation was lost.
                self.open();
            }
            self.apply(news);
        }
    }

    fn apply(&mut self, news: News) {
        if news.shut {
            self.readable = false;
        }
        if news.gone || (news.shut && !self.writable) {
            self.close(None);
        } else if let Some(errno) = news.broken {
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
                    tracing::warn!("the events of an rsocket cannot be read: errno {errno}");
                    return;
                }
            }
        }
    }

    fn event(&mut self, id: &Id, event: Event) {
        tracing::debug!("event {} in {:?}: {}", event.kind, self.phase, event.status);
        let result = match (self.phase, event.kind) {
            (Phase::Listening, RDMA_CM_EVENT_CONNECT_REQUEST) => {
                self.request(event);
                Ok(())
            }
            (Phase::Address, RDMA_CM_EVENT_ADDR_RESOLVED) => self.find_route(id),
            (Phase::Route, RDMA_CM_EVENT_ROUTE_RESOLVED) => self.ask(id),
            (Phase::Connecting, RDMA_CM_EVENT_ESTABLISHED) => self.answered(&event),
            (Phase::Accepting, RDMA_CM_EVENT_ESTABLISHED) => {
                self.open();
                Ok(())
            }
            (Phase::Open, RDMA_CM_EVENT_DISCONNECTED) => {
                // If it said good-bye, that is among the completions.
                self.progress();
                match self.phase {
                    Phase::Open => Err(libc::ECONNRESET),
                    _ => Ok(()),
                }
            }
            (Phase::Accepting, RDMA_CM_EVENT_DISCONNECTED) => {
                self.progress();
                Err(libc::ECONNRESET)
            }
            (Phase::New | Phase::Closed, _) => Ok(()),
            (_, kind) => failure(kind, event.status),
        };
        if let Err(errno) = result {
            self.close(Some(errno));
        }
    }

    fn request(&mut self, event: Event) {
        let Some(request) = event.request else {
            return;
        };
        match Greeting::decode(&event.private_data) {
            Ok(greeting) => self.requests.push_back((request, greeting)),
            Err(error) => tracing::info!("rejected: {}", error.0),
        }
        self.waiters.wake_all();
    }

    fn find_route(&mut self, id: &Id) -> Result<(), c_int> {
        self.phase = Phase::Route;
        match &self.options.route {
            Some(route) => id.set_option(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, route),
            None => id.resolve_route(),
        }
    }

    fn ask(&mut self, id: &Id) -> Result<(), c_int> {
        let connection = Connection::new(id, self.options.plan())?;
        id.connect(&connection.greeting().encode())?;
        self.connection = Some(connection);
        self.phase = Phase::Connecting;
        Ok(())
    }

    fn answered(&mut self, event: &Event) -> Result<(), c_int> {
        let greeting = Greeting::decode(&event.private_data).map_err(|error| {
            tracing::info!("connected to something else: {}", error.0);
            libc::ECONNREFUSED
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

    /// Which of the wanted events are there, and those that always count.
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
                // Programs that hear of the end do not read what came before it.
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

/// What an event that is not the one hoped for means.
fn failure(kind: rdma_cm_event_type, status: c_int) -> Result<(), c_int> {
    match kind {
        RDMA_CM_EVENT_REJECTED => Err(libc::ECONNREFUSED),
        RDMA_CM_EVENT_ADDR_ERROR
        | RDMA_CM_EVENT_ROUTE_ERROR
        | RDMA_CM_EVENT_CONNECT_ERROR
        | RDMA_CM_EVENT_UNREACHABLE => Err(if status < 0 {
            -status
        } else {
            libc::EHOSTUNREACH
        }),
        RDMA_CM_EVENT_DEVICE_REMOVAL => Err(libc::ENETDOWN),
        _ => Ok(()),
    }
}
