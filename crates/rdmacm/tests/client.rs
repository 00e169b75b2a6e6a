//! The control client against a stub of ferroced that answers when and how the test says.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferroce_control::protocol::{MAX_REQUEST, decode_numbered, encode, encode_numbered};
use ferroce_control::{
    CmAnswer, CmCall, LinkInfo, PROTOCOL, Reply, Request, RequestNumber, packet, runtime_dirs, unix,
};
use ferroce_device::transport::QpType;
use ferroce_rdmacm::{Error, ErrorKind, EventChannel, Id, PortSpace};
use ferroce_testnet::{deadline, isolated};
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

/// Longest wait for an event that a test expects.
const SOON: Duration = Duration::from_secs(60);

/// True while the stub refuses to report events of links.
static REFUSES: AtomicBool = AtomicBool::new(false);

/// A stub of ferroced with one link. Calls to the connection manager go to the test.
struct Stub {
    calls: Receiver<Call>,
    /// Locked by a test that wants the stub to read no requests.
    reading: Arc<Mutex<()>>,
}

/// A call to the connection manager.
#[derive(Debug)]
struct Call {
    socket: Arc<OwnedFd>,
    /// None for a notice, which ferroced does not answer.
    number: Option<RequestNumber>,
    call: CmCall,
}

impl Call {
    /// Answers the call, unless it is a notice.
    fn answer(&self, answer: CmAnswer) {
        if self.number.is_some() {
            let reply = Reply::CmAnswer(answer);
            send(&self.socket, &encode_numbered(self.number, &reply));
        }
    }

    /// Answers a Bind: the port gets this handle, and the number that the client named.
    fn bound(&self, handle: u64) {
        let port = handle;
        let number = self.port();
        self.answer(CmAnswer::Bound { port, number });
    }

    /// Answers the call with an error.
    fn refuse(&self, errno: i32) {
        let message = "refused by the test".into();
        let reply = Reply::Error { errno, message };
        send(&self.socket, &encode_numbered(self.number, &reply));
    }

    /// Closes the connection that the call came on, as a ferroced that ends.
    fn close(&self) {
        rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both).expect("connected");
    }

    /// Returns the port number in a Bind.
    fn port(&self) -> u16 {
        match self.call {
            CmCall::Bind { port, .. } => port,
            ref other => panic!("{other:?}"),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a peer needs threads")]
fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    // The client may have closed the connection.
    let _closed = packet::send(socket, bytes, &[], SendFlags::empty());
}

impl Stub {
    fn start() -> Stub {
        let dir = runtime_dirs().expect("known").remove(0);
        dir.create().expect("a runtime directory");
        let listener = unix::socket(SocketFlags::empty()).expect("a socket");
        unix::bind(&listener, &dir.path().join("control.sock")).expect("bound");
        rustix::net::listen(&listener, 16).expect("listening");
        let (to_test, calls) = channel();
        let reading = Arc::new(Mutex::new(()));
        let gate = Arc::clone(&reading);
        spawn(move || {
            while let Ok(socket) = rustix::net::accept(&listener) {
                let (to_test, gate) = (to_test.clone(), Arc::clone(&gate));
                spawn(move || serve(&Arc::new(socket), &to_test, &gate));
            }
        });
        Stub { calls, reading }
    }

    /// Returns the next call, which must come soon.
    fn next(&self) -> Call {
        self.calls.recv_timeout(SOON).expect("a call")
    }
}

fn serve(socket: &Arc<OwnedFd>, to_test: &Sender<Call>, gate: &Mutex<()>) {
    let mut buffer = vec![0; MAX_REQUEST];
    loop {
        let reading = gate.lock().expect("no test panics with it");
        let packet = packet::receive(socket, &mut buffer, RecvFlags::DONTWAIT);
        drop(reading);
        let length = match packet {
            Ok(packet) if packet.len > 0 => packet.len,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                deadline::readable_within(socket, SOON);
                continue;
            }
            _ => return,
        };
        let (number, request) = decode_numbered(&buffer[..length]).expect("a request");
        let reply = |reply: &Reply| send(socket, &encode_numbered(number, reply));
        match request {
            Request::Hello { .. } => send(
                socket,
                &encode(&Reply::Welcome {
                    protocol: PROTOCOL,
                    version: "stub".into(),
                    pid: 1,
                }),
            ),
            Request::Links => {
                reply(&Reply::Link(LinkInfo::new("rxe0", "lo", 1)));
                reply(&Reply::Done);
            }
            Request::Subscribe if REFUSES.load(Ordering::Relaxed) => {
                reply(&Reply::error(libc::EPERM, "refused by the test"));
            }
            Request::Subscribe => reply(&Reply::Done),
            Request::Cm(call) => {
                let call = Call {
                    socket: Arc::clone(socket),
                    number: Some(number.expect("numbered")),
                    call,
                };
                to_test.send(call).expect("the test runs");
            }
            Request::CmNotices(calls) => {
                for call in calls {
                    let call = Call {
                        socket: Arc::clone(socket),
                        number: None,
                        call,
                    };
                    to_test.send(call).expect("the test runs");
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn id(channel: &EventChannel) -> Id {
    Id::new(channel, PortSpace::Tcp, QpType::Rc).expect("an id")
}

/// Binds an id to a port in a thread; the receiver gets the result.
fn bind_in_thread(id: &Id, port: u16) -> Receiver<Result<(), Error>> {
    let (result, results) = channel();
    let id = id.clone();
    spawn(move || {
        let bound = id.bind(([127, 0, 0, 1], port).into());
        // The test may have ended.
        let _gone = result.send(bound);
    });
    results
}

/// Returns the number of control threads of this process.
fn control_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let names = tasks.filter_map(|task| {
        let comm = task.ok()?.path().join("comm");
        std::fs::read_to_string(comm).ok()
    });
    names.filter(|name| name == "ferroce-control\n").count()
}

#[test]
fn failed_first_call_leaves_no_thread() {
    isolated("failed_first_call_leaves_no_thread", || {
        let _stub = Stub::start();
        let channel = EventChannel::new().expect("a channel");
        REFUSES.store(true, Ordering::Relaxed);
        for _ in 0..3 {
            let error = Id::new(&channel, PortSpace::Tcp, QpType::Rc).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Os(libc::EPERM));
        }
        // The kernel lists an ended thread for a moment.
        deadline::until("no thread is left", || control_threads() == 0);
        REFUSES.store(false, Ordering::Relaxed);
        let _id = id(&channel);
        deadline::until("one thread", || control_threads() == 1);
    });
}

#[test]
fn calls_of_two_threads_are_in_flight_together() {
    isolated("calls_of_two_threads_are_in_flight_together", || {
        let stub = Stub::start();
        let channel = EventChannel::new().expect("a channel");
        let (one, two) = (id(&channel), id(&channel));
        let first = bind_in_thread(&one, 1111);
        let unanswered = stub.next();
        assert_eq!(unanswered.port(), 1111);
        let second = bind_in_thread(&two, 2222);
        let call = stub.next();
        assert_eq!(call.port(), 2222, "although 1111 is not answered");
        assert_ne!(call.number, unanswered.number);
        call.bound(2);
        second.recv_timeout(SOON).expect("returned").expect("bound");
        assert!(first.try_recv().is_err(), "its answer is still missing");
        unanswered.bound(1);
        first.recv_timeout(SOON).expect("returned").expect("bound");
        let ports = [&one, &two].map(|id| id.local_addr().expect("bound").port());
        assert_eq!(ports, [1111, 2222], "each got its own answer");
        release(&stub, [one, two].into());
    });
}

/// The thread of the first call receives for both. After its answer another thread must
/// receive that of the second.
#[test]
fn answer_arrives_after_the_receiving_call_has_ended() {
    isolated("answer_arrives_after_the_receiving_call_has_ended", || {
        let stub = Stub::start();
        let channel = EventChannel::new().expect("a channel");
        let (one, two) = (id(&channel), id(&channel));
        for _ in 0..100 {
            let first = bind_in_thread(&one, 1111);
            let call = stub.next();
            let second = bind_in_thread(&two, 2222);
            let later = stub.next();
            call.refuse(libc::EADDRINUSE);
            let refused = first.recv_timeout(SOON).expect("returned").unwrap_err();
            assert_eq!(refused.errno(), libc::EADDRINUSE);
            assert!(second.try_recv().is_err(), "its answer is still missing");
            later.refuse(libc::EACCES);
            let refused = second.recv_timeout(SOON).expect("returned").unwrap_err();
            assert_eq!(refused.errno(), libc::EACCES);
        }
    });
}

/// Drops ids, and answers the calls that release their ports.
fn release(stub: &Stub, ids: VecDeque<Id>) {
    for id in ids {
        drop(id);
        let call = stub.next();
        assert!(matches!(call.call, CmCall::Release { .. }), "{call:?}");
        call.answer(CmAnswer::Done);
    }
}

/// Binds an id to a port that has the same number as its handle.
fn bind(stub: &Stub, id: &Id, port: u16) {
    let result = bind_in_thread(id, port);
    stub.next().bound(port.into());
    result.recv_timeout(SOON).expect("returned").expect("bound");
}

/// Waiting one second for each release would exceed the deadline of the test.
#[test]
fn closing_a_channel_does_not_wait_for_ferroced() {
    const IDS: u16 = 600;
    isolated("closing_a_channel_does_not_wait_for_ferroced", || {
        let stub = Stub::start();
        let [closing, other] = [(); 2].map(|()| EventChannel::new().expect("a channel"));
        let ids: Vec<Id> = (0..IDS).map(|_| id(&closing)).collect();
        for (id, port) in ids.iter().zip(1..) {
            bind(&stub, id, port);
        }
        let reading = stub.reading.lock().expect("no panic");
        let (done, closed) = channel();
        spawn(move || {
            closing.close();
            drop(ids);
            let _gone = done.send(());
        });
        closed.recv_timeout(SOON).expect("closed");
        let next = id(&other);
        let result = bind_in_thread(&next, 1);
        drop(reading);
        // Also the releases that found the socket full arrive, and all before the bind.
        let mut released: Vec<u64> = (0..IDS)
            .map(|_| {
                let call = stub.next();
                call.answer(CmAnswer::Done);
                match call.call {
                    CmCall::Release { port } => port,
                    other => panic!("{other:?}"),
                }
            })
            .collect();
        released.sort_unstable();
        assert_eq!(released, (1..=IDS.into()).collect::<Vec<u64>>());
        stub.next().bound(1000);
        result.recv_timeout(SOON).expect("returned").expect("bound");
        release(&stub, [next].into());
    });
}

#[test]
fn late_answer_is_dropped_and_its_port_is_released() {
    isolated("late_answer_is_dropped_and_its_port_is_released", || {
        let stub = Stub::start();
        let channel = EventChannel::new().expect("a channel");
        let id = id(&channel);
        let result = bind_in_thread(&id, 1111);
        let late = stub.next();
        let error = result.recv_timeout(SOON).expect("returned").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");

        // The next call is in flight when the late answer arrives.
        let result = bind_in_thread(&id, 2222);
        let call = stub.next();
        late.bound(1);
        let released = stub.next();
        assert_eq!(released.call, CmCall::Release { port: 1 });
        released.answer(CmAnswer::Done);
        call.bound(2);
        result.recv_timeout(SOON).expect("returned").expect("bound");
        assert_eq!(id.local_addr().expect("bound").port(), 2222);
        release(&stub, [id].into());
    });
}

/// More calls than the socket has room for wait in the client, in order.
#[test]
fn calls_wait_for_room_in_the_socket() {
    const CALLERS: u16 = 600;
    isolated("calls_wait_for_room_in_the_socket", || {
        let stub = Stub::start();
        let channel = EventChannel::new().expect("a channel");
        let ids: Vec<Id> = (0..CALLERS).map(|_| id(&channel)).collect();
        let reading = stub.reading.lock().expect("no panic");
        let results: Vec<_> = ids
            .iter()
            .zip(1..)
            .map(|(id, port)| bind_in_thread(id, port))
            .collect();
        // All callers sleep until they are answered.
        deadline::until("all calls are submitted", || {
            let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
            let sleeping = tasks.flatten().filter(|task| {
                std::fs::read_to_string(task.path().join("status"))
                    .is_ok_and(|status| status.contains("State:\tS"))
            });
            sleeping.count() >= usize::from(CALLERS)
        });
        drop(reading);
        for _ in 0..CALLERS {
            let call = stub.next();
            call.bound(call.port().into());
        }
        for result in results {
            result.recv_timeout(SOON).expect("returned").expect("bound");
        }
        release(&stub, ids.into());
    });
}

#[test]
fn id_that_is_destroyed_during_a_call_keeps_no_port() {
    isolated("id_that_is_destroyed_during_a_call_keeps_no_port", || {
        let stub = Stub::start();
        let channel = EventChannel::new().expect("a channel");
        let id = id(&channel);
        let result = bind_in_thread(&id, 1111);
        let call = stub.next();
        id.destroy();
        call.bound(1);
        let error = result.recv_timeout(SOON).expect("returned").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(stub.next().call, CmCall::Release { port: 1 });
    });
}

/// Handles count from 1 on each connection, so that a lost port and another id's port may
/// have the same one.
#[test]
fn handle_of_a_lost_port_is_not_used_on_the_next_connection() {
    let name = "handle_of_a_lost_port_is_not_used_on_the_next_connection";
    isolated(name, || {
        let stub = Stub::start();
        let channel = EventChannel::new().expect("a channel");
        let [lost, kept, new] = [(); 3].map(|()| id(&channel));
        bind(&stub, &lost, 1);
        bind(&stub, &kept, 2);
        let result = bind_in_thread(&new, 3);
        stub.next().close();
        // The ports are bound again, then the interrupted call is repeated.
        for _ in 0..2 {
            let call = stub.next();
            match call.port() {
                1 => call.refuse(libc::EADDRINUSE),
                2 => call.bound(1),
                other => panic!("port {other}"),
            }
        }
        stub.next().bound(2);
        result.recv_timeout(SOON).expect("returned").expect("bound");

        let error = lost.listen(1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddressNotAvailable, "{error}");
        drop(lost);
        drop(kept);
        drop(new);
        for port in [1, 2] {
            assert_eq!(stub.next().call, CmCall::Release { port });
        }
        let last = id(&channel);
        bind(&stub, &last, 4);
        release(&stub, [last].into());
    });
}
