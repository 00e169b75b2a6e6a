//! A program with slots, in a process of its own.

use std::os::fd::{AsFd, OwnedFd};

use ferroce_control::{Attachment, Error, PAGE_HEADER, Watch, attach, resume};
use ferroce_testnet::{deadline, role};
use rustix::net::RecvFlags;

/// A program with slots.
pub(crate) struct Holder {
    pub(crate) slots: Vec<u8>,
    pub(crate) actor: role::Actor,
}

impl Holder {
    /// Starts a program that attaches to a link.
    pub(crate) fn start(link: &str, shards: u8) -> Holder {
        Holder::start_as(link, shards, None).expect("attached")
    }

    /// Starts a program as another user. Returns the error if it cannot attach.
    pub(crate) fn start_as(
        link: &str,
        shards: u8,
        user: Option<(u32, u32)>,
    ) -> Result<Holder, String> {
        let order = format!("{link} {shards}");
        let mut actor = role::start("common::holder::role", &order, user);
        let said = actor.hear();
        match said.strip_prefix("slots ") {
            None => Err(said),
            Some(slots) => Ok(Holder {
                slots: slots.split(' ').map(|s| s.parse().unwrap()).collect(),
                actor,
            }),
        }
    }

    /// Receives a packet on the first slot. Returns its mark.
    pub(crate) fn receive(&mut self) -> u8 {
        self.actor.ask("receive").parse().expect("a mark")
    }

    /// Sets the counter of sent packets.
    pub(crate) fn count(&mut self, sent_packets: u64) {
        assert_eq!(self.actor.ask(&format!("count {sent_packets}")), "counted");
    }

    /// Waits for a restart of ferroced, and resumes.
    pub(crate) fn resume(&mut self) {
        assert_eq!(self.actor.ask("resume"), "resumed");
    }
}

/// Role of a [`Holder`]; not a test by itself.
#[test]
fn role() {
    let Some(order) = role::order() else { return };
    let (link, shards) = order.split_once(' ').unwrap();
    let mut attachment = match attach(link, shards.parse().unwrap()) {
        Ok(attachment) => attachment,
        Err(error) => return role::say(&format!("{} {error}", error.errno())),
    };
    let slots: Vec<String> = attachment
        .slots
        .iter()
        .map(|s| s.slot.to_string())
        .collect();
    role::say(&format!("slots {}", slots.join(" ")));
    while let Some(line) = role::hear() {
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("receive", _) => receive(&attachment).to_string(),
            ("count", n) => {
                let value = n.parse::<u64>().unwrap().to_ne_bytes();
                let counters = attachment.slots[0].counters.as_fd();
                rustix::io::pwrite(counters, &value, PAGE_HEADER as u64).unwrap();
                "counted".into()
            }
            ("resume", _) => come_back(&mut attachment),
            ("event", _) => event(&mut attachment),
            (other, _) => panic!("{other}?"),
        };
        role::say(&answer);
    }
}

/// Waits for a packet on the first slot, of either family.
fn receive(attachment: &Attachment) -> u8 {
    let (v4, v6) = attachment.slots[0].sockets.as_ref().expect("UDP");
    let sockets: Vec<&OwnedFd> = std::iter::once(v4).chain(v6).collect();
    let mut packet = [0; 64];
    let mut mark = None;
    deadline::until("a packet", || {
        mark = sockets.iter().find_map(|socket| {
            let flags = RecvFlags::DONTWAIT;
            let (_, length) = rustix::net::recv(socket, &mut packet[..], flags).ok()?;
            Some(packet[length - 1])
        });
        mark.is_some()
    });
    mark.expect("one came")
}

fn come_back(attachment: &mut Attachment) -> String {
    let dir = attachment.connection.dir().to_owned();
    let watch = Watch::new(&dir).unwrap();
    loop {
        match attachment.connection.try_event() {
            Err(Error::Closed) => break,
            Ok(_) => deadline::readable(attachment.connection.as_fd(), "ferroced's end"),
            Err(other) => return other.to_string(),
        }
    }
    let slots: Vec<u8> = attachment.slots.iter().map(|s| s.slot).collect();
    loop {
        match resume(&dir, &attachment.link.name, &slots, &attachment.descriptors) {
            Ok((connection, link)) => {
                attachment.connection = connection;
                return if link.is_some() { "resumed" } else { "no link" }.into();
            }
            Err(Error::NoDaemon | Error::Closed) => {
                deadline::readable(&watch, "another ferroced");
                watch.clear();
            }
            Err(error) => return error.to_string(),
        }
    }
}

fn event(attachment: &mut Attachment) -> String {
    format!("{:?}", super::next_event(&mut attachment.connection).kind)
}
