//! A ping-pong over TCP with TCP_NODELAY: the reference for latency of iWARP.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Deadline, PATIENCE, now};

/// A TCP connection whose ends poll, or block.
#[derive(Debug)]
pub struct TcpPing {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl TcpPing {
    /// Returns a listener for one connection.
    ///
    /// # Errors
    /// If the kernel refuses.
    #[allow(clippy::disallowed_methods)] // the benchmark measures plain sockets
    pub fn listen(address: IpAddr) -> Result<TcpListener> {
        Ok(TcpListener::bind((address, 0))?)
    }

    /// Accepts the connection of the active end.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn accept(listener: &TcpListener, polls: bool) -> Result<TcpPing> {
        TcpPing::new(listener.accept()?.0, polls)
    }

    /// Connects to the passive end.
    ///
    /// # Errors
    /// If the kernel refuses.
    #[allow(clippy::disallowed_methods)] // the benchmark measures plain sockets
    pub fn connect(to: SocketAddr, polls: bool) -> Result<TcpPing> {
        TcpPing::new(TcpStream::connect(to)?, polls)
    }

    fn new(stream: TcpStream, polls: bool) -> Result<TcpPing> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(polls)?;
        if !polls {
            stream.set_read_timeout(Some(PATIENCE))?;
        }
        Ok(TcpPing {
            stream,
            buffer: Vec::new(),
        })
    }

    /// Sends a message of `size` bytes and waits for one in return, `times` times. Returns the
    /// time of each round trip.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn ping(&mut self, size: usize, times: u32) -> Result<Vec<Duration>> {
        self.buffer.resize(size, 0x5a);
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

    /// Answers the messages of [`TcpPing::ping`].
    ///
    /// # Errors
    /// If the connection fails.
    pub fn pong(&mut self, size: usize, times: u32) -> Result<()> {
        self.buffer.resize(size, 0x5a);
        for _ in 0..times {
            self.receive()?;
            self.send()?;
        }
        Ok(())
    }

    /// Sends a message. It is small, and the one before was received: there is room.
    fn send(&mut self) -> Result<()> {
        self.stream.write_all(&self.buffer).context("plain TCP")
    }

    fn receive(&mut self) -> Result<()> {
        let mut deadline = Deadline::default();
        let mut received = 0;
        while received < self.buffer.len() {
            match self.stream.read(&mut self.buffer[received..]) {
                Ok(0) => bail!("plain TCP: the other end has closed the connection"),
                Ok(more) => received += more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => deadline.check()?,
                Err(error) => return Err(error).context("plain TCP"),
            }
        }
        Ok(())
    }
}
