//! Sockets by descriptor.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Datagram, Epoll, Stream};

/// A socket of either kind, or a set of descriptors.
#[derive(Clone, Debug)]
pub enum Socket {
    /// A stream socket.
    Stream(Arc<Stream>),
    /// A datagram socket.
    Datagram(Arc<Datagram>),
    /// A set of descriptors.
    Epoll(Arc<Epoll>),
}

static TABLE: RwLock<BTreeMap<RawFd, Socket>> = RwLock::new(BTreeMap::new());

/// Returns the socket of a descriptor.
pub fn find(fd: RawFd) -> Option<Socket> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(&fd).cloned()
}

/// Makes a socket known under its descriptor, which it returns.
pub fn insert(socket: Socket) -> RawFd {
    let fd = socket.as_raw_fd();
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let stale = table.insert(fd, socket);
    drop(table);
    // The program closed a descriptor behind the back of its socket. Dropping that socket
    // waits for its peer: not while the table is locked.
    drop(stale);
    fd
}

/// Removes a socket from the table. The caller closes it.
pub fn remove(fd: RawFd) -> Option<Socket> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.remove(&fd)
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Socket::Stream(stream) => stream.as_raw_fd(),
            Socket::Datagram(datagram) => datagram.as_raw_fd(),
            Socket::Epoll(epoll) => epoll.as_raw_fd(),
        }
    }
}

impl Socket {
    /// True if calls fail with EAGAIN instead of waiting.
    pub fn nonblocking(&self) -> bool {
        match self {
            Socket::Stream(stream) => stream.nonblocking(),
            Socket::Datagram(datagram) => datagram.nonblocking(),
            Socket::Epoll(_) => false,
        }
    }

    /// Selects whether calls wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        match self {
            Socket::Stream(stream) => stream.set_nonblocking(nonblocking),
            Socket::Datagram(datagram) => datagram.set_nonblocking(nonblocking),
            Socket::Epoll(_) => {}
        }
    }

    /// Closes the socket for all threads that use it. The descriptor is closed when the
    /// last reference is dropped.
    pub fn close(&self) {
        match self {
            Socket::Stream(stream) => stream.close(),
            Socket::Datagram(datagram) => datagram.close(),
            Socket::Epoll(_) => {}
        }
    }
}
