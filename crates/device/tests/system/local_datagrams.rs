//! Datagrams between programs of one host travel through shared memory.

use ferroce_device::transport::{QpType, SendOp, WcStatus};
use ferroce_endpoint::Options;
use ferroce_testnet::{deadline, isolated_as_root};
use rustix::process::Signal;

use crate::local::{channels, counter, is_chosen, set_local};
use crate::support::ferroced::add_link;
use crate::support::{Endpoint, Ferroced, LINK, Puppet, V4, V6, on_loopback, pair, pattern};

const SEND: SendOp = SendOp::Send { imm: None };
/// Length of the GRH area in front of a received datagram.
const GRH: u32 = 40;

/// Sends a datagram to another program, which checks it. Returns the bytes that left through
/// shared memory.
fn datagram(ours: &Endpoint, theirs: &mut Puppet, seed: u32, size: u32) -> u64 {
    let before = counter("local_sent_bytes");
    theirs.expect(&format!("receive {seed} 0 2048"), "done");
    ours.put(0, &pattern(seed, size));
    ours.post(1, SEND, 0, size);
    ours.succeed(1);
    theirs.expect("complete 1", &format!("Success {}", size + GRH));
    theirs.expect(&format!("check {seed} {GRH} {size}"), "right");
    counter("local_sent_bytes") - before
}

#[test]
fn datagrams_use_memory_from_the_first_one_on() {
    let name = "local_datagrams::datagrams_use_memory_from_the_first_one_on";
    on_loopback(name, |_ferroced| {
        for gid_index in [V4, V6] {
            let (ours, mut theirs) = pair(QpType::Ud, gid_index);
            for (seed, size) in (1..).zip([0, 1, 100, 1024]) {
                let moved = datagram(&ours, &mut theirs, seed, size);
                assert_eq!(moved > size.into(), is_chosen(), "{moved} bytes");
                assert_eq!(ours.qp.sends_in_memory(), is_chosen());
            }
        }
    });
}

/// A program sees the same bytes in front of a datagram on both wires, and the same addresses.
#[test]
fn grh_area_is_the_same_on_both_wires() {
    let name = "local_datagrams::grh_area_is_the_same_on_both_wires";
    on_loopback(name, |_ferroced| {
        for gid_index in [V4, V6] {
            let areas = [true, false].map(|local| {
                set_local(local);
                let mut ours = Endpoint::open(QpType::Ud, gid_index);
                let mut theirs = Endpoint::open(QpType::Ud, gid_index);
                ours.connect(&theirs.introduction());
                theirs.connect(&ours.introduction());
                theirs.receive(1, 0, 2048);
                ours.post(1, SEND, 0, 100);
                ours.succeed(1);
                assert_eq!(ours.qp.sends_in_memory(), local && is_chosen());
                let got = theirs.succeed(1)[0];
                assert_eq!(got.src_qp, ours.qp.qpn());
                (theirs.get(0, GRH), got.flags, got.byte_len, got.network)
            });
            assert_eq!(areas[0], areas[1]);
        }
    });
}

#[test]
fn link_option_chooses_udp_for_the_next_address_handle() {
    let name = "local_datagrams::link_option_chooses_udp_for_the_next_address_handle";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Ud, V4);
        assert_eq!(datagram(&ours, &mut theirs, 1, 100) > 0, is_chosen());
        // ferroced tells the program about the change after it has answered the request.
        let set = |on| {
            set_local(on);
            deadline::until("the change of the link", || ours.device.link().local == on);
        };
        set(false);
        // An endpoint makes an address handle for each datagram.
        assert_eq!(datagram(&ours, &mut theirs, 2, 100), 0);
        assert!(!ours.qp.sends_in_memory());
        set(true);
        assert_eq!(datagram(&ours, &mut theirs, 3, 100) > 0, is_chosen());
    });
}

/// Without ferroced there is no channel: datagrams use UDP.
#[test]
fn datagrams_without_ferroced_use_udp() {
    let name = "local_datagrams::datagrams_without_ferroced_use_udp";
    on_loopback(name, |mut ferroced| {
        let mut ours = Endpoint::open(QpType::Ud, V4);
        let mut theirs = Puppet::start(QpType::Ud, V4);
        theirs.connect(&ours.introduction());
        ours.connect(&theirs.introduction);
        ferroced.kill();
        theirs.expect("receive 1 0 2048", "done");
        ours.post(1, SEND, 0, 100);
        ours.succeed(1);
        theirs.expect("complete 1", "Success 140");
        assert!(!ours.qp.sends_in_memory());
    });
}

/// A queue pair has many peers. Those that are killed leave nothing behind, and the next program
/// with their slot gets the datagrams that are sent to it.
#[test]
fn one_queue_pair_reaches_programs_that_follow_killed_ones() {
    let name = "local_datagrams::one_queue_pair_reaches_programs_that_follow_killed_ones";
    on_loopback(name, |_ferroced| {
        let mut ours = Endpoint::open(QpType::Ud, V4);
        let mut living = Puppet::start(QpType::Ud, V4);
        living.connect(&ours.introduction());
        ours.connect(&living.introduction);
        for round in 0..10 {
            let mut theirs = Puppet::start(QpType::Ud, V4);
            theirs.connect(&ours.introduction());
            ours.set_peer(&theirs.introduction);
            assert_eq!(datagram(&ours, &mut theirs, round, 500) > 0, is_chosen());
            theirs.actor.kill();
            // These are lost, on both wires, and complete all the same.
            for id in 0..8 {
                ours.post(id, SEND, 0, 1000);
            }
            ours.succeed(8);
            ours.set_peer(&living.introduction);
            assert_eq!(datagram(&ours, &mut living, round, 500) > 0, is_chosen());
        }
        drop(living);
        deadline::until("the channels of dead programs are gone", || channels() == 0);
    });
}

/// A program that is stopped before it has mapped the memory holds up the datagrams for a while,
/// and then UDP carries them.
#[test]
fn datagrams_to_a_stopped_program_complete() {
    let name = "local_datagrams::datagrams_to_a_stopped_program_complete";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Ud, V4);
        theirs.expect("receive 1 0 2048", "done");
        theirs.actor.signal(Signal::STOP);
        ours.put(0, &pattern(5, 100));
        ours.post(1, SEND, 0, 100);
        ours.succeed(1);
        assert!(!ours.qp.sends_in_memory());
        theirs.actor.signal(Signal::CONT);
        theirs.expect("complete 1", "Success 140");
        theirs.expect(&format!("check 5 {GRH} 100"), "right");
    });
}

/// The post does not wait for the route, so the queue pair may end before it is found.
#[test]
fn datagram_is_sent_before_its_queue_pair_ends() {
    let name = "local_datagrams::datagram_is_sent_before_its_queue_pair_ends";
    on_loopback(name, |_ferroced| {
        let ours = Endpoint::open(QpType::Ud, V4);
        for round in 0..10 {
            let mut theirs = Puppet::start(QpType::Ud, V4);
            let options = Options::new(QpType::Ud, V4);
            let mut end = ferroce_endpoint::Endpoint::on(&ours.device, &ours.pd, options)
                .expect("an endpoint");
            theirs.connect(&end.introduction().expect("a GID"));
            theirs.expect(&format!("receive {round} 0 2048"), "done");
            end.connect(&theirs.introduction).expect("connected");
            end.post(1, SEND, 0, 100).expect("room");
            drop(end);
            theirs.expect("complete 1", "Success 140");
        }
    });
}

/// Datagrams of one process to itself, between shards and devices too.
#[test]
fn datagrams_within_a_process_use_memory() {
    let name = "local_datagrams::datagrams_within_a_process_use_memory";
    on_loopback(name, |_ferroced| {
        let mut one = Endpoint::open(QpType::Ud, V4);
        let itself = one.introduction();
        one.connect(&itself);
        one.receive(1, 0, 2048);
        one.post(2, SEND, 0, 100);
        let sent = one.cq.queue().poll(1, |wc| assert_eq!(wc.wr_id, 2));
        assert_eq!(sent, 1, "a datagram within a process does not wait");
        one.succeed(1);
        assert_eq!(one.qp.sends_in_memory(), is_chosen(), "to itself");
        let options = || Options::new(QpType::Ud, V4);
        for _ in 0..4 {
            let mut other = ferroce_endpoint::Endpoint::on(&one.device, &one.pd, options())
                .expect("an endpoint");
            other.connect(&itself).expect("connected");
            one.receive(1, 0, 2048);
            other.post(2, SEND, 0, 100).expect("room");
            let sent = other.completions(1).expect("one");
            assert_eq!(sent[0].status, WcStatus::Success);
            one.succeed(1);
            assert_eq!(other.qp.sends_in_memory(), is_chosen());
        }
    });
}

/// ferroced introduces only programs of one user to each other. Datagrams of two users, and RC
/// messages, use UDP.
#[test]
fn two_users_never_share_memory() {
    const MEMBERS: u32 = 60_100;
    const ANN: u32 = 60_001;
    const BOB: u32 = 60_002;
    let name = "local_datagrams::two_users_never_share_memory";
    isolated_as_root(name, || {
        let _ferroced = Ferroced::start_for(&MEMBERS.to_string());
        add_link(LINK, "lo");
        let start = |uid, kind| Puppet::unopened_as(Some((uid, MEMBERS))).open(kind, V4);
        for kind in [QpType::Ud, QpType::Rc] {
            for (uid, shares) in [(BOB, false), (ANN, is_chosen())] {
                let before = counter("local_sent_bytes");
                let (mut ann, mut other) = (start(ANN, kind), start(uid, kind));
                ann.connect(&other.introduction);
                other.connect(&ann.introduction);
                let (sender, receiver) = (&mut ann, &mut other);
                receiver.expect("receive 1 0 2048", "done");
                sender.expect("send 100", "done");
                let length = if kind == QpType::Ud { 100 + GRH } else { 100 };
                receiver.expect("complete 1", &format!("Success {length}"));
                sender.expect("in-memory", &shares.to_string());
                let moved = counter("local_sent_bytes") - before;
                assert_eq!(moved > 0, shares, "{kind:?} to {uid}: {moved} bytes");
            }
        }
    });
}
