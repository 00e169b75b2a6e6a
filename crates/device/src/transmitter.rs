//! From the engine's batches to the sockets.

use std::collections::VecDeque;
use std::net::IpAddr;

use ferroce_net::{RUN_LIMITS, SendError, Sender};
use ferroce_transport::{Batch, Engine, Fault, Path, Time, Trailer};

use crate::clock;
use crate::memory::ProcessMemory;
use crate::pace::{Burden, Entries, Pacer};

/// Packets of a batch: several full runs.
const BATCH: usize = 256;
/// Room for a run, and for what assembling a packet writes beyond its end.
const ROOM: usize = RUN_LIMITS.bytes + 4096;

/// Ports tried until one is free for both IP families.
const CANDIDATES: usize = 8;

/// Sends what an engine has to send.
pub(crate) struct Transmitter {
    out: Out,
    /// Empty unless some of it waits.
    batch: Batch,
    /// Where a run is put together.
    buffer: Vec<u8>,
    faults: Vec<(usize, Fault)>,
}

/// The way out.
struct Out {
    sender: Sender,
    pacer: Pacer,
    /// The link's netdev, for addresses that mean nothing without one.
    ifindex: u32,
    /// Runs that found no room, here or there; nothing overtakes them.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    path: Path,
    segment: usize,
    bytes: Box<[u8]>,
    burden: Option<Burden>,
}

impl Transmitter {
    pub(crate) fn new(ifindex: u32, board: Entries) -> Transmitter {
        Transmitter {
            out: Out {
                sender: Sender::new(),
                pacer: Pacer::new(board),
                ifindex,
                waiting: VecDeque::new(),
            },
            batch: Batch::with_run_limits(BATCH, RUN_LIMITS),
            buffer: vec![0; ROOM],
            faults: Vec::new(),
        }
    }

    /// Opens a socket on this source port, or another if it is taken, for what is sent
    /// from one address.
    pub(crate) fn bind_from(&mut self, want: u16, source: IpAddr) -> std::io::Result<u16> {
        self.out.sender.bind_from(want, source)
    }

    /// Opens sockets of both IP families on the same source port.
    pub(crate) fn bind_any(&mut self, want: u16) -> std::io::Result<u16> {
        let mut want = want;
        for _ in 0..CANDIDATES {
            let v4 = self.out.sender.bind(want, false)?;
            match self.out.sender.bind(v4, true) {
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

    /// Whether packets wait for room, in a socket or at a receiver.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.out.waiting.is_empty()
    }

    /// Sends until the engine has no more, or a socket takes no more. What completes
    /// by being sent does so when all of its batch has left: a program may end then.
    pub(crate) fn run(&mut self, engine: &mut Engine, now: Time) {
        while self.out.catch_up() {
            if !self.batch.is_empty() {
                engine.finish_transmit(now, &mut self.batch);
            }
            engine.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            self.send_batch(now);
            if self.is_blocked() {
                engine.fail_unreadable(now, &mut self.batch);
            }
        }
    }

    fn send_batch(&mut self, now: Time) {
        let memory = match self.batch.reads_memory() {
            true => ProcessMemory::at(now),
            false => ProcessMemory::untouched(),
        };
        let trailer = match self.out.sender.ids_in_run() {
            true => Trailer::Numbered,
            false => Trailer::Unnumbered,
        };
        for run in self.batch.runs() {
            let (buffer, faults) = (&mut self.buffer, &mut self.faults);
            let end = self
                .batch
                .assemble_run(run, trailer, &memory, buffer, faults);
            let bytes = &self.buffer[..end];
            let Some(&opcode) = bytes.first() else {
                continue;
            };
            let burden = Pacer::burden(run, opcode, end);
            self.out.send(&run.path, run.segment, bytes, burden);
        }
        for (index, fault) in self.faults.drain(..) {
            self.batch.fault(index, fault);
        }
    }
}

impl Out {
    /// Sends a run, or has it wait for room.
    fn send(&mut self, path: &Path, segment: usize, bytes: &[u8], burden: Option<Burden>) {
        let mut burden = burden;
        if self.waiting.is_empty() && self.admit(&mut burden) && self.try_send(path, segment, bytes)
        {
            return;
        }
        self.waiting.push_back(Waiting {
            path: *path,
            segment,
            bytes: bytes.into(),
            burden,
        });
    }

    /// Whether the peer has room for it. If it has, that is settled.
    fn admit(&mut self, burden: &mut Option<Burden>) -> bool {
        let admitted = burden.is_none_or(|burden| self.pacer.admit(burden, clock::now));
        if admitted {
            *burden = None;
        }
        admitted
    }

    /// Sends what waits; false if there is still no room for it.
    fn catch_up(&mut self) -> bool {
        while let Some(mut run) = self.waiting.pop_front() {
            if !self.admit(&mut run.burden) || !self.try_send(&run.path, run.segment, &run.bytes) {
                self.waiting.push_front(run);
                return false;
            }
        }
        true
    }

    /// Hands a run to the network; false if it must wait. What the network refuses
    /// is lost, as it might have been on the way: the peer's silence is noticed.
    fn try_send(&self, path: &Path, segment: usize, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        // Only link-local addresses need to be told which netdev; others are routed.
        let scoped = match path.flow.destination {
            IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
            IpAddr::V4(v4) => v4.is_multicast(),
        };
        let ifindex = scoped.then_some(self.ifindex);
        match self.sender.send_run(path, segment, bytes, ifindex) {
            Ok(()) => true,
            Err(SendError::WouldBlock) => false,
            Err(error) => {
                tracing::debug!("to {}: {error}", path.flow.destination);
                true
            }
        }
    }
}
