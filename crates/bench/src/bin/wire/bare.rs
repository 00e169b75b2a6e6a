//! The unavoidable work of any transport over UDP: plain sockets with segmentation and
//! GRO, and one copy and one CRC on each side.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_endpoint::SIZE;
use rustix::net::sockopt;

use crate::queue_pairs::{Deadline, now, one_way};
use crate::requests::Figure;

/// Bytes of a packet besides the payload, as in an RC middle packet: BTH and ICRC.
const HEADERS: usize = 12 + 4;
/// Most bytes of a segmented send, as in the engine's runs.
const MOST_BYTES: usize = 65_000;
const MOST_PACKETS: usize = 64;
/// Most bytes in flight, as for the queue pairs.
const WINDOW: u64 = 1 << 20;
/// Size of the socket's send and receive buffers, if the kernel permits it.
const BUFFER: usize = 8 << 20;
/// Number of bytes after which the receiver sends an acknowledgement.
const ACKNOWLEDGE: u64 = 256 << 10;
/// Size of a ping-pong packet: that of an 8-byte WRITE.
pub(crate) const SMALL: usize = 40;
/// The datagram that ends a stream.
const END: [u8; 1] = [0];

/// A plain UDP socket and memory.
pub(crate) struct Plain {
    socket: UdpSocket,
    memory: Vec<u8>,
    buffer: Vec<u8>,
}

impl Plain {
    pub(crate) fn open(address: SocketAddr) -> Result<Plain> {
        #[allow(clippy::disallowed_methods)] // the benchmark measures plain sockets
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
        }
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
        Ok(Plain {
            socket,
            memory: vec![0x5a; SIZE as usize],
            buffer: vec![0; 1 << 16],
        })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> Result<()> {
        Ok(self.socket.connect(to)?)
    }

    /// Sends runs of packets for `ms` milliseconds.
    pub(crate) fn stream(&mut self, payload: usize, ms: u64) -> Result<Figure> {
        let segment = payload + HEADERS;
        set_udp(&self.socket, libc::UDP_SEGMENT, segment as i32).context("UDP_SEGMENT")?;
        set_udp(&self.socket, libc::UDP_GRO, 0)?;
        let count = (MOST_BYTES / segment).min(MOST_PACKETS);
        let begun = now();
        let stop = begun + Duration::from_millis(ms);
        let (mut sent, mut acked, mut place) = (0, 0, 0);
        let mut deadline = Deadline::default();
        while acked < sent || now() < stop {
            while sent + (count * payload) as u64 <= acked + WINDOW && now() < stop {
                for packet in self.buffer.chunks_exact_mut(segment).take(count) {
                    let (body, crc) = packet.split_at_mut(segment - 4);
                    body[12..].copy_from_slice(&self.memory[place..][..payload]);
                    crc.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
                    place = (place + payload) % SIZE as usize;
                }
                self.send(0..count * segment)?;
                sent += (count * payload) as u64;
            }
            let mut word = [0; 8];
            if let Some(8) = self.receive_into(&mut word)? {
                acked = u64::from_le_bytes(word);
                deadline = Deadline::default();
            }
            // The receiver does not acknowledge less than `ACKNOWLEDGE` bytes.
            if sent - acked < ACKNOWLEDGE && now() >= stop {
                break;
            }
            deadline.check()?;
        }
        let elapsed = now() - begun;
        set_udp(&self.socket, libc::UDP_SEGMENT, 0)?;
        self.finish()?;
        Ok(Figure::Rate(acked as f64 / elapsed.as_secs_f64()))
    }

    /// Sends the end of the stream and waits until the receiver confirms it.
    fn finish(&self) -> Result<()> {
        let mut deadline = Deadline::default();
        self.socket.send(&END)?;
        let mut word = [0; 8];
        while self.receive_into(&mut word)? != Some(END.len()) {
            deadline.check()?;
        }
        Ok(())
    }

    /// Receives the runs of [`Plain::stream`].
    pub(crate) fn sink(&mut self, payload: usize) -> Result<()> {
        let segment = payload + HEADERS;
        set_udp(&self.socket, libc::UDP_GRO, 1).context("UDP_GRO")?;
        let (mut received, mut said, mut place) = (0_u64, 0, 0);
        let mut deadline = Deadline::default();
        loop {
            let length = match self.socket.recv(&mut self.buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    deadline.check()?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            deadline = Deadline::default();
            if length == END.len() {
                self.socket.send(&END)?;
                return Ok(());
            }
            for packet in self.buffer[..length].chunks_exact(segment) {
                let (body, crc) = packet.split_at(segment - 4);
                ensure!(
                    crc32fast::hash(body).to_le_bytes() == crc,
                    "a packet with a wrong CRC"
                );
                self.memory[place..][..payload].copy_from_slice(&body[12..]);
                place = (place + payload) % SIZE as usize;
                received += payload as u64;
            }
            if received - said >= ACKNOWLEDGE {
                said = received;
                self.socket.send(&received.to_le_bytes())?;
            }
        }
    }

    /// Sends a small packet and waits for one in return, `times` times.
    pub(crate) fn ping(&mut self, times: u32) -> Result<Figure> {
        let begun = now();
        for _ in 0..times {
            self.send(0..SMALL)?;
            self.receive()?;
        }
        Ok(one_way(now() - begun, times))
    }

    /// Answers the packets of [`Plain::ping`].
    pub(crate) fn pong(&mut self, times: u32) -> Result<()> {
        for _ in 0..times {
            self.receive()?;
            self.send(0..SMALL)?;
        }
        Ok(())
    }

    fn send(&self, part: core::ops::Range<usize>) -> Result<()> {
        let mut deadline = Deadline::default();
        loop {
            match self.socket.send(&self.buffer[part.clone()]) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => deadline.check()?,
                Err(error) => return Err(error).context("plain UDP"),
            }
        }
    }

    /// Polls until a datagram arrives.
    fn receive(&mut self) -> Result<()> {
        let mut deadline = Deadline::default();
        let mut word = [0; SMALL];
        while self.receive_into(&mut word)?.is_none() {
            deadline.check()?;
        }
        Ok(())
    }

    /// Receives a datagram, if there is one; returns its length.
    fn receive_into(&self, bytes: &mut [u8]) -> Result<Option<usize>> {
        match self.socket.recv(bytes) {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn set_udp(socket: &impl AsFd, option: i32, value: i32) -> io::Result<()> {
    set_option(socket, libc::SOL_UDP, option, value)
}

/// Sets a socket option whose value is a number or another plain value.
pub(crate) fn set_option<T: Copy>(
    socket: &impl AsFd,
    level: i32,
    option: i32,
    value: T,
) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`, which outlives the call. The kernel
    // only reads it, and validates any pointers inside it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
