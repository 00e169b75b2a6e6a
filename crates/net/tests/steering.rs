//! Which socket gets a packet, and that it stays so.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::namespace::{As, isolated};
use common::packet::{packet, path};
use common::{receive, receive_rest};
use ferroce_net::{BindError, Parcel, Receiver, Sender, SlotSockets, create_slot};

fn create(slots: usize) -> Vec<SlotSockets> {
    (0..=u8::MAX)
        .take(slots)
        .map(|slot| create_slot(slot).unwrap_or_else(|e| panic!("slot {slot}: {e}")))
        .collect()
}

fn receivers(sockets: Vec<SlotSockets>) -> Vec<Receiver> {
    (0..=u8::MAX)
        .zip(sockets)
        .map(|(k, s)| Receiver::new(k, s))
        .collect()
}

/// Sends a packet to every slot over both families and expects each to get its own.
fn assert_steering(receivers: &mut [Receiver], mark: u8) {
    let mut sender = Sender::new();
    for address in ["127.0.0.1", "::1"] {
        let port = sender.bind(0xc123, address == "::1").expect("a port");
        let path = path(address, address, port);
        for slot in (0..receivers.len() as u32).rev() {
            let bytes = packet(&path.flow, 0, slot << 16 | 0x77, 64, mark);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
        }
        for (slot, receiver) in receivers.iter_mut().enumerate() {
            let got = receive(receiver, 1);
            assert_eq!(got.len(), 1, "slot {slot} over {address}");
            assert_eq!(usize::from(got[0].payload[5]), slot);
            assert_eq!(got[0].payload[11], mark, "slot {slot}: not an old one");
        }
    }
}

#[test]
fn every_slot_gets_its_packets() {
    isolated("every_slot_gets_its_packets", As::Admin, || {
        let mut receivers = receivers(create(5));
        assert_steering(&mut receivers, 1);
        for receiver in &mut receivers {
            assert_eq!(receive_rest(receiver), []);
            assert_eq!(receiver.stats(), Default::default());
        }
    });
}

#[test]
fn no_privilege_is_needed() {
    isolated("no_privilege_is_needed", As::Nobody, || {
        assert!(!common::namespace::is_root());
        assert_steering(&mut receivers(create(4)), 1);
    });
}

#[test]
fn all_256_slots_work_and_fit_into_a_parcel() {
    isolated(
        "all_256_slots_work_and_fit_into_a_parcel",
        As::Admin,
        || {
            raise_file_limit();
            let sockets = create(256);
            let parcel = Parcel::pack(&sockets).expect("packed");
            let before: Vec<_> = sockets.iter().map(|s| s.cookies().unwrap()).collect();
            drop(sockets);
            let sockets = parcel.contents().expect("unpacked");
            let after: Vec<_> = sockets.iter().map(|s| s.cookies().unwrap()).collect();
            assert_eq!(before, after, "the same sockets in the same order");
            assert_steering(&mut receivers(sockets), 1);
        },
    );
}

#[test]
fn a_packet_to_a_slot_that_does_not_exist_goes_no_further() {
    isolated(
        "a_packet_to_a_slot_that_does_not_exist_goes_no_further",
        As::Admin,
        || {
            let mut receivers = receivers(create(2));
            let mut sender = Sender::new();
            let port = sender.bind(0xc000, false).expect("a port");
            let path = path("127.0.0.1", "127.0.0.1", port);
            let bytes = packet(&path.flow, 0, 9 << 16, 64, 0);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
            // The kernel picks one of the two; that one tells the engine, which counts it.
            let got: Vec<_> = receivers.iter_mut().flat_map(receive_rest).collect();
            assert_eq!(got.len(), 1);
            assert!(receivers.iter().all(|r| r.stats().forwarded == 0));
        },
    );
}

#[test]
fn a_slot_out_of_order_is_refused() {
    isolated("a_slot_out_of_order_is_refused", As::Admin, || {
        let sockets = create(2);
        for (slot, text) in [(0, "slot 0"), (1, "slot 1"), (3, "slot 3")] {
            let error = create_slot(slot).expect_err("not the next one");
            assert!(
                matches!(error, BindError::WrongPlace { found: 2, .. }),
                "{error}"
            );
            let said = error.to_string();
            assert!(said.contains(text) && said.contains("ferroced"), "{said}");
        }
        // Nothing has been moved by the attempts.
        let mut sockets = sockets;
        sockets.push(create_slot(2).expect("the next one"));
        assert_steering(&mut receivers(sockets), 1);
    });
}

/// What the daemon relies on: descriptors in flight keep sockets alive and in
/// their places, though no process has them open.
#[test]
fn sockets_survive_in_a_parcel_alone() {
    isolated("sockets_survive_in_a_parcel_alone", As::Admin, || {
        let sockets = create(5);
        let slot_3 = sockets[3].try_clone().expect("cloned");
        let parcel = Parcel::pack(&sockets).expect("packed");
        drop(sockets);

        // Only slot 3 has an owner; it still gets what is for it, and nothing else.
        let mut receiver = Receiver::new(3, slot_3);
        let mut sender = Sender::new();
        let port = sender.bind(0xc000, false).expect("a port");
        let path = path("127.0.0.1", "127.0.0.1", port);
        for slot in 0..5 {
            let bytes = packet(&path.flow, 0, slot << 16, 64, 1);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
        }
        let got = receive_rest(&mut receiver);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].payload[5], 3);

        // The group still has five members, and the next one is slot 5.
        let next = create_slot(5).expect("slot 5");
        let mut sockets = parcel.contents().expect("unpacked");
        assert_eq!(sockets.len(), 5);
        sockets.push(next);
        let mut receivers = receivers(sockets);
        for (slot, receiver) in receivers.iter_mut().enumerate() {
            let waiting = receive_rest(receiver).len();
            assert_eq!(waiting, usize::from(slot != 3 && slot != 5), "slot {slot}");
        }
        assert_steering(&mut receivers, 2);

        // Looking took nothing out.
        drop(receivers);
        drop(receiver);
        let again = parcel.contents().expect("unpacked again");
        assert_eq!(again.len(), 5);
        assert_steering(&mut self::receivers(again), 3);
    });
}

/// A program that was handed its sockets and the parcel is all that is left of
/// the group, when the daemon has been killed.
#[test]
fn a_parcel_crosses_processes() {
    isolated("a_parcel_crosses_processes", As::Admin, || {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a socket pair");
        // The daemon to be killed: it dies with all its descriptors.
        // SAFETY: the child calls nothing that needs threads it does not have.
        match unsafe { libc::fork() } {
            0 => {
                let sockets = create(4);
                let parcel = Parcel::pack(&sockets).expect("packed");
                pass(&theirs, parcel.as_fd());
                // SAFETY: ends this process only.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            child => {
                assert!(child > 0);
                let parcel = Parcel::from(take(&ours));
                let mut status = 0;
                // SAFETY: `status` is ours to be written.
                unsafe { libc::waitpid(child, &mut status, 0) };
                assert!(libc::WIFSIGNALED(status), "killed");
                let mut sockets = parcel.contents().expect("unpacked");
                assert_eq!(sockets.len(), 4);
                sockets.push(create_slot(4).expect("the group goes on"));
                assert_steering(&mut receivers(sockets), 1);
            }
        }
    });
}

#[test]
fn too_many_parcels_are_an_error_that_says_so() {
    isolated(
        "too_many_parcels_are_an_error_that_says_so",
        As::Nobody,
        || {
            use rustix::process::{Resource, getrlimit, setrlimit};
            let sockets = create(4);
            let mut limit = getrlimit(Resource::Nofile);
            limit.current = Some(60);
            setrlimit(Resource::Nofile, limit).expect("lowered");
            let mut parcels = Vec::new();
            let error = loop {
                assert!(parcels.len() < 40, "there is a limit");
                match Parcel::pack(&sockets) {
                    Ok(parcel) => parcels.push(parcel),
                    Err(error) => break error,
                }
            };
            assert!(error.to_string().contains("ulimit -n"), "{error}");
            // Copies of a descriptor are not in flight.
            let copies: Vec<_> = (0..20)
                .map(|_| parcels[0].as_fd().try_clone_to_owned().expect("copied"))
                .collect();
            assert_eq!(
                Parcel::from(copies.into_iter().next().unwrap())
                    .contents()
                    .unwrap()
                    .len(),
                4
            );
        },
    );
}

#[test]
fn what_is_no_parcel_is_refused() {
    isolated("what_is_no_parcel_is_refused", As::Admin, || {
        use rustix::net::{AddressFamily, SocketType, socket};
        let sockets = create(1);
        let other = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
        let stranger = SlotSockets {
            v4: other,
            v6: sockets[0].v6.as_ref().map(|v6| v6.try_clone().unwrap()),
        };
        let error = Parcel::pack(&[stranger])
            .expect("packed")
            .contents()
            .expect_err("not on port 4791");
        assert!(error.to_string().contains("not a parcel"), "{error}");
        let (queue, feed) = std::os::unix::net::UnixDatagram::pair().expect("a pair");
        feed.send(b"something else").expect("sent");
        let error = Parcel::from(OwnedFd::from(queue)).contents();
        assert!(
            error
                .expect_err("junk")
                .to_string()
                .contains("not a parcel")
        );
        let file = std::fs::File::open("/proc/version").expect("a file");
        Parcel::from(OwnedFd::from(file))
            .contents()
            .expect_err("not even a socket");
        assert_eq!(Parcel::pack(&[]).unwrap().contents().unwrap().len(), 0);
    });
}

/// Why all this care: what happens when a socket in the middle is closed.
#[test]
fn closing_a_socket_moves_the_last_one_into_its_place() {
    isolated(
        "closing_a_socket_moves_the_last_one_into_its_place",
        As::Admin,
        || {
            let mut receivers = receivers(create(4));
            drop(receivers.remove(1));
            let mut sender = Sender::new();
            let port = sender.bind(0xc000, false).expect("a port");
            let path = path("127.0.0.1", "127.0.0.1", port);
            let bytes = packet(&path.flow, 0, 1 << 16, 64, 1);
            sender.send_run(&path, 64, &bytes, None).expect("sent");
            let counts: Vec<_> = receivers
                .iter_mut()
                .map(|r| receive_rest(r).len())
                .collect();
            assert_eq!(counts, [0, 0, 1], "slots 0, 2 and 3");
        },
    );
}

#[test]
fn a_parked_slot_keeps_its_place_and_nothing_else() {
    isolated(
        "a_parked_slot_keeps_its_place_and_nothing_else",
        As::Admin,
        || {
            let mut receivers = receivers(create(3));
            let mut sender = Sender::new();
            let port = sender.bind(0xc000, false).expect("a port");
            let path = path("127.0.0.1", "127.0.0.1", port);
            let send = |mark| {
                let bytes = packet(&path.flow, 0, 1 << 16, 64, mark);
                sender.send_run(&path, 64, &bytes, None).expect("sent");
            };
            send(1);
            let group = "239.1.2.3".parse().unwrap();
            receivers[1].join_multicast(group, 1).expect("joined");
            receivers[1].sockets().park().expect("parked");
            send(2);
            assert_eq!(receive_rest(&mut receivers[1]), []);
            let joined = std::fs::read_to_string("/proc/thread-self/net/igmp").unwrap();
            assert!(!joined.contains("030201EF"), "{joined}");
            receivers[1].sockets().unpark().expect("in use again");
            receivers[1].sockets().unpark().expect("twice is no harm");
            assert_eq!(receive_rest(&mut receivers[1]), []);
            assert_steering(&mut receivers, 3);
        },
    );
}

fn pass(socket: &OwnedFd, fd: std::os::fd::BorrowedFd<'_>) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [std::io::IoSlice::new(b"!")];
    sendmsg(socket, &bytes, &mut control, SendFlags::empty()).expect("passed");
}

fn take(socket: &OwnedFd) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [std::io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut bytes, &mut control, RecvFlags::empty()).expect("received");
    let taken = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    taken.expect("a descriptor")
}

fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("raised");
}
