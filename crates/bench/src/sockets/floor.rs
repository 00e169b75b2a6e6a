//! The socket floor: the least UDP socket work for a small message of an RC queue pair.
//!
//! This ping-pong uses the sockets as the RC transport must, but runs no code of Ferroce.
//! It differs from the bare ping-pong as follows:
//!
//! - The sending socket is not connected. On a connected socket the kernel numbers the
//!   IPv4 packets, and the ICRC covers that number.
//! - The ACK of the last message is sent with the next message, in one segmented send.
//! - The receiving socket is in a reuseport group whose BPF program selects the socket,
//!   and is bound to the wildcard address.
//! - The receiver gets the addresses and ECN marks of each packet in control messages.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SocketType, bind, recvmsg, socket, sockopt,
};

use super::bare::SMALL;
use super::{Deadline, now, set_option};

/// Size of the packet of an 8-byte message.
const MESSAGE: usize = SMALL + 8;
/// Size of an RC ACK packet.
const ACKNOWLEDGEMENT: usize = 20;

/// BPF program of the reuseport group: byte 5 of a packet, here 0, selects the socket.
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

/// One end: a receiving socket and a sending socket.
#[derive(Debug)]
pub struct FloorSockets {
    address: IpAddr,
    receiver: UdpSocket,
    sender: UdpSocket,
    peer: Option<SocketAddr>,
}

impl FloorSockets {
    /// Opens the sockets of one end.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(address: IpAddr) -> Result<FloorSockets> {
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
        #[allow(clippy::disallowed_methods)] // the benchmark measures plain sockets
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
            (&sender, libc::SOL_UDP, libc::UDP_SEGMENT, MESSAGE as i32),
        ] {
            set_option(socket, level, option, value)?;
        }
        Ok(FloorSockets {
            address,
            receiver,
            sender,
            peer: None,
        })
    }

    /// Returns the address of the receiving socket.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn address(&self) -> Result<SocketAddr> {
        let port = self.receiver.local_addr()?.port();
        Ok(SocketAddr::new(self.address, port))
    }

    /// Sets the address of the other end.
    pub fn reach(&mut self, peer: SocketAddr) {
        self.peer = Some(peer);
    }

    /// Sends an 8-byte message and waits for one in return, `times` times. Returns the time
    /// of each round trip.
    ///
    /// # Errors
    /// If a socket fails or the other end stops.
    pub fn ping(&self, times: u32) -> Result<Vec<Duration>> {
        let mut round_trips = Vec::with_capacity(times as usize);
        let mut begun = now();
        for _ in 0..times {
            self.send()?;
            self.receive()?;
            let end = now();
            round_trips.push(end - begun);
            begun = end;
        }
        Ok(round_trips)
    }

    /// Answers the messages of [`FloorSockets::ping`].
    ///
    /// # Errors
    /// If a socket fails or the other end stops.
    pub fn pong(&self, times: u32) -> Result<()> {
        for _ in 0..times {
            self.receive()?;
            self.send()?;
        }
        Ok(())
    }

    fn send(&self) -> Result<()> {
        let peer = self.peer.context("no peer address")?;
        let bytes = [0; MESSAGE + ACKNOWLEDGEMENT];
        self.sender
            .send_to(&bytes, peer)
            .context("plain UDP, segmented")?;
        Ok(())
    }

    /// Polls until a message arrives.
    fn receive(&self) -> Result<()> {
        let mut deadline = Deadline::default();
        while !self.try_receive()? {
            deadline.check()?;
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
