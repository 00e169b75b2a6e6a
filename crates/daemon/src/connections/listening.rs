//! Ports: bind, listen, release.

use ferroce_cm::ports::{Bind, BindError};
use ferroce_cm::{CallError, Time};
use ferroce_control::{CmAnswer, CmPort};
use rand_chacha::rand_core::RngCore;

use super::Connections;
use super::program::{Listening, MAX_PORTS, Port};
use crate::client::ClientId;
use crate::refusal::Refusal;

/// Largest backlog, and the one of a program that passes 0.
const MAX_BACKLOG: u32 = 1024;

impl Connections {
    /// Binds to a port. Without a destination the program may listen soon.
    pub(super) fn bind(
        &mut self,
        now: Time,
        client: ClientId,
        bind: &Bind,
    ) -> Result<CmAnswer, Refusal> {
        let program = self.programs.entry(client).or_default();
        if program.ports.len() >= MAX_PORTS {
            return Err(too_many(MAX_PORTS, "ports"));
        }
        let (id, number) = self
            .ports
            .bind(bind, self.rng.next_u32())
            .map_err(|error| bind_refused(bind, error))?;
        let port = Port {
            bind: id,
            space: bind.space,
            source: bind.source,
            af_only: bind.af_only,
            number,
            listening: None,
        };
        if bind.destination.is_none() {
            let service = port.space.service_id(number);
            let sides = self.links.values_mut();
            sides
                .filter(|side| port.concerns(&side.addresses))
                .for_each(|side| side.cm.expect_listener(now, service));
        }
        let port = program.insert(port);
        Ok(CmAnswer::Bound { port, number })
    }

    /// Listens on a bound port.
    pub(super) fn listen(
        &mut self,
        now: Time,
        client: ClientId,
        id: CmPort,
        backlog: u32,
    ) -> Result<(), Refusal> {
        let port = self.programs.get_mut(&client);
        let port = port.and_then(|program| program.ports.get_mut(&id));
        let port = port.ok_or_else(|| no_port(id))?;
        if port.listening.is_some() {
            return Err(Refusal::new(
                libc::EINVAL,
                format!("port {} listens already", port.number),
            ));
        }
        let mut links = self.links.values();
        if !port.source.ip.is_unspecified() && !links.any(|l| port.concerns(&l.addresses)) {
            let reason = format!("no link has the address {}", port.source.ip);
            return Err(Refusal::new(libc::EADDRNOTAVAIL, reason));
        }
        let number = port.number;
        let refused = |error| port_refused(number, error);
        self.ports.listen(port.bind).map_err(refused)?;
        port.listening = Some(Listening {
            backlog: match backlog {
                0 => MAX_BACKLOG,
                some => some.min(MAX_BACKLOG),
            } as usize,
            at: Default::default(),
            connections: Default::default(),
            sidr_requests: Default::default(),
        });
        let links: Vec<u32> = self.links.keys().copied().collect();
        for link in links {
            if let Err(error) = self.listen_at(link, client, id) {
                self.unlisten(now, client, id);
                return Err(super::calls::refused(error));
            }
        }
        Ok(())
    }

    /// Starts the missing listeners of all ports on a link.
    pub(super) fn listen_on(&mut self, link: u32) {
        let listening = |(client, program): (&ClientId, &super::Program)| {
            let ports = program
                .ports
                .iter()
                .filter(|(_, port)| port.listening.is_some());
            let ports = ports.map(|(port, _)| (*client, *port));
            ports.collect::<Vec<_>>()
        };
        let ports: Vec<_> = self.programs.iter().flat_map(listening).collect();
        for (client, port) in ports {
            if let Err(error) = self.listen_at(link, client, port) {
                tracing::warn!(link, %error, "a program cannot listen on a link");
            }
        }
    }

    /// Starts the listener of a port on a link, if the port covers the link and has none.
    fn listen_at(&mut self, link: u32, client: ClientId, id: CmPort) -> Result<(), CallError> {
        let port = self.programs.get_mut(&client);
        let port = port.and_then(|program| program.ports.get_mut(&id));
        let (Some(port), Some(side)) = (port, self.links.get_mut(&link)) else {
            return Ok(());
        };
        let (service, address) = (port.space.service_id(port.number), port.address());
        let concerned = port.concerns(&side.addresses);
        let Some(listening) = &mut port.listening else {
            return Ok(());
        };
        if !concerned || listening.at.contains_key(&link) {
            return Ok(());
        }
        let listener = side.cm.listen(service, address, listening.backlog)?;
        listening.at.insert(link, listener);
        side.listeners.insert(listener, (client, id));
        Ok(())
    }

    /// Stops listening, and rejects requests that the program has not taken.
    fn unlisten(&mut self, now: Time, client: ClientId, id: CmPort) {
        let Some(program) = self.programs.get_mut(&client) else {
            return;
        };
        let port = program.ports.get_mut(&id);
        let Some(listening) = port.and_then(|port| port.listening.take()) else {
            return;
        };
        for conn in listening.connections {
            program.connections.remove(&conn);
            if let Some(side) = self.links.get_mut(&conn.link) {
                side.connections.remove(&conn.id);
            }
        }
        for sidr in listening.sidr_requests {
            program.sidr_requests.remove(&sidr);
            if let Some(side) = self.links.get_mut(&sidr.link) {
                side.sidr_requests.remove(&sidr.id);
            }
        }
        for (link, listener) in listening.at {
            if let Some(side) = self.links.get_mut(&link) {
                side.listeners.remove(&listener);
                let _ = side.cm.unlisten(now, listener);
            }
            self.collect(now, link);
        }
    }

    /// Releases a port.
    pub(super) fn release(
        &mut self,
        now: Time,
        client: ClientId,
        id: CmPort,
    ) -> Result<(), Refusal> {
        self.unlisten(now, client, id);
        let program = self.programs.get_mut(&client);
        let port = program.and_then(|program| program.ports.remove(&id));
        let port = port.ok_or_else(|| no_port(id))?;
        let refused = |error| port_refused(port.number, error);
        self.ports.release(port.bind).map_err(refused)
    }
}

pub(super) fn no_port(id: CmPort) -> Refusal {
    Refusal::new(libc::ENOENT, format!("this program has no port {id}"))
}

pub(super) fn too_many(limit: usize, what: &str) -> Refusal {
    let reason = format!("a program can have at most {limit} {what}");
    Refusal::new(libc::ENOMEM, reason)
}

fn bind_refused(bind: &Bind, error: BindError) -> Refusal {
    match bind.port {
        0 => Refusal::new(errno(error), "no ephemeral port is left"),
        port => port_refused(port, error),
    }
}

pub(super) fn port_refused(port: u16, error: BindError) -> Refusal {
    let reason = match error {
        BindError::InUse => "another program is bound to this port at this address",
        BindError::NotAvailable => {
            "another program is bound to this port, and one of the two binds is for all addresses"
        }
        BindError::Denied => "only root may bind to ports below 1024",
        BindError::Unknown => "the port is not bound",
    };
    Refusal::new(errno(error), format!("port {port}: {reason}"))
}

fn errno(error: BindError) -> i32 {
    match error {
        BindError::InUse => libc::EADDRINUSE,
        BindError::NotAvailable => libc::EADDRNOTAVAIL,
        BindError::Denied => libc::EACCES,
        BindError::Unknown => libc::ENOENT,
    }
}
