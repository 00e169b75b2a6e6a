//! Restores established connections after a restart of the connection manager.
//!
//! An established connection needs the connection manager only to close it. So the program
//! keeps a snapshot of the connection and passes it to a restarted connection manager.

use core::time::Duration;

use crate::connection::{Connection, Role};
use crate::{Address, CallError, Cm, ConnId, Kind, Ports, QpParameters, State};

/// The state of an established connection that survives a restart.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Snapshot {
    /// Side of the connection that this node is.
    pub role: Role,
    /// Kind of the connection.
    pub kind: Kind,
    /// Addresses of this node and the peer.
    pub address: Address,
    /// The rdma_cm ports, if rdma_cm made the connection.
    pub ports: Option<Ports>,
    /// Our communication ID.
    pub local_id: u32,
    /// The peer's communication ID.
    pub remote_id: u32,
    /// GUID of the peer's channel adapter.
    pub remote_guid: u64,
    /// Transaction ID of the REQ.
    pub tid: u64,
    /// The negotiated queue pair attributes.
    pub qp: QpParameters,
    /// Time to wait for an answer before the next retransmission.
    pub interval: Duration,
    /// Number of retransmissions of a message.
    pub max_retries: u8,
}

impl Cm {
    /// Returns the snapshot of an established connection.
    pub fn snapshot(&self, conn: ConnId) -> Option<Snapshot> {
        let c = self.connections.get(&conn.0)?;
        (c.state == State::Established).then_some(Snapshot {
            role: c.role,
            kind: c.kind,
            address: c.address,
            ports: c.ports,
            local_id: c.local_id,
            remote_id: c.remote_id,
            remote_guid: c.remote_guid,
            tid: c.tid,
            qp: c.qp,
            interval: c.interval,
            max_retries: c.max_retries,
        })
    }

    /// Restores an established connection of an earlier connection manager.
    ///
    /// # Errors
    /// If its communication ID, the peer's ID or the peer's queue pair is in use.
    pub fn resume(&mut self, snapshot: &Snapshot) -> Result<ConnId, CallError> {
        let id = snapshot.local_id;
        let connection = Connection {
            role: snapshot.role,
            state: State::Established,
            kind: snapshot.kind,
            address: snapshot.address,
            ports: snapshot.ports,
            local_id: id,
            remote_id: snapshot.remote_id,
            remote_guid: snapshot.remote_guid,
            tid: snapshot.tid,
            pending_for: None,
            qp: snapshot.qp,
            packet_life_time: 0,
            interval: snapshot.interval,
            max_retries: snapshot.max_retries,
            retries_left: 0,
            repeat: None,
            prolonged: false,
            answer: None,
            deadline: None,
            horizon: Duration::ZERO,
            mra_sent: false,
            orphan: false,
        };
        let (remote, qpn) = (connection.remote_key(), connection.qpn_key());
        let used = id == 0
            || self.connections.contains_key(&id)
            || self.sidrs.contains(id)
            || self.by_remote.contains_key(&remote)
            || self.by_qpn.contains_key(&qpn);
        if used {
            return Err(CallError::InUse);
        }
        self.by_remote.insert(remote, id);
        self.by_qpn.insert(qpn, id);
        self.connections.insert(id, connection);
        Ok(ConnId(id))
    }
}
