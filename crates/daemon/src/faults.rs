//! Faults of the connection manager's messages: of a link, or of one program's connections.
//!
//! Programs apply the faults of a link to their own packets. Messages of the connection manager
//! are ferroced's, so it applies the faults itself. A program under `ferroce run --faults` sends
//! its faults along.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferroce_cm::message::{Message, Rej, Subject};
use ferroce_cm::{Address, Mad, PrivateData, Reason, Time, Transmit};
use ferroce_control::Reply;
use ferroce_faults::{Direction, Fate, Held, LocalCounts, Plan, Weather};

use crate::client::ClientId;
use crate::refusal::Refusal;
use crate::server::Server;

/// The faults in force.
#[derive(Debug, Default)]
pub(crate) struct CmFaults {
    /// By index of the link.
    links: BTreeMap<u32, Weather>,
    clients: BTreeMap<ClientId, Weather>,
    held: Held<HeldMad>,
}

/// A message that waits.
#[derive(Debug)]
enum HeldMad {
    /// Link, netdev, message, and its fate in words.
    Out(u32, u32, Transmit, String),
    In(u32, Address, Box<[u8]>),
}

impl CmFaults {
    /// Returns true if no faults are in force, and no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.clients.is_empty() && self.held.is_empty()
    }

    /// Puts the faults of a link in force.
    pub(crate) fn set_link(&mut self, link: u32, text: &str) {
        match weather(text) {
            Ok(Some(weather)) => drop(self.links.insert(link, weather)),
            Ok(None) | Err(_) => drop(self.links.remove(&link)),
        }
    }

    /// Ends the faults of a client that is gone.
    pub(crate) fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }

    /// Returns the time at which a message is due.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.held.next_due().map(Time::from_nanos)
    }

    /// Decides the fate of a message. Returns it also in words, which are empty if the message
    /// passes.
    fn judge(
        &mut self,
        now: Time,
        direction: Direction,
        (link, client): (u32, Option<ClientId>),
        address: Address,
        mad: &[u8],
        judged: bool,
    ) -> (Fate, String) {
        let now = nanos(now);
        let clients = client.and_then(|client| self.clients.get_mut(&client));
        let weathers = clients.into_iter().chain(self.links.get_mut(&link));
        for weather in weathers {
            let fate = weather.judge(now, direction, address.remote, mad, judged);
            if let Some(text) = fate.describe(now, weather.plan()) {
                return (fate, text);
            }
        }
        (Fate::PASS, String::new())
    }
}

fn weather(text: &str) -> Result<Option<Weather>, ferroce_faults::ParseError> {
    let plan = Plan::parse(text)?;
    let concerns = plan.concerns_connection_manager();
    let (plan, counts) = (Arc::new(plan), Arc::<LocalCounts>::default());
    Ok(concerns.then(|| Weather::for_connection_manager(plan, counts)))
}

fn nanos(time: Time) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Server {
    /// Puts faults in force on a link, for running programs too, or ends them.
    pub(crate) fn set_link_faults(&mut self, name: &str, text: &str) -> Result<Reply, Refusal> {
        let event = self.links.set_faults(name, text)?;
        if let Some(event) = event {
            self.cm_faults
                .set_link(event.link.index, &event.link.faults);
            self.save();
            self.announce(event);
        }
        Ok(Reply::Done)
    }

    /// Puts faults in force for the connections of a client.
    pub(crate) fn set_client_faults(&mut self, id: ClientId, text: &str) -> Result<Reply, Refusal> {
        let weather = weather(text).map_err(|error| Refusal::new(libc::EINVAL, error))?;
        match weather {
            Some(weather) => drop(self.cm_faults.clients.insert(id, weather)),
            None => self.cm_faults.forget_client(id),
        }
        Ok(Reply::Done)
    }

    /// Sends a MAD, as far as faults let it pass.
    pub(crate) fn send_mad_through_faults(&mut self, link: u32, netdev: u32, transmit: Transmit) {
        let time = self.cm_time();
        let client = self.connections.owner_of_mad(link, &transmit.mad[..]);
        let (owner, address) = ((link, client), transmit.address);
        let mad = &transmit.mad[..];
        let (fate, text) = self
            .cm_faults
            .judge(time, Direction::Out, owner, address, mad, false);
        if fate.is_lost()
            && let Ok(lost) = self.mads.build(&transmit)
        {
            self.cm_taps.sent(link, &lost, &text);
        }
        if fate.rejected
            && let Some(rejection) = rejection(mad)
        {
            let answered = self.connections.receive(time, link, address, &rejection);
            tracing::debug!(?answered, "a fault rejects a message");
        }
        for _ in 0..fate.copies {
            match fate.due {
                Some(_) => {
                    let held = HeldMad::Out(link, netdev, transmit.clone(), text.clone());
                    self.cm_faults.held.add(nanos(time), &fate, 1, held);
                }
                None => self.send_mad(link, netdev, &transmit, &text),
            }
        }
    }

    /// Returns the fate of a received MAD in words, if faults lose or delay it. `is_own` says that
    /// it comes from this ferroced, which has judged it.
    pub(crate) fn fault_holds(
        &mut self,
        link: u32,
        address: Address,
        mad: &[u8],
        is_own: bool,
    ) -> Option<String> {
        let time = self.cm_time();
        let (fate, text) =
            self.cm_faults
                .judge(time, Direction::In, (link, None), address, mad, is_own);
        if fate.due.is_some() && !fate.is_lost() {
            let held = HeldMad::In(link, address, mad.into());
            self.cm_faults.held.add(nanos(time), &fate, 1, held);
            return Some(text);
        }
        fate.is_lost().then_some(text)
    }

    /// Passes on messages that faults have delayed.
    pub(crate) fn release_held_mads(&mut self) {
        let time = self.cm_time();
        while let Some(held) = self.cm_faults.held.take_due(nanos(time)) {
            match held {
                HeldMad::Out(link, netdev, transmit, text) => {
                    self.send_mad(link, netdev, &transmit, &text);
                }
                HeldMad::In(link, address, mad) => {
                    let _ignored = self.connections.receive(time, link, address, &mad);
                }
            }
        }
    }
}

/// Returns the REJ with which a peer refuses a REQ or REP.
fn rejection(mad: &[u8]) -> Option<Vec<u8>> {
    let mad = Mad::decode(mad).ok()?;
    let (local_id, remote_id, subject) = match mad.message {
        Message::Req(req) => (0, req.local_id, Subject::Req),
        Message::Rep(rep) => (rep.remote_id, rep.local_id, Subject::Rep),
        _ => return None,
    };
    let rej = Rej {
        local_id,
        remote_id,
        subject,
        ari_len: 0,
        reason: Reason::CONSUMER,
        ari: [0; 72],
        private_data: PrivateData::default(),
    };
    let mad = Mad {
        message: Message::Rej(rej),
        ..mad
    };
    Some(mad.encode().to_vec())
}
