//! Another process, which follows orders.

use std::io::Write;
use std::net::IpAddr;

use ferroce_control::Gid;
use ferroce_device::transport::{Arm, QpType, SendOp};
use ferroce_testnet::{deadline, netdev, netfilter, role};

use crate::local;

use super::endpoint::Endpoint;
use super::ferroced::{self, Ferroced, add_link};
use super::{Introduction, LINK, pattern};

/// A process with an [`Endpoint`].
pub(crate) struct Puppet {
    pub(crate) actor: role::Actor,
    pub(crate) introduction: Introduction,
}

impl Puppet {
    pub(crate) fn start(kind: QpType, gid_index: u8) -> Puppet {
        Puppet::unopened().open(kind, gid_index)
    }

    /// Starts a process that has not opened a device yet.
    pub(crate) fn unopened() -> Stranger {
        Puppet::unopened_as(None)
    }

    /// Starts one as another user and group.
    pub(crate) fn unopened_as(user: Option<(u32, u32)>) -> Stranger {
        Stranger(role::start("support::puppet::role", "", user))
    }

    pub(crate) fn connect(&mut self, to: &Introduction) {
        let to = serde_json::to_string(to).expect("it can be said");
        self.expect(&format!("connect {to}"), "connected");
    }

    /// Gives an order and checks the answer.
    pub(crate) fn expect(&mut self, order: &str, answer: &str) {
        assert_eq!(self.actor.ask(order), answer, "{order}");
    }
}

/// A process without a device.
pub(crate) struct Stranger(pub(crate) role::Actor);

impl Stranger {
    pub(crate) fn open(self, kind: QpType, gid_index: u8) -> Puppet {
        let Stranger(mut actor) = self;
        let introduction = actor.ask(&format!("open {kind:?} {gid_index}"));
        Puppet {
            introduction: serde_json::from_str(&introduction).expect("an introduction"),
            actor,
        }
    }
}

/// Not a test: the process of a [`Puppet`].
#[test]
fn role() {
    if role::order().is_none() {
        return;
    }
    ferroced::end_with_parent();
    let mut ferroced = None;
    let mut endpoint = None;
    while let Some(line) = role::hear() {
        let (order, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match order {
            "open" => {
                let (kind, index) = rest.split_once(' ').expect("kind and index");
                let opened = Endpoint::open(kind_named(kind), index.parse().expect("a number"));
                let introduction = serde_json::to_string(&opened.introduction());
                let introduction = introduction.expect("it can be said");
                endpoint = Some(opened);
                introduction
            }
            "leave" => leave(),
            "settle" => {
                ferroced = Some(settle(rest));
                "settled".into()
            }
            "lose" => {
                netfilter::lose(rest.parse().expect("percent"));
                "losing".into()
            }
            "link-local" => {
                await_link_local_gid();
                "listed".into()
            }
            _ => perform(endpoint.as_mut().expect("opened"), order, rest),
        };
        role::say(&answer);
    }
    drop(ferroced);
}

fn kind_named(name: &str) -> QpType {
    let kinds = [QpType::Rc, QpType::Uc, QpType::Ud];
    let kind = kinds.into_iter().find(|kind| format!("{kind:?}") == name);
    kind.expect("a kind")
}

/// Moves to a new network namespace and returns its path.
fn leave() -> String {
    let flags = rustix::thread::UnshareFlags::NEWNET;
    // SAFETY: a new network namespace affects nothing that Rust relies on.
    unsafe { rustix::thread::unshare_unsafe(flags) }.expect("a network namespace");
    netdev::set_up("lo");
    format!(
        "/proc/{}/task/{}/ns/net",
        std::process::id(),
        rustix::thread::gettid().as_raw_nonzero()
    )
}

/// Sets up a netdev and a link on it.
fn settle(order: &str) -> Ferroced {
    let mut words = order.split(' ');
    let mut word = || words.next().expect("netdev, MTU and addresses");
    let name = word();
    netdev::set_mtu(name, word().parse().expect("an MTU"));
    netdev::add_address(name, word());
    netdev::add_address(name, word());
    netdev::set_up(name);
    let ferroced = Ferroced::start();
    add_link(LINK, name);
    ferroced
}

/// Waits until index 0 shows the link-local address of the netdev.
pub(crate) fn await_link_local_gid() -> Gid {
    let first = || {
        let links = ferroce_device::list_links().expect("listed");
        links[0].gid(0).cloned()
    };
    deadline::until("GID 0", || first().is_some());
    let gid = first().expect("it stays");
    let is_local = matches!(gid.address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    assert!(is_local, "{gid:?}");
    gid
}

/// Follows an order that needs a device.
fn perform(end: &mut Endpoint, order: &str, rest: &str) -> String {
    let number = |word: &str| -> u64 { word.parse().expect("a number") };
    let numbers: Vec<u64> = match order {
        "connect" => Vec::new(),
        _ => rest.split_whitespace().map(number).collect(),
    };
    let done = || String::from("done");
    match (order, &numbers[..]) {
        ("connect", _) => {
            end.connect(&serde_json::from_str(rest).expect("an introduction"));
            "connected".into()
        }
        ("put", &[seed, offset, length]) => {
            end.put(offset, &pattern(seed as u32, length as u32));
            done()
        }
        ("check", &[seed, offset, length]) => {
            let found = end.get(offset, length as u32);
            let wanted = pattern(seed as u32, length as u32);
            match found.iter().zip(&wanted).position(|(a, b)| a != b) {
                None => "right".into(),
                Some(at) => format!("wrong at {at}"),
            }
        }
        ("receive", &[id, offset, length]) => {
            end.receive(id, offset, length as u32);
            done()
        }
        ("complete", &[count]) => {
            let all = end.completions(count as usize);
            let all: Vec<String> = all
                .iter()
                .map(|wc| format!("{:?} {}", wc.status, wc.byte_len))
                .collect();
            all.join(", ")
        }
        ("write", &[times, length]) => {
            for time in 0..times {
                end.write(time, 0, length as u32);
                end.succeed(1);
            }
            done()
        }
        ("send", &[length]) => {
            end.post(1, SendOp::Send { imm: None }, 0, length as u32);
            end.succeed(1);
            done()
        }
        ("await", _) => await_completion(end),
        ("word", &[offset]) => {
            let bytes = end.get(offset, 8).try_into().expect("8 bytes");
            u64::from_ne_bytes(bytes).to_string()
        }
        ("unmap", _) => {
            end.unmap();
            done()
        }
        ("protect", _) => {
            end.make_read_only();
            done()
        }
        ("deregister", _) => {
            end.device.deregister(&end.mr).expect("registered");
            done()
        }
        ("small", _) => {
            local::await_rest();
            done()
        }
        ("in-memory", _) => end.qp.sends_in_memory().to_string(),
        ("state", _) => format!("{:?}", end.state()),
        ("event", _) => {
            deadline::readable(end.device.event_fd(), "an asynchronous event");
            format!("{:?}", end.device.take_event().expect("an event"))
        }
        ("quit", _) => {
            let _ = std::io::stdout().flush();
            std::process::exit(0)
        }
        _ => panic!("{order} {rest}?"),
    }
}

/// Sleeps on the completion channel, while the progress thread receives.
fn await_completion(end: &Endpoint) -> String {
    end.cq.arm(Arm::Any);
    let mut status = None;
    let mut look = |_: ()| end.cq.queue().poll(1, |wc| status = Some(wc.status));
    if look(()) == 0 {
        role::say("asleep");
        deadline::readable(end.channel.fd(), "a completion");
        assert_eq!(
            end.channel.take().expect("a record"),
            u64::from(end.cq.id())
        );
        assert_eq!(look(()), 1, "the record announced one");
    }
    format!("{:?}", status.expect("one came"))
}
