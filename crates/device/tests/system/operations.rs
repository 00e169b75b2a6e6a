//! Every operation over both IP families, with every byte checked.

use ferroce_device::transport::{QpType, SendOp};

use ferroce_testnet::deadline;
use rustix::process::Signal;

use crate::support::{Endpoint, Puppet, V4, V6, on_loopback, pair, pattern};

/// Sizes of messages with different numbers of packets.
const SIZES: [u32; 7] = [0, 1, 100, 4096, 4097, 65_536, 1 << 20];
const WORD: u64 = 3 << 20;

fn sends(ours: &Endpoint, theirs: &mut Puppet) {
    for (seed, size) in (1..).zip(SIZES) {
        theirs.expect(&format!("receive {seed} 0 {size}"), "done");
        ours.put(0, &pattern(seed, size));
        ours.post(u64::from(seed), SendOp::Send { imm: None }, 0, size);
        let wc = ours.succeed(1)[0];
        assert_eq!(wc.wr_id, u64::from(seed));
        theirs.expect("complete 1", &format!("Success {size}"));
        theirs.expect(&format!("check {seed} 0 {size}"), "right");
    }
}

fn writes(ours: &Endpoint, theirs: &mut Puppet) {
    for (seed, size) in (10..).zip(SIZES) {
        ours.put(64, &pattern(seed, size));
        ours.write(1, 64, size);
        ours.succeed(1);
        theirs.expect(&format!("check {seed} 64 {size}"), "right");
    }
}

fn reads(ours: &Endpoint, theirs: &mut Puppet) {
    for (seed, size) in (20..).zip(SIZES) {
        theirs.expect(&format!("put {seed} 128 {size}"), "done");
        ours.read(1, 128, size);
        ours.succeed(1);
        assert!(ours.get(128, size) == pattern(seed, size), "{size}");
    }
}

fn atomics(ours: &Endpoint, theirs: &mut Puppet) {
    let (remote_addr, rkey) = ours.remote(WORD);
    let add = |add| SendOp::FetchAdd {
        remote_addr,
        rkey,
        add,
    };
    for before in 0..100u64 {
        ours.post(before, add(1), WORD, 8);
        ours.succeed(1);
        assert_eq!(ours.get(WORD, 8), before.to_ne_bytes());
    }
    let swap = |compare, swap| SendOp::CompareSwap {
        remote_addr,
        rkey,
        compare,
        swap,
    };
    ours.post(1, swap(99, 7), WORD, 8);
    ours.post(2, swap(100, 8), WORD + 8, 8);
    ours.post(3, add(1), WORD + 16, 8);
    ours.succeed(3);
    for (at, found) in [(0, 100u64), (8, 100), (16, 8)] {
        assert_eq!(ours.get(WORD + at, 8), found.to_ne_bytes());
    }
    theirs.expect(&format!("word {WORD}"), "9");
}

fn everything(gid_index: u8) {
    let (ours, mut theirs) = pair(QpType::Rc, gid_index);
    sends(&ours, &mut theirs);
    writes(&ours, &mut theirs);
    reads(&ours, &mut theirs);
    atomics(&ours, &mut theirs);
}

#[test]
fn rc_over_ipv4() {
    on_loopback("operations::rc_over_ipv4", |_ferroced| everything(V4));
}

#[test]
fn rc_over_ipv6() {
    on_loopback("operations::rc_over_ipv6", |_ferroced| everything(V6));
}

/// The peer's program sleeps: its progress thread responds.
#[test]
fn many_writes_complete_in_order() {
    on_loopback("operations::many_writes_complete_in_order", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let size = 1 << 14;
        for (id, offset) in (0..64).map(|id| (id, id * u64::from(size))) {
            ours.put(offset, &pattern(id as u32, size));
            ours.write(id, offset, size);
        }
        let order: Vec<u64> = ours.succeed(64).iter().map(|wc| wc.wr_id).collect();
        assert!(order.is_sorted(), "{order:?}");
        for id in 0..64 {
            let offset = id * u64::from(size);
            theirs.expect(&format!("check {id} {offset} {size}"), "right");
        }
    });
}

fn datagrams(gid_index: u8) {
    let (ours, mut theirs) = pair(QpType::Ud, gid_index);
    for (seed, size) in (1..).zip([0, 1, 100, 1024]) {
        theirs.expect(&format!("receive {seed} 0 2048"), "done");
        ours.put(0, &pattern(seed, size));
        ours.post(1, SendOp::Send { imm: None }, 0, size);
        ours.succeed(1);
        theirs.expect("complete 1", &format!("Success {}", size + 40));
        theirs.expect(&format!("check {seed} 40 {size}"), "right");
    }
}

#[test]
fn ud_over_ipv4() {
    on_loopback("operations::ud_over_ipv4", |_ferroced| datagrams(V4));
}

#[test]
fn ud_over_ipv6() {
    on_loopback("operations::ud_over_ipv6", |_ferroced| datagrams(V6));
}

fn unreliable_writes(gid_index: u8) {
    let (ours, mut theirs) = pair(QpType::Uc, gid_index);
    let (remote_addr, rkey) = ours.remote(0);
    for (seed, size) in (1..).zip([0, 1, 4096, 10_000]) {
        theirs.expect(&format!("receive {seed} 0 0"), "done");
        ours.put(0, &pattern(seed, size));
        let imm = Some(seed);
        let write = SendOp::Write {
            remote_addr,
            rkey,
            imm,
        };
        ours.post(1, write, 0, size);
        ours.succeed(1);
        theirs.expect("complete 1", &format!("Success {size}"));
        theirs.expect(&format!("check {seed} 0 {size}"), "right");
    }
}

#[test]
fn uc_over_ipv4() {
    on_loopback("operations::uc_over_ipv4", |_ferroced| {
        unreliable_writes(V4);
    });
}

#[test]
fn uc_over_ipv6() {
    on_loopback("operations::uc_over_ipv6", |_ferroced| {
        unreliable_writes(V6);
    });
}

/// Returns the number of datagrams that the kernel dropped because a socket was full.
fn overflows() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("readable");
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let names = lines.next().expect("names").split_whitespace();
    let values = lines.next().expect("values").split_whitespace();
    let mut both = names.zip(values);
    let found = both.find(|(name, _)| *name == "RcvbufErrors");
    found.expect("counted").1.parse().expect("a number")
}

/// No peer acknowledges unreliable packets. On one machine their sender waits for credits
/// before the receiver's socket is full.
#[test]
fn unreliable_sender_waits_for_its_receiver() {
    let name = "operations::unreliable_sender_waits_for_its_receiver";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Uc, V4);
        let size = 1 << 18;
        ours.put(0, &pattern(1, size));
        theirs.actor.signal(Signal::STOP);
        for id in 0..100 {
            ours.write(id, 0, size);
        }
        theirs.actor.signal(Signal::CONT);
        ours.succeed(100);
        // Messages arrive in order, so all earlier ones have arrived too.
        deadline::until("the last message", || {
            theirs.actor.ask(&format!("check 1 0 {size}")) == "right"
        });
        assert_eq!(overflows(), 0);
    });
}

/// A program may end as soon as its message has completed: the message has been sent by
/// then, even if it had to wait for credits.
#[test]
fn completed_unreliable_message_arrives_after_the_sender_ends() {
    let name = "operations::completed_unreliable_message_arrives_after_the_sender_ends";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Uc, V4);
        let size = 1 << 20;
        ours.put(0, &pattern(1, size));
        theirs.actor.signal(Signal::STOP);
        ours.write(1, 0, size);
        theirs.actor.signal(Signal::CONT);
        ours.succeed(1);
        drop(ours);
        deadline::until("the whole message", || {
            theirs.actor.ask(&format!("check 1 0 {size}")) == "right"
        });
    });
}

/// A program that gets no processor cannot post receives, but its progress thread receives
/// packets.
#[test]
fn unreliable_messages_wait_for_their_receives() {
    let name = "operations::unreliable_messages_wait_for_their_receives";
    on_loopback(name, |_ferroced| {
        for kind in [QpType::Uc, QpType::Ud] {
            let mut ours = Endpoint::open(kind, V4);
            let mut theirs = Endpoint::open(kind, V4);
            ours.connect(&theirs.introduction());
            theirs.connect(&ours.introduction());
            for id in 0..10 {
                ours.post(id, SendOp::Send { imm: None }, 0, 1000);
            }
            ours.succeed(10);
            assert_eq!(theirs.cq.poll(1, |_| {}), 0, "no receive is posted");
            for id in 0..10 {
                theirs.receive(id, 0, 1040);
            }
            let order: Vec<u64> = theirs.succeed(10).iter().map(|wc| wc.wr_id).collect();
            assert!(order.is_sorted(), "{order:?}");
        }
    });
}

/// A receiver may end right after it has received a message: the sender gets the ACK.
#[test]
fn message_is_acknowledged_before_the_receiver_ends() {
    let name = "operations::message_is_acknowledged_before_the_receiver_ends";
    on_loopback(name, |_ferroced| {
        for _ in 0..20 {
            let mut ours = Endpoint::open(QpType::Rc, V4);
            let mut theirs = Endpoint::open(QpType::Rc, V4);
            ours.connect(&theirs.introduction());
            theirs.connect(&ours.introduction());
            theirs.receive(1, 0, 100);
            ours.post(1, SendOp::Send { imm: None }, 0, 100);
            theirs.succeed(1);
            drop(theirs);
            ours.succeed(1);
        }
    });
}
