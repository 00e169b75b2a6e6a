//! Verbs calls on an adapter, whatever its protocol.

use core::net::IpAddr;

use ferroce_wire::Mtu;

use crate::Protocol;
use crate::attr::{AttrMask, QpAttr, QpCap, QpInit};
use crate::engine::Engine;
use crate::error::VerbsError;
use crate::qp::QpQuery;
use crate::time::Time;
use crate::verbs::{RecvWr, SendWr};

/// The engine of an adapter, borrowed for one verbs call or one list of posts.
///
/// The protocol is decided once per call. Packets do not pass here: the code that moves
/// them, UDP datagrams for RoCE, holds the engine of its protocol. A second protocol adds a
/// variant, and every match without it is a compile error.
pub enum Adapter<'a> {
    /// RoCE v2 over UDP.
    Roce(&'a mut Engine),
}

impl Adapter<'_> {
    /// Returns the protocol.
    #[inline]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Adapter::Roce(_) => Protocol::Roce,
        }
    }

    /// Sets the port's active MTU.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        match self {
            Adapter::Roce(engine) => engine.set_port_mtu(mtu),
        }
    }

    /// Creates a queue pair in RESET. Returns its number and the granted sizes.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<(u32, QpCap), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.create_qp(init),
        }
    }

    /// Changes attributes and state of a queue pair.
    pub fn modify_qp(
        &mut self,
        now: Time,
        qpn: u32,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.modify_qp(now, qpn, attr, mask),
        }
    }

    /// Returns attributes, state and sizes of a queue pair.
    pub fn query_qp(&self, qpn: u32) -> Result<QpQuery, VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.query_qp(qpn),
        }
    }

    /// Destroys a queue pair. Posted work requests get no completion.
    pub fn destroy_qp(&mut self, qpn: u32) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.destroy_qp(qpn),
        }
    }

    /// Posts to the send queue.
    #[inline]
    pub fn post_send(&mut self, now: Time, qpn: u32, wr: SendWr<'_>) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.post_send(now, qpn, wr),
        }
    }

    /// Checks a send work request as [`Adapter::post_send`] does, when `ahead` others are
    /// posted before it.
    pub fn check_send(&self, qpn: u32, wr: &SendWr<'_>, ahead: usize) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.check_send(qpn, wr, ahead),
        }
    }

    /// Posts to the receive queue.
    #[inline]
    pub fn post_recv(&mut self, now: Time, qpn: u32, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.post_recv(now, qpn, wr),
        }
    }

    /// Attaches a UD queue pair to a multicast group. Returns true if it is the first member
    /// in this shard: the caller then joins the group.
    pub fn attach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.attach_multicast(qpn, group),
        }
    }

    /// Detaches a queue pair from a multicast group. Returns true if it was the last member
    /// in this shard: the caller then leaves the group.
    pub fn detach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.detach_multicast(qpn, group),
        }
    }

    /// Returns the multicast groups that a queue pair is attached to.
    pub fn multicast_groups(&self, qpn: u32) -> Vec<IpAddr> {
        match self {
            Adapter::Roce(engine) => engine.multicast_groups(qpn),
        }
    }

    /// Returns the numbers of all queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = u32> + '_ {
        match self {
            Adapter::Roce(engine) => engine.qpns(),
        }
    }
}

impl core::fmt::Debug for Adapter<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Adapter").field(&self.protocol()).finish()
    }
}
