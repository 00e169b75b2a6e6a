//! The least that a small message of a reliable queue pair takes of UDP sockets.
//!
//! What the bare ping-pong leaves out, and nothing of our own: the socket to send from is
//! not connected, for the kernel would number its IPv4 packets and no ICRC could be right;
//! the acknowledgement of the last message leaves along with the next, segmented; that to
//! receive on is of a group that shares a port, in which a program decides who gets a
//! packet, and for any address; and it is told the addresses and marks that ICRC and ECN
//! are about.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SocketType, bind, recvmsg, socket, sockopt,
};

use crate::bare::{SMALL, set_option};
use crate::orders::Figure;
use crate::ours::{Patience, now, one_way};

/// An RC acknowledgement.
const ACKNOWLEDGEMENT: usize = 20;

/// Who of the group gets a packet: byte 5 says it, which is 0 here.
const STEERING: [libc::sock_filter; 2] = [
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 5),
    instruction(libc::BPF_RET | libc::BPF_A, 0),
];

const fn instruction(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// One end: a socket to receive on and one to send from.
pub(crate) struct Framed {
    address: IpAddr,
    receiver: UdpSocket,
    sender: UdpSocket,
    peer: Option<SocketAddr>,
}

impl Framed {
    pub(crate) fn open(address: IpAddr) -> Result<Framed> {
        let receiver = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        sockopt::set_socket_reuseport(&receiver, true)?;
        bind(&receiver, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        let mut steering = STEERING;
        let program = libc::sock_fprog {
            len: steering.len() as u16,
            filter: steering.as_mut_ptr(),
        };
        let attach = libc::SO_ATTACH_REUSEPORT_CBPF;
        set_option(&receiver, libc::SOL_SOCKET, attach, program)?;
        let receiver = UdpSocket::from(receiver);
        #[allow(clippy::disallowed_methods)] // what it is about
        let sender = UdpSocket::bind((address, 0))?;
        for socket in [&receiver, &sender] {
            socket.set_nonblocking(true)?;
        }
        for (socket, level, option, value) in [
            (&receiver, libc::SOL_IP, libc::IP_PKTINFO, 1),
            (&receiver, libc::SOL_IP, libc::IP_RECVTOS, 1),
            (&receiver, libc::SOL_UDP, libc::UDP_GRO, 1),
            (
                &sender,
                libc::SOL_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_DO,
            ),
            (&sender, libc::SOL_UDP, libc::UDP_SEGMENT, SMALL as i32),
        ] {
            set_option(socket, level, option, value)?;
        }
        Ok(Framed {
            address,
            receiver,
            sender,
            peer: None,
        })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        let port = self.receiver.local_addr()?.port();
        Ok(SocketAddr::new(self.address, port))
    }

    pub(crate) fn reach(&mut self, peer: SocketAddr) {
        self.peer = Some(peer);
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
        let peer = self.peer.context("nobody to send to")?;
        let bytes = [0; SMALL + ACKNOWLEDGEMENT];
        self.sender
            .send_to(&bytes, peer)
            .context("plain UDP, segmented")?;
        Ok(())
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
        let mut bytes = [0; 2048];
        let mut control = [MaybeUninit::uninit(); 128];
        let mut control = RecvAncillaryBuffer::new(&mut control);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        match recvmsg(&self.receiver, parts, &mut control, RecvFlags::DONTWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
