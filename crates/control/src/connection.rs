//! A program's end of the line to ferroced.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags};

use crate::clock::pause;
use crate::error::Error;
use crate::link::{LinkEvent, LinkInfo};
use crate::path::{RuntimeDir, runtime_dirs};
use crate::protocol::{self, LinkCounters, MAX_REPLY, PROTOCOL, Reply, Request};
use crate::resources::{CmIdResource, Reporter};
use crate::runtime_dir::Viewer;
use crate::{packet, sockopt, unix};

/// How long ferroced may take to receive a request, and to answer it. Attaching takes up to
/// three seconds after a restart, while ferroced waits for programs that it knew before;
/// the rest is for busy machines.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// A ferroced that hangs up before it has said anything is probably about to be gone:
/// how soon to look at it again, and longer each time up to when it is not.
const ENDING: Duration = Duration::from_millis(1);
const NOT_ENDING: Duration = Duration::from_millis(500);

/// A connection to ferroced.
///
/// Requests block until they are answered; events that arrive meanwhile are kept
/// for [`Connection::try_event`]. The descriptor (`as_fd`) becomes readable when there
/// is an event or ferroced has gone.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    /// The runtime directory of the daemon.
    dir: PathBuf,
    daemon_pid: u32,
    version: String,
    /// Who opened it: a forked child must not close it for its parent.
    owner: rustix::process::Pid,
    events: VecDeque<LinkEvent>,
    reports: VecDeque<(OwnedFd, bool)>,
    buffer: Vec<u8>,
}

/// Connects to the ferroced that serves this user in this network namespace. None if
/// there is none; waits for a moment if there is one that is just ending.
pub fn find_daemon() -> Result<Option<Connection>, Error> {
    let mut wait = ENDING;
    loop {
        match look() {
            Err(Error::Closed) if wait < NOT_ENDING => pause(wait),
            other => return other,
        }
        wait *= 2;
    }
}

fn look() -> Result<Option<Connection>, Error> {
    let mut refused = None;
    for dir in runtime_dirs()? {
        match open_in(&dir) {
            Ok(Some(connection)) => return Ok(Some(connection)),
            Ok(None) => {}
            // Perhaps the next one will have us.
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
        // The socket of a ferroced that was killed keeps nobody from having another.
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
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))
            .map_err(|e| Error::system("SO_RCVTIMEO", e))?;
        let mut connection = Connection {
            socket,
            dir: dir.into(),
            daemon_pid: peer.pid,
            version: String::new(),
            owner: rustix::process::getpid(),
            events: VecDeque::new(),
            reports: VecDeque::new(),
            buffer: vec![0; MAX_REPLY],
        };
        connection.hello()?;
        Ok(connection)
    }

    fn hello(&mut self) -> Result<(), Error> {
        let hello = Request::Hello {
            protocol: PROTOCOL,
            program: program_name(),
        };
        match self.request(&hello)?.0 {
            Reply::Welcome {
                protocol,
                version,
                pid,
            } => {
                if protocol != PROTOCOL {
                    return Err(Error::Version { theirs: protocol });
                }
                self.daemon_pid = pid;
                self.version = version;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Asks, and waits for the first answer.
    pub fn request(&mut self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        self.request_with(request, &[])
    }

    /// Asks with descriptors, and waits for the first answer.
    pub fn request_with(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let bytes = protocol::encode(request);
        match self.send(&bytes, fds) {
            Ok(()) => self.answer(),
            Err(Error::Closed) => Err(self.last_words()),
            Err(error) => Err(error),
        }
    }

    /// Sends a request. A ferroced that is stopped reads none, and the socket fills up.
    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match packet::send(&self.socket, bytes, fds, SendFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(self.silence()),
            sent => sent.map_err(broken),
        }
    }

    /// The error for a ferroced that does not answer.
    fn silence(&self) -> Error {
        Error::silence(self.daemon_pid)
    }

    /// The next answer to a request that has several.
    pub fn answer(&mut self) -> Result<(Reply, Vec<OwnedFd>), Error> {
        loop {
            match self.receive(RecvFlags::empty()) {
                Ok(None) => {
                    // An answer that comes later must not be taken for another one.
                    let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
                    return Err(self.silence());
                }
                Ok(Some((Reply::Event(event), _))) => self.events.push_back(event),
                Ok(Some((Reply::Report { keys }, fds))) => self.keep_report(keys, fds),
                Ok(Some((Reply::Error { errno, message }, _))) => {
                    return Err(Error::Refused { errno, message });
                }
                Ok(Some(reply)) => return Ok(reply),
                Err(Error::Closed) => return Err(self.last_words()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Why ferroced has closed the connection, if it has said so: what it sent before
    /// is still there to be read.
    fn last_words(&mut self) -> Error {
        loop {
            match self.receive(RecvFlags::DONTWAIT) {
                Ok(Some((Reply::Error { errno, message }, _))) => {
                    return Error::Refused { errno, message };
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Error::Closed,
            }
        }
    }

    /// An event that has arrived, if there is one; never waits. [`Error::Closed`] when
    /// ferroced has gone.
    pub fn try_event(&mut self) -> Result<Option<LinkEvent>, Error> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        loop {
            match self.receive(RecvFlags::DONTWAIT)? {
                None => return Ok(None),
                Some((Reply::Event(event), _)) => return Ok(Some(event)),
                Some((Reply::Report { keys }, fds)) => self.keep_report(keys, fds),
                Some((other, _)) => return Err(unexpected(&other)),
            }
        }
    }

    /// Where to write what this program has, and whether keys may be in it, if
    /// somebody wanted to know: seen by [`Connection::try_event`].
    pub fn take_report(&mut self) -> Option<(OwnedFd, bool)> {
        self.reports.pop_front()
    }

    fn keep_report(&mut self, keys: bool, fds: Vec<OwnedFd>) {
        self.reports
            .extend(fds.into_iter().map(|stream| (stream, keys)));
    }

    /// Asks for something that is answered by [`Reply::Done`].
    pub fn perform(&mut self, request: &Request) -> Result<(), Error> {
        match self.request(request)?.0 {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// All links.
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

    /// Counters of one link or of all; with `processes`, also the share of each
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

    /// Programs on one link or on all, with the streams of what they have; and their
    /// connections.
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

    /// The runtime directory of the daemon.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The daemon's process; 0 if it is in a pid namespace that we cannot see into.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon_pid
    }

    /// The daemon's release.
    pub fn daemon_version(&self) -> &str {
        &self.version
    }

    /// Two ends for two threads: one asks, the other hears answers and events.
    /// The connection lasts until both are dropped.
    pub fn split(mut self) -> (Asker, Hearer) {
        let buffer = std::mem::take(&mut self.buffer);
        let asker = Asker(Arc::new(self));
        let connection = Arc::clone(&asker.0);
        (asker, Hearer { connection, buffer })
    }

    /// The next packet; None if there was none in time.
    fn receive(&mut self, flags: RecvFlags) -> Result<Option<(Reply, Vec<OwnedFd>)>, Error> {
        receive(&self.socket, &mut self.buffer, flags)
    }
}

/// The end of a connection that asks; see [`Connection::split`].
#[derive(Debug, Clone)]
pub struct Asker(Arc<Connection>);

impl Asker {
    /// Asks, and does not wait for the answer.
    pub fn ask(&self, request: &Request) -> Result<(), Error> {
        self.0.send(&protocol::encode(request), &[])
    }

    /// The error for an answer that has not come within [`ANSWER_TIMEOUT`].
    pub fn silence(&self) -> Error {
        self.0.silence()
    }
}

/// The end of a connection that hears answers and events; see [`Connection::split`].
#[derive(Debug)]
pub struct Hearer {
    connection: Arc<Connection>,
    buffer: Vec<u8>,
}

impl Hearer {
    /// Waits for the next answer or event, whichever it is.
    pub fn hear(&mut self) -> Result<Reply, Error> {
        loop {
            let socket = &self.connection.socket;
            // Silence is no reason to give up.
            if let Some((reply, _)) = receive(socket, &mut self.buffer, RecvFlags::empty())? {
                return Ok(reply);
            }
        }
    }

    /// The runtime directory of the daemon.
    pub fn dir(&self) -> &Path {
        self.connection.dir()
    }
}

/// The next packet of a socket; None if there was none in time.
fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<Option<(Reply, Vec<OwnedFd>)>, Error> {
    let packet = match packet::receive(socket, buffer, flags) {
        Ok(packet) => packet,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(broken(error)),
    };
    if packet.len == 0 {
        return Err(Error::Closed);
    }
    if packet.fds_lost {
        return Err(Error::DescriptorsLost);
    }
    if packet.truncated {
        return Err(Error::Unexpected("a message that is too long".into()));
    }
    let reply = protocol::decode(&buffer[..packet.len])
        .map_err(|garbage| Error::Unexpected(garbage.to_string()))?;
    Ok(Some((reply, packet.fds)))
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A forked child may still have the descriptor: closing ours would not tell
        // ferroced that we are done. And in that child this must do nothing.
        if rustix::process::getpid() == self.owner {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}

fn connect_error(dir: &Path, path: PathBuf, error: io::Error) -> Error {
    match error.raw_os_error() {
        // Its queue of connections is full, and it accepts none.
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

fn broken(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => Error::Closed,
        _ => Error::system("cannot talk to ferroced", error),
    }
}

/// What a reply is that does not belong there.
pub(crate) fn unexpected(reply: &Reply) -> Error {
    let text = format!("{reply:?}");
    Error::Unexpected(text.chars().take(200).collect())
}

/// What `ps` shows for this process.
fn program_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_owned()
}
