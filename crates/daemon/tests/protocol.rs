//! Invalid input on the control socket affects only its sender.

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use common::holder::Holder;
use common::{Ferroced, add, connect, dir, send, subscribe};
use ferroce_control::protocol::{MAX_REQUEST, encode, encode_numbered};
use ferroce_control::{
    Error, PROTOCOL, Reply, Request, attach, find_daemon, packet, protocol, unix,
};
use ferroce_testnet::{deadline, isolated};
use rustix::net::{RecvFlags, SendFlags};

/// More connections than may exist without a Hello.
const CROWD: usize = 200;

/// Opens a connection without a Hello.
fn bare_connection() -> OwnedFd {
    unix::connect(&dir().socket()).expect("connected")
}

fn hello() -> Vec<u8> {
    encode(&Request::Hello {
        protocol: PROTOCOL,
        program: "bare_connection".into(),
    })
}

fn say(socket: &OwnedFd, bytes: &[u8]) {
    packet::send(socket, bytes, &[], SendFlags::empty()).expect("sent");
}

/// Receives a packet; `None` if the other end has closed.
fn hear(socket: &OwnedFd) -> Option<Reply> {
    hear_numbered(socket).map(|(_, reply)| reply)
}

/// The next packet with the number of its request; None if the other end has closed.
fn hear_numbered(socket: &OwnedFd) -> Option<(Option<u64>, Reply)> {
    deadline::readable(socket, "an answer, or the end");
    let mut buffer = vec![0; 1 << 18];
    let packet = packet::receive(socket, &mut buffer, RecvFlags::empty()).ok()?;
    match packet.len {
        0 => None,
        length => Some(protocol::decode_numbered(&buffer[..length]).expect("a reply")),
    }
}

#[test]
fn garbage_closes_only_its_connection() {
    isolated("garbage_closes_only_its_connection", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut user = attach("rxe0", 1).unwrap();
        let long = Request::Attach {
            attachment: 1,
            link: "x".repeat(MAX_REQUEST),
            shards: 1,
        };
        let whole = Request::Attach {
            attachment: 1,
            link: "rxe0".into(),
            shards: 1,
        };
        let whole = encode_numbered(Some(1), &whole);
        let garbage: Vec<(&str, Vec<u8>)> = vec![
            ("noise", vec![0xff, 0, 0x17]),
            ("zeroes", vec![0; 100]),
            ("too long", encode_numbered(Some(1), &long)),
            ("cut off", whole[..whole.len() - 3].into()),
            ("two in one", [whole.clone(), whole].concat()),
            ("unknown", br#"[1,{"format_disk":{"sure":true}}]"#.into()),
            (
                "missing field",
                br#"[1,{"attach":{"attachment":1,"link":"rxe0"}}]"#.into(),
            ),
            (
                "wrong type",
                br#"[1,{"attach":{"attachment":1,"link":"rxe0","shards":-1}}]"#.into(),
            ),
            ("nonsense", br#"[1,"links please"]"#.into()),
            ("no number", br#""links""#.into()),
            ("negative number", br#"[-1,"links"]"#.into()),
            ("deep", [vec![b'['; 60_000], vec![b']'; 60_000]].concat()),
            ("second hello", hello()),
        ];
        for (what, bytes) in garbage {
            let socket = bare_connection();
            say(&socket, &hello());
            assert!(
                matches!(hear(&socket), Some(Reply::Welcome { .. })),
                "{what}"
            );
            say(&socket, &bytes);
            assert_eq!(hear(&socket), None, "{what}: the connection is closed");
            assert_eq!(connect().links().unwrap().len(), 1, "{what}: others go on");
        }
        assert!(
            user.connection.try_event().unwrap().is_none(),
            "and so does the user"
        );
        send(user.slots[0].slot, 1, "127.0.0.1");
        let (socket, _) = user.slots[0].sockets.as_ref().expect("UDP");
        deadline::readable(socket, "its packet");
    });
}

#[test]
fn request_before_hello_is_refused() {
    isolated("request_before_hello_is_refused", || {
        let _ferroced = Ferroced::start();
        let socket = bare_connection();
        say(&socket, &encode_numbered(Some(1), &Request::Links));
        assert_eq!(hear(&socket), None);
    });
}

#[test]
fn other_versions_receive_the_version() {
    isolated("other_versions_receive_the_version", || {
        let _ferroced = Ferroced::start();
        let socket = bare_connection();
        // The Hello of a later version may have more fields.
        let later = PROTOCOL + 1;
        let hello = format!(r#"{{"hello":{{"protocol":{later},"program":"new","colour":"red"}}}}"#);
        say(&socket, hello.as_bytes());
        let Some(Reply::Welcome { protocol, .. }) = hear(&socket) else {
            panic!("no welcome");
        };
        assert_eq!(protocol, PROTOCOL);
        assert_eq!(
            hear(&socket),
            None,
            "and then there is nothing to talk about"
        );
    });
}

/// The last version whose programs drop datagrams that reach them through shared memory.
const WITHOUT_DATAGRAMS: u32 = 11;

#[test]
fn program_that_drops_datagrams_in_memory_is_refused() {
    let name = "program_that_drops_datagrams_in_memory_is_refused";
    isolated(name, || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let socket = bare_connection();
        let hello = Request::Hello {
            protocol: WITHOUT_DATAGRAMS,
            program: "old".into(),
        };
        say(&socket, &encode(&hello));
        let Some(Reply::Welcome { protocol, .. }) = hear(&socket) else {
            panic!("no welcome");
        };
        assert!(
            protocol > WITHOUT_DATAGRAMS,
            "the program reports both versions"
        );
        assert_eq!(hear(&socket), None, "it gets no slot, and so no channel");
        let error = Error::Version {
            theirs: WITHOUT_DATAGRAMS,
        };
        let text = error.to_string();
        let both = [WITHOUT_DATAGRAMS, PROTOCOL].map(|number| format!("version {number}"));
        assert!(both.iter().all(|name| text.contains(name)), "{text}");
    });
}

/// An Attach waits up to three seconds after a restart. Other requests on the connection do
/// not wait with it.
#[test]
fn requests_are_answered_while_an_attach_waits() {
    isolated("requests_are_answered_while_an_attach_waits", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let holder = Holder::start("rxe0", 1);
        ferroced.kill();
        let pid = rustix::process::Pid::from_raw(holder.actor.pid().cast_signed());
        let pid = pid.expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        let _ferroced = Ferroced::start();
        let socket = bare_connection();
        say(&socket, &hello());
        assert!(matches!(hear(&socket), Some(Reply::Welcome { .. })));
        let attach = Request::Attach {
            attachment: 1,
            link: "rxe0".into(),
            shards: 1,
        };
        say(&socket, &encode_numbered(Some(7), &attach));
        say(&socket, &encode_numbered(Some(8), &Request::Links));
        say(&socket, &encode_numbered(Some(9), &attach));
        let next = || hear_numbered(&socket).expect("an answer");
        assert!(matches!(next(), (Some(8), Reply::Link(_))));
        assert!(matches!(next(), (Some(8), Reply::Done)));
        let errno = |errno: i32| move |reply: &Reply| matches!(reply, Reply::Error { errno: e, .. } if *e == errno);
        let (number, reply) = next();
        assert!(
            number == Some(9) && errno(libc::EINVAL)(&reply),
            "{reply:?}"
        );
        let (number, reply) = next();
        assert!(
            number == Some(7) && errno(libc::EAGAIN)(&reply),
            "{reply:?}"
        );
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("goes on");
    });
}

/// All devices of a process share its connection.
#[test]
fn connection_has_several_attachments() {
    isolated("connection_has_several_attachments", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut connection = connect();
        let attach = |attachment| Request::Attach {
            attachment,
            link: "rxe0".into(),
            shards: 2,
        };
        for (attachment, first) in [(7, 1), (3, 3)] {
            let reply = connection.request(&attach(attachment)).unwrap().0;
            let Reply::Attached {
                attachment: answered,
                slots,
                ..
            } = reply
            else {
                panic!("{reply:?}");
            };
            assert_eq!((answered, slots[0].slot), (attachment, first));
        }
        let errno = |result: Result<(), Error>| result.unwrap_err().errno();
        let again = connection.request(&attach(3)).map(drop);
        assert_eq!(errno(again), libc::EINVAL, "the number is in use");
        // The owners by their slots, as a client of `rdma stat` sees them.
        let slots = || {
            let counters = connect().counters(None, true).unwrap().into_iter();
            let slots = counters.filter_map(|counted| counted.process);
            let mut slots: Vec<_> = slots.map(|process| process.slots).collect();
            slots.sort();
            slots
        };
        assert_eq!(slots(), [[1, 2], [3, 4]]);
        let detach = |attachment| Request::Detach { attachment };
        connection.perform(&detach(7)).unwrap();
        assert_eq!(slots(), [[3, 4]]);
        let unknown = connection.perform(&detach(7));
        assert_eq!(errno(unknown), libc::EINVAL, "it was given back");
        // Another connection of the same process has attachments of its own.
        let other = connect().perform(&detach(3));
        assert_eq!(errno(other), libc::EINVAL);
        connection.request(&attach(7)).unwrap();
        drop(connection);
        deadline::until("all slots are free", || slots().is_empty());
    });
}

/// A program that gives up an Attach does not get the slots later.
#[test]
fn detach_refuses_an_attach_that_waits() {
    isolated("detach_refuses_an_attach_that_waits", || {
        let mut ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let holder = Holder::start("rxe0", 1);
        ferroced.kill();
        holder.actor.signal(rustix::process::Signal::STOP);
        let _ferroced = Ferroced::start();
        let socket = bare_connection();
        say(&socket, &hello());
        assert!(matches!(hear(&socket), Some(Reply::Welcome { .. })));
        let attach = Request::Attach {
            attachment: 1,
            link: "rxe0".into(),
            shards: 1,
        };
        say(&socket, &encode_numbered(Some(7), &attach));
        let detach = Request::Detach { attachment: 1 };
        say(&socket, &encode_numbered(Some(8), &detach));
        let refused = hear_numbered(&socket).expect("an answer");
        assert!(
            matches!(&refused, (Some(7), Reply::Error { errno, .. }) if *errno == libc::ECANCELED),
            "{refused:?}"
        );
        assert_eq!(hear_numbered(&socket), Some((Some(8), Reply::Done)));
        holder.actor.signal(rustix::process::Signal::CONT);
    });
}

/// A program that sends garbage loses its connection and keeps its slots, which it may still
/// use.
#[test]
fn slots_stay_with_a_running_process() {
    isolated("slots_stay_with_a_running_process", || {
        let _ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let mut user = attach("rxe0", 2).unwrap();
        packet::send(&user.connection, b"nonsense", &[], SendFlags::empty()).unwrap();
        deadline::readable(user.connection.as_fd(), "the end of the connection");
        assert!(user.connection.try_event().is_err());
        assert_eq!(
            attach("rxe0", 1).unwrap().slots[0].slot,
            3,
            "1 and 2 are taken"
        );
        let (connection, link) =
            ferroce_control::resume(dir().path(), "rxe0", &[1, 2], &user.descriptors).unwrap();
        assert_eq!(link.unwrap().name, "rxe0");
        user.connection = connection;
        drop(user);
        deadline::until("1 and 2 are free", || {
            attach("rxe0", 3)
                .unwrap()
                .slots
                .iter()
                .any(|slot| slot.slot == 1)
        });
    });
}

/// The end of the process counts, even if a child still has the connection.
#[test]
fn slots_are_released_although_a_child_holds_the_connection() {
    isolated(
        "slots_are_released_although_a_child_holds_the_connection",
        || {
            let _ferroced = Ferroced::start();
            add("rxe0", "lo").unwrap();
            let mut user = Holder::start("rxe0", 1);
            // This process duplicates the connection with pidfd_getfd, as a child would hold it.
            let pid = rustix::process::Pid::from_raw(user.actor.pid().cast_signed()).unwrap();
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
            let pidfd = pidfd.unwrap();
            let mut kept = Vec::new();
            for fd in 3..30 {
                let flags = rustix::process::PidfdGetfdFlags::empty();
                kept.extend(rustix::process::pidfd_getfd(&pidfd, fd, flags).ok());
            }
            assert!(kept.len() > 4, "the connection is among them");
            user.actor.kill();
            deadline::until("slot 1 is free", || {
                attach("rxe0", 1).unwrap().slots[0].slot == 1
            });
        },
    );
}

#[test]
fn silent_connections_do_not_exclude_others() {
    isolated("silent_connections_do_not_exclude_others", || {
        let ferroced = Ferroced::start();
        let strangers: Vec<OwnedFd> = (0..300).map(|_| bare_connection()).collect();
        connect().links().expect("served");
        assert!(ferroced.descriptors() < 200, "{}", ferroced.descriptors());
        drop(strangers);
    });
}

/// Many programs connect before ferroced reads any Hello.
#[test]
fn many_connections_with_hello_are_served() {
    isolated("many_connections_with_hello_are_served", || {
        let ferroced = Ferroced::start();
        let pid = i32::try_from(ferroced.pid()).ok();
        let pid = pid
            .and_then(rustix::process::Pid::from_raw)
            .expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
        let crowd: Vec<OwnedFd> = (0..CROWD).map(|_| bare_connection()).collect();
        for one in &crowd {
            say(one, &hello());
        }
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("goes on");
        for one in &crowd {
            assert!(matches!(hear(one), Some(Reply::Welcome { .. })));
        }
    });
}

/// With few descriptors left, connections with a Hello are preferred.
#[test]
fn silent_connections_do_not_use_up_descriptors() {
    isolated("silent_connections_do_not_use_up_descriptors", || {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let pid = Pid::from_raw(ferroced.pid().cast_signed());
        let few = Some(ferroced.descriptors() as u64 + 8);
        let limit = Rlimit {
            current: few,
            maximum: few,
        };
        prlimit(pid, Resource::Nofile, limit).unwrap();
        let strangers: Vec<OwnedFd> = (0..40).map(|_| bare_connection()).collect();
        assert_eq!(connect().links().unwrap().len(), 1);
        let friends: Vec<_> = std::iter::from_fn(|| find_daemon().ok()).take(20).collect();
        assert!(friends.len() < 20, "some were refused");
        assert!(friends.len() > 3, "and some were not");
        let error = attach("rxe0", 1).err();
        drop(friends);
        assert!(error.is_some(), "there was no room for slots");
        // ferroced has not yet noticed the closed connections.
        let mut full = None;
        deadline::until("a connection", || {
            full = attach("rxe0", 60).err();
            !matches!(full, Some(Error::Closed))
        });
        let full = full.expect("not all connections can have a descriptor");
        assert!(full.to_string().contains("ulimit -n"), "{full}");
        assert_eq!(connect().links().unwrap().len(), 1);
        drop(strangers);
    });
}

#[test]
fn unexpected_descriptors_are_closed() {
    isolated("unexpected_descriptors_are_closed", || {
        let ferroced = Ferroced::start();
        let mut connection = connect();
        connection.links().unwrap();
        let before = ferroced.descriptors();
        let null = std::fs::File::open("/dev/null").unwrap();
        let many = vec![null.as_fd(); 200];
        for _ in 0..20 {
            let links = connection.request_with(&Request::Links, &many).unwrap();
            assert!(matches!(links.0, Reply::Done));
        }
        assert_eq!(ferroced.descriptors(), before);
        let error = connection.request_with(
            &Request::Resume {
                attachment: 1,
                link: "rxe0".into(),
                kind: ferroce_control::SlotKind::Udp,
                slots: vec![1],
            },
            &many,
        );
        assert_eq!(error.unwrap_err().errno(), libc::EINVAL);
        assert_eq!(ferroced.descriptors(), before);
    });
}

/// A subscriber that does not read is closed, and does not delay others.
#[test]
fn client_that_does_not_read_is_closed() {
    isolated("client_that_does_not_read_is_closed", || {
        let _ferroced = Ferroced::start();
        let mut deaf = subscribe();
        add("rxe0", "lo").unwrap();
        let mut other = connect();
        for turn in 0..2000 {
            let set = Request::LinkSet {
                name: "rxe0".into(),
                rename: None,
                mtu: None,
                crc: Some(turn % 2 == 1),
                lids: None,
                patience: None,
                speed: None,
                local: None,
                strict: None,
                profile: None,
            };
            other.perform(&set).unwrap();
        }
        assert!(connect().links().unwrap()[0].crc);
        let mut heard = 0;
        while deaf.try_event().is_ok_and(|event| event.is_some()) {
            heard += 1;
        }
        assert!(heard > 10, "{heard} events had room");
        assert!(deaf.try_event().is_err(), "then the connection is closed");
    });
}

#[test]
fn idle_ferroced_does_not_wake_up() {
    isolated("idle_ferroced_does_not_wake_up", || {
        let ferroced = Ferroced::start();
        add("rxe0", "lo").unwrap();
        let user = attach("rxe0", 1).unwrap();
        // Until ferroced has finished its work for this.
        deadline::until("it sleeps", || {
            let before = ferroced.sleeps();
            !deadline::readable_within(user.connection.as_fd(), Duration::from_millis(50))
                && ferroced.sleeps() == before
        });
        let before = ferroced.sleeps();
        // ferroced does not handle packets of programs.
        for _ in 0..4 {
            send(1, 0, "127.0.0.1");
        }
        let quiet = Duration::from_millis(1500);
        assert!(!deadline::readable_within(user.connection.as_fd(), quiet));
        assert_eq!(ferroced.sleeps(), before);
    });
}
