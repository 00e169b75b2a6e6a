//! A second network namespace at the other end of a veth pair.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs `ip` in the calling thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split_ascii_whitespace())
        .output()
        .expect("iproute2 is installed: these tests need it");
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Connects this namespace (`near`, 10.9.0.1 and fd09::1) to a new one (`far`,
/// 10.9.0.2 and fd09::2). There a thread runs `there`, after the returned sender is used
/// or dropped.
pub(crate) fn connect<T: Send + 'static>(
    mtu: u32,
    there: impl FnOnce() -> T + Send + 'static,
) -> (mpsc::Sender<()>, JoinHandle<T>) {
    let (tell_tid, tid) = mpsc::channel();
    let (connected, wait_for_cable) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let (tell_ready, ready) = mpsc::channel();
    #[allow(
        clippy::disallowed_methods,
        reason = "the thread keeps the namespace alive"
    )]
    let far = std::thread::spawn(move || {
        leave_namespace();
        tell_tid.send(rustix::thread::gettid()).expect("awaited");
        let () = wait_for_cable.recv().expect("connected");
        ip("link set lo up");
        ip("addr add 10.9.0.2/24 dev far");
        ip("addr add fd09::2/64 dev far nodad");
        ip("link set far up");
        hear();
        tell_ready.send(()).expect("awaited");
        let _ = wait.recv();
        there()
    });
    let tid = tid.recv().expect("the thread lives").as_raw_nonzero();
    ip(&format!(
        "link add near mtu {mtu} type veth peer name far mtu {mtu}"
    ));
    ip(&format!("link set far netns {tid}"));
    ip("addr add 10.9.0.1/24 dev near");
    ip("addr add fd09::1/64 dev near nodad");
    ip("link set near up");
    connected.send(()).expect("the thread lives");
    call(&ready);
    (go, far)
}

/// Addresses of datagrams that test the veth pair. The kernel sets the carrier some time
/// after the command and drops packets until then. So one end sends until the other has
/// received, over both IP families.
const CALLS: [(&str, &str); 2] = [
    ("10.9.0.1:7777", "10.9.0.2:7777"),
    ("[fd09::1]:7777", "[fd09::2]:7777"),
];

#[allow(clippy::disallowed_methods, reason = "plain sockets suffice")]
fn hear() {
    for socket in CALLS.map(|(_, here)| UdpSocket::bind(here).expect("bound")) {
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        socket.recv(&mut [0]).expect("the cable works");
    }
}

#[allow(clippy::disallowed_methods, reason = "plain sockets suffice")]
fn call(heard: &mpsc::Receiver<()>) {
    let sockets = CALLS.map(|(here, to)| (UdpSocket::bind(here).expect("bound"), to));
    while heard.recv_timeout(PAUSE) == Err(mpsc::RecvTimeoutError::Timeout) {
        for (socket, to) in &sockets {
            let _ = socket.send_to(b"!", to);
        }
    }
}

fn leave_namespace() {
    // SAFETY: takes a number only; network namespaces are per thread.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
