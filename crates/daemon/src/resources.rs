//! `rdma resource`: connects the client with the programs, which report their objects.

use std::os::fd::OwnedFd;

use ferroce_control::resources::CmIdResource;
use ferroce_control::{Process, Reply};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::client::{AttachmentId, RequestId};
use crate::connections::CmObject;
use crate::links::Change;
use crate::refusal::Refusal;
use crate::server::Server;

impl Server {
    /// Requests a report of every program on a link, or on all links, for this client.
    pub(crate) fn resources(
        &mut self,
        id: RequestId,
        only: Option<&str>,
    ) -> Result<Reply, Refusal> {
        if let Some(name) = only {
            self.links.find(name)?;
        }
        let peer = self.clients.get(&id.client).map(|client| client.peer);
        let keys = peer.is_some_and(|peer| self.access.is_admin(peer));
        let mut programs = Vec::new();
        let mut connections = Vec::new();
        for link in self.links.iter() {
            let name = &link.config.name;
            if only.is_some_and(|only| only != name) {
                continue;
            }
            let owners = self.owners.values();
            for owner in owners.filter(|o| o.link == link.info.index && !o.dead) {
                let process = Process {
                    pid: owner.process.pid,
                    program: owner.program.clone(),
                    slots: owner.slots.clone(),
                };
                programs.push((name.clone(), process, owner.attachment));
            }
            let objects = self.connections.objects(link.info.index).into_iter();
            connections.extend(objects.filter_map(|object| self.cm_id(name, object)));
        }
        for (link, process, attachment) in programs {
            let stream = attachment.and_then(|attachment| self.ask_program(attachment, keys));
            let reply = Reply::Resources { link, process };
            self.reply_with(id, &reply, stream.into_iter().collect());
        }
        for connection in connections {
            self.reply(id, Reply::CmId(connection));
        }
        Ok(Reply::Done)
    }

    /// Requests the report of one attachment. Returns the reading end of its stream.
    fn ask_program(&mut self, attachment: AttachmentId, keys: bool) -> Option<OwnedFd> {
        // A program that has not read its earlier messages would not read this one.
        if self.clients.get(&attachment.client)?.is_behind() {
            return None;
        }
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).ok()?;
        let report = Reply::Report {
            attachment: attachment.number,
            keys,
        };
        self.send_event(attachment.client, &report, vec![theirs]);
        Some(ours)
    }

    /// Changes a link.
    pub(crate) fn link_set(
        &mut self,
        name: &str,
        rename: Option<String>,
        change: Change,
    ) -> Result<Reply, Refusal> {
        let mut name = name.to_owned();
        let mut changes = Vec::new();
        if let Some(new) = rename {
            changes.extend(self.links.rename(&name, &new)?);
            name = new;
        }
        changes.extend(self.links.set(&name, change, &self.netdevs)?);
        for event in changes {
            tracing::info!(link = name, "link changed");
            self.save();
            self.announce(event);
        }
        Ok(Reply::Done)
    }

    fn cm_id(&self, link: &str, object: CmObject) -> Option<CmIdResource> {
        let client = self.clients.get(&object.client)?;
        Some(CmIdResource {
            link: link.into(),
            cm_idn: object.number,
            lqpn: object.lqpn,
            qp_type: object.qp_type.map(str::to_owned),
            state: object.state.into(),
            ps: object.space.into(),
            pid: client.peer.pid,
            comm: client.program.clone().unwrap_or_default(),
            source: object.source,
            destination: object.destination,
        })
    }
}
