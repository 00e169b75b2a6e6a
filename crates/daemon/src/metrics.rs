//! `ferroced --metrics ADDRESS:PORT`: serves counters to Prometheus.
//!
//! Readers connect by TCP and send one request. The event loop serves them without waiting:
//! ferroced has one thread. A connection is closed after [`TIMEOUT`], so that ferroced wakes up
//! once for a reader that sends nothing, and never without readers.

mod http;
mod text;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

pub use text::{Scope, open_metrics};

use crate::poller::{Token, now};
use crate::server::Server;
use http::Request;

/// Time in which a reader must have sent its request and received the response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most readers at a time. One more replaces the oldest.
const MAX_READERS: usize = 32;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The socket for readers of metrics, and its connections.
#[derive(Debug)]
pub(crate) struct Metrics {
    listener: OwnedFd,
    readers: BTreeMap<u64, Reader>,
}

/// A connection.
#[derive(Debug)]
struct Reader {
    socket: OwnedFd,
    request: Vec<u8>,
    /// The response once the request is complete; the first `sent` bytes are sent.
    response: Option<Vec<u8>>,
    sent: usize,
    until: Instant,
}

/// The progress of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The reader has to send more of its request.
    Reading,
    /// The socket has no room for the rest of the response.
    Writing,
    /// The response is sent, or the reader has closed the connection.
    Over,
}

impl Metrics {
    /// Listens on an address.
    pub(crate) fn listen(address: SocketAddr) -> Result<Metrics> {
        let listener = listen(address).with_context(|| {
            format!(
                "cannot serve metrics on {address}; \
                 `ferroced --metrics` needs an address of this machine and a free TCP port"
            )
        })?;
        Ok(Metrics {
            listener,
            readers: BTreeMap::new(),
        })
    }

    /// Returns the time at which the oldest connection is closed.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.readers.values().map(|reader| reader.until).min()
    }
}

impl AsFd for Metrics {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Server {
    /// Serves metrics from now on.
    pub(crate) fn serve_metrics(&mut self, address: SocketAddr) -> Result<()> {
        let metrics = Metrics::listen(address)?;
        self.poller.add(&metrics, Token::Metrics)?;
        tracing::info!(%address, "serving metrics");
        self.metrics = Some(metrics);
        Ok(())
    }

    /// Accepts readers of metrics.
    pub(crate) fn accept_readers(&mut self) {
        while let Some(metrics) = &mut self.metrics {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&metrics.listener, flags) {
                Ok(socket) => self.add_reader(socket),
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(error) => {
                    // The connection must be accepted, or epoll would return at once.
                    tracing::warn!(%error, "cannot accept a reader of metrics");
                    self.spare = None;
                    drop(rustix::net::accept_with(&metrics.listener, flags));
                    self.spare = File::open("/dev/null").ok();
                    return;
                }
            }
        }
    }

    fn add_reader(&mut self, socket: OwnedFd) {
        let id = self.new_id();
        let Some(metrics) = &mut self.metrics else {
            return;
        };
        if metrics.readers.len() >= MAX_READERS
            && let Some((_, oldest)) = metrics.readers.pop_first()
        {
            tracing::warn!("too many readers of metrics: closing the oldest");
            self.poller.remove(&oldest.socket);
        }
        if let Err(error) = self.poller.add(&socket, Token::Reader(id)) {
            return tracing::warn!(%error, "cannot watch a reader of metrics");
        }
        let reader = Reader {
            socket,
            request: Vec::new(),
            response: None,
            sent: 0,
            until: now() + TIMEOUT,
        };
        metrics.readers.insert(id, reader);
    }

    /// Serves a reader whose socket is ready.
    pub(crate) fn serve_reader(&mut self, id: u64) {
        let Some(mut reader) = self.metrics.as_mut().and_then(|m| m.readers.remove(&id)) else {
            return;
        };
        let mut progress = Progress::Writing;
        if reader.response.is_none() {
            progress = reader.read();
            if progress != Progress::Over {
                reader.response = self.respond(&reader.request);
            }
        }
        if reader.response.is_some() {
            progress = reader.write();
        }
        let token = Token::Reader(id);
        if progress == Progress::Writing
            && let Err(error) = self.poller.want_write(&reader.socket, token, true)
        {
            tracing::warn!(%error, "cannot watch a reader of metrics");
            progress = Progress::Over;
        }
        match &mut self.metrics {
            Some(metrics) if progress != Progress::Over => {
                metrics.readers.insert(id, reader);
            }
            _ => self.poller.remove(&reader.socket),
        }
    }

    /// Returns the response to a request, or `None` while it is incomplete.
    fn respond(&self, request: &[u8]) -> Option<Vec<u8>> {
        match http::parse(request) {
            Request::Incomplete => None,
            Request::Refused(response) => Some(response),
            Request::Metrics { scope, head } => {
                let links: Vec<_> = self.links.iter().map(|link| link.info.clone()).collect();
                let text = open_metrics(scope, &links, &self.link_counters(None, true));
                Some(http::metrics(&text, head))
            }
        }
    }

    /// Closes the connections of readers that were too slow.
    pub(crate) fn drop_slow_readers(&mut self) {
        let Some(metrics) = &mut self.metrics else {
            return;
        };
        if metrics.readers.is_empty() {
            return;
        }
        let (now, poller) = (now(), &self.poller);
        metrics.readers.retain(|_, reader| {
            let in_time = now < reader.until;
            if !in_time {
                tracing::debug!("closing the connection of a slow reader of metrics");
                poller.remove(&reader.socket);
            }
            in_time
        });
    }
}

impl Reader {
    /// Reads what has arrived of the request.
    fn read(&mut self) -> Progress {
        let mut buffer = [0; 2048];
        while self.request.len() < http::MAX_REQUEST {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Progress::Over,
                Ok(length) => self.request.extend_from_slice(&buffer[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Progress::Reading,
                Err(_) => return Progress::Over,
            }
        }
        Progress::Reading
    }

    /// Sends the part of the response that the socket has room for.
    fn write(&mut self) -> Progress {
        let response = self.response.as_deref().unwrap_or_default();
        while self.sent < response.len() {
            match rustix::net::send(&self.socket, &response[self.sent..], SendFlags::NOSIGNAL) {
                Ok(length) => self.sent += length,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Progress::Writing,
                Err(_) => return Progress::Over,
            }
        }
        Progress::Over
    }
}

fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // The next ferroced takes the port over while connections of this one linger.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}
