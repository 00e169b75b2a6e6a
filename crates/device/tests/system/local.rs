//! Two programs of one host exchange packets through shared memory.

use ferroce_control::{Request, find_daemon};
use ferroce_device::transport::{Arm, QpType, SendOp, WcStatus};
use ferroce_endpoint::Options;
use ferroce_testnet::deadline;
use rustix::process::Signal;

use crate::support::{Endpoint, Ferroced, LINK, Puppet, V4, V6, on_loopback, pair, pattern};

const MESSAGE: u32 = 256 << 10;

/// Returns true unless the user chose UDP for all tests.
pub(crate) fn is_chosen() -> bool {
    std::env::var("FERROCE_WIRE").as_deref() != Ok("udp")
}

/// Returns the counters of a link, or of the program with one of its slots, by name.
pub(crate) fn counter(name: &str) -> u64 {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let counters = connection.counters(None, false).expect("counters");
    let values = counters.iter().flat_map(|counters| &counters.values);
    values
        .filter(|(of, _)| of == name)
        .map(|(_, value)| value)
        .sum()
}

pub(crate) fn set_local(on: bool) {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let changed = connection.perform(&Request::LinkSet {
        name: LINK.into(),
        rename: None,
        mtu: None,
        crc: None,
        lids: None,
        patience: None,
        speed: None,
        local: Some(on),
        strict: None,
        profile: None,
    });
    changed.expect("a link that can be changed");
}

/// Returns the number of channels that this process has mapped.
pub(crate) fn channels() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.lines()
        .filter(|line| line.contains("ferroce-channel"))
        .count()
}

/// Bytes of a channel that stay in memory.
const AT_REST: usize = 256 << 10;

/// Waits until the channels of this process have no more memory than at rest.
pub(crate) fn await_rest() {
    deadline::until("the channel is small", || resident() <= AT_REST);
}

/// Returns the bytes of channels that are in memory. Pages that a program returns to the kernel vanish here, too.
fn resident() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
    let channels = maps
        .split("VmFlags:")
        .filter(|map| map.contains("ferroce-channel"));
    let kib = channels.map(|map| {
        let line = map.lines().find_map(|line| line.strip_prefix("Rss:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.expect("a size").parse::<usize>().expect("a number")
    });
    kib.sum::<usize>() << 10
}

/// Returns the number of unix sockets of this process. Each UDP source port has a socket, too,
/// which stays open for later queue pairs.
fn unix_sockets() -> usize {
    let all = std::fs::read_to_string("/proc/self/net/unix").expect("procfs");
    let inodes: Vec<&str> = all
        .lines()
        .filter_map(|line| line.split_whitespace().nth(6))
        .collect();
    let fds = std::fs::read_dir("/proc/self/fd").expect("procfs");
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let is_unix = |target: &std::path::PathBuf| {
        let target = target.to_string_lossy();
        let inode = target
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    };
    targets.filter(is_unix).count()
}

/// Writes to the peer and reads back.
fn transfer(ours: &Endpoint, theirs: &mut Puppet, seed: u32) {
    ours.put(0, &pattern(seed, MESSAGE));
    ours.write(1, 0, MESSAGE);
    ours.succeed(1);
    theirs.expect(&format!("check {seed} 0 {MESSAGE}"), "right");
    theirs.expect(&format!("put {} 0 {MESSAGE}", seed + 1), "done");
    ours.read(2, 0, MESSAGE);
    ours.succeed(1);
    assert_eq!(ours.get(0, MESSAGE), pattern(seed + 1, MESSAGE));
}

#[test]
fn connected_programs_use_memory() {
    on_loopback("local::connected_programs_use_memory", |_ferroced| {
        for (kind, gid_index) in [(QpType::Rc, V4), (QpType::Rc, V6), (QpType::Uc, V4)] {
            let (before, sent) = (counter("local_rcvd_bytes"), counter("local_sent_bytes"));
            let (ours, mut theirs) = pair(kind, gid_index);
            assert_eq!(ours.qp.sends_in_memory(), is_chosen());
            theirs.expect("in-memory", &is_chosen().to_string());
            if kind == QpType::Rc {
                transfer(&ours, &mut theirs, 1);
            } else {
                ours.write(1, 0, MESSAGE);
                ours.succeed(1);
                // A UC message completes when it is sent: its receiver must live until then.
                deadline::until("the message", || {
                    !is_chosen() || counter("local_rcvd_bytes") - before > MESSAGE.into()
                });
            }
            drop(theirs);
            drop(ours);
            deadline::until("the counters of both programs", || {
                let moved = counter("local_rcvd_bytes") - before;
                let all = counter("local_sent_bytes") - sent;
                match is_chosen() {
                    true => moved > MESSAGE.into() && moved == all,
                    false => moved == 0 && all == 0,
                }
            });
        }
    });
}

#[test]
fn link_option_chooses_udp_for_the_next_connection() {
    let name = "local::link_option_chooses_udp_for_the_next_connection";
    on_loopback(name, |_ferroced| {
        let (first, mut to_first) = pair(QpType::Rc, V4);
        set_local(false);
        let (second, mut to_second) = pair(QpType::Rc, V4);
        assert!(!second.qp.sends_in_memory());
        to_second.expect("in-memory", "false");
        transfer(&second, &mut to_second, 3);
        // A connection keeps its wire.
        assert_eq!(first.qp.sends_in_memory(), is_chosen());
        transfer(&first, &mut to_first, 5);
        set_local(true);
        let (third, mut to_third) = pair(QpType::Rc, V4);
        assert_eq!(third.qp.sends_in_memory(), is_chosen());
        transfer(&third, &mut to_third, 7);
    });
}

#[test]
fn queue_pairs_of_one_process_use_memory() {
    on_loopback(
        "local::queue_pairs_of_one_process_use_memory",
        |_ferroced| {
            // Several queue pairs of one device, on one or several shards, and another device.
            let mut one = Endpoint::open(QpType::Rc, V4);
            let options = || Options::new(QpType::Rc, V4);
            let ends = (0..3).map(|_| {
                ferroce_endpoint::Endpoint::on(&one.device, &one.pd, options())
                    .expect("an endpoint")
            });
            let mut others: Vec<_> = ends.collect();
            others.push(ferroce_endpoint::Endpoint::open(LINK, options()).expect("a device"));
            for other in &mut others {
                let mut end = ferroce_endpoint::Endpoint::on(&one.device, &one.pd, options())
                    .expect("an endpoint");
                other
                    .connect(&end.introduction().expect("a GID"))
                    .expect("connected");
                end.connect(&other.introduction().expect("a GID"))
                    .expect("connected");
                assert_eq!(end.qp.sends_in_memory(), is_chosen());
                assert_eq!(other.qp.sends_in_memory(), is_chosen());
                end.write(1, 0, MESSAGE).expect("room");
                end.succeed(1).expect("success");
            }
            let introduction = one.introduction();
            one.connect(&introduction);
            assert_eq!(one.qp.sends_in_memory(), is_chosen(), "to itself");
            one.write(1, 0, 100);
            one.succeed(1);
        },
    );
}

/// Peers that are killed at any instruction leave nothing behind, and the next program with
/// their slot gets a channel of its own.
#[test]
fn killed_peers_leave_no_channel_and_no_descriptor() {
    let name = "local::killed_peers_leave_no_channel_and_no_descriptor";
    on_loopback(name, |_ferroced| {
        let ours = Endpoint::open(QpType::Rc, V4);
        let options = || Options::new(QpType::Rc, V4);
        let before = unix_sockets();
        for round in 0..20u64 {
            let mut end = ferroce_endpoint::Endpoint::on(&ours.device, &ours.pd, options())
                .expect("an endpoint");
            let mut theirs = Puppet::start(QpType::Rc, V4);
            theirs.connect(&end.introduction().expect("a GID"));
            end.connect(&theirs.introduction).expect("connected");
            assert_eq!(end.qp.sends_in_memory(), is_chosen(), "round {round}");
            // Both ends send when the signal arrives: at another place in each round.
            theirs.actor.say("write 1000000 65536");
            for id in 0..1 + round % 8 {
                end.write(id, 0, MESSAGE).expect("room");
            }
            let wanted = 1 + round as usize % 4;
            end.completions(wanted.min(1 + round as usize % 8))
                .expect("some");
            theirs.actor.kill();
            drop(end);
        }
        deadline::until("the channels of dead programs are gone", || {
            channels() == 0 && unix_sockets() == before
        });
    });
}

#[test]
fn dead_peer_ends_the_connection() {
    on_loopback("local::dead_peer_ends_the_connection", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        ours.write(1, 0, MESSAGE);
        ours.succeed(1);
        theirs.actor.kill();
        for id in 0..8 {
            ours.write(id, 0, MESSAGE);
        }
        assert_eq!(ours.completions(8)[0].status, WcStatus::RetryExceeded);
    });
}

/// A program that is stopped, with a full ring, must not hold up transfers to others.
#[test]
fn stopped_peer_does_not_hold_up_others() {
    let name = "local::stopped_peer_does_not_hold_up_others";
    on_loopback(name, |_ferroced| {
        let ours = Endpoint::open(QpType::Rc, V4);
        let options = || Options::new(QpType::Rc, V4);
        let connected = |puppet: &mut Puppet| {
            let mut end = ferroce_endpoint::Endpoint::on(&ours.device, &ours.pd, options())
                .expect("an endpoint");
            puppet.connect(&end.introduction().expect("a GID"));
            end.connect(&puppet.introduction).expect("connected");
            end
        };
        let (mut stopped, mut running) =
            (Puppet::start(QpType::Rc, V4), Puppet::start(QpType::Rc, V4));
        let good = connected(&mut running);
        // Several queue pairs with the same peer: together they fill its ring.
        let mut ends = vec![connected(&mut stopped)];
        for _ in 0..4 {
            let mut end = ferroce_endpoint::Endpoint::on(&ours.device, &ours.pd, options())
                .expect("an endpoint");
            end.connect(&stopped.introduction).expect("connected");
            ends.push(end);
        }
        stopped.actor.signal(Signal::STOP);
        for end in &ends {
            for id in 0..8 {
                end.write(id, 0, MESSAGE).expect("room");
            }
        }
        for _ in 0..20 {
            good.write(1, 0, MESSAGE).expect("room");
            good.succeed(1).expect("success");
        }
        stopped.actor.signal(Signal::CONT);
        for end in &ends {
            // The others have no queue pair at the other end.
            end.completions(8).expect("all complete, with some status");
        }
    });
}

#[test]
fn channels_survive_ferroced_and_its_successor_makes_new_ones() {
    let name = "local::channels_survive_ferroced_and_its_successor_makes_new_ones";
    on_loopback(name, |mut ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        ferroced.kill();
        transfer(&ours, &mut theirs, 1);
        assert_eq!(ours.qp.sends_in_memory(), is_chosen());
        let _next = Ferroced::start();
        transfer(&ours, &mut theirs, 3);
        let (new, mut peer) = pair(QpType::Rc, V4);
        assert_eq!(new.qp.sends_in_memory(), is_chosen());
        transfer(&new, &mut peer, 5);
        transfer(&ours, &mut theirs, 7);
    });
}

#[test]
fn memory_of_bursts_returns_to_the_kernel() {
    let name = "local::memory_of_bursts_returns_to_the_kernel";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        for round in 0..3 {
            ours.put(0, &pattern(round, MESSAGE));
            for id in 0..8 {
                ours.write(id, 0, MESSAGE);
            }
            ours.succeed(8);
            theirs.expect(&format!("check {round} 0 {MESSAGE}"), "right");
            theirs.expect(&format!("write 8 {MESSAGE}"), "done");
            for id in 0..10_000 {
                ours.write(id, 0, 64);
                ours.succeed(1);
            }
            theirs.expect("write 10000 64", "done");
            await_rest();
        }
        transfer(&ours, &mut theirs, 1);
    });
}

/// A thread of the peer sleeps until a completion comes, and its progress thread has nothing to do.
#[test]
fn memory_of_a_program_that_waits_returns_to_the_kernel() {
    let name = "local::memory_of_a_program_that_waits_returns_to_the_kernel";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        for _ in 0..2 {
            theirs.expect("receive 7 0 100", "done");
            theirs.expect(&format!("write 8 {MESSAGE}"), "done");
            theirs.expect("await", "asleep");
            await_rest();
            ours.post(1, SendOp::Send { imm: None }, 0, 100);
            ours.succeed(1);
            assert_eq!(theirs.actor.hear(), "Success");
        }
    });
}

/// This thread sleeps on the channel and receives, and so the progress thread has nothing to do.
#[test]
fn memory_of_a_program_that_waits_for_an_event_returns_to_the_kernel() {
    let name = "local::memory_of_a_program_that_waits_for_an_event_returns_to_the_kernel";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        for _ in 0..2 {
            ours.receive(7, 0, 100);
            for id in 0..8 {
                ours.write(id, 0, MESSAGE);
            }
            ours.succeed(8);
            ours.cq.arm(Arm::Any);
            theirs.actor.say("small");
            theirs.actor.say("send 100");
            ours.channel.take().expect("a record");
            ours.succeed(1);
            assert_eq!(theirs.actor.hear(), "done");
            assert_eq!(theirs.actor.hear(), "done");
        }
    });
}

/// Without ferroced there is no channel: the queue pair uses UDP.
#[test]
fn connection_without_ferroced_uses_udp() {
    on_loopback(
        "local::connection_without_ferroced_uses_udp",
        |mut ferroced| {
            let mut ours = Endpoint::open(QpType::Rc, V4);
            let mut theirs = Puppet::start(QpType::Rc, V4);
            ferroced.kill();
            theirs.connect(&ours.introduction());
            ours.connect(&theirs.introduction);
            assert!(!ours.qp.sends_in_memory());
            transfer(&ours, &mut theirs, 1);
        },
    );
}
