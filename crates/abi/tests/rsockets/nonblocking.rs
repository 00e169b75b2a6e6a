//! Non-blocking calls, and waiting for several descriptors.

use ferroce_abi::exports::*;
use libc::{POLLIN, POLLOUT, pollfd};

use crate::common::{errno, on_loopback};
use crate::socket::Socket;

#[test]
fn nonblocking_calls_fail_with_eagain() {
    on_loopback("nonblocking::nonblocking_calls_fail_with_eagain", |_| {
        let (listener, addr) = Socket::listener();
        listener.set_nonblocking(true);
        assert_eq!(listener.accept().err(), Some(libc::EAGAIN));
        listener.set_nonblocking(false);
        let (client, server) = Socket::pair_of(&listener, &addr, Socket::stream());
        let mut byte = [0];
        assert_eq!(
            client.receive(&mut byte, libc::MSG_DONTWAIT),
            Err(libc::EAGAIN)
        );
        client.set_nonblocking(true);
        assert_eq!(
            rfcntl(client.0, libc::F_GETFL, 0) & libc::O_NONBLOCK,
            libc::O_NONBLOCK
        );
        assert_eq!(client.receive(&mut byte, 0), Err(libc::EAGAIN));
        // The peer does not read, so the buffers fill up.
        let chunk = vec![7; 50_000];
        let mut sent = 0;
        loop {
            match client.send(&chunk, 0) {
                Ok(some) => sent += some,
                Err(errno) => {
                    assert_eq!(errno, libc::EAGAIN);
                    if client.poll(POLLOUT, 200) == 0 {
                        break;
                    }
                }
            }
        }
        assert!(sent >= 50_000, "{sent} bytes");
        assert_eq!(server.receive_all(sent), vec![7; sent]);
        assert_eq!(client.poll(POLLOUT | POLLIN, 5000), POLLOUT);
    });
}

#[test]
fn nonblocking_connect_is_finished_by_poll() {
    on_loopback(
        "nonblocking::nonblocking_connect_is_finished_by_poll",
        |_| {
            let (listener, addr) = Socket::listener();
            let client = Socket::stream();
            client.set_nonblocking(true);
            assert_eq!(client.connect(&addr), Err(libc::EINPROGRESS));
            std::thread::scope(|scope| {
                let server = scope.spawn(|| listener.accept().unwrap());
                assert_eq!(client.poll(POLLOUT, 10_000), POLLOUT);
                assert_eq!(client.get(libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
                assert_eq!(client.connect(&addr), Err(libc::EISCONN));
                assert_eq!(client.send(b"x", 0), Ok(1));
                assert_eq!(server.join().unwrap().receive_all(1), b"x");
            });
        },
    );
}

#[test]
fn connect_without_a_listener_is_refused() {
    on_loopback("nonblocking::connect_without_a_listener_is_refused", |_| {
        let client = Socket::stream();
        assert_eq!(client.connect("127.0.0.1:9"), Err(libc::ECONNREFUSED));
        let client = Socket::stream();
        client.set_nonblocking(true);
        match client.connect("127.0.0.1:9") {
            // On one host the REJ may arrive before `rconnect` returns.
            Err(libc::ECONNREFUSED) => return,
            result => assert_eq!(result, Err(libc::EINPROGRESS)),
        }
        let events = client.poll(POLLOUT, 10_000);
        assert_eq!(events & (POLLOUT | libc::POLLERR), POLLOUT | libc::POLLERR);
        let error = client.get(libc::SOL_SOCKET, libc::SO_ERROR);
        assert_eq!(error, Ok(libc::ECONNREFUSED));
        assert_eq!(client.get(libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    });
}

#[test]
fn poll_waits_for_rsockets_and_pipes_together() {
    on_loopback(
        "nonblocking::poll_waits_for_rsockets_and_pipes_together",
        |_| {
            let (client, server) = Socket::pair();
            let (reader, writer) = std::io::pipe().unwrap();
            use std::io::Write as _;
            use std::os::fd::AsRawFd as _;
            let wait = |timeout| {
                let mut fds = [client.0, reader.as_raw_fd(), -1].map(|fd| pollfd {
                    fd,
                    events: POLLIN,
                    revents: 0,
                });
                let count = unsafe { rpoll(fds.as_mut_ptr(), 3, timeout) };
                assert!(count >= 0, "errno {}", errno());
                fds.map(|entry| entry.revents)
            };
            assert_eq!(wait(10), [0, 0, 0]);
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| wait(10_000));
                (&writer).write_all(b"x").unwrap();
                assert_eq!(waiting.join().unwrap(), [0, POLLIN, 0]);
                let waiting = scope.spawn(|| wait(10_000));
                server.send(b"y", 0).unwrap();
                waiting.join().unwrap();
            });
            ferroce_testnet::until("both are readable", || wait(1000) == [POLLIN, POLLIN, 0]);
            let set = repoll_create(0);
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 42,
            };
            unsafe {
                let add = libc::EPOLL_CTL_ADD;
                assert_eq!(repoll_ctl(set, add, client.0, &mut event), 0);
                assert_eq!(repoll_ctl(set, add, client.0, &mut event), -1);
                event.u64 = 0;
                assert_eq!(repoll_wait(set, &mut event, 1, 1000), 1);
                assert_eq!((event.events, event.u64), (POLLIN as u32, 42));
                assert_eq!(client.receive_all(1), b"y");
                assert_eq!(repoll_wait(set, &mut event, 1, 0), 0);
            }
            assert_eq!(rclose(set), 0);
        },
    );
}

#[test]
fn select_reports_what_poll_reports() {
    on_loopback("nonblocking::select_reports_what_poll_reports", |_| {
        let (client, server) = Socket::pair();
        let select = |seconds| unsafe {
            let mut read: libc::fd_set = core::mem::zeroed();
            let mut write: libc::fd_set = core::mem::zeroed();
            libc::FD_SET(client.0, &mut read);
            libc::FD_SET(client.0, &mut write);
            let mut time = libc::timeval {
                tv_sec: seconds,
                tv_usec: 0,
            };
            let none = core::ptr::null_mut();
            let count = rselect(client.0 + 1, &mut read, &mut write, none, &mut time);
            let found = (
                libc::FD_ISSET(client.0, &read),
                libc::FD_ISSET(client.0, &write),
            );
            (count, found)
        };
        assert_eq!(select(0), (1, (false, true)));
        server.send(b"z", 0).unwrap();
        assert_eq!(client.poll(POLLIN, 5000), POLLIN);
        assert_eq!(select(5), (2, (true, true)));
    });
}
