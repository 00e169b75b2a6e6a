//! From the engine's batches to the sockets.

use std::collections::VecDeque;
use std::net::IpAddr;

use ferroce_net::{SendError, Sender};
use ferroce_transport::{Batch, Engine, Fault, MAX_RUN_BYTES, Path, Time};

use crate::memory::ProcessMemory;

/// Packets of a batch: several full runs.
const BATCH: usize = 256;
/// Room for a run, and for what assembling a packet writes beyond its end.
const ROOM: usize = MAX_RUN_BYTES + 4096;

/// Ports tried until one is free for both IP families.
const CANDIDATES: usize = 8;

/// Sends what an engine has to send.
pub(crate) struct Transmitter {
    sender: Sender,
    /// The link's netdev, for addresses that mean nothing without one.
    ifindex: u32,
    batch: Batch,
    /// Where a run is put together.
    buffer: Vec<u8>,
    /// Runs that found no room in a socket; nothing overtakes them.
    waiting: VecDeque<Waiting>,
    faults: Vec<(usize, Fault)>,
}

struct Waiting {
    path: Path,
    segment: usize,
    bytes: Box<[u8]>,
}

impl Transmitter {
    pub(crate) fn new(ifindex: u32) -> Transmitter {
        Transmitter {
            sender: Sender::new(),
            ifindex,
            batch: Batch::new(BATCH),
            buffer: vec![0; ROOM],
            waiting: VecDeque::new(),
            faults: Vec::new(),
        }
    }

    /// Opens a socket on this source port, or another if it is taken.
    pub(crate) fn bind(&mut self, want: u16, v6: bool) -> std::io::Result<u16> {
        self.sender.bind(want, v6)
    }

    /// Opens sockets of both IP families on the same source port.
    pub(crate) fn bind_both(&mut self, want: u16) -> std::io::Result<u16> {
        let mut want = want;
        for _ in 0..CANDIDATES {
            let v4 = self.sender.bind(want, false)?;
            match self.sender.bind(v4, true) {
                Ok(v6) if v6 == v4 => return Ok(v4),
                Ok(v6) => want = v6,
                Err(error) => {
                    tracing::debug!("datagrams travel over IPv4 only: {error}");
                    return Ok(v4);
                }
            }
        }
        Err(std::io::Error::new(
            std::io::ErrorKind::AddrInUse,
            "no UDP source port is free for both IPv4 and IPv6",
        ))
    }

    /// Whether packets wait for room in a socket.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends until the engine has no more, or a socket takes no more.
    pub(crate) fn run(&mut self, engine: &mut Engine, now: Time) {
        loop {
            while let Some(run) = self.waiting.front() {
                if !send(
                    &mut self.sender,
                    self.ifindex,
                    &run.path,
                    run.segment,
                    &run.bytes,
                ) {
                    return;
                }
                self.waiting.pop_front();
            }
            engine.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            self.send_batch();
            engine.finish_transmit(now, &mut self.batch);
        }
    }

    fn send_batch(&mut self) {
        let memory = ProcessMemory::current();
        let counted = self.sender.ids_in_run();
        for run in self.batch.runs() {
            let (mut end, mut packets) = (0, 0);
            for index in run.packets.clone() {
                let id = if counted { packets } else { 0 };
                let out = &mut self.buffer[end..];
                match self.batch.assemble(index, &run.path, id, &memory, out) {
                    Ok(length) => {
                        end += length;
                        packets += 1;
                    }
                    Err(fault) => self.faults.push((index, fault)),
                }
            }
            let bytes = &self.buffer[..end];
            let blocked = !self.waiting.is_empty();
            if blocked
                || !send(
                    &mut self.sender,
                    self.ifindex,
                    &run.path,
                    run.segment,
                    bytes,
                )
            {
                self.waiting.push_back(Waiting {
                    path: run.path,
                    segment: run.segment,
                    bytes: bytes.into(),
                });
            }
        }
        for (index, fault) in self.faults.drain(..) {
            self.batch.fault(index, fault);
        }
    }
}

/// Hands a run to the network; false if it must wait. What the network refuses
/// is lost, as it might have been on the way: the peer's silence is noticed.
fn send(sender: &mut Sender, ifindex: u32, path: &Path, segment: usize, bytes: &[u8]) -> bool {
    if bytes.is_empty() {
        return true;
    }
    // Only link-local addresses need to be told which netdev; others are routed.
    let scoped = match path.flow.destination {
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
        IpAddr::V4(v4) => v4.is_multicast(),
    };
    match sender.send_run(path, segment, bytes, scoped.then_some(ifindex)) {
        Ok(()) => true,
        Err(SendError::WouldBlock) => false,
        Err(error) => {
            tracing::debug!("to {}: {error}", path.flow.destination);
            true
        }
    }
}
