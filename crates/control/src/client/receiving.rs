//! The thread that receives: the client's own, or one that waits for an answer or an event.
//!
//! A thread that waits takes the turn to receive, so that ferroced wakes it directly. Through
//! the client's thread a message would take another context switch, which costs more than
//! ferroced's work for the message. While another thread has the turn, the client's thread
//! sleeps: its registration is disarmed.
//!
//! ```text
//!   caller:           take turn, disarm    send    poll, receive ...    give turn back, arm
//!   client's thread:  poll ....................................................... receive
//! ```
//!
//! A thread that has the turn handles the messages of all others, in order.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::calls::Call;
use super::lock;
use super::shared::Shared;
use crate::clock::now;
use crate::error::Error;
use crate::protocol::RequestNumber;
use crate::signals::{Handlers, handlers};
use crate::split::{ReplyReceiver, RequestSender};

/// Waits for events between two checks of the program's signal handlers, which take about
/// 10 us.
const WAITS_PER_CHECK: u32 = 64;

/// The receiving end of the connection, and the turn to use it.
#[derive(Debug)]
pub(super) struct Receiving {
    /// Readable for the client's thread when a message has arrived and no other thread has
    /// the turn.
    epoll: OwnedFd,
    /// Number of the thread that has the turn; 0 if none has it.
    turn: AtomicU64,
    /// The connection, for waiting; None while there is none.
    socket: Mutex<Option<RequestSender>>,
    /// Locked by the thread that has the turn. None while there is no connection.
    receiver: Mutex<Option<ReplyReceiver>>,
    /// Waits for events until the signal handlers are checked.
    unchecked_waits: AtomicU32,
}

/// The turn to receive: no other thread receives. When it is dropped, the next message wakes
/// the client's thread.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Receiving);

impl Receiving {
    /// Creates the receiving end without a connection.
    pub(super) fn new() -> Result<Receiving, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC);
        Ok(Receiving {
            epoll: epoll.map_err(|error| Error::system("epoll", error))?,
            turn: AtomicU64::new(0),
            socket: Mutex::new(None),
            receiver: Mutex::new(None),
            unchecked_waits: AtomicU32::new(0),
        })
    }

    /// Starts to use a new connection.
    pub(super) fn start(&self, receiver: ReplyReceiver) -> Result<(), Error> {
        let socket = RequestSender(receiver.connection.clone());
        let interest = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&self.epoll, &receiver, EventData::new_u64(0), interest)
            .map_err(|error| Error::system("epoll", error))?;
        *lock(&self.receiver) = Some(receiver);
        *lock(&self.socket) = Some(socket);
        Ok(())
    }

    /// Returns true if ferroced has closed the connection.
    pub(super) fn is_hung_up(&self) -> bool {
        let socket = lock(&self.socket);
        let Some(RequestSender(socket)) = &*socket else {
            return false;
        };
        let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
        let polled = poll(&mut fds, Some(&Timespec::default()));
        polled.is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Stops using a connection that was lost.
    pub(super) fn stop(&self) {
        if let Some(RequestSender(socket)) = lock(&self.socket).take() {
            // Closing does not suffice: a forked child has a duplicate of the descriptor.
            let _gone = epoll::delete(&self.epoll, &*socket);
        }
        drop(lock(&self.receiver).take());
    }

    /// Takes the turn for the client's thread, if a message has arrived for it.
    pub(super) fn thread_turn(&self) -> Option<Turn<'_>> {
        let mut events = Vec::<Event>::with_capacity(1);
        let room = rustix::buffer::spare_capacity(&mut events);
        // Disarms the registration. A thread that has the turn arms it in the end.
        match epoll::wait(&self.epoll, room, Some(&Timespec::default())) {
            Ok(1..) => self.try_turn(),
            _ => None,
        }
    }

    /// Takes the turn for another thread, unless a thread has it.
    fn take_turn(&self) -> Option<Turn<'_>> {
        let turn = self.try_turn()?;
        self.arm(EventFlags::empty());
        Some(turn)
    }

    fn try_turn(&self) -> Option<Turn<'_>> {
        let own = thread_number();
        let (set, unset) = (Ordering::AcqRel, Ordering::Acquire);
        match self.turn.compare_exchange(0, own, set, unset) {
            Ok(_) => Some(Turn(self)),
            // A signal handler has jumped out of an earlier wait of this thread.
            Err(holder) if holder == own => Some(Turn(self)),
            Err(_) => None,
        }
    }

    /// Sets the messages that wake the client's thread: once, until it is armed again. It
    /// also wakes when the connection is closed.
    fn arm(&self, interest: EventFlags) {
        if let Some(RequestSender(socket)) = &*lock(&self.socket) {
            let interest = interest | EventFlags::ONESHOT;
            let armed = epoll::modify(&self.epoll, &**socket, EventData::new_u64(0), interest);
            if let Err(error) = armed {
                tracing::error!("cannot wait for ferroced: {error}");
            }
        }
    }

    /// Returns true if the handlers of the program's signals all agree whether a system call
    /// goes on after them.
    fn signals_agree(&self) -> bool {
        // A number above the limit stands for handlers that do not agree.
        let waits = self.unchecked_waits.load(Ordering::Relaxed);
        if !waits.is_multiple_of(WAITS_PER_CHECK) {
            self.unchecked_waits.store(waits + 1, Ordering::Relaxed);
            return waits < WAITS_PER_CHECK;
        }
        let agree = handlers() != Handlers::Differ;
        let begin = if agree { 1 } else { WAITS_PER_CHECK + 1 };
        self.unchecked_waits.store(begin, Ordering::Relaxed);
        agree
    }
}

impl AsFd for Receiving {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Turn<'_> {
    /// Waits until a message has arrived, the connection is closed, `also` is readable, or the
    /// time is over. Returns true if `also` is readable.
    fn wait(&self, also: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<bool, Errno> {
        // Cloned: no lock is held while a thread waits.
        let Some(RequestSender(socket)) = lock(&self.0.socket).clone() else {
            return Ok(false);
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let socket = socket.as_fd();
        let mut fds =
            [socket, also.unwrap_or(socket)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let used = 1 + usize::from(also.is_some());
        poll(&mut fds[..used], timeout.as_ref())?;
        Ok(also.is_some() && !fds[1].revents().is_empty())
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // First: the client's thread, once woken, must find the turn free.
        self.0.turn.store(0, Ordering::Release);
        self.0.arm(EventFlags::IN);
    }
}

impl Shared {
    /// Receives and handles all messages that have arrived. The caller has the turn.
    pub(super) fn receive_all(&self, _turn: &Turn<'_>) -> Result<(), Error> {
        loop {
            let mut receiver = lock(&self.receiving.receiver);
            let connected = receiver.as_mut().ok_or(Error::Closed)?;
            let Some(received) = connected.try_receive()? else {
                return Ok(());
            };
            drop(receiver);
            self.received(received);
        }
    }

    /// Takes the turn for a thread that makes a call.
    pub(super) fn take_turn(&self) -> Option<Turn<'_>> {
        self.receiving.take_turn()
    }

    /// Receives until the call with this number has a result, its deadline has passed, or the
    /// connection is lost.
    pub(super) fn receive_until_answered(
        &self,
        turn: Turn<'_>,
        number: RequestNumber,
        deadline: Instant,
    ) {
        loop {
            let timeout = deadline.saturating_duration_since(now());
            let waits = matches!(
                lock(&self.state).calls.get(&number),
                Some(Call::Waiting { .. })
            );
            if !waits || timeout.is_zero() {
                return;
            }
            let _interrupted = turn.wait(None, Some(timeout));
            if self.receive_all(&turn).is_err() {
                // The client's thread, which gets the turn, finds the connection lost, too.
                return;
            }
        }
    }

    /// Receives until `receive` returns true or `fd` is readable; see
    /// [`super::Client::receive_until`].
    pub(super) fn receive_until(
        &self,
        fd: BorrowedFd<'_>,
        receive: &mut dyn FnMut(&mut dyn FnMut()) -> bool,
    ) -> io::Result<()> {
        if !self.receiving.signals_agree() {
            return Ok(());
        }
        let Some(turn) = self.receiving.take_turn() else {
            return Ok(());
        };
        loop {
            match turn.wait(Some(fd), None) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(_) if handlers() == Handlers::Restart => {}
                Err(error) => return Err(error.into()),
            }
            let mut is_lost = false;
            let is_done = receive(&mut || is_lost = self.receive_all(&turn).is_err());
            if is_done || is_lost {
                return Ok(());
            }
        }
    }
}

/// Returns a number of this thread that no other thread of the process has.
fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static OWN: Cell<u64> = const { Cell::new(0) };
    }
    OWN.with(|own| {
        if own.get() == 0 {
            own.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        own.get()
    })
}
