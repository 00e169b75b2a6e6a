//! Completion channels and asynchronous events, and descriptors to sleep on.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ferroce_device::transport::{
    Arm, AttrMask, QpAttr, QpCap, QpEvent, QpInit, QpState, QpType, SendOp, WcOpcode, WcStatus,
};
use ferroce_device::{AsyncEvent, Device};
use ferroce_testnet::{deadline, isolated, netdev, signals};
use rustix::event::{Timespec, epoll};
use rustix::fs::{OFlags, fcntl_setfl};

use crate::support::ferroced::add_link;
use crate::support::{Endpoint, Ferroced, LINK, V4, V6, on_loopback, pair, pattern};

/// Returns an epoll instance that watches one descriptor.
fn watch(fd: impl std::os::fd::AsFd) -> OwnedFd {
    let poller = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let data = epoll::EventData::new_u64(7);
    epoll::add(&poller, fd, data, epoll::EventFlags::IN).expect("watched");
    poller
}

fn wakes(poller: &OwnedFd) -> bool {
    let timeout = Timespec {
        tv_sec: deadline::PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut events = Vec::with_capacity(4);
    let spare = rustix::buffer::spare_capacity(&mut events);
    epoll::wait(poller, spare, Some(&timeout)).expect("epoll");
    events.len() == 1
}

/// Neither end polls: the progress threads deliver messages in both directions.
#[test]
fn progress_threads_deliver_without_polls() {
    on_loopback(
        "events::progress_threads_deliver_without_polls",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            let poller = watch(ours.channel.fd());
            for round in 0..20 {
                theirs.expect(&format!("receive {round} 0 4096"), "done");
                assert_eq!(theirs.actor.ask("await"), "asleep");
                ours.put(0, &pattern(round, 4096));
                ours.cq.arm(Arm::Any);
                ours.post(u64::from(round), SendOp::Send { imm: None }, 0, 4096);
                assert!(wakes(&poller), "epoll reports the channel");
                assert_eq!(ours.channel.take().unwrap(), u64::from(ours.cq.id()));
                let wc = ours.cq.queue().pop().expect("announced");
                assert_eq!(wc.status, WcStatus::Success);
                assert_eq!(theirs.actor.hear(), "Success");
                theirs.expect(&format!("check {round} 0 4096"), "right");
            }
        },
    );
}

/// The second of two posts waits for the response to the first. The thread that waits for an
/// event receives that response, which makes no event.
#[test]
fn waiting_posts_are_sent_while_another_thread_waits_for_an_event() {
    let name = "events::waiting_posts_are_sent_while_another_thread_waits_for_an_event";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let channel = std::sync::Arc::clone(&ours.channel);
        #[allow(clippy::disallowed_methods, reason = "another thread waits")]
        let waiter = std::thread::spawn(move || channel.take());
        for _ in 0..20 {
            theirs.expect("receive 1 0 64", "done");
            theirs.expect("receive 2 64 64", "done");
            ours.post(1, SendOp::Send { imm: None }, 0, 64);
            ours.post(2, SendOp::Send { imm: None }, 64, 64);
            theirs.expect("complete 2", "Success 64, Success 64");
        }
        let take = || {
            ours.cq
                .queue()
                .poll(64, |wc| assert_eq!(wc.status, WcStatus::Success))
        };
        let mut taken = 0;
        deadline::until("all completions", || {
            taken += take();
            taken == 40
        });
        theirs.expect("receive 3 0 64", "done");
        ours.cq.arm(Arm::Any);
        ours.post(3, SendOp::Send { imm: None }, 0, 64);
        assert_eq!(waiter.join().unwrap().unwrap(), u64::from(ours.cq.id()));
    });
}

/// As with `read` on the kernel's event file.
#[test]
fn signal_interrupts_the_wait_for_a_completion_unless_its_handler_restarts_calls() {
    let name =
        "events::signal_interrupts_the_wait_for_a_completion_unless_its_handler_restarts_calls";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let mut wait = |flags| {
            theirs.expect("receive 1 0 64", "done");
            ours.cq.arm(Arm::Any);
            let channel = std::sync::Arc::clone(&ours.channel);
            let taken = signals::wait_with_signals(
                flags,
                move || channel.take(),
                || ours.post(1, SendOp::Send { imm: None }, 0, 64),
            );
            let cookie = match taken {
                Ok(cookie) => cookie,
                Err(error) => {
                    // The event comes all the same.
                    assert_eq!(ours.channel.take().unwrap(), u64::from(ours.cq.id()));
                    ours.cq.queue().pop().expect("announced");
                    return Err(error.kind());
                }
            };
            ours.cq.queue().pop().expect("announced");
            Ok(cookie)
        };
        let cookie = Ok(u64::from(ours.cq.id()));
        assert_eq!(wait(libc::SA_RESTART), cookie);
        assert_eq!(wait(0), Err(std::io::ErrorKind::Interrupted));
        assert_eq!(wait(libc::SA_RESTART), cookie);
    });
}

/// A received ACK that was deferred behind a message is processed even if the program does
/// not poll again.
#[test]
fn deferred_ack_is_processed_without_another_poll() {
    let name = "events::deferred_ack_is_processed_without_another_poll";
    on_loopback(name, |_ferroced| {
        let mut near = Endpoint::open(QpType::Rc, V4);
        let mut far = Endpoint::open(QpType::Rc, V4);
        near.connect(&far.introduction());
        far.connect(&near.introduction());
        // Without an ACK timer only the deferral's deadline causes a turn.
        for (state, mask) in [
            (QpState::Sqd, AttrMask::empty()),
            (QpState::Sqd, AttrMask::TIMEOUT),
            (QpState::Rts, AttrMask::empty()),
        ] {
            let attr = QpAttr {
                state,
                ..QpAttr::default()
            };
            let modified = near.qp.modify(&attr, mask | AttrMask::STATE, None);
            modified.expect("modified");
        }
        let send = SendOp::Send { imm: None };
        for _ in 0..50 {
            for end in [&near, &far] {
                end.receive(100, 0, 64);
            }
            near.post(1, send.clone(), 64, 8);
            assert_eq!(far.succeed(1)[0].wr_id, 100);
            // The ACK of the first message is usually merged with this one.
            far.post(2, send.clone(), 64, 8);
            let first = near.succeed(1)[0];
            if first.opcode == WcOpcode::Recv {
                // All deferred ACKs are sent with this.
                near.state();
                deadline::until("the completion", || near.cq.queue().pop().is_some());
            } else {
                assert_eq!(near.succeed(1)[0].opcode, WcOpcode::Recv);
            }
            assert_eq!(far.succeed(1)[0].wr_id, 2);
        }
    });
}

/// A program reads the channel without polling its descriptor first.
#[test]
fn blocking_read_of_a_channel_waits() {
    on_loopback("events::blocking_read_of_a_channel_waits", |_ferroced| {
        let (ours, _theirs) = pair(QpType::Rc, V6);
        ours.cq.set_cookie(0xc00_c1e5);
        for round in 0..20 {
            ours.cq.arm(Arm::Any);
            ours.read(round, 0, 100_000);
            assert_eq!(ours.channel.take().unwrap(), 0xc00_c1e5);
            assert_eq!(ours.cq.queue().pop().unwrap().status, WcStatus::Success);
        }
        // The completion queue is not armed: there is no record.
        ours.read(1, 0, 8);
        ours.succeed(1);
        assert!(!deadline::readable_within(
            ours.channel.fd(),
            std::time::Duration::ZERO
        ));
    });
}

/// An answer and the ACK in it make two events of one channel. The program takes one of them, and waits for the
/// other by epoll.
#[test]
fn second_event_of_a_packet_is_seen_by_epoll() {
    let name = "events::second_event_of_a_packet_is_seen_by_epoll";
    on_loopback(name, |_ferroced| {
        let mut near = Endpoint::open(QpType::Rc, V4);
        let mut far = Endpoint::open(QpType::Rc, V4);
        let channel = Arc::clone(&near.channel);
        let receives = near.device.create_cq(64, Some(Arc::clone(&channel)));
        let receives = receives.expect("a completion queue");
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(Arc::clone(&near.pd)),
            send_cq: Some(Arc::clone(near.cq.queue())),
            recv_cq: Some(Arc::clone(receives.queue())),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 16,
            },
            sq_sig_all: true,
        };
        let created = near.device.create_qp(&init, &[&near.cq, &receives]);
        near.qp = created.expect("a queue pair");
        near.connect(&far.introduction());
        far.connect(&near.introduction());
        let poller = watch(channel.fd());
        let send = SendOp::Send { imm: None };
        for _ in 0..5 {
            near.receive(100, 0, 64);
            far.receive(100, 0, 64);
            near.cq.arm(Arm::Any);
            receives.arm(Arm::Any);
            near.post(1, send.clone(), 64, 8);
            assert_eq!(far.succeed(1)[0].wr_id, 100);
            far.post(2, send.clone(), 64, 8);
            let first = channel.take().unwrap();
            assert!(wakes(&poller), "epoll reports the second event");
            let mut events = [first, channel.take().unwrap()];
            events.sort_unstable();
            let mut expected = [&near.cq, &receives].map(|cq| u64::from(cq.id()));
            expected.sort_unstable();
            assert_eq!(events, expected);
            for cq in [&near.cq, &receives] {
                let wc = cq.queue().pop().expect("announced");
                assert_eq!(wc.status, WcStatus::Success);
            }
            assert_eq!(far.succeed(1)[0].wr_id, 2);
        }
    });
}

/// A program can change the mode between two reads.
#[test]
fn channel_can_become_non_blocking_after_a_wait() {
    let name = "events::channel_can_become_non_blocking_after_a_wait";
    on_loopback(name, |_ferroced| {
        let (ours, _theirs) = pair(QpType::Rc, V4);
        let poller = watch(ours.channel.fd());
        for flags in [OFlags::empty(), OFlags::NONBLOCK, OFlags::empty()] {
            fcntl_setfl(ours.channel.fd(), flags).expect("set");
            if flags.contains(OFlags::NONBLOCK) {
                let error = ours.channel.take().expect_err("no event waits");
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
            }
            ours.cq.arm(Arm::Any);
            ours.read(1, 0, 64);
            if flags.contains(OFlags::NONBLOCK) {
                assert!(wakes(&poller), "the progress thread receives");
            }
            assert_eq!(ours.channel.take().unwrap(), u64::from(ours.cq.id()));
            assert_eq!(ours.cq.queue().pop().unwrap().status, WcStatus::Success);
        }
    });
}

#[test]
fn forbidden_access_is_an_event_at_the_responder() {
    on_loopback(
        "events::forbidden_access_is_an_event_at_the_responder",
        |_ferroced| {
            let (ours, mut theirs) = pair(QpType::Rc, V4);
            let (remote_addr, rkey) = ours.remote(0);
            let rkey = rkey ^ 1;
            ours.post(1, SendOp::Read { remote_addr, rkey }, 0, 8);
            assert_eq!(ours.status(), WcStatus::RemoteAccess);
            let (qpn, kind) = (theirs.introduction.qpn, QpEvent::AccessError);
            let event = AsyncEvent::Qp { qpn, kind };
            theirs.expect("event", &format!("{event:?}"));
            theirs.expect("state", "Err");
            assert_eq!(ours.state(), QpState::Err);
        },
    );
}

fn next_event(device: &Device) -> AsyncEvent {
    deadline::readable(device.event_fd(), "an asynchronous event");
    device.take_event().expect("an event")
}

/// Waits for an event and skips others.
fn await_event(device: &Device, wanted: &AsyncEvent) {
    while next_event(device) != *wanted {}
}

#[test]
fn changes_of_port_and_gids_are_events() {
    isolated("events::changes_of_port_and_gids_are_events", || {
        netdev::add_veth("near", "far");
        netdev::add_address("near", "10.0.0.1/24");
        netdev::set_up("near");
        netdev::set_up("far");
        let mut ferroced = Ferroced::start();
        add_link(LINK, "near");
        let device = Device::open(LINK).expect("a device");
        let known = |address: &str| {
            let address: std::net::IpAddr = address.parse().expect("an address");
            device.link().gids.iter().any(|gid| gid.address == address)
        };
        netdev::add_address("near", "10.0.0.2/24");
        deadline::until("the GID", || {
            await_event(&device, &AsyncEvent::GidChange);
            known("10.0.0.2")
        });
        netdev::set_down("far");
        await_event(&device, &AsyncEvent::PortError);
        netdev::set_up("far");
        await_event(&device, &AsyncEvent::PortActive);

        // The next ferroced reports changes that happened while none ran.
        ferroced.kill();
        netdev::add_address("near", "10.0.0.3/24");
        netdev::set_down("far");
        let _ferroced = Ferroced::start();
        await_event(&device, &AsyncEvent::PortError);
        assert!(known("10.0.0.3"));
        netdev::set_up("far");
        await_event(&device, &AsyncEvent::PortActive);
    });
}
