//! One connection: its state, what names it, and what is repeated or due.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::mad::MAD_LEN;
use crate::{
    Address, IpHeader, IpHeaderOr, Kind, ListenerId, PortSpace, PrivateData, QpParameters, Time,
};

/// Names a connection to its owner. It is the local communication ID.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct ConnId(pub(crate) u32);

impl ConnId {
    /// The local communication ID.
    pub fn comm_id(self) -> u32 {
        self.0
    }
}

/// State of a connection.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Active: a REQ is out.
    ReqSent,
    /// Active: the peer has the REQ and needs time.
    MraReqRcvd,
    /// Active: the REP is here, our program has not yet been told.
    RepRcvd,
    /// Active: our program has been told; a repeated REP is answered with MRA.
    MraRepSent,
    /// Passive: a REQ is here, our program has not yet been told.
    ReqRcvd,
    /// Passive: our program has been told; a repeated REQ is answered with MRA.
    MraReqSent,
    /// Passive: a REP is out.
    RepSent,
    /// Passive: the peer has the REP and needs time.
    MraRepRcvd,
    /// Connected.
    Established,
    /// A DREQ is out.
    DreqSent,
    /// A DREQ is here; our program has to answer.
    DreqRcvd,
    /// Closed; packets may still be under way.
    Timewait,
}

/// Which end we are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Role {
    /// The one that sends the REQ.
    Active,
    /// The one that listens.
    Passive,
}

/// The ports of rdma_cm between which a connection is. Nothing depends on them: they
/// are for people.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Ports {
    /// Whose ports they are.
    pub space: PortSpace,
    /// Ours.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
}

impl Ports {
    /// What a REQ says about them, if it is one of rdma_cm.
    pub(crate) fn of_req(role: Role, service_id: u64, data: &PrivateData<92>) -> Option<Ports> {
        let (space, listener) = PortSpace::of_service(service_id)?;
        let IpHeaderOr::Ip(header) = IpHeader::parse(&data.0) else {
            return None;
        };
        let (local, remote) = match role {
            Role::Active => (header.source_port, listener),
            Role::Passive => (listener, header.source_port),
        };
        Some(Ports {
            space,
            local,
            remote,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) role: Role,
    pub(crate) state: State,
    pub(crate) kind: Kind,
    pub(crate) address: Address,
    pub(crate) ports: Option<Ports>,
    pub(crate) local_id: u32,
    /// 0 while it is not known.
    pub(crate) remote_id: u32,
    pub(crate) remote_guid: u64,
    /// Transaction of the REQ, which all answers until RTU repeat.
    pub(crate) tid: u64,
    /// Passive: who listens, while it waits for the program to take the request.
    pub(crate) pending_for: Option<ListenerId>,
    pub(crate) qp: QpParameters,
    /// Active: code of how long packets travel.
    pub(crate) packet_life_time: u8,
    /// How long to wait for an answer.
    pub(crate) interval: Duration,
    pub(crate) max_retries: u8,
    pub(crate) retries_left: u8,
    /// The message that waits for an answer and is repeated.
    pub(crate) repeat: Option<Box<[u8; MAD_LEN]>>,
    /// An MRA has prolonged the wait for this repetition; the next is ignored.
    pub(crate) prolonged: bool,
    /// The last word, sent again when the peer repeats what it answers.
    pub(crate) answer: Option<Box<[u8; MAD_LEN]>>,
    pub(crate) deadline: Option<Time>,
    /// How long the peer may go on repeating its REQ or REP.
    pub(crate) horizon: Duration,
    /// We sent an MRA: the peer may begin to do so that much later.
    pub(crate) mra_sent: bool,
    /// Nobody wants to hear of it any more.
    pub(crate) orphan: bool,
}

impl Connection {
    /// Sets or clears the deadline, here and in the timers.
    pub(crate) fn arm(&mut self, timers: &mut BTreeSet<(Time, u32)>, deadline: Option<Time>) {
        if let Some(old) = self.deadline {
            timers.remove(&(old, self.local_id));
        }
        self.deadline = deadline;
        if let Some(new) = deadline {
            timers.insert((new, self.local_id));
        }
    }

    /// Waits for an answer to `message`, with all retries ahead.
    pub(crate) fn await_answer(
        &mut self,
        timers: &mut BTreeSet<(Time, u32)>,
        now: Time,
        message: [u8; MAD_LEN],
    ) {
        self.repeat = Some(Box::new(message));
        self.retries_left = self.max_retries;
        self.prolonged = false;
        self.arm(timers, Some(now + self.interval));
    }

    /// True if the peer may be sent the same message once more.
    ///
    /// A REQ may carry a forged source address, and only an answer to the REP (RTU, MRA or
    /// data), which names our random ID, shows that the peer is there. Before that the REP
    /// is repeated ever more rarely: 4 times instead of 15 in the same time. A peer that has
    /// lost the REP repeats its REQ, and each repeated REQ is answered.
    pub(crate) fn may_repeat(&self) -> bool {
        let repeats = self.max_retries.saturating_sub(self.retries_left);
        self.state != State::RepSent || repeats.is_power_of_two()
    }

    /// What the peer sent is no answer any more to something we repeat.
    pub(crate) fn answered(&mut self, timers: &mut BTreeSet<(Time, u32)>) {
        self.repeat = None;
        self.arm(timers, None);
    }

    /// Key of the table by which repeated REQs are noticed.
    pub(crate) fn remote_key(&self) -> RemoteKey {
        (self.address.remote, self.remote_guid, self.remote_id)
    }

    /// Key of the table by which stale connections are noticed.
    pub(crate) fn qpn_key(&self) -> RemoteKey {
        (self.address.remote, self.remote_guid, self.qp.remote_qpn)
    }
}

/// A peer's address and adapter, and one of its communication IDs or QPNs.
pub(crate) type RemoteKey = (core::net::IpAddr, u64, u32);
