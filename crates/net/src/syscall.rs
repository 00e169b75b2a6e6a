//! The system calls that send: one datagram or run per message, several messages per call.
//!
//! The structures with pointers that the kernel reads are built from borrowed parts right
//! before the call. No pointer outlives the call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use crate::address::Name;
use crate::control::ControlBuf;

/// Space for all control messages that a message can carry.
pub(crate) const CONTROL_LEN: usize = 128;
/// Most messages in one call.
pub(crate) const MAX_MESSAGES: usize = 16;

/// A message to send: destination, control messages and data.
#[derive(Copy, Clone)]
pub(crate) struct Outgoing<'a> {
    pub(crate) name: Name,
    pub(crate) name_len: usize,
    pub(crate) control: ControlBuf<CONTROL_LEN>,
    pub(crate) control_len: usize,
    pub(crate) body: &'a [u8],
    /// Data behind the body; empty in most messages.
    pub(crate) tail: [u8; 4],
    pub(crate) tail_len: usize,
}

impl Outgoing<'_> {
    pub(crate) const EMPTY: Outgoing<'static> = Outgoing {
        name: Name::EMPTY,
        name_len: 0,
        control: ControlBuf::EMPTY,
        control_len: 0,
        body: &[],
        tail: [0; 4],
        tail_len: 0,
    };

    fn parts(&self) -> [libc::iovec; 2] {
        [
            (self.body.as_ptr(), self.body.len()),
            (self.tail.as_ptr(), self.tail_len),
        ]
        .map(|(base, len)| libc::iovec {
            iov_base: base.cast_mut().cast(),
            iov_len: len,
        })
    }

    /// Returns the `msghdr`. It points to `parts` and to `self`.
    fn header(&self, parts: &mut [libc::iovec; 2]) -> libc::msghdr {
        let mut header = empty_header();
        header.msg_name = self.name.0.as_ptr().cast_mut().cast();
        header.msg_namelen = self.name_len as libc::socklen_t;
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = if self.tail_len == 0 { 1 } else { 2 };
        header.msg_control = self.control.as_ptr().cast_mut().cast();
        header.msg_controllen = self.control_len as _;
        header
    }
}

/// Sends one message by a raw system call: libc's `sendmsg` is a cancellation point, which
/// costs time.
pub(crate) fn send(fd: &impl AsFd, message: &Outgoing<'_>) -> io::Result<()> {
    let mut parts = message.parts();
    let header = message.header(&mut parts);
    loop {
        // SAFETY: `header` points to `parts` and into `message`, which outlive the
        // call, with their true lengths; sending only reads them.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendmsg,
                fd.as_fd().as_raw_fd(),
                &header,
                libc::MSG_DONTWAIT,
            )
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends a message without control messages.
#[inline]
pub(crate) fn send_to(fd: &impl AsFd, to: (Name, usize), bytes: &[u8]) -> io::Result<()> {
    let (name, name_len) = to;
    loop {
        // SAFETY: pointers and lengths describe `bytes` and the front of `name`, which
        // outlive the call; sending only reads them.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                fd.as_fd().as_raw_fd(),
                bytes.as_ptr(),
                bytes.len(),
                libc::MSG_DONTWAIT,
                name.0.as_ptr(),
                name_len,
            )
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Sends the first [`MAX_MESSAGES`] of `messages` in order, until one fails. Returns how
/// many were sent, or the error of the first message.
pub(crate) fn send_many(
    fd: &impl AsFd,
    messages: &[Outgoing<'_>],
    mmsg: bool,
) -> io::Result<usize> {
    if !mmsg || messages.len() == 1 {
        return send_one_by_one(fd, messages);
    }
    let count = messages.len().min(MAX_MESSAGES);
    let mut parts = [[EMPTY_PART; 2]; MAX_MESSAGES];
    let mut headers = [(); MAX_MESSAGES].map(|()| libc::mmsghdr {
        msg_hdr: empty_header(),
        msg_len: 0,
    });
    for ((message, parts), header) in messages.iter().zip(&mut parts).zip(&mut headers) {
        *parts = message.parts();
        header.msg_hdr = message.header(parts);
    }
    loop {
        // SAFETY: the first `count` headers point to `parts` and into `messages`,
        // which outlive the call, with their true lengths; sending only reads
        // them, and writes `msg_len` of `headers`.
        let sent = unsafe {
            libc::sendmmsg(
                fd.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT as _,
            )
        };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn send_one_by_one(fd: &impl AsFd, messages: &[Outgoing<'_>]) -> io::Result<usize> {
    for (sent, message) in messages.iter().enumerate() {
        match send(fd, message) {
            Ok(()) => {}
            Err(_) if sent > 0 => return Ok(sent),
            Err(error) => return Err(error),
        }
    }
    Ok(messages.len())
}

const EMPTY_PART: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

/// Returns an empty `msghdr`. It has private padding on some platforms, so there is no
/// literal for it.
pub(crate) fn empty_header() -> libc::msghdr {
    // SAFETY: `msghdr` is plain data, for which all zeroes (null pointers,
    // lengths 0) is a valid value.
    unsafe { std::mem::zeroed() }
}
