//! How much the bare sockets carry: no engine, no queue pairs.
//!
//! Two threads on this machine's loopback, one [`Sender`] and one [`Receiver`]; as
//! much as a window allows is under way, so that nothing is lost. *bare* sends the
//! same bytes over and over; *with CRC and copy* does what a transport cannot
//! avoid: both sides copy every payload once and compute its ICRC.
//!
//! Port 4791 must be free: `unshare --map-root-user --net sh -c 'ip link set lo up;
//! cargo run --release --package ferroce-net --example throughput'`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferroce_net::{Receiver, SendError, Sender, create_slot, probe};
use ferroce_transport::{MAX_RUN_BYTES, MAX_RUN_PACKETS, Path};
use ferroce_wire::{Flow, FlowIcrc, ICRC_LEN};

/// BTH and ICRC.
const OVERHEAD: usize = 12 + ICRC_LEN;
/// Bytes on their way at any time.
const WINDOW: u64 = 1 << 20;
const SECONDS: u64 = 1;
const ROUND_TRIPS: u32 = 50_000;

fn main() {
    println!("{:?}", probe());
    let sockets = create_slot(0).unwrap_or_else(|error| panic!("{error}"));
    let other = create_slot(1).unwrap_or_else(|error| panic!("{error}"));
    let mut receiver = Receiver::new(0, sockets);
    let mut other = Receiver::new(1, other);
    println!("family payload  packets/run   bare Gb/s   with CRC and copy Gb/s");
    for (family, address) in [("IPv4", "127.0.0.1"), ("IPv6", "::1")] {
        for payload in [1024, 4096] {
            let bare = transfer(&mut receiver, address, payload, false);
            let full = transfer(&mut receiver, address, payload, true);
            let packets = packets_per_run(payload + OVERHEAD);
            println!("{family}   {payload:>7}  {packets:>11}   {bare:>9.1}   {full:>22.1}");
        }
    }
    let ns = ping_pong(&mut receiver, &mut other);
    println!("ping-pong of 24-byte packets: {ns:.0} ns there and back");
}

fn packets_per_run(len: usize) -> usize {
    (MAX_RUN_BYTES / len).min(MAX_RUN_PACKETS)
}

/// Payload received, in Gb/s.
fn transfer(receiver: &mut Receiver, address: &str, payload: usize, full: bool) -> f64 {
    let mut sender = Sender::new();
    let path = path(&mut sender, address);
    let received = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    #[allow(
        clippy::disallowed_methods,
        reason = "a measurement of two threads over real time"
    )]
    let rate = std::thread::scope(|scope| {
        scope.spawn(|| send(&mut sender, &path, payload, full, &received, &stop));
        let _stop = StopOnDrop(&stop);
        let start = Instant::now();
        let bytes = take(receiver, &path, payload, full, &received, start);
        bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9
    });
    // What was still under way belongs to nobody.
    while receiver.receive(usize::MAX, |_| {}).expect("receives") > 0 {}
    rate
}

/// Ends the other thread however this one ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn path(sender: &mut Sender, address: &str) -> Path {
    let address: std::net::IpAddr = address.parse().expect("an address");
    let port = sender.bind(0xc000, address.is_ipv6()).expect("a port");
    let flow = Flow {
        source: address,
        destination: address,
        source_port: port,
    };
    Path::new(flow, 0, 64)
}

fn send(
    sender: &mut Sender,
    path: &Path,
    payload: usize,
    full: bool,
    received: &AtomicU64,
    stop: &AtomicBool,
) {
    let len = payload + OVERHEAD;
    let count = packets_per_run(len);
    let memory = vec![0x5a_u8; 1 << 20];
    let mut bytes = vec![0; count * len];
    let mut sent = 0;
    let crc = FlowIcrc::new(&path.flow);
    while !stop.load(Ordering::Relaxed) {
        if sent - received.load(Ordering::Relaxed) >= WINDOW {
            #[allow(clippy::disallowed_methods, reason = "waits for the other thread")]
            std::thread::yield_now();
            continue;
        }
        if full {
            for (id, packet) in bytes.chunks_mut(len).enumerate() {
                let from = (sent as usize + id * payload) % (memory.len() - payload);
                let (body, icrc) = packet.split_at_mut(len - ICRC_LEN);
                body[12..].copy_from_slice(&memory[from..][..payload]);
                icrc.copy_from_slice(&crc.compute(id as u16, body));
            }
        }
        match sender.send_run(path, len, &bytes, None) {
            Ok(()) => sent += (count * payload) as u64,
            Err(SendError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn take(
    receiver: &mut Receiver,
    path: &Path,
    payload: usize,
    full: bool,
    received: &AtomicU64,
    start: Instant,
) -> u64 {
    let mut memory = vec![0; 1 << 20];
    let mut total = 0;
    let mut id = 0;
    let crc = FlowIcrc::new(&path.flow);
    #[allow(clippy::disallowed_methods, reason = "a measurement over real time")]
    while start.elapsed() < Duration::from_secs(SECONDS) {
        let got = receiver
            .receive_busy(64, |packet| {
                if full {
                    let recovered = crc.recover_id(id, packet.payload);
                    id = recovered.expect("a sound packet").id;
                    let at = total as usize % (memory.len() - payload);
                    let body = &packet.payload[12..packet.payload.len() - ICRC_LEN];
                    memory[at..][..payload].copy_from_slice(body);
                }
                total += payload as u64;
            })
            .expect("receives");
        if got > 0 {
            received.store(total, Ordering::Relaxed);
        }
    }
    assert_eq!(receiver.stats().overflowed, 0, "nothing is lost");
    total
}

/// Nanoseconds there and back between two polling threads.
fn ping_pong(here: &mut Receiver, there: &mut Receiver) -> f64 {
    let stop = AtomicBool::new(false);
    let bounce = |receiver: &mut Receiver, sender: &mut Sender, path: &Path, slot: u8| {
        let mut bytes = [0; 24];
        bytes[5] = slot;
        while !stop.load(Ordering::Relaxed) {
            if receiver.receive_busy(1, |_| {}).expect("receives") > 0 {
                return sender.send_run(path, 24, &bytes, None).is_ok();
            }
        }
        false
    };
    #[allow(
        clippy::disallowed_methods,
        reason = "a measurement of two threads over real time"
    )]
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sender = Sender::new();
            let path = path(&mut sender, "127.0.0.1");
            while bounce(there, &mut sender, &path, 0) {}
        });
        let mut sender = Sender::new();
        let path = path(&mut sender, "127.0.0.1");
        let mut first = [0; 24];
        first[5] = 1;
        sender.send_run(&path, 24, &first, None).expect("sent");
        let _stop = StopOnDrop(&stop);
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            bounce(here, &mut sender, &path, 1);
        }
        start.elapsed().as_nanos() as f64 / f64::from(ROUND_TRIPS)
    })
}
