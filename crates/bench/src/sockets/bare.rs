//! The unavoidable work of any transport over UDP: plain sockets with segmentation and
//! GRO, and one copy and one CRC on each side.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferroce_endpoint::SIZE;
use rustix::net::sockopt;

use super::{Deadline, PATIENCE, now, set_option};

/// Bytes of a packet besides the payload, as in an RC middle packet: BTH and ICRC.
const HEADERS: usize = 12 + 4;
/// Most bytes of a segmented send, as in the engine's runs.
const MOST_BYTES: usize = 65_000;
const MOST_PACKETS: usize = 64;
/// Most bytes in flight, as for the queue pairs.
const WINDOW: u64 = 1 << 20;
/// Size of the socket's send and receive buffers, if the kernel permits it.
const BUFFER: usize = 8 << 20;
/// Part of the window after which the receiver sends an acknowledgement.
const ACKNOWLEDGE: u64 = 4;
/// Bytes of a ping-pong packet besides the message, as in a WRITE of one packet.
pub(super) const SMALL: usize = 32;
/// The datagram that ends a stream.
const END: [u8; 1] = [0];

/// A plain UDP socket and memory.
#[derive(Debug)]
pub struct Plain {
    socket: UdpSocket,
    memory: Vec<u8>,
    buffer: Vec<u8>,
    /// Most bytes in flight.
    window: u64,
}

impl Plain {
    /// Opens a socket that does not block, with large buffers.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open(address: SocketAddr) -> Result<Plain> {
        #[allow(clippy::disallowed_methods)] // the benchmark measures plain sockets
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
        }
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
        // Without privileges the kernel limits the buffer. Lost datagrams are not sent again, so
        // the window must fit. Half of the buffer is for the kernel's own data.
        let fits = sockopt::socket_recv_buffer_size(&socket)? as u64 / 2;
        Ok(Plain {
            window: WINDOW.min(fits),
            socket,
            memory: vec![0x5a; SIZE as usize],
            buffer: vec![0; 1 << 16],
        })
    }

    /// Returns the socket's address.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.socket.local_addr()?)
    }

    /// Connects the socket to the other end's.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn connect(&self, to: SocketAddr) -> Result<()> {
        Ok(self.socket.connect(to)?)
    }

    /// Makes a ping-pong wait in the kernel instead of polling.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn block(&self) -> Result<()> {
        self.socket.set_read_timeout(Some(PATIENCE))?;
        Ok(self.socket.set_nonblocking(false)?)
    }

    /// Sends runs of packets for `ms` milliseconds; returns the bytes per second.
    ///
    /// # Errors
    /// If a socket fails or the receiver stops.
    pub fn stream(&mut self, payload: usize, ms: u64) -> Result<f64> {
        let segment = payload + HEADERS;
        set_option(
            &self.socket,
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            segment as i32,
        )
        .context("UDP_SEGMENT")?;
        set_option(&self.socket, libc::SOL_UDP, libc::UDP_GRO, 0)?;
        let count = (MOST_BYTES / segment).min(MOST_PACKETS);
        let begun = now();
        let stop = begun + Duration::from_millis(ms);
        let (mut sent, mut acked, mut place) = (0, 0, 0);
        let mut deadline = Deadline::default();
        while acked < sent || now() < stop {
            while sent + (count * payload) as u64 <= acked + self.window && now() < stop {
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
            // The receiver does not acknowledge less than this part of the window.
            if sent - acked < self.window / ACKNOWLEDGE && now() >= stop {
                break;
            }
            deadline.check()?;
        }
        let elapsed = now() - begun;
        set_option(&self.socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0)?;
        self.finish()?;
        Ok(acked as f64 / elapsed.as_secs_f64())
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
    ///
    /// # Errors
    /// If a socket fails, the sender stops, or a packet is wrong.
    pub fn sink(&mut self, payload: usize) -> Result<()> {
        let segment = payload + HEADERS;
        set_option(&self.socket, libc::SOL_UDP, libc::UDP_GRO, 1).context("UDP_GRO")?;
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
            if received - said >= self.window / ACKNOWLEDGE {
                said = received;
                self.socket.send(&received.to_le_bytes())?;
            }
        }
    }

    /// Sends a packet for a message of `size` bytes and waits for one in return, `times`
    /// times. Returns the time of each round trip.
    ///
    /// # Errors
    /// If a socket fails or the other end stops.
    pub fn ping(&mut self, size: usize, times: u32) -> Result<Vec<Duration>> {
        let mut round_trips = Vec::with_capacity(times as usize);
        let mut begun = now();
        for _ in 0..times {
            self.send(0..SMALL + size)?;
            self.receive()?;
            let end = now();
            round_trips.push(end - begun);
            begun = end;
        }
        Ok(round_trips)
    }

    /// Answers the packets of [`Plain::ping`].
    ///
    /// # Errors
    /// If a socket fails or the other end stops.
    pub fn pong(&mut self, size: usize, times: u32) -> Result<()> {
        for _ in 0..times {
            self.receive()?;
            self.send(0..SMALL + size)?;
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

    /// Waits until a datagram arrives.
    fn receive(&mut self) -> Result<()> {
        let mut deadline = Deadline::default();
        loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => deadline.check()?,
                Err(error) => return Err(error).context("plain UDP"),
            }
        }
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
