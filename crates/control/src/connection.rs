//! Connections of programs to ferroced.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

use crate::capture::{Captured, Introduced};
use crate::clock::{now, pause};
use crate::error::Error;
use crate::link::{LinkEvent, LinkInfo};
use crate::path::{RuntimeDir, runtime_dirs};
use crate::protocol::{self, LinkCounters, MAX_REPLY, PROTOCOL, Reply, Request, RequestNumber};
use crate::resources::{CmIdResource, Reporter};
use crate::runtime_dir::Viewer;
use crate::split::{Received, ReplyReceiver, RequestSender};
use crate::{packet, sockopt, unix};

/// Time within which ferroced must answer a request. Attaching takes up to three seconds
/// after a restart, while ferroced waits for programs that it knew before; the rest is for
/// busy machines.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// First pause before connecting again to a ferroced that closed the connection before its
/// Welcome: it is probably about to end. Every further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Pause at which a ferroced that closes connections is no longer taken for one that ends.
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// Returns a request number that this process has not used before.
pub fn next_request_number() -> RequestNumber {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A connection to ferroced with at most one request in flight.
///
/// Requests block until they are answered, or fail after [`ANSWER_TIMEOUT`]; an answer that
/// arrives later is dropped. Link events that arrive meanwhile are kept for
/// [`Connection::try_event`]. The descriptor (`as_fd`) becomes readable when there is an
/// event or ferroced has closed the connection. `Connection::split` allows several
/// requests in flight.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// Runtime directory of ferroced.
    dir: PathBuf,
    daemon_pid: u32,
    version: String,
    /// Process that opened the connection: a forked child must not shut it down.
    owner: rustix::process::Pid,
    /// Number of the latest request.
    number: Option<RequestNumber>,
    events: VecDeque<LinkEvent>,
    reports: VecDeque<(OwnedFd, bool)>,
    pub(crate) captured: Introduced,
    buffer: Vec<u8>,
}

/// Connects to the ferroced that serves this user in this network namespace. Returns None
/// if there is none. Waits for a moment if the one it finds is about to end.
pub fn find_daemon() -> Result<Option<Connection>, Error> {
    let mut wait = FIRST_PAUSE;
    loop {
        match try_find() {
            Err(Error::Closed) if wait < LAST_PAUSE => pause(wait),
            other => return other,
        }
        wait *= 2;
    }
}

fn try_find() -> Result<Option<Connection>, Error> {
    let mut refused = None;
    for dir in runtime_dirs()? {
        match open_in(&dir) {
            Ok(Some(connection)) => return Ok(Some(connection)),
            Ok(None) => {}
            // A ferroced in the next directory may admit this user.
            Err(error @ (Error::NotPermitted(_) | Error::UnsafeDirectory { .. })) => {
                refused = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    refused.map_or(Ok(None), Err)
}

fn open_in(dir: &RuntimeDir) -> Result<Option<Connection>, Error> {
    if !dir.is_usable()? {
        return Ok(None);
    }
    match Connection::connect(dir.path()) {
        Err(Error::NoDaemon) => Ok(None),
        // A socket file that a killed ferroced has left does not stop the search.
        Err(Error::NotPermitted(socket)) if !unix::is_bound(&socket) => Ok(None),
        other => other.map(Some),
    }
}

impl Connection {
    /// Connects to the ferroced whose runtime directory is `dir`.
    pub fn connect(dir: &Path) -> Result<Connection, Error> {
        let path = dir.join(crate::path::SOCKET);
        let socket = match unix::connect(&path) {
            Ok(socket) => socket,
            Err(error) => return Err(connect_error(dir, path, error)),
        };
        let peer = sockopt::peer(&socket).map_err(|e| Error::system("SO_PEERCRED", e))?;
        if !Viewer::here().trusts_peer(peer.uid) {
            return Err(Error::UnsafeDirectory {
                path,
                reason: "is another user's socket",
            });
        }
        let mut connection = Connection {
            socket,
            dir: dir.into(),
            daemon_pid: peer.pid,
            version: String::new(),
            owner: rustix::process::getpid(),
            number: None,
            events: VecDeque::new(),
            reports: VecDeque::new(),
            captured: Introduced::new(),
            buffer: vec![0; MAX_REPLY],
        };
        connection.hello()?;
        connection.send_faults();
        Ok(connection)
    }

    /// Sends the faults of `ferroce run --faults`: ferroced applies those of messages of the
    /// connection manager.
    fn send_faults(&mut self) {
        if let Ok(text) = std::env::var(ferroce_faults::VARIABLE)
            && let Err(error) = self.perform(&Request::Faults { text })
        {
            tracing::warn!("ferroced did not accept the faults: {error}");
        }
    }

    fn hello(&mut self) -> Result<(), Error> {
        let hello = Request::Hello {
            protocol: PROTOCOL,
            program: program_name(),
        };
        // The process number in the Welcome is one of ferroced's PID namespace: it stays
        // unused, and the one that the kernel reports for the socket counts.
        match self.exchange(None, &hello, &[])?.0 {
            Reply::Welcome {
                protocol, version, ..
            } => {
                if protocol != PROTOCOL {
                    return Err(Error::Version { theirs: protocol });
                }
                self.version = version;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Sends a request and waits for its first reply.
    pub fn request(&mut self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.request_with(request, &[])
    }

    /// Sends a request with descriptors and waits for its first reply.
    pub fn request_with(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.exchange(Some(next_request_number()), request, fds)
    }

    fn exchange(
        &mut self,
        number: Option<RequestNumber>,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.number = number;
        let bytes = protocol::encode_numbered(number, request);
        match self.send(&bytes, fds) {
            Ok(()) => self.answer(),
            Err(Error::Closed) => Err(self.refusal_or_closed()),
            Err(error) => Err(error),
        }
    }

    /// Sends a request. A ferroced that is stopped reads none, and its socket fills up.
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match packet::send(&self.socket, bytes, fds, SendFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.timeout_error()),
            sent => sent.map_err(broken),
        }
    }

    /// Returns the error for a ferroced that does not answer.
    pub(crate) fn timeout_error(&self) -> Error {
        Error::silence(self.daemon_pid)
    }

    /// Waits for the next reply to the latest request, or for the next [`Reply::CmEvent`].
    /// Drops replies to earlier requests: their callers have given up.
    pub fn answer(&mut self) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let deadline = now() + ANSWER_TIMEOUT;
        loop {
            let received = match self.receive(RecvFlags::DONTWAIT) {
                Ok(None) => {
                    self.wait_readable(deadline.saturating_duration_since(now()))?;
                    continue;
                }
                Ok(Some(received)) => received,
                Err(Error::Closed) => return Err(self.refusal_or_closed()),
                Err(error) => return Err(error),
            };
            match received {
                (_, Reply::Event(event), _) => self.events.push_back(event),
                (_, Reply::Report { keys, .. }, fds) => self.keep_report(keys, fds),
                (_, Reply::Captured { link, process }, fds) => {
                    self.captured.extend(Captured::new(link, process, fds));
                }
                (None, event @ Reply::CmEvent(_), fds) => return Ok((event, fds)),
                // Only the client of a whole process takes channels. Dropping the descriptors
                // closes this one.
                (None, Reply::Introduced { .. } | Reply::StreamIntroduced { .. }, _) => {}
                // A program that attaches on a connection of its own records nothing.
                (None, Reply::Tap { .. } | Reply::Journal { .. }, _) => {}
                // A refusal before the Hello was read has no number.
                (number, Reply::Error { errno, message }, _)
                    if number.is_none() || number == self.number =>
                {
                    return Err(Error::Refused { errno, message });
                }
                (number, reply, fds) if number == self.number => return Ok((reply, fds)),
                (None, other, _) => return Err(unexpected(&other)),
                // A reply to a request that was given up at its deadline.
                (Some(_), _, _) => {}
            }
        }
    }

    /// Waits until a packet has arrived; the error for a ferroced that does not answer if
    /// none arrives in time.
    pub(crate) fn wait_readable(&self, timeout: Duration) -> Result<(), Error> {
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Err(self.timeout_error()),
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::system("poll", error)),
        }
    }

    /// Returns the refusal that ferroced sent before it closed the connection, if it sent
    /// one: packets from before the close can still be received.
    fn refusal_or_closed(&mut self) -> Error {
        loop {
            match self.receive(RecvFlags::DONTWAIT) {
                Ok(Some((_, Reply::Error { errno, message }, _))) => {
                    return Error::Refused { errno, message };
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Error::Closed,
            }
        }
    }

    /// Returns a link event that has arrived, if there is one; never waits.
    /// [`Error::Closed`] if ferroced has closed the connection.
    pub fn try_event(&mut self) -> Result<Option<LinkEvent>, Error> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        loop {
            match self.receive(RecvFlags::DONTWAIT)? {
                None => return Ok(None),
                Some((_, Reply::Event(event), _)) => return Ok(Some(event)),
                Some((_, Reply::Report { keys, .. }, fds)) => self.keep_report(keys, fds),
                Some((None, Reply::Introduced { .. } | Reply::StreamIntroduced { .. }, _)) => {}
                Some((_, Reply::Captured { link, process }, fds)) => {
                    self.captured.extend(Captured::new(link, process, fds));
                }
                // A program that attaches on a connection of its own records nothing.
                Some((_, Reply::Tap { .. } | Reply::Journal { .. }, _)) => {}
                // A reply to a request that was given up at its deadline.
                Some((Some(_), _, _)) => {}
                Some((None, other, _)) => return Err(unexpected(&other)),
            }
        }
    }

    /// Waits for the next link event, for as long as it takes.
    pub fn await_event(&mut self) -> Result<LinkEvent, Error> {
        loop {
            if let Some(event) = self.try_event()? {
                return Ok(event);
            }
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::system("poll", error)),
            }
        }
    }

    /// Returns the stream for a report of this program's objects, and true if the report may
    /// contain keys, if one was requested: [`Connection::try_event`] receives the request.
    pub fn take_report(&mut self) -> Option<(OwnedFd, bool)> {
        self.reports.pop_front()
    }

    fn keep_report(&mut self, keys: bool, fds: Vec<OwnedFd>) {
        self.reports
            .extend(fds.into_iter().map(|stream| (stream, keys)));
    }

    /// Sends a request whose reply is [`Reply::Done`], and waits for it.
    pub fn perform(&mut self, request: &Request) -> Result<(), Error> {
        match self.request(request)?.0 {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns all links.
    pub fn links(&mut self) -> Result<Vec<LinkInfo>, Error> {
        let mut links = Vec::new();
        let mut reply = self.request(&Request::Links)?.0;
        loop {
            match reply {
                Reply::Link(link) => links.push(link),
                Reply::Done => return Ok(links),
                other => return Err(unexpected(&other)),
            }
            reply = self.answer()?.0;
        }
    }

    /// Returns the counters of one link or of all; with `processes`, also those of each
    /// running program.
    pub fn counters(
        &mut self,
        link: Option<&str>,
        processes: bool,
    ) -> Result<Vec<LinkCounters>, Error> {
        let request = Request::Counters {
            link: link.map(str::to_owned),
            processes,
        };
        let mut counters = Vec::new();
        let mut reply = self.request(&request)?.0;
        loop {
            match reply {
                Reply::Counters(values) => counters.push(values),
                Reply::Done => return Ok(counters),
                other => return Err(unexpected(&other)),
            }
            reply = self.answer()?.0;
        }
    }

    /// Returns the programs on one link or on all, with the streams of their reports, and
    /// their connections.
    pub fn resources(
        &mut self,
        link: Option<&str>,
    ) -> Result<(Vec<Reporter>, Vec<CmIdResource>), Error> {
        let link = link.map(str::to_owned);
        let (mut programs, mut connections) = (Vec::new(), Vec::new());
        let mut reply = self.request(&Request::Resources { link })?;
        loop {
            match reply {
                (Reply::Resources { link, process }, fds) => programs.push(Reporter {
                    link,
                    process,
                    stream: fds.into_iter().next(),
                }),
                (Reply::CmId(connection), _) => connections.push(connection),
                (Reply::Done, _) => return Ok((programs, connections)),
                (other, _) => return Err(unexpected(&other)),
            }
            reply = self.answer()?;
        }
    }

    /// Returns the runtime directory of ferroced.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns ferroced's process number in this PID namespace; 0 if it has none here.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon_pid
    }

    /// Returns the release of ferroced.
    pub fn daemon_version(&self) -> &str {
        &self.version
    }

    /// Splits the connection into an end that sends requests and an end that receives
    /// replies and events. The connection lasts until both are dropped.
    pub(crate) fn split(mut self) -> (RequestSender, ReplyReceiver) {
        let buffer = std::mem::take(&mut self.buffer);
        let sender = RequestSender(Arc::new(self));
        let connection = Arc::clone(&sender.0);
        (sender, ReplyReceiver { connection, buffer })
    }

    /// Receives the next packet; None if there is none in time.
    fn receive(&mut self, flags: RecvFlags) -> Result<Option<Received>, Error> {
        match receive(&self.socket, &mut self.buffer, flags)? {
            Some((_, true)) => Err(Error::DescriptorsLost),
            received => Ok(received.map(|(received, _)| received)),
        }
    }
}

/// Receives the next packet of a socket, and true if descriptors of it were lost; None if
/// there is none in time.
pub(crate) fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<Option<(Received, bool)>, Error> {
    let packet = match packet::receive(socket, buffer, flags) {
        Ok(packet) => packet,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(broken(error)),
    };
    if packet.len == 0 {
        return Err(Error::Closed);
    }
    if packet.truncated {
        return Err(Error::Unexpected("a message that is too long".into()));
    }
    let (number, reply) = protocol::decode_numbered(&buffer[..packet.len])
        .map_err(|garbage| Error::Unexpected(garbage.to_string()))?;
    Ok(Some(((number, reply, packet.fds), packet.fds_lost)))
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A forked child may have a duplicate of the descriptor, so that closing ours would
        // not end the connection. In that child this must do nothing.
        if rustix::process::getpid() == self.owner {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}

fn connect_error(dir: &Path, path: PathBuf, error: io::Error) -> Error {
    match error.raw_os_error() {
        // The backlog is full: ferroced accepts no connections.
        Some(libc::EAGAIN) => {
            let pid = std::fs::read_to_string(dir.join(crate::path::PID_FILE));
            let pid = pid.ok().and_then(|text| text.trim().parse().ok());
            Error::silence(pid.unwrap_or(0))
        }
        Some(libc::ENOENT | libc::ECONNREFUSED | libc::ENOTDIR) => Error::NoDaemon,
        Some(libc::EACCES | libc::EPERM) => Error::NotPermitted(path),
        _ => Error::system(format!("cannot connect to {}", path.display()), error),
    }
}

pub(crate) fn broken(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => Error::Closed,
        _ => Error::system("cannot talk to ferroced", error),
    }
}

/// Returns the error for a reply of the wrong kind.
pub(crate) fn unexpected(reply: &Reply) -> Error {
    let text = format!("{reply:?}");
    Error::Unexpected(text.chars().take(200).collect())
}

/// Returns the name that `ps` shows for this process.
fn program_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}
