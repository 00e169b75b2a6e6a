//! Many connections.

use std::thread;

use ferroce_testnet::deadline;

use crate::common::on_loopback;
use crate::socket::Socket;

#[test]
fn all_clients_in_the_backlog_are_served() {
    on_loopback("many::all_clients_in_the_backlog_are_served", |_| {
        const CLIENTS: usize = 100;
        let (listener, addr) = Socket::listener();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let addr = &addr;
                    scope.spawn(move || {
                        let client = Socket::stream();
                        client.connect(addr).unwrap();
                        client.send(&[number as u8], 0).unwrap();
                        assert_eq!(client.receive_all(1), [number as u8]);
                    })
                })
                .collect();
            let servers: Vec<_> = (0..CLIENTS).map(|_| listener.accept().unwrap()).collect();
            for server in &servers {
                let byte = server.receive_all(1);
                server.send(&byte, 0).unwrap();
            }
            for client in clients {
                client.join().unwrap();
            }
            for server in servers {
                assert_eq!(server.receive(&mut [0], 0), Ok(0));
            }
        });
    });
}

/// Pairs of sockets, one after the other: more than a device opens descriptors of its own.
const PAIRS: usize = 30;

#[test]
fn closed_sockets_leave_no_descriptors() {
    on_loopback("many::closed_sockets_leave_no_descriptors", |_| {
        let (listener, addr) = Socket::listener();
        // The device's sockets stay open for later connections.
        let descriptors = || links().iter().filter(|l| !l.starts_with("socket")).count();
        let mut first = None;
        for _ in 0..PAIRS {
            let (client, server) = Socket::pair_of(&listener, &addr, Socket::stream());
            client.send(b"x", 0).unwrap();
            assert_eq!(server.receive_all(1), b"x");
            drop((client, server));
            first.get_or_insert_with(descriptors);
        }
        // The device opens a few descriptors at first use, such as /proc/loadavg, and keeps them. The
        // thread that hears ferroced's answers may be the last to use an id.
        let few = PAIRS / 2;
        deadline::until("descriptors of closed sockets are closed", || {
            descriptors() < first.unwrap_or(0) + few
        });
    });
}

/// Returns the targets of this process's descriptors.
fn links() -> Vec<String> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .collect()
}
