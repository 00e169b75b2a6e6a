//! The list of `rdma resource show cm_id`.

use std::net::IpAddr;

use ferroce_cm::{PortSpace, State};

use super::Connections;
use crate::client::ClientId;

/// A connection, or a port that a program listens on.
#[derive(Debug)]
pub(crate) struct CmObject {
    pub(crate) client: ClientId,
    pub(crate) number: u32,
    pub(crate) lqpn: Option<u32>,
    pub(crate) qp_type: Option<&'static str>,
    pub(crate) state: &'static str,
    pub(crate) space: &'static str,
    pub(crate) source: Option<(IpAddr, Option<u16>)>,
    pub(crate) destination: Option<(IpAddr, Option<u16>)>,
}

impl Connections {
    /// Returns the connections and listening ports on a link.
    pub(crate) fn objects(&self, link: u32) -> Vec<CmObject> {
        let mut objects = Vec::new();
        for (client, program) in &self.programs {
            for (number, port) in &program.ports {
                let listening = port.listening.as_ref();
                if listening.is_some_and(|listening| listening.at.contains_key(&link)) {
                    objects.push(CmObject {
                        client: *client,
                        number: *number as u32,
                        lqpn: None,
                        qp_type: None,
                        state: "LISTEN",
                        space: space(port.space),
                        source: Some((port.source.ip, Some(port.number))),
                        destination: None,
                    });
                }
            }
        }
        let Some(side) = self.links.get(&link) else {
            return objects;
        };
        for (conn, owned) in &side.connections {
            let (Some(now), Some(address)) = (side.cm.state(*conn), side.cm.address(*conn)) else {
                continue;
            };
            let ports = side.cm.ports(*conn);
            let qpn = side.cm.qp_parameters(*conn).map(|qp| qp.local_qpn);
            let qpn = qpn.filter(|qpn| *qpn != 0);
            objects.push(CmObject {
                client: owned.client,
                number: conn.comm_id(),
                lqpn: qpn,
                qp_type: qpn.map(|_| "RC"),
                state: state(now),
                space: space(ports.map_or(PortSpace::Tcp, |ports| ports.space)),
                source: Some((address.local, ports.map(|ports| ports.local))),
                destination: Some((address.remote, ports.map(|ports| ports.remote))),
            });
        }
        objects
    }
}

fn state(state: State) -> &'static str {
    match state {
        State::DreqSent | State::DreqRcvd | State::Timewait => "DISCONNECT",
        _ => "CONNECT",
    }
}

fn space(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Tcp => "TCP",
        PortSpace::Udp => "UDP",
        PortSpace::Ipoib | PortSpace::Ib => "IPoIB",
    }
}
