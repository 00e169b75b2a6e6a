//! A real ferroced and programs that use it, in a network namespace of the test.

#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod cable;
pub(crate) mod holder;
pub(crate) mod program;

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use ferroce_control::{
    Connection, Error, LinkConfig, LinkEvent, LinkEventKind, LinkInfo, Request, RuntimeDir, Watch,
    find_daemon, runtime_dirs,
};
use ferroce_testnet::deadline;

/// A ferroced in the foreground. Killed when it is dropped.
pub(crate) struct Ferroced(Child);

impl Ferroced {
    pub(crate) fn start() -> Ferroced {
        Ferroced::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Ferroced {
        let dir = dir();
        dir.create().expect("a runtime directory");
        let watch = Watch::new(dir.path()).expect("inotify");
        let child = command().args(arguments).spawn().expect("ferroced starts");
        let mut ferroced = Ferroced(child);
        while find_daemon().expect("no other trouble").is_none() {
            let ended = ferroced.0.try_wait().expect("our child");
            assert!(ended.is_none(), "ferroced ended: {ended:?}");
            deadline::readable(&watch, "ferroced's control socket");
            watch.clear();
        }
        ferroced
    }

    /// `kill -9`
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("our child");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns how often ferroced has gone to sleep. An idle ferroced does not wake up.
    pub(crate) fn sleeps(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        line.expect("counted").trim().parse().expect("a number")
    }

    /// Returns the number of open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.pid()));
        fds.expect("ours to look at").count()
    }
}

/// Returns `ferroced --foreground`, which logs errors only.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroced"));
    command.arg("--foreground").stdin(Stdio::null());
    if std::env::var_os("FERROCE_LOG").is_none() {
        command.env("FERROCE_LOG", "error");
    }
    command
}

impl Drop for Ferroced {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn dir() -> RuntimeDir {
    runtime_dirs().expect("known").remove(0)
}

pub(crate) fn connect() -> Connection {
    find_daemon().expect("reachable").expect("running")
}

/// Adds a link of type rxe.
pub(crate) fn add(name: &str, netdev: &str) -> Result<(), Error> {
    add_of("rxe", name, netdev)
}

/// Adds a link of a type.
pub(crate) fn add_of(kind: &str, name: &str, netdev: &str) -> Result<(), Error> {
    connect().perform(&Request::LinkAdd(LinkConfig {
        name: name.into(),
        kind: kind.into(),
        netdev: netdev.into(),
        mtu: None,
        crc: true,
        lids: false,
        patience: 0,
        speed: None,
        local: true,
        strict: String::new(),
        profile: String::new(),
    }))
}

/// Turns the option `local` of a link on or off.
pub(crate) fn set_local(name: &str, on: bool) {
    let request = Request::LinkSet {
        name: name.into(),
        rename: None,
        mtu: None,
        crc: None,
        lids: None,
        patience: None,
        speed: None,
        local: Some(on),
        strict: None,
        profile: None,
    };
    connect().perform(&request).unwrap();
}

pub(crate) fn delete(name: &str, force: bool) -> Result<(), Error> {
    connect().perform(&Request::LinkDelete {
        name: name.into(),
        force,
    })
}

/// Returns the present state of a link.
pub(crate) fn link(name: &str) -> LinkInfo {
    let links = connect().links().expect("listed");
    links.into_iter().find(|l| l.name == name).expect("there")
}

/// Returns `INDEX ADDRESS` of all GIDs of a link.
pub(crate) fn gids(link: &LinkInfo) -> Vec<String> {
    let gids = link.gids.iter();
    gids.map(|g| format!("{} {}", g.index, g.address)).collect()
}

/// Returns a connection that receives all events.
pub(crate) fn subscribe() -> Connection {
    let mut connection = connect();
    connection.perform(&Request::Subscribe).expect("subscribed");
    connection
}

/// Waits for an event.
pub(crate) fn next_event(connection: &mut Connection) -> LinkEvent {
    loop {
        if let Some(event) = connection.try_event().expect("connected") {
            return event;
        }
        deadline::readable(connection.as_fd(), "an event");
    }
}

/// Waits for an event of this kind. Returns the state of the link.
pub(crate) fn await_event(connection: &mut Connection, kind: LinkEventKind) -> LinkInfo {
    loop {
        let event = next_event(connection);
        if event.kind == kind {
            return event.link;
        }
    }
}

/// Returns a counter of a link.
pub(crate) fn counter(link: &str, name: &str) -> u64 {
    let counters = connect().counters(Some(link), false).expect("counted");
    let values = &counters[0].values;
    values.iter().find(|(n, _)| n == name).expect("known").1
}

/// Sends a packet for `slot`, with `mark` as its last byte, to a local address.
pub(crate) fn send(slot: u8, mark: u8, to: &str) {
    let any = if to.contains(':') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    #[allow(clippy::disallowed_methods, reason = "an ordinary peer")]
    let socket = UdpSocket::bind(any).expect("a socket");
    let mut packet = [0; 20];
    packet[5] = slot;
    packet[19] = mark;
    socket.send_to(&packet, (to, 4791)).expect("sent");
}
