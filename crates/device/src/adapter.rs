//! Verbs calls on an adapter, whatever its protocol.

use core::net::IpAddr;

use ferroce_roce::{
    Engine, QpCap, QpInit, QpQuery, QpType, RecvWr, RetryCounts, SendWr, Time, VerbsError,
};
use ferroce_wire::Mtu;

/// The engine of an adapter, borrowed for one verbs call or one list of posts.
///
/// The protocol is decided once per call. Packets do not pass here: the code that moves
/// them, datagrams for RoCE and streams for iWARP, holds the engine of its protocol.
pub(crate) enum Adapter<'a> {
    /// RoCE v2 over UDP.
    Roce(&'a mut Engine),
    /// iWARP over TCP.
    Iwarp(&'a mut ferroce_iwarp::Engine),
}

impl Adapter<'_> {
    /// Sets the port's active MTU.
    pub(crate) fn set_port_mtu(&mut self, mtu: Mtu) {
        match self {
            Adapter::Roce(engine) => engine.set_port_mtu(mtu),
            // The segments of a stream follow its TCP connection.
            Adapter::Iwarp(_) => {}
        }
    }

    /// Creates a queue pair in RESET. Returns its number and the granted sizes.
    pub(crate) fn create_qp(&mut self, init: &QpInit) -> Result<(u32, QpCap), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.create_qp(init),
            Adapter::Iwarp(engine) => engine.create_qp(init),
        }
    }

    /// Returns attributes, state and sizes of a queue pair.
    pub(crate) fn query_qp(&self, qpn: u32) -> Result<QpQuery, VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.query_qp(qpn),
            Adapter::Iwarp(engine) => engine.query_qp(qpn).map(of_iwarp),
        }
    }

    /// Posts to the send queue.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        now: Time,
        qpn: u32,
        wr: SendWr<'_>,
    ) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.post_send(now, qpn, wr),
            Adapter::Iwarp(engine) => engine.post_send(now, qpn, wr),
        }
    }

    /// Checks a send work request as [`Adapter::post_send`] does, when `ahead` others are
    /// posted before it.
    pub(crate) fn check_send(
        &self,
        qpn: u32,
        wr: &SendWr<'_>,
        ahead: usize,
    ) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.check_send(qpn, wr, ahead),
            Adapter::Iwarp(engine) => engine.check_send(qpn, wr, ahead),
        }
    }

    /// Posts to the receive queue.
    #[inline]
    pub(crate) fn post_recv(
        &mut self,
        now: Time,
        qpn: u32,
        wr: &RecvWr<'_>,
    ) -> Result<(), VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.post_recv(now, qpn, wr),
            Adapter::Iwarp(engine) => engine.post_recv(now, qpn, wr),
        }
    }

    /// Attaches a UD queue pair to a multicast group. Returns true if it is the first member
    /// in this shard: the caller then joins the group.
    pub(crate) fn attach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.attach_multicast(qpn, group),
            Adapter::Iwarp(_) => Err(no_multicast()),
        }
    }

    /// Detaches a queue pair from a multicast group. Returns true if it was the last member
    /// in this shard: the caller then leaves the group.
    pub(crate) fn detach_multicast(&mut self, qpn: u32, group: IpAddr) -> Result<bool, VerbsError> {
        match self {
            Adapter::Roce(engine) => engine.detach_multicast(qpn, group),
            Adapter::Iwarp(_) => Err(no_multicast()),
        }
    }

    /// Returns the multicast groups that a queue pair is attached to.
    pub(crate) fn multicast_groups(&self, qpn: u32) -> Vec<IpAddr> {
        match self {
            Adapter::Roce(engine) => engine.multicast_groups(qpn),
            Adapter::Iwarp(_) => Vec::new(),
        }
    }

    /// Returns the numbers of all queue pairs.
    pub(crate) fn qpns(&self) -> Vec<u32> {
        match self {
            Adapter::Roce(engine) => engine.qpns().collect(),
            Adapter::Iwarp(engine) => engine.qpns().collect(),
        }
    }
}

/// Returns the attributes of an iWARP queue pair in the form of all protocols.
fn of_iwarp(query: ferroce_iwarp::QpQuery) -> QpQuery {
    QpQuery {
        attr: query.attr,
        cap: query.cap,
        qp_type: QpType::Rc,
        sq_sig_all: query.sq_sig_all,
        sends: query.sends,
        receives: query.receives,
        // The kernel's TCP has the window.
        window: 0,
        in_flight: 0,
        round_trip_ns: 0,
        una: query.attr.sq_psn,
        unacked: 0,
        retry_counts: RetryCounts::default(),
        pd: Some(query.pd),
        send_cq: Some(query.send_cq),
        recv_cq: Some(query.recv_cq),
        srq: query.srq,
    }
}

fn no_multicast() -> VerbsError {
    VerbsError::NotSupported("iWARP has no multicast".into())
}

impl core::fmt::Debug for Adapter<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Adapter::Roce(_) => "Roce",
            Adapter::Iwarp(_) => "Iwarp",
        })
    }
}
