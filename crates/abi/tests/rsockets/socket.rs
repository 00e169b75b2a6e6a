//! An rsocket that is closed when it is dropped.

use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::net::SocketAddr;

use ferroce_abi::exports::*;
use libc::{pollfd, sockaddr_in, sockaddr_storage, socklen_t};

use crate::common::{errno, zeros};

pub(crate) struct Socket(pub(crate) c_int);

/// Converts the result of a call: -1 becomes `errno`.
pub(crate) fn result(value: isize) -> Result<usize, c_int> {
    usize::try_from(value).map_err(|_| errno())
}

pub(crate) fn c_addr(addr: &str) -> (sockaddr_storage, socklen_t) {
    let mut storage: sockaddr_storage = zeros();
    match addr.parse().expect("an address") {
        SocketAddr::V4(v4) => unsafe {
            let c = (&raw mut storage).cast::<sockaddr_in>();
            (*c).sin_family = libc::AF_INET as u16;
            (*c).sin_port = v4.port().to_be();
            (*c).sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            (storage, size_of::<sockaddr_in>() as socklen_t)
        },
        SocketAddr::V6(v6) => unsafe {
            let c = (&raw mut storage).cast::<libc::sockaddr_in6>();
            (*c).sin6_family = libc::AF_INET6 as u16;
            (*c).sin6_port = v6.port().to_be();
            (*c).sin6_addr.s6_addr = v6.ip().octets();
            (storage, size_of::<libc::sockaddr_in6>() as socklen_t)
        },
    }
}

fn port_of(storage: &sockaddr_storage) -> u16 {
    u16::from_be(unsafe { (*(&raw const *storage).cast::<sockaddr_in>()).sin_port })
}

impl Socket {
    pub(crate) fn stream() -> Socket {
        Socket::new(libc::AF_INET, libc::SOCK_STREAM)
    }

    pub(crate) fn new(family: c_int, kind: c_int) -> Socket {
        let fd = rsocket(family, kind, 0);
        assert!(fd >= 0, "errno {}", errno());
        Socket(fd)
    }

    /// Returns a listener on an ephemeral port, and its address.
    pub(crate) fn listener() -> (Socket, String) {
        let socket = Socket::stream();
        socket.bind("127.0.0.1:0").unwrap();
        assert_eq!(rlisten(socket.0, 128), 0, "errno {}", errno());
        let addr = format!("127.0.0.1:{}", socket.port());
        (socket, addr)
    }

    /// Returns both ends of a connection.
    pub(crate) fn pair() -> (Socket, Socket) {
        let (listener, addr) = Socket::listener();
        Socket::pair_of(&listener, &addr, Socket::stream())
    }

    pub(crate) fn pair_of(listener: &Socket, addr: &str, client: Socket) -> (Socket, Socket) {
        std::thread::scope(|scope| {
            let server = scope.spawn(|| listener.accept().unwrap());
            client.connect(addr).unwrap();
            (client, server.join().unwrap())
        })
    }

    pub(crate) fn bind(&self, addr: &str) -> Result<usize, c_int> {
        let (addr, length) = c_addr(addr);
        result(unsafe { rbind(self.0, (&raw const addr).cast(), length) } as isize)
    }

    pub(crate) fn connect(&self, addr: &str) -> Result<usize, c_int> {
        let (addr, length) = c_addr(addr);
        result(unsafe { rconnect(self.0, (&raw const addr).cast(), length) } as isize)
    }

    pub(crate) fn accept(&self) -> Result<Socket, c_int> {
        let none = core::ptr::null_mut();
        let fd = unsafe { raccept(self.0, none, core::ptr::null_mut()) };
        result(fd as isize).map(|_| Socket(fd))
    }

    pub(crate) fn port(&self) -> u16 {
        let mut addr: sockaddr_storage = zeros();
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        let named = unsafe { rgetsockname(self.0, (&raw mut addr).cast(), &mut length) };
        assert_eq!(named, 0, "errno {}", errno());
        port_of(&addr)
    }

    pub(crate) fn peer_port(&self) -> Result<u16, c_int> {
        let mut addr: sockaddr_storage = zeros();
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        let named = unsafe { rgetpeername(self.0, (&raw mut addr).cast(), &mut length) };
        result(named as isize).map(|_| port_of(&addr))
    }

    pub(crate) fn send(&self, bytes: &[u8], flags: c_int) -> Result<usize, c_int> {
        result(unsafe { rsend(self.0, bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    pub(crate) fn receive(&self, bytes: &mut [u8], flags: c_int) -> Result<usize, c_int> {
        result(unsafe { rrecv(self.0, bytes.as_mut_ptr().cast(), bytes.len(), flags) })
    }

    /// Receives exactly `length` bytes.
    pub(crate) fn receive_all(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert_eq!(self.receive(&mut bytes, libc::MSG_WAITALL), Ok(length));
        bytes
    }

    pub(crate) fn send_to(&self, bytes: &[u8], addr: &str) -> Result<usize, c_int> {
        let (addr, length) = c_addr(addr);
        let addr = (&raw const addr).cast();
        result(unsafe { rsendto(self.0, bytes.as_ptr().cast(), bytes.len(), 0, addr, length) })
    }

    /// Receives a datagram, and returns it with the sender's port.
    pub(crate) fn receive_from(&self, flags: c_int) -> Result<(Vec<u8>, u16), c_int> {
        let mut bytes = vec![0; 8192];
        let mut addr: sockaddr_storage = zeros();
        let mut length = size_of::<sockaddr_storage>() as socklen_t;
        let (room, from) = (bytes.as_mut_ptr().cast(), (&raw mut addr).cast());
        let got = unsafe { rrecvfrom(self.0, room, bytes.len(), flags, from, &mut length) };
        bytes.truncate(result(got)?);
        Ok((bytes, port_of(&addr)))
    }

    pub(crate) fn shutdown(&self, how: c_int) -> Result<usize, c_int> {
        result(rshutdown(self.0, how) as isize)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        let flags = if on { libc::O_NONBLOCK } else { 0 };
        assert_eq!(rfcntl(self.0, libc::F_SETFL, flags.into()), 0);
    }

    pub(crate) fn set(&self, level: c_int, name: c_int, value: c_int) -> Result<usize, c_int> {
        let place = (&raw const value).cast::<c_void>();
        result(unsafe { rsetsockopt(self.0, level, name, place, 4) } as isize)
    }

    pub(crate) fn get(&self, level: c_int, name: c_int) -> Result<c_int, c_int> {
        let (mut value, mut length): (c_int, socklen_t) = (0, 4);
        let place = (&raw mut value).cast::<c_void>();
        result(unsafe { rgetsockopt(self.0, level, name, place, &mut length) } as isize)?;
        Ok(value)
    }

    /// Polls for events with a timeout in milliseconds, and returns those that are present.
    pub(crate) fn poll(&self, events: i16, timeout: c_int) -> i16 {
        let mut entry = pollfd {
            fd: self.0,
            events,
            revents: 0,
        };
        let count = unsafe { rpoll(&mut entry, 1, timeout) };
        assert_eq!(count, i32::from(entry.revents != 0), "errno {}", errno());
        entry.revents
    }

    pub(crate) fn close(self) {
        drop(self);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        assert_eq!(rclose(self.0), 0, "errno {}", errno());
    }
}
