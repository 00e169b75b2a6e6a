//! Calls of programs.

use std::time::Duration;

use ferroce_cm::ports::Bind;
use ferroce_cm::{Address, CallError, ConnId, PrivateData, Request, SidrRequest, Snapshot, Time};
use ferroce_control::{CmAnswer, CmCall, CmId};

use super::listening::{no_port, port_refused, too_many};
use super::program::{MAX_CONNECTIONS, MAX_SIDR_REQUESTS};
use super::{Connections, LinkSide, Owned};
use crate::client::ClientId;
use crate::refusal::Refusal;

/// Longest response timeout in a resumed connection: the sum of the longest time codes.
const LONGEST: Duration = Duration::from_secs(8 * 60 * 60);

/// The program that calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) client: ClientId,
    /// True if the program may bind to ports below 1024.
    pub(crate) privileged: bool,
}

impl Connections {
    /// Executes a call. The caller of this function has checked that queue pairs in it belong
    /// to the program.
    pub(crate) fn call(
        &mut self,
        now: Time,
        caller: Caller,
        call: CmCall,
    ) -> Result<CmAnswer, Refusal> {
        let client = caller.client;
        match call {
            CmCall::Bind {
                space,
                source,
                port,
                destination,
                reuse,
                af_only,
            } => {
                let bind = Bind {
                    space,
                    source,
                    port,
                    destination,
                    reuse,
                    af_only,
                    privileged: caller.privileged,
                };
                return self.bind(now, client, &bind);
            }
            CmCall::SetRoute {
                port: id,
                source,
                destination,
            } => {
                let program = self.programs.get_mut(&client);
                let port = program.and_then(|program| program.ports.get_mut(&id));
                let port = port.ok_or_else(|| no_port(id))?;
                let number = port.number;
                let routed = self.ports.set_route(port.bind, source, destination);
                routed.map_err(|error| port_refused(number, error))?;
                port.source = source;
            }
            CmCall::Release { port } => self.release(now, client, port)?,
            CmCall::Listen { port, backlog } => self.listen(now, client, port, backlog)?,
            CmCall::Connect { link, request } => return self.connect(now, client, link, &request),
            CmCall::Resume { link, snapshot } => return self.resume(client, link, &snapshot),
            CmCall::SidrRequest { link, request } => {
                return self.sidr_request(now, client, link, &request);
            }
            CmCall::Taken { conn } => {
                self.with(client, conn, |cm, id| cm.taken(id))?;
                self.take(conn);
            }
            CmCall::Accept { conn, accept } => {
                self.with(client, conn, |cm, id| cm.accept(now, id, &accept))?;
                self.take(conn);
                self.collect(now, conn.link);
            }
            CmCall::Reject {
                conn,
                reason,
                private_data,
            } => {
                self.with(client, conn, |cm, id| {
                    cm.reject(now, id, reason, &[], *private_data)
                })?;
                self.forget(conn);
                self.collect(now, conn.link);
            }
            CmCall::Establish { conn } => {
                let snapshot = self.with(client, conn, |cm, id| {
                    cm.establish(id, PrivateData::EMPTY)?;
                    cm.snapshot(id).ok_or(CallError::Unknown)
                })?;
                self.collect(now, conn.link);
                let snapshot = Box::new(snapshot);
                return Ok(CmAnswer::Established { snapshot });
            }
            CmCall::CommunicationEstablished { conn } => {
                self.with(client, conn, |cm, id| cm.communication_established(id))?;
                self.collect(now, conn.link);
            }
            CmCall::Disconnect { conn } => {
                self.with(client, conn, |cm, id| {
                    cm.disconnect(now, id, PrivateData::EMPTY)
                })?;
                self.collect(now, conn.link);
            }
            CmCall::Destroy { conn } => {
                self.with(client, conn, |cm, id| cm.destroy(now, id))?;
                self.forget(conn);
                self.collect(now, conn.link);
            }
            CmCall::SidrTaken { sidr } => {
                self.with(client, sidr, |cm, id| cm.sidr_taken(id))?;
                self.take(sidr);
            }
            CmCall::SidrAnswer { sidr, answer } => {
                self.with(client, sidr, |cm, id| cm.sidr_answer(now, id, &answer))?;
                self.forget(sidr);
                self.collect(now, sidr.link);
            }
            CmCall::SidrDestroy { sidr } => {
                self.with(client, sidr, |cm, id| cm.sidr_destroy(now, id))?;
                self.forget(sidr);
                self.collect(now, sidr.link);
            }
        }
        Ok(CmAnswer::Done)
    }

    fn connect(
        &mut self,
        now: Time,
        client: ClientId,
        link: u32,
        request: &Request,
    ) -> Result<CmAnswer, Refusal> {
        self.room_for_connection(client)?;
        let side = self.side_for(link, request.address)?;
        if request.packet_life_time > 31 {
            return Err(wrong("a time code is at most 31"));
        }
        let id = side.cm.connect(now, request);
        self.collect(now, link);
        Ok(self.new_connection(client, CmId { link, id }))
    }

    fn resume(
        &mut self,
        client: ClientId,
        link: u32,
        snapshot: &Snapshot,
    ) -> Result<CmAnswer, Refusal> {
        self.room_for_connection(client)?;
        let side = self.side(link)?;
        check_address(snapshot.address)?;
        if snapshot.interval > LONGEST || snapshot.qp.timeout > 31 {
            return Err(wrong("the timeouts are longer than a connection can have"));
        }
        let id = side.cm.resume(snapshot).map_err(refused)?;
        Ok(self.new_connection(client, CmId { link, id }))
    }

    fn sidr_request(
        &mut self,
        now: Time,
        client: ClientId,
        link: u32,
        request: &SidrRequest,
    ) -> Result<CmAnswer, Refusal> {
        let program = self.programs.entry(client).or_default();
        if program.sidr_requests.len() >= MAX_SIDR_REQUESTS {
            return Err(too_many(MAX_SIDR_REQUESTS, "SIDR requests"));
        }
        let side = self.side_for(link, request.address)?;
        let id = side.cm.sidr_request(now, request);
        let owned = Owned {
            client,
            waits_at: None,
        };
        side.sidr_requests.insert(id, owned);
        let sidr = CmId { link, id };
        let program = self.programs.entry(client).or_default();
        program.sidr_requests.insert(sidr);
        self.collect(now, link);
        Ok(CmAnswer::SidrRequested { sidr })
    }

    fn room_for_connection(&mut self, client: ClientId) -> Result<(), Refusal> {
        match self.programs.entry(client).or_default().connections.len() {
            MAX_CONNECTIONS.. => Err(too_many(MAX_CONNECTIONS, "connections")),
            _ => Ok(()),
        }
    }

    fn new_connection(&mut self, client: ClientId, conn: CmId<ConnId>) -> CmAnswer {
        let owned = Owned {
            client,
            waits_at: None,
        };
        if let Some(side) = self.links.get_mut(&conn.link) {
            side.connections.insert(conn.id, owned);
        }
        let program = self.programs.entry(client).or_default();
        program.connections.insert(conn);
        CmAnswer::Connection { conn }
    }

    fn side(&mut self, link: u32) -> Result<&mut LinkSide, Refusal> {
        let side = self.links.get_mut(&link);
        side.ok_or_else(|| Refusal::new(libc::ENODEV, format!("no link has the index {link}")))
    }

    /// Returns the link, if it has the local address and the remote address is one of a host.
    fn side_for(&mut self, link: u32, address: Address) -> Result<&mut LinkSide, Refusal> {
        let side = self.side(link)?;
        if side.netdev_of(address.local).is_none() {
            let reason = format!("{} is not an address of the link", address.local);
            return Err(Refusal::new(libc::EADDRNOTAVAIL, reason));
        }
        check_address(address)?;
        Ok(side)
    }
}

pub(super) fn refused(error: CallError) -> Refusal {
    let errno = match error {
        CallError::Unknown => libc::ENOENT,
        CallError::State(_) => libc::EINVAL,
        CallError::InUse => libc::EADDRINUSE,
    };
    Refusal::new(errno, error)
}

fn check_address(address: Address) -> Result<(), Refusal> {
    let Address { local, remote } = address;
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(wrong("the addresses are of different IP versions"));
    }
    if remote.is_unspecified() || remote.is_multicast() {
        return Err(wrong(
            "the peer's address is a wildcard or a multicast address",
        ));
    }
    Ok(())
}

fn wrong(why: &str) -> Refusal {
    Refusal::new(libc::EINVAL, why)
}
