//! How much the bare sockets carry: no engine, no queue pairs.
//!
//! One [`Sender`] and one [`Receiver`] on this machine's loopback. *bare* sends the
//! same bytes over and over; *full* does what a transport cannot avoid: both sides
//! copy every payload once and compute its ICRC. Each is measured twice:
//!
//! * *apart*: one thread sends a megabyte, then receives it, and so on. The
//!   processor time of either side says what it could carry with a core to itself.
//!   Holds on a busy machine too.
//! * *together*: two threads, a window between them so that nothing is lost, and
//!   the clock on the wall. Wants two idle cores.
//!
//! Port 4791 must be free: `unshare --map-root-user --net sh -c 'ip link set lo up;
//! cargo run --release --package ferroce-net --example throughput'`.

#![allow(clippy::disallowed_methods, reason = "a measurement over real time")]

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferroce_net::{Receiver, Sender, create_slot, probe};
use ferroce_transport::{MAX_RUN_BYTES, MAX_RUN_PACKETS, Path};
use ferroce_wire::{Flow, FlowIcrc, ICRC_LEN};
use rustix::time::{ClockId, clock_gettime};

const BTH_LEN: usize = 12;
/// Bytes on their way at any time.
const WINDOW: u64 = 1 << 20;
const TIME: Duration = Duration::from_secs(1);
const ROUND_TRIPS: u32 = 20_000;

fn main() {
    println!("{:?}", probe());
    let mut slots = [0, 1].map(|slot| {
        let sockets = create_slot(slot).unwrap_or_else(|error| panic!("{error}"));
        Receiver::new(slot, sockets)
    });
    println!("                      |  apart: send   receive | together   (Gb/s of payload)");
    for address in ["127.0.0.1", "::1"] {
        for payload in [1024, 4096] {
            for full in [false, true] {
                let mut tx = Source::new(address, payload, full);
                let mut rx = Sink::new(&mut slots[0], &tx);
                let (send, receive) = apart(&mut tx, &mut rx);
                let both = together(&mut tx, &mut rx);
                let kind = if full { "full" } else { "bare" };
                println!(
                    "{address:>10} {payload:>5} {kind} | {send:>12.1} {receive:>9.1} | {both:>8.1}"
                );
            }
        }
    }
    let ns = ping_pong(&mut slots);
    println!("24-byte packets: {ns:.0} ns of one thread to send and receive one");
}

/// Sends runs.
struct Source {
    sender: Sender,
    path: Path,
    payload: usize,
    full: bool,
    memory: Vec<u8>,
    run: Vec<u8>,
    sent: u64,
}

impl Source {
    fn new(address: &str, payload: usize, full: bool) -> Source {
        let mut sender = Sender::new();
        let address: IpAddr = address.parse().expect("an address");
        let flow = Flow {
            source: address,
            destination: address,
            source_port: sender.bind(0xc000, address.is_ipv6()).expect("a port"),
        };
        let len = BTH_LEN + payload + ICRC_LEN;
        let count = (MAX_RUN_BYTES / len).min(MAX_RUN_PACKETS);
        Source {
            sender,
            path: Path::new(flow, 0, 64),
            payload,
            full,
            memory: vec![0x5a; 1 << 20],
            run: vec![0; count * len],
            sent: 0,
        }
    }

    fn send(&mut self) {
        let len = BTH_LEN + self.payload + ICRC_LEN;
        let crc = FlowIcrc::new(&self.path.flow);
        for (id, packet) in self.run.chunks_mut(len).enumerate() {
            if self.full {
                let from = self.sent as usize % (self.memory.len() - self.payload);
                let (body, icrc) = packet.split_at_mut(len - ICRC_LEN);
                body[BTH_LEN..].copy_from_slice(&self.memory[from..][..self.payload]);
                icrc.copy_from_slice(&crc.compute(id as u16, body));
            }
            self.sent += self.payload as u64;
        }
        let result = self.sender.send_run(&self.path, len, &self.run, None);
        result.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Receives them.
struct Sink<'a> {
    receiver: &'a mut Receiver,
    crc: FlowIcrc,
    full: bool,
    memory: Vec<u8>,
    received: u64,
    id: u16,
}

impl<'a> Sink<'a> {
    fn new(receiver: &'a mut Receiver, source: &Source) -> Sink<'a> {
        Sink {
            receiver,
            crc: FlowIcrc::new(&source.path.flow),
            full: source.full,
            memory: vec![0; 1 << 20],
            received: 0,
            id: 0,
        }
    }

    fn receive(&mut self) -> usize {
        let got = self.receiver.receive_busy(64, |packet| {
            let body = &packet.payload[BTH_LEN..packet.payload.len() - ICRC_LEN];
            if self.full {
                let recovered = self.crc.recover_id(self.id, packet.payload);
                self.id = recovered.expect("a sound packet").id;
                let at = self.received as usize % (self.memory.len() - body.len());
                self.memory[at..][..body.len()].copy_from_slice(body);
            }
            self.received += body.len() as u64;
        });
        got.expect("receives")
    }
}

/// What either side could carry alone.
fn apart(tx: &mut Source, rx: &mut Sink<'_>) -> (f64, f64) {
    let (mut sending, mut receiving) = (0, 0);
    while sending + receiving < TIME.as_nanos() {
        let start = processor_time();
        while tx.sent - rx.received < WINDOW {
            tx.send();
        }
        let between = processor_time();
        while rx.received < tx.sent {
            rx.receive();
        }
        sending += between - start;
        receiving += processor_time() - between;
    }
    assert_eq!(rx.receiver.stats().overflowed, 0, "nothing is lost");
    let rate = |ns: u128| rx.received as f64 * 8.0 / ns as f64;
    (rate(sending), rate(receiving))
}

/// What both carry together.
fn together(tx: &mut Source, rx: &mut Sink<'_>) -> f64 {
    let before = rx.received;
    let received = AtomicU64::new(before);
    let stop = AtomicBool::new(false);
    let rate = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match tx.sent - received.load(Ordering::Relaxed) < WINDOW {
                    true => tx.send(),
                    false => std::thread::yield_now(),
                }
            }
        });
        let start = Instant::now();
        while start.elapsed() < TIME {
            match rx.receive() {
                0 => std::thread::yield_now(),
                _ => received.store(rx.received, Ordering::Relaxed),
            }
        }
        (rx.received - before) as f64 * 8.0 / start.elapsed().as_nanos() as f64
    });
    while rx.received < tx.sent {
        rx.receive();
    }
    rate
}

/// Ends the other thread however this one ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Nanoseconds to send a small packet and receive it again.
fn ping_pong(slots: &mut [Receiver; 2]) -> f64 {
    let mut tx = Source::new("127.0.0.1", 8, false);
    let start = processor_time();
    for turn in 0..ROUND_TRIPS {
        let slot = turn as usize % 2;
        let packet = &mut tx.run[..24];
        packet[5] = slot as u8;
        let result = tx.sender.send_run(&tx.path, 24, packet, None);
        result.unwrap_or_else(|error| panic!("{error}"));
        while slots[slot].receive_busy(1, |_| {}).expect("receives") == 0 {}
    }
    (processor_time() - start) as f64 / f64::from(ROUND_TRIPS)
}

/// Of this thread, in nanoseconds.
fn processor_time() -> u128 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u128 * 1_000_000_000 + time.tv_nsec as u128
}
