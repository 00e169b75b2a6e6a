//! The least that a small message of a reliable queue pair takes of UDP sockets.
//!
//! What the bare ping-pong leaves out, and nothing of our own: the socket to send from is
//! not connected, for the kernel would number its IPv4 packets and no ICRC could be right;
//! the acknowledgement of the last message leaves along with the next, segmented; and the
//! receiver is told the addresses and marks that ICRC and ECN are about.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail};

use crate::bare::{SMALL, set_option};
use crate::orders::Figure;
use crate::ours::{Patience, now, one_way};

/// An RC acknowledgement.
const ACKNOWLEDGEMENT: usize = 20;

/// One end: a socket to receive on and one to send from.
pub(crate) struct Framed {
    receiver: UdpSocket,
    sender: UdpSocket,
    peer: Option<libc::sockaddr_in>,
}

/// Control messages, aligned as the kernel wants them.
#[repr(C, align(8))]
struct Control([u8; 128]);

impl Framed {
    pub(crate) fn open(address: IpAddr) -> Result<Framed> {
        #[allow(clippy::disallowed_methods)] // what it is about
        let [receiver, sender] = [
            UdpSocket::bind((address, 0))?,
            UdpSocket::bind((address, 0))?,
        ];
        for socket in [&receiver, &sender] {
            socket.set_nonblocking(true)?;
        }
        for (level, option) in [
            (libc::SOL_IP, libc::IP_PKTINFO),
            (libc::SOL_IP, libc::IP_RECVTOS),
            (libc::SOL_UDP, libc::UDP_GRO),
        ] {
            set_option(&receiver, level, option, 1)?;
        }
        let no_fragments = libc::IP_PMTUDISC_DO;
        set_option(&sender, libc::SOL_IP, libc::IP_MTU_DISCOVER, no_fragments)?;
        Ok(Framed {
            receiver,
            sender,
            peer: None,
        })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.receiver.local_addr()?)
    }

    pub(crate) fn reach(&mut self, peer: SocketAddr) -> Result<()> {
        let SocketAddr::V4(peer) = peer else {
            bail!("only IPv4 numbers packets: {peer} is not");
        };
        self.peer = Some(libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: peer.port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(peer.ip().octets()),
            },
            sin_zero: [0; 8],
        });
        Ok(())
    }

    /// Sends a message and waits until one comes back.
    pub(crate) fn ping(&self, times: u32) -> Result<Figure> {
        let begun = now();
        for _ in 0..times {
            self.send()?;
            self.receive()?;
        }
        Ok(one_way(now() - begun, times))
    }

    /// The other half of [`Framed::ping`].
    pub(crate) fn pong(&self, times: u32) -> Result<()> {
        for _ in 0..times {
            self.receive()?;
            self.send()?;
        }
        Ok(())
    }

    fn send(&self) -> Result<()> {
        let mut peer = self.peer.context("nobody to send to")?;
        let mut bytes = [0_u8; SMALL + ACKNOWLEDGEMENT];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut control = Control([0; 128]);
        // SAFETY: plain data, for which zeroes are a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw mut peer).cast();
        header.msg_namelen = size_of_val(&peer) as libc::socklen_t;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: room for a control message with a number is there, aligned; the call only
        // reads what the header points to, all of which outlives it.
        let sent = unsafe {
            header.msg_controllen = libc::CMSG_SPACE(2) as _;
            let note = libc::CMSG_FIRSTHDR(&header);
            (*note).cmsg_level = libc::SOL_UDP;
            (*note).cmsg_type = libc::UDP_SEGMENT;
            (*note).cmsg_len = libc::CMSG_LEN(2) as _;
            libc::CMSG_DATA(note)
                .cast::<u16>()
                .write_unaligned(SMALL as u16);
            libc::sendmsg(self.sender.as_raw_fd(), &header, libc::MSG_DONTWAIT)
        };
        match sent {
            0.. => Ok(()),
            _ => Err(std::io::Error::last_os_error()).context("plain UDP, segmented"),
        }
    }

    /// Polls until a message is there.
    fn receive(&self) -> Result<()> {
        let mut patience = Patience::default();
        while !self.try_receive()? {
            patience.check()?;
        }
        Ok(())
    }

    fn try_receive(&self) -> Result<bool> {
        let mut bytes = [0_u8; 2048];
        let mut name = [0_u8; 28];
        let mut control = Control([0; 128]);
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: plain data, for which zeroes are a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = name.len() as libc::socklen_t;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        // SAFETY: the header points to memory of ours, with its true lengths, that outlives
        // the call.
        let got =
            unsafe { libc::recvmsg(self.receiver.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
        if got >= 0 {
            return Ok(true);
        }
        match std::io::Error::last_os_error() {
            error if error.kind() == ErrorKind::WouldBlock => Ok(false),
            error => Err(error.into()),
        }
    }
}
