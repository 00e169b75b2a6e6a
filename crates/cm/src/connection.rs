//! One connection: its state, its IDs, and the message it retransmits.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::mad::MAD_LEN;
use crate::{
    Address, IpHeader, IpHeaderOr, Kind, ListenerId, PortSpace, PrivateData, QpParameters, Time,
};

/// Handle of a connection: the local communication ID.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct ConnId(pub(crate) u32);

impl ConnId {
    /// Returns the local communication ID.
    pub fn comm_id(self) -> u32 {
        self.0
    }
}

/// State of a connection.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Active: the REQ was sent.
    ReqSent,
    /// Active: the peer has answered the REQ with an MRA and needs more time.
    MraReqRcvd,
    /// Active: the REP was received, but the program has not taken the event.
    RepRcvd,
    /// Active: the program has taken the event. A duplicate REP is answered with an MRA.
    MraRepSent,
    /// Passive: a REQ was received, but the program has not taken the event.
    ReqRcvd,
    /// Passive: the program has taken the event. A duplicate REQ is answered with an MRA.
    MraReqSent,
    /// Passive: the REP was sent.
    RepSent,
    /// Passive: the peer has answered the REP with an MRA and needs more time.
    MraRepRcvd,
    /// Connected.
    Established,
    /// The DREQ was sent.
    DreqSent,
    /// A DREQ was received, and the program must answer it.
    DreqRcvd,
    /// Closed, but packets may still be in flight.
    Timewait,
}

/// The side of a connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum Role {
    /// The side that sends the REQ.
    Active,
    /// The side that listens.
    Passive,
}

/// The rdma_cm ports of a connection. They are displayed; the protocol does not use them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Ports {
    /// Port space of both ports.
    pub space: PortSpace,
    /// Port of this node.
    pub local: u16,
    /// Port of the peer.
    pub remote: u16,
}

impl Ports {
    /// Returns the ports in a REQ, if it is a request of rdma_cm.
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
    /// The peer's communication ID, 0 until its first answer.
    pub(crate) remote_id: u32,
    pub(crate) remote_guid: u64,
    /// Transaction ID of the REQ, which all answers up to the RTU repeat. After a DREQ of
    /// the peer, the transaction ID of the DREQ.
    pub(crate) tid: u64,
    /// Passive: the listener whose backlog holds the request, until the program takes it.
    pub(crate) pending_for: Option<ListenerId>,
    pub(crate) qp: QpParameters,
    /// Active: longest travel time of a packet; a time code.
    pub(crate) packet_life_time: u8,
    /// Time to wait for an answer before the next retransmission.
    pub(crate) interval: Duration,
    pub(crate) max_retries: u8,
    pub(crate) retries_left: u8,
    /// The unanswered message, which is retransmitted.
    pub(crate) repeat: Option<Box<[u8; MAD_LEN]>>,
    /// True if an MRA has extended the current wait. Further MRAs are ignored until the next
    /// retransmission.
    pub(crate) prolonged: bool,
    /// The last answer, sent again when the peer retransmits the answered message.
    pub(crate) answer: Option<Box<[u8; MAD_LEN]>>,
    pub(crate) deadline: Option<Time>,
    /// Time for which the peer may retransmit its REQ or REP.
    pub(crate) horizon: Duration,
    /// True if this node has sent an MRA, which extends the peer's retransmissions by the
    /// MRA's timeout.
    pub(crate) mra_sent: bool,
    /// True if the program has given up the connection and gets no more events.
    pub(crate) orphan: bool,
}

impl Connection {
    /// Sets or clears the deadline, in the connection and in `timers`.
    pub(crate) fn arm(&mut self, timers: &mut BTreeSet<(Time, u32)>, deadline: Option<Time>) {
        if let Some(old) = self.deadline {
            timers.remove(&(old, self.local_id));
        }
        self.deadline = deadline;
        if let Some(new) = deadline {
            timers.insert((new, self.local_id));
        }
    }

    /// Starts to wait for an answer to `message`, with the full number of retries.
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

    /// Returns true if the message may be retransmitted at this deadline.
    ///
    /// The source address of a REQ may be forged. Only an answer to the REP (RTU, MRA or
    /// data), which names our random ID, proves that the peer exists. Before that, the REP
    /// is retransmitted at the deadlines 1, 2, 4 and 8 only: 4 times instead of 15. A peer
    /// that missed the REP retransmits its REQ, and each duplicate REQ is answered.
    pub(crate) fn may_repeat(&self) -> bool {
        let repeats = self.max_retries.saturating_sub(self.retries_left);
        self.state != State::RepSent || repeats.is_power_of_two()
    }

    /// Ends the retransmission of the last message, because the peer has answered it.
    pub(crate) fn stop_repeating(&mut self, timers: &mut BTreeSet<(Time, u32)>) {
        self.repeat = None;
        self.arm(timers, None);
    }

    /// Returns the key of [`Cm::by_remote`](crate::Cm), which detects duplicate REQs.
    pub(crate) fn remote_key(&self) -> RemoteKey {
        (self.address.remote, self.remote_guid, self.remote_id)
    }

    /// Returns the key of [`Cm::by_qpn`](crate::Cm), which detects stale connections.
    pub(crate) fn qpn_key(&self) -> RemoteKey {
        (self.address.remote, self.remote_guid, self.qp.remote_qpn)
    }
}

/// A peer's address and adapter GUID, and one of its communication IDs or QPNs.
pub(crate) type RemoteKey = (core::net::IpAddr, u64, u32);
