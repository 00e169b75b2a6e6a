//! Established connections outlive the connection manager.
//!
//! Once established, a connection needs its manager only for the end. So its
//! owner keeps a small record, and a manager that starts anew is handed it.

use core::time::Duration;

use crate::connection::{Connection, Role};
use crate::{Address, CallError, Cm, ConnId, Kind, Ports, QpParameters, State};

/// All that a connection manager knows of an established connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Snapshot {
    /// Which end we are.
    pub role: Role,
    /// Kind of the connection.
    pub kind: Kind,
    /// From where to where.
    pub address: Address,
    /// Between which ports, if it is one of rdma_cm.
    pub ports: Option<Ports>,
    /// Our communication ID.
    pub local_id: u32,
    /// The peer's.
    pub remote_id: u32,
    /// The peer's channel adapter.
    pub remote_guid: u64,
    /// Transaction of the REQ.
    pub tid: u64,
    /// What was negotiated for the queue pair.
    pub qp: QpParameters,
    /// How long to wait for an answer.
    pub interval: Duration,
    /// How often a message is sent again.
    pub max_retries: u8,
}

impl Cm {
    /// The record of an established connection.
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

    /// Takes over an established connection from a manager that is gone.
    ///
    /// # Errors
    /// If one of its names is in use.
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
