//! Packets of a unix socket: bytes and descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors that the kernel transfers in one message.
pub const MAX_DESCRIPTORS: usize = 253;

const CONTROL: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Bytes received; 0 if the other end has closed.
    pub len: usize,
    /// The received descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// True if the packet was longer than the buffer.
    pub truncated: bool,
    /// True if some descriptors were lost, because the process has too many open files.
    pub fds_lost: bool,
}

/// Sends one packet, whole or not at all.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let flags = flags | SendFlags::NOSIGNAL;
    let iov = [IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &iov, &mut control, flags))?;
    Ok(())
}

/// Receives one packet.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<Packet> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::io::retry_on_intr(|| {
        let mut iov = [IoSliceMut::new(buffer)];
        rustix::net::recvmsg(&socket, &mut iov, &mut control, flags)
    })?;
    let mut fds = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            fds.extend(rights);
        }
    }
    Ok(Packet {
        len: message.bytes,
        fds,
        truncated: message.flags.contains(ReturnFlags::TRUNC),
        fds_lost: message.flags.contains(ReturnFlags::CTRUNC),
    })
}
