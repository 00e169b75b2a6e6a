//! Creation of UDP sockets, and socket options that `socket2` does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Requested buffer sizes. The kernel grants an ordinary user at most `net.core.rmem_max`
/// and `wmem_max`, and doubles either for its own bookkeeping.
const RECEIVE_BUFFER: usize = 8 << 20;
const SEND_BUFFER: usize = 4 << 20;

/// Creates a UDP socket that is non-blocking and close-on-exec.
pub(crate) fn udp(domain: Domain) -> io::Result<Socket> {
    Socket::new(
        domain,
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )
}

/// Sets an option to a plain value.
pub(crate) fn set<T: Copy>(fd: &impl AsFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call; the
    // kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            (value as *const T).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sets an option to a number.
pub(crate) fn set_number(fd: &impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set(fd, level, name, &value)
}

/// Returns how many datagrams the kernel has dropped at a socket; 0 before Linux 4.12.
pub(crate) fn dropped(fd: &impl AsFd) -> u32 {
    const SO_MEMINFO: i32 = 55;
    const DROPS: usize = 8;
    let mut values = [0_u32; DROPS + 1];
    let mut len = size_of_val(&values) as libc::socklen_t;
    // SAFETY: pointer and length describe `values`, which outlives the call; the
    // kernel writes no more than that.
    unsafe {
        libc::getsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            values.as_mut_ptr().cast(),
            &mut len,
        )
    };
    values[DROPS]
}

/// Raises the receive buffer as far as the kernel permits.
pub(crate) fn raise_receive_buffer(fd: &impl AsFd) {
    let bytes = RECEIVE_BUFFER as i32;
    if set_number(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes).is_err() {
        // The kernel reduces the size to its limit and does not fail.
        let _ = SockRef::from(fd).set_recv_buffer_size(RECEIVE_BUFFER);
    }
}

/// Returns the size of the receive buffer, which includes the kernel's bookkeeping.
pub(crate) fn receive_buffer(fd: &impl AsFd) -> usize {
    SockRef::from(fd).recv_buffer_size().unwrap_or(0)
}

/// Raises the send buffer as far as the kernel permits.
pub(crate) fn raise_send_buffer(fd: &impl AsFd) {
    let bytes = SEND_BUFFER as i32;
    if set_number(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes).is_err() {
        let _ = SockRef::from(fd).set_send_buffer_size(SEND_BUFFER);
    }
}
