//! The client side of the protocol, with daemons that misbehave.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use ferroce_control::protocol::encode;
use ferroce_control::{Connection, Error, PROTOCOL, Reply, packet, unix};
use rustix::net::{RecvFlags, SendFlags, SocketFlags};

/// Starts a daemon that sends these replies, one per request, and then closes.
fn daemon(name: &str, answers: Vec<Vec<u8>>) -> (PathBuf, std::thread::JoinHandle<()>) {
    let dir = std::env::temp_dir().join(format!("ferroce-client-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let listener = unix::socket(SocketFlags::empty()).unwrap();
    unix::bind(&listener, &dir.join("control.sock")).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    #[allow(
        clippy::disallowed_methods,
        reason = "the daemon needs a thread of its own"
    )]
    let thread = std::thread::spawn(move || {
        let client: OwnedFd = rustix::net::accept(&listener).unwrap();
        let mut buffer = [0; 4096];
        for answer in answers {
            packet::receive(&client, &mut buffer, RecvFlags::empty()).unwrap();
            packet::send(&client, &answer, &[], SendFlags::empty()).unwrap();
        }
    });
    (dir, thread)
}

fn welcome(protocol: u32) -> Vec<u8> {
    encode(&Reply::Welcome {
        protocol,
        version: "9".into(),
        pid: 4,
    })
}

fn meet(name: &str, answers: Vec<Vec<u8>>) -> Result<Connection, Error> {
    let (dir, thread) = daemon(name, answers);
    let result = Connection::connect(&dir);
    fs::remove_dir_all(dir).unwrap();
    thread.join().unwrap();
    result
}

#[test]
fn other_version_is_named() {
    let error = meet("version", vec![welcome(77)]).unwrap_err();
    assert!(matches!(error, Error::Version { theirs: 77 }));
    let words = error.to_string();
    assert!(
        words.contains("77") && words.contains(&PROTOCOL.to_string()),
        "{words}"
    );
}

#[test]
fn refusal_of_the_daemon_is_returned() {
    let refusal = encode(&Reply::error(libc::EACCES, "not you"));
    let error = meet("refusal", vec![refusal]).unwrap_err();
    assert_eq!(
        (error.errno(), error.to_string()),
        (libc::EACCES, "not you".into())
    );
}

#[test]
fn garbage_is_an_unexpected_reply() {
    for (n, garbage) in [&b"\xff\xff"[..], b"{}", b"{\"done\":", b"\"no_such\""]
        .iter()
        .enumerate()
    {
        let error = meet(&format!("garbage{n}"), vec![garbage.to_vec()]).unwrap_err();
        assert!(matches!(error, Error::Unexpected(_)), "{error}");
    }
}

#[test]
fn closed_connection_is_reported() {
    let error = meet("end", vec![]).unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");
    let mut connection = meet("later", vec![welcome(PROTOCOL)]).unwrap();
    assert_eq!(connection.daemon_version(), "9");
    assert_eq!(
        connection.daemon_pid(),
        std::process::id(),
        "the kernel's number counts: the Welcome has one of ferroced's PID namespace"
    );
    assert!(matches!(connection.try_event(), Err(Error::Closed)));
    assert!(matches!(connection.links(), Err(Error::Closed)));
}

/// Socket addresses hold 108 bytes; paths may be longer.
#[test]
fn socket_path_may_be_long() {
    let mut connection = meet(&"long".repeat(40), vec![welcome(PROTOCOL)]).unwrap();
    assert!(connection.try_event().is_err());
}

/// A stopped daemon accepts no connection, and at some point the kernel queues no more.
#[test]
fn daemon_that_accepts_no_connection_is_named() {
    let dir = std::env::temp_dir().join(format!("ferroce-client-{}-full", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let socket = dir.join("control.sock");
    let listener = unix::socket(SocketFlags::empty()).unwrap();
    unix::bind(&listener, &socket).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    fs::write(
        dir.join("ferroced.pid"),
        format!("{}\n", std::process::id()),
    )
    .unwrap();
    let _queued = unix::connect(&socket).unwrap();
    let error = Connection::connect(&dir).unwrap_err();
    fs::remove_dir_all(dir).unwrap();
    assert_eq!(error.errno(), libc::ETIMEDOUT);
    let words = format!("ferroced (pid {}) does not answer", std::process::id());
    assert!(error.to_string().starts_with(&words), "{error}");
}
