//! Sockets through the Rust API, under a real ferroced.

#![allow(clippy::disallowed_methods)] // both ends of a connection run in threads

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use ferroce_rsocket::{
    AddressFamily, Datagram, Errno, PollFlags, RecvFlags, SendFlags, Socket, Stream, option, poll,
    socket,
};
use ferroce_testnet::{deadline, isolated};

#[path = "../../abi/tests/common/ferroced.rs"]
#[allow(dead_code)] // not all of its functions are needed here
mod ferroced;

fn on_loopback(name: &str, body: impl FnOnce()) {
    with_ferroced(name, |_ferroced| body());
}

fn with_ferroced(name: &str, body: impl FnOnce(ferroced::Ferroced)) {
    isolated(name, || {
        let ferroced = ferroced::Ferroced::start();
        ferroced::add_link("rxe0", "lo");
        body(ferroced);
    });
}

fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[test]
fn stream_echoes_until_it_is_shut_down() {
    on_loopback("stream_echoes_until_it_is_shut_down", || {
        let listener = Stream::new(AddressFamily::INET).unwrap();
        listener.bind(&any()).unwrap();
        listener.listen(1).unwrap();
        let addr = listener.local_addr();
        let message: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let stream = listener.accept().unwrap();
                let mut bytes = vec![0; 1 << 20];
                let received = stream.receive(&mut bytes, RecvFlags::WAITALL).unwrap();
                stream.send(&bytes[..received], SendFlags::empty()).unwrap();
                assert_eq!(stream.receive(&mut bytes, RecvFlags::empty()), Ok(0));
                // It stays open: the client would see a reset instead of its own shutdown.
                stream
            });
            let stream = Stream::new(AddressFamily::INET).unwrap();
            stream.connect(&addr).unwrap();
            assert_eq!(stream.peer_addr(), Some(addr));
            assert_eq!(stream.send(&message, SendFlags::empty()), Ok(1 << 20));
            let mut bytes = vec![0; 1 << 20];
            assert_eq!(stream.receive(&mut bytes, RecvFlags::WAITALL), Ok(1 << 20));
            assert_eq!(bytes, message);
            stream.shutdown(Shutdown::Write).unwrap();
            let sent = stream.send(b"x", SendFlags::empty());
            assert_eq!(sent, Err(Errno::PIPE));
            drop(server.join().unwrap());
        });
    });
}

/// Returns both ends of a connection. `prepare` sets options of the listener and the client.
fn pair(prepare: impl Fn(&Arc<Stream>)) -> (Arc<Stream>, Arc<Stream>) {
    let listener = Arc::new(Stream::new(AddressFamily::INET).unwrap());
    listener.bind(&any()).unwrap();
    prepare(&listener);
    listener.listen(1).unwrap();
    let client = Arc::new(Stream::new(AddressFamily::INET).unwrap());
    prepare(&client);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept().unwrap());
        client.connect(&listener.local_addr()).unwrap();
        (client.clone(), Arc::new(server.join().unwrap()))
    })
}

#[test]
fn dropped_stream_delivers_its_data_and_ends() {
    on_loopback("dropped_stream_delivers_its_data_and_ends", || {
        let (client, server) = pair(|_| ());
        let message: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            let (server, expected) = (&server, &message);
            scope.spawn(move || {
                let mut bytes = Vec::new();
                let mut reader = &**server;
                // It ends with the end of the stream, not with ECONNRESET.
                reader.read_to_end(&mut bytes).unwrap();
                assert!(bytes == *expected);
            });
            (&*client).write_all(&message).unwrap();
            (&*client).flush().unwrap();
            drop(client);
        });
    });
}

#[test]
fn keepalive_thread_handles_no_signals_of_the_program() {
    on_loopback("keepalive_thread_handles_no_signals_of_the_program", || {
        let (client, _server) = pair(|_| ());
        let on = 1_i32.to_ne_bytes();
        let set = client.set_option(libc::SOL_SOCKET, libc::SO_KEEPALIVE, &on);
        set.unwrap();
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let status = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok())
            .find(|status| status.starts_with("Name:\trsocket-alive\n"))
            .expect("the thread runs when the call returns");
        let blocked = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:\t"));
        let blocked = u64::from_str_radix(blocked.unwrap(), 16).unwrap();
        assert_ne!(blocked & 1 << (libc::SIGTERM - 1), 0, "{blocked:#x}");
    });
}

#[test]
fn closed_stream_unmaps_its_iomaps() {
    on_loopback("closed_stream_unmaps_its_iomaps", || {
        let (client, server) = pair(|stream| {
            let maps = 4_i32.to_ne_bytes();
            let set = stream.set_option(option::SOL_RDMA, option::RDMA_IOMAPSIZE, &maps);
            set.unwrap();
        });
        let memory = Box::into_raw(vec![0_u8; 4096].into_boxed_slice());
        // SAFETY: the memory is freed after `close`, and there is no reference to it before.
        let mapped = unsafe { server.map(memory.cast(), 4096, true, Some(0)) };
        assert_eq!(mapped, Ok(0));
        server.send(b"mapped", SendFlags::empty()).unwrap();
        let mut word = [0; 6];
        client.receive(&mut word, RecvFlags::WAITALL).unwrap();
        assert_eq!(client.write_mapped(b"early", 0, SendFlags::empty()), Ok(5));
        // Without lingering the peer does not learn of the close, and writes again.
        let linger = libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        let linger = [linger.l_onoff, linger.l_linger].map(i32::to_ne_bytes);
        let linger = linger.as_flattened();
        let set = server.set_option(libc::SOL_SOCKET, libc::SO_LINGER, linger);
        set.unwrap();
        client.send(b"written", SendFlags::empty()).unwrap();
        let mut word = [0; 7];
        server.receive(&mut word, RecvFlags::WAITALL).unwrap();
        server.close();
        let late = client.write_mapped(b"too late", 0, SendFlags::empty());
        assert_eq!(late, Ok(8), "the key is checked at the other end");
        // It returns when the WRITE has completed.
        let _reset = client.shutdown(Shutdown::Both);
        // SAFETY: the server has unmapped the memory, which came from this box.
        let memory = unsafe { Box::from_raw(memory) };
        assert_eq!(memory[..8], *b"early\0\0\0");
        // Another thread may still be in a call on the closed socket: nothing can be mapped.
        // SAFETY: the call fails and registers nothing.
        let mapped = unsafe { server.map(core::ptr::null_mut(), 0, true, Some(0)) };
        assert_eq!(mapped, Err(Errno::BADF));
    });
}

#[test]
fn poll_reports_a_datagram() {
    on_loopback("poll_reports_a_datagram", || {
        let receiver = Arc::new(Datagram::new(AddressFamily::INET).unwrap());
        receiver.bind(&any()).unwrap();
        let fd = socket::insert(Socket::Datagram(Arc::clone(&receiver)));
        assert_eq!(fd, receiver.as_raw_fd());
        let sender = Datagram::new(AddressFamily::INET).unwrap();
        // The first goes over UDP, later ones between queue pairs.
        for text in [&b"one"[..], b"two", b"three"] {
            let to = receiver.local_addr();
            assert_eq!(sender.send(text, to, SendFlags::empty()), Ok(text.len()));
            let mut fds = [libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            }];
            assert_eq!(poll(&mut fds, None), Ok(1));
            let received = receiver.receive(RecvFlags::DONTWAIT, |from, bytes| {
                assert_eq!(
                    Some(from.port()),
                    sender.local_addr().map(|addr| addr.port())
                );
                assert_eq!(bytes, text);
                bytes.len()
            });
            assert_eq!(received, Ok(text.len()));
        }
        drop(socket::remove(fd));
    });
}

/// Runs a call in a thread until it sleeps, and hands the thread to `body`.
fn while_sleeping<T: Send>(
    call: impl FnOnce() -> T + Send,
    body: impl FnOnce(&std::thread::ScopedJoinHandle<'_, T>),
) -> T {
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let thread = scope.spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            call()
        });
        let stat = format!(
            "/proc/self/task/{}/stat",
            told.recv().unwrap().as_raw_nonzero()
        );
        deadline::until("the thread sleeps", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('S')
        });
        body(&thread);
        thread.join().unwrap()
    })
}

/// A thread that waits for a stopped ferroced does not hold the lock of its socket.
#[test]
fn socket_is_usable_while_another_thread_waits_for_ferroced() {
    let name = "socket_is_usable_while_another_thread_waits_for_ferroced";
    with_ferroced(name, |ferroced| {
        let listener = Stream::new(AddressFamily::INET).unwrap();
        listener.bind(&any()).unwrap();
        listener.listen(1).unwrap();
        let address = listener.local_addr();
        type Step<'a> = &'a (dyn Fn(&Stream) -> Result<(), Errno> + Sync);
        let bind: Step<'_> = &|stream| stream.bind(&any());
        let listen: Step<'_> = &|stream| stream.listen(1);
        let connect: Step<'_> = &|stream| stream.connect(&address);
        for (what, step, closes) in [
            ("bind", bind, false),
            ("bind", bind, true),
            ("listen", listen, false),
            ("listen", listen, true),
            ("connect", connect, false),
            ("connect", connect, true),
        ] {
            let stream = Arc::new(Stream::new(AddressFamily::INET).unwrap());
            // No thread accepts the connection.
            stream.set_nonblocking(true);
            let (level, reuse) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
            ferroced.stop();
            let result = while_sleeping(
                || step(&stream),
                |thread| {
                    let _ready = stream.poll(PollFlags::IN);
                    stream
                        .set_option(level, reuse, &1i32.to_ne_bytes())
                        .unwrap();
                    assert!(stream.option(level, reuse).is_ok(), "{what}");
                    assert_eq!(stream.bind(&any()), Err(Errno::ALREADY), "{what}");
                    let _address = stream.local_addr();
                    if closes {
                        stream.close();
                    }
                    assert!(!thread.is_finished(), "{what} waits for ferroced");
                    ferroced.go_on();
                },
            );
            let expected = match (what, closes) {
                ("connect", false) => Err(Errno::INPROGRESS),
                ("connect", true) => Err(Errno::CONNREFUSED),
                (_, false) => Ok(()),
                (_, true) => Err(Errno::BADF),
            };
            assert_eq!(result, expected, "{what}, closed: {closes}");
        }
    });
}

/// Returns the number of threads that open queue pairs of datagram sockets.
fn opening_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        let comm = task.ok()?.path().join("comm");
        std::fs::read_to_string(comm).ok()
    });
    names.filter(|name| name == "ferroce-open\n").count()
}

/// A peer names any address of this host in its datagrams, and ferroced does not answer.
#[test]
fn datagrams_of_unknown_peers_do_not_wait_for_ferroced() {
    let name = "datagrams_of_unknown_peers_do_not_wait_for_ferroced";
    with_ferroced(name, |ferroced| {
        let receiver = Datagram::new(AddressFamily::INET).unwrap();
        receiver.bind(&any()).unwrap();
        let stream = Stream::new(AddressFamily::INET).unwrap();
        ferroced.stop();
        // This thread shows that less time passes than a call to ferroced may take.
        let bound = while_sleeping(
            || stream.bind(&any()),
            |waiting| {
                let peer = std::net::UdpSocket::bind(any()).unwrap();
                for host in 1..=200 {
                    let mut datagram = vec![0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0];
                    datagram.extend([0, 0, host, 0, 127, 0, 0, host, host]);
                    peer.send_to(&datagram, receiver.local_addr().unwrap())
                        .unwrap();
                    assert!(receiver.poll(PollFlags::IN).contains(PollFlags::IN));
                    let received = receiver.receive(RecvFlags::DONTWAIT, |_, bytes| {
                        assert_eq!(bytes, [host]);
                        bytes.len()
                    });
                    assert_eq!(received, Ok(1));
                }
                assert!(!waiting.is_finished(), "no call waited for ferroced");
                assert!(opening_threads() <= 16);
                ferroced.go_on();
            },
        );
        assert_eq!(bound, Ok(()));
        deadline::until("no queue pair is being opened", || opening_threads() == 0);
        // Most of these addresses have no link. A peer that exists is answered nevertheless.
        let sender = Datagram::new(AddressFamily::INET).unwrap();
        let to = receiver.local_addr();
        assert_eq!(sender.send(b"one", to, SendFlags::empty()), Ok(3));
        let received = receiver.receive(RecvFlags::empty(), |_, bytes| bytes.len());
        assert_eq!(received, Ok(3));
    });
}

#[test]
fn nonblocking_send_does_not_wait_for_ferroced() {
    with_ferroced("nonblocking_send_does_not_wait_for_ferroced", |ferroced| {
        let receiver = Datagram::new(AddressFamily::INET).unwrap();
        receiver.bind(&any()).unwrap();
        let to = receiver.local_addr();
        let sender = Arc::new(Datagram::new(AddressFamily::INET).unwrap());
        sender.set_nonblocking(true);
        let fd = socket::insert(Socket::Datagram(Arc::clone(&sender)));
        let stream = Stream::new(AddressFamily::INET).unwrap();
        ferroced.stop();
        let bound = while_sleeping(
            || stream.bind(&any()),
            |waiting| {
                let flags = SendFlags::empty();
                assert_eq!(sender.send(b"one", to, flags), Err(Errno::AGAIN));
                assert_eq!(sender.send(b"one", to, flags), Err(Errno::AGAIN));
                let wanted = PollFlags::OUT;
                assert!(sender.poll(wanted).is_empty(), "it would fail again");
                assert!(!waiting.is_finished(), "no call waited for ferroced");
                ferroced.go_on();
            },
        );
        assert_eq!(bound, Ok(()));
        let mut fds = [libc::pollfd {
            fd,
            events: libc::POLLOUT,
            revents: 0,
        }];
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert_eq!(sender.send(b"one", to, SendFlags::empty()), Ok(3));
        let received = receiver.receive(RecvFlags::empty(), |_, bytes| bytes.len());
        assert_eq!(received, Ok(3));
        drop(socket::remove(fd));
    });
}

/// A failed attempt to open the queue pair of a source address is reported by the next send.
#[test]
fn send_from_an_address_without_a_link_fails() {
    on_loopback("send_from_an_address_without_a_link_fails", || {
        ferroce_testnet::netdev::add_veth("one", "two");
        ferroce_testnet::netdev::add_address("one", "192.0.2.1/24");
        for nonblocking in [false, true] {
            let sender = Datagram::new(AddressFamily::INET).unwrap();
            sender.bind(&SocketAddr::from(([192, 0, 2, 1], 0))).unwrap();
            sender.set_nonblocking(nonblocking);
            let to = Some(SocketAddr::from(([192, 0, 2, 1], 9)));
            let mut result = Err(Errno::AGAIN);
            deadline::until("the send fails", || {
                result = sender.send(b"one", to, SendFlags::empty());
                result != Err(Errno::AGAIN)
            });
            assert_eq!(result, Err(Errno::NODEV), "non-blocking: {nonblocking}");
        }
    });
}
