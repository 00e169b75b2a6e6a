//! Which descriptor is which socket.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::datagram::Datagram;
use super::epoll::Epoll;
use super::stream::Stream;

/// What a descriptor stands for.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Datagram>),
    Epoll(Arc<Epoll>),
}

static TABLE: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

pub(crate) fn find(fd: c_int) -> Option<Socket> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(&fd).cloned()
}

/// From now on the descriptor stands for this.
pub(crate) fn insert(fd: c_int, socket: Socket) {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.insert(fd, socket);
}

/// From now on it stands for nothing.
pub(crate) fn remove(fd: c_int) -> Option<Socket> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.remove(&fd)
}

impl Socket {
    /// The number that programs know it by.
    pub(crate) fn fd(&self) -> c_int {
        match self {
            Socket::Stream(stream) => stream.fd(),
            Socket::Datagram(datagram) => datagram.fd(),
            Socket::Epoll(epoll) => epoll.fd(),
        }
    }

    pub(crate) fn nonblocking(&self) -> bool {
        match self {
            Socket::Stream(stream) => stream.nonblocking(),
            Socket::Datagram(datagram) => datagram.nonblocking(),
            Socket::Epoll(_) => false,
        }
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        match self {
            Socket::Stream(stream) => stream.set_nonblocking(nonblocking),
            Socket::Datagram(datagram) => datagram.set_nonblocking(nonblocking),
            Socket::Epoll(_) => {}
        }
    }
}
