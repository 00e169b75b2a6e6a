//! One packet on a unix socket: bytes, and descriptors beside them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors that the kernel carries in one message.
pub const MAX_DESCRIPTORS: usize = 253;

const CONTROL: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// A packet that has arrived.
#[derive(Debug)]
pub struct Packet {
    /// How many bytes of the buffer it fills. 0: the other end has closed.
    pub len: usize,
    /// The descriptors that came with it, close-on-exec.
    pub fds: Vec<OwnedFd>,
    /// It did not fit into the buffer.
    pub truncated: bool,
    /// Not all of its descriptors could be taken.
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
