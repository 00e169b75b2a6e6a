//! The safe API with a real ferroced: both ends of a connection are this process.

#[path = "../../abi/tests/common/ferroced.rs"]
#[allow(dead_code, reason = "shared with other test programs")]
mod ferroced;

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferroce_device::transport::{QpCap, QpState, QpType};
use ferroce_device::{Cq, Qp};
use ferroce_rdmacm::{
    ConnParams, Event, EventChannel, EventKind, Id, PortSpace, QpConfig, RESOLVE_TIMEOUT, Reason,
};
use ferroce_testnet::{deadline, isolated, netdev, signals};

fn on_loopback(name: &str, body: impl FnOnce()) {
    isolated(name, || {
        let _ferroced = ferroced::Ferroced::start();
        ferroced::add_link("rxe0", "lo");
        body();
    });
}

/// Returns the next event, which must come soon.
fn next(channel: &EventChannel) -> Event {
    deadline::readable(channel, "an event");
    channel.next().expect("an event")
}

fn listener(channel: &EventChannel) -> (Id, SocketAddr) {
    let id = Id::new(channel, PortSpace::Tcp, QpType::Rc).expect("an id");
    id.bind(([127, 0, 0, 1], 0).into()).expect("bound");
    id.listen(4).expect("listening");
    let address = id.local_addr().expect("bound");
    (id, address)
}

fn queue_pair(id: &Id) -> (Arc<Qp>, Arc<Cq>) {
    let link = id.device().expect("resolved");
    let cq = link.device().create_cq(8, None).expect("a queue");
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let config = QpConfig {
        pd: None,
        send_cq: &cq,
        recv_cq: &cq,
        cap,
        sq_sig_all: true,
    };
    (id.create_qp(&config).expect("a queue pair"), cq)
}

/// Returns an id that has requested a connection.
fn connect(channel: &EventChannel, to: SocketAddr) -> (Id, Arc<Qp>, Arc<Cq>) {
    let id = Id::new(channel, PortSpace::Tcp, QpType::Rc).expect("an id");
    id.resolve_addr(None, to, RESOLVE_TIMEOUT)
        .expect("resolving");
    assert!(matches!(next(channel).kind, EventKind::AddressResolved));
    id.resolve_route().expect("resolving");
    assert!(matches!(next(channel).kind, EventKind::RouteResolved));
    let (qp, cq) = queue_pair(&id);
    let params = ConnParams::with_private_data(b"hello");
    id.connect(&params).expect("requested");
    (id, qp, cq)
}

/// Takes a request of a listener.
fn request(channel: &EventChannel) -> Id {
    match next(channel).kind {
        EventKind::ConnectRequest { id, params } => {
            assert_eq!(&params.private_data[..6], b"hello\0");
            id
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_ids_connect_and_disconnect() {
    on_loopback("two_ids_connect_and_disconnect", || {
        let [here, there] = [(); 2].map(|()| EventChannel::new().expect("a channel"));
        let (_listener, address) = listener(&there);
        let (active, qp, _cq) = connect(&here, address);
        let passive = request(&there);
        assert_eq!(passive.local_addr(), Some(address));
        assert_eq!(passive.peer_addr(), active.local_addr());
        let _queues = queue_pair(&passive);
        let params = ConnParams::with_private_data(b"welcome");
        passive.accept(&params).expect("accepted");
        let established = next(&here);
        assert!(established.id.is_same(&active));
        match established.kind {
            EventKind::Established(Some(params)) => {
                assert_eq!(&params.private_data[..8], b"welcome\0");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(qp.query().expect("it lives").attr.state, QpState::Rts);
        assert!(matches!(next(&there).kind, EventKind::Established(None)));
        active.disconnect().expect("disconnected");
        assert_eq!(qp.query().expect("it lives").attr.state, QpState::Err);
        let ended = next(&there);
        assert!(ended.id.is_same(&passive));
        assert!(matches!(ended.kind, EventKind::Disconnected { errno: 0 }));
    });
}

/// Binding and resolving wait until the kernel sends from the address, which takes 2 to 3 s here.
#[test]
fn ids_wait_for_duplicate_address_detection() {
    isolated("ids_wait_for_duplicate_address_detection", || {
        netdev::add_veth("near", "far");
        netdev::set_detection_time("near", 2);
        for name in ["near", "far"] {
            netdev::set_up(name);
        }
        let address = netdev::await_tentative_link_local("near");
        let _ferroced = ferroced::Ferroced::start();
        ferroced::add_link("rxe0", "near");
        let [here, there] = [(); 2].map(|()| EventChannel::new().expect("a channel"));
        let listener = Id::new(&there, PortSpace::Tcp, QpType::Rc).expect("an id");
        let to = SocketAddrV6::new(address, 4000, 0, netdev::index("near")).into();
        #[allow(clippy::disallowed_methods, reason = "two calls wait at once")]
        std::thread::scope(|scope| {
            scope.spawn(|| {
                listener.bind(to).expect("bound");
                listener.listen(4).expect("listening");
            });
            let id = Id::new(&here, PortSpace::Tcp, QpType::Rc).expect("an id");
            id.resolve_addr(None, to, RESOLVE_TIMEOUT)
                .expect("resolving");
            assert!(matches!(next(&here).kind, EventKind::AddressResolved));
        });
        let (_active, _qp, _cq) = connect(&here, to);
        let passive = request(&there);
        let _queues = queue_pair(&passive);
        passive.accept(&ConnParams::default()).expect("accepted");
        assert!(matches!(next(&here).kind, EventKind::Established(_)));
    });
}

#[test]
fn dropping_a_request_rejects_it() {
    on_loopback("dropping_a_request_rejects_it", || {
        let [here, there] = [(); 2].map(|()| EventChannel::new().expect("a channel"));
        let (_listener, address) = listener(&there);
        let (_active, qp, _cq) = connect(&here, address);
        drop(request(&there));
        match next(&here).kind {
            EventKind::Rejected { reason, .. } => assert_eq!(reason, Reason::CONSUMER),
            other => panic!("{other:?}"),
        }
        assert_eq!(qp.query().expect("it lives").attr.state, QpState::Err);
    });
}

#[test]
fn dropping_a_listener_releases_its_port() {
    on_loopback("dropping_a_listener_releases_its_port", || {
        let channel = EventChannel::new().expect("a channel");
        let (first, address) = listener(&channel);
        let second = Id::new(&channel, PortSpace::Tcp, QpType::Rc).expect("an id");
        let taken = second.bind(address).unwrap_err();
        assert_eq!(taken.errno(), libc::EADDRINUSE, "{taken}");
        let clone = first.clone();
        drop(first);
        second.bind(address).expect_err("a clone holds the port");
        drop(clone);
        second.bind(address).expect("the port is free");
    });
}

#[test]
fn an_empty_nonblocking_channel_would_block() {
    on_loopback("an_empty_nonblocking_channel_would_block", || {
        let channel = EventChannel::new().expect("a channel");
        channel.set_nonblocking(true).expect("set");
        let error = channel.next().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    });
}

/// Waits for an event in a thread that gets signals, whose handler has these flags. Returns
/// the result of the wait. An event comes after ten signals.
fn wait_with_signals(flags: libc::c_int) -> Option<std::io::ErrorKind> {
    let channel = EventChannel::new().expect("a channel");
    let id = Id::new(&channel, PortSpace::Tcp, QpType::Rc).expect("an id");
    signals::wait_with_signals(
        flags,
        move || channel.next().err().map(|error| error.kind()),
        || id.post_user_event(1, 0, 0).expect("posted"),
    )
}

/// As with `read`, on which librdmacm waits.
#[test]
fn signal_interrupts_the_wait_for_an_event_unless_its_handler_restarts_calls() {
    let name = "signal_interrupts_the_wait_for_an_event_unless_its_handler_restarts_calls";
    on_loopback(name, || {
        assert_eq!(wait_with_signals(libc::SA_RESTART), None);
        let interrupted = Some(std::io::ErrorKind::Interrupted);
        assert_eq!(wait_with_signals(0), interrupted);
        assert_eq!(wait_with_signals(libc::SA_RESTART), None);
    });
}

/// Returns the program of `examples/echo.rs`, which `cargo test` builds.
fn echo() -> PathBuf {
    let test = std::env::current_exe().expect("known");
    let target = test.parent().and_then(std::path::Path::parent);
    let echo = target.expect("a target directory").join("examples/echo");
    assert!(
        echo.exists(),
        "{} does not exist; `cargo build -p ferroce-rdmacm --example echo` makes it",
        echo.display()
    );
    echo
}

#[test]
fn echo_example_echoes() {
    on_loopback("echo_example_echoes", || {
        let mut server = Command::new(echo())
            .args(["server", "--once", "127.0.0.1:7471"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut output = BufReader::new(server.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it says something");
        assert_eq!(line, "listening on 127.0.0.1:7471\n");
        let client = Command::new(echo())
            .args(["client", "127.0.0.1:7471", "one", "two", "three"])
            .output()
            .expect("a client");
        assert!(client.status.success(), "{client:?}");
        assert_eq!(String::from_utf8_lossy(&client.stdout), "one\ntwo\nthree\n");
        assert!(server.wait().expect("a server").success());
    });
}

/// Another thread of the parent lists links and opens devices at the time of each fork, and
/// does not exist in the child.
#[test]
#[allow(clippy::disallowed_methods, reason = "threads are the test")]
fn child_uses_rdma_cm_whatever_the_parent_does() {
    on_loopback("child_uses_rdma_cm_whatever_the_parent_does", || {
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        assert_eq!(ferroce_rdmacm::all_devices().expect("listed").len(), 1);
                    }
                });
            }
            for round in 0..30 {
                // SAFETY: the child uses rdma_cm and ends. The allocator of the C library can
                // be used after a fork.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: ends the child if it hangs, and at once if it does not.
                    unsafe {
                        libc::alarm(30);
                        let listens = child_listens();
                        libc::_exit(if listens { 7 } else { 1 });
                    }
                }
                let mut status = 0;
                // SAFETY: waits for our own child.
                let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!((waited, status), (child, 7 << 8), "round {round}");
            }
            ends.store(true, Ordering::Relaxed);
        });
    });
}

/// Opens all devices, and listens on a port.
fn child_listens() -> bool {
    let devices = ferroce_rdmacm::all_devices();
    let Ok(channel) = EventChannel::new() else {
        return false;
    };
    let id = Id::new(&channel, PortSpace::Tcp, QpType::Rc);
    let listens = id.is_ok_and(|id| {
        id.bind(([127, 0, 0, 1], 0).into())
            .is_ok_and(|()| id.listen(4).is_ok())
    });
    listens && devices.is_ok_and(|devices| devices.len() == 1)
}
