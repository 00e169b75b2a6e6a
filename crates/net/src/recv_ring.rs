//! Receive buffers, of which one system call fills several.
//!
//! A buffer holds 64 KiB, the most that UDP_GRO merges. Each call fills buffers from the
//! first one on, so that light traffic uses one buffer, which stays in the cache.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::address::{NAME_LEN, Name};
use crate::control::{ControlBuf, Messages};
use crate::syscall::empty_header;

/// Number of buffers, and so most messages per system call.
pub(crate) const BUFFERS: usize = 16;
/// Longest merged message.
const BUFFER_LEN: usize = 1 << 16;
/// Distance between buffers. The extra lines keep the starts of buffers in different
/// cache sets.
const STRIDE: usize = BUFFER_LEN + 9 * 64;
/// Space for the control messages with address, traffic class, hop limit and segment size.
const CONTROL_LEN: usize = 192;

/// The buffers, and the lengths that the last call returned.
pub(crate) struct RecvRing {
    data: Box<[u8]>,
    names: Box<[Name; BUFFERS]>,
    controls: Box<[ControlBuf<CONTROL_LEN>; BUFFERS]>,
    filled: [Filled; BUFFERS],
}

/// Lengths and flags that the kernel returned for one buffer.
#[derive(Copy, Clone, Default)]
struct Filled {
    data: usize,
    name: usize,
    control: usize,
    flags: i32,
}

/// One message: a datagram, or a run of merged ones.
pub(crate) struct Received<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) name: &'a Name,
    pub(crate) name_len: usize,
    pub(crate) control: Messages<'a>,
    /// True if data or control messages did not fit.
    pub(crate) truncated: bool,
}

impl RecvRing {
    pub(crate) fn new() -> RecvRing {
        RecvRing {
            data: vec![0; BUFFERS * STRIDE].into_boxed_slice(),
            names: Box::new([Name::EMPTY; BUFFERS]),
            controls: Box::new([ControlBuf::EMPTY; BUFFERS]),
            filled: [Filled::default(); BUFFERS],
        }
    }

    /// Receives up to `want` messages, at most [`BUFFERS`], and returns how many; 0 if the
    /// socket is empty. `mmsg` is true if the kernel returns several per call.
    pub(crate) fn fill(&mut self, fd: &impl AsFd, want: usize, mmsg: bool) -> io::Result<usize> {
        match (want, mmsg) {
            (0 | 1, _) | (_, false) => self.fill_some::<1>(fd, 1, false),
            (2, true) => self.fill_some::<2>(fd, want, mmsg),
            (3.., true) => self.fill_some::<BUFFERS>(fd, want, mmsg),
        }
    }

    /// Receives with `N` headers: preparing a few costs less than preparing all.
    fn fill_some<const N: usize>(
        &mut self,
        fd: &impl AsFd,
        want: usize,
        mmsg: bool,
    ) -> io::Result<usize> {
        let data = self.data.as_mut_ptr();
        let mut parts: [libc::iovec; N] = std::array::from_fn(|i| libc::iovec {
            iov_base: data.wrapping_add(i * STRIDE).cast(),
            iov_len: BUFFER_LEN,
        });
        let mut headers = [(); N].map(|()| libc::mmsghdr {
            msg_hdr: empty_header(),
            msg_len: 0,
        });
        let names = self.names.as_mut_ptr();
        let controls = self.controls.as_mut_ptr();
        let parts = parts.as_mut_ptr();
        for (i, header) in headers.iter_mut().enumerate() {
            let header = &mut header.msg_hdr;
            header.msg_name = names.wrapping_add(i).cast();
            header.msg_namelen = NAME_LEN as libc::socklen_t;
            header.msg_iov = parts.wrapping_add(i);
            header.msg_iovlen = 1;
            header.msg_control = controls.wrapping_add(i).cast();
            header.msg_controllen = CONTROL_LEN as _;
        }
        let got = receive(fd.as_fd(), &mut headers[..want.min(N)], mmsg)?;
        for (filled, header) in self.filled.iter_mut().zip(&headers[..got]) {
            *filled = Filled {
                data: header.msg_len as usize,
                name: header.msg_hdr.msg_namelen as usize,
                control: header.msg_hdr.msg_controllen as _,
                flags: header.msg_hdr.msg_flags,
            };
        }
        Ok(got)
    }

    /// Returns a message of the last [`RecvRing::fill`].
    pub(crate) fn message(&self, index: usize) -> Received<'_> {
        let filled = &self.filled[index];
        Received {
            data: &self.data[index * STRIDE..][..filled.data.min(BUFFER_LEN)],
            name: &self.names[index],
            name_len: filled.name.min(NAME_LEN),
            control: self.controls[index].messages(filled.control),
            truncated: filled.flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }
    }
}

/// Makes the system call. Returns how many headers it filled; 0 if the socket is empty.
fn receive(fd: BorrowedFd<'_>, headers: &mut [libc::mmsghdr], mmsg: bool) -> io::Result<usize> {
    loop {
        let got = match mmsg {
            true => receive_many(fd, headers),
            false => receive_one(fd, &mut headers[0]),
        };
        match got {
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => return Ok(0),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            got => return got,
        }
    }
}

fn receive_many(fd: BorrowedFd<'_>, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: every header either is empty or points to a part, a name and a
    // control buffer of its own, with their true lengths, which `fill` keeps
    // borrowed during the call.
    let got = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as u32,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Receives one message by a raw system call: libc's `recvmsg` is a cancellation point,
/// which costs time.
fn receive_one(fd: BorrowedFd<'_>, header: &mut libc::mmsghdr) -> io::Result<usize> {
    // SAFETY: as in `receive_many`.
    let got = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            fd.as_raw_fd(),
            &mut header.msg_hdr,
            libc::MSG_DONTWAIT,
        )
    };
    header.msg_len = u32::try_from(got).map_err(|_| io::Error::last_os_error())?;
    Ok(1)
}

/// Returns true if `recvmmsg` works. The socket must be empty.
pub(crate) fn can_receive_many(fd: BorrowedFd<'_>) -> bool {
    let mut header = libc::mmsghdr {
        msg_hdr: empty_header(),
        msg_len: 0,
    };
    match receive_many(fd, std::slice::from_mut(&mut header)) {
        Ok(_) => true,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}
