//! `ferroce capture`: introduces programs and the command that captures their packets.
//!
//! ferroced creates a ring in shared memory and a pair of sockets for each program, and passes one
//! end to each side. It carries no packets. Only root and the user of a program may capture it.

use std::os::fd::OwnedFd;

use ferroce_control::protocol::CaptureOptions;
use ferroce_control::{LinkInfo, Process, Reply};
use ferroce_trace::{Filter, RingFile};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::client::{AttachmentId, ClientId};
use crate::owner::Owner;
use crate::refusal::Refusal;
use crate::server::Server;
use crate::slots::OwnerId;

/// Most captures at a time: each costs a program work for every packet.
const MAX_CAPTURES: usize = 8;

impl Server {
    /// Begins a capture, which lasts until the client closes the connection.
    pub(crate) fn capture(
        &mut self,
        id: ClientId,
        options: CaptureOptions,
    ) -> Result<Reply, Refusal> {
        if let Some(name) = &options.link {
            self.links.find(name)?;
        }
        self.check_users(id, &options)?;
        let captures = self.clients.values().filter(|c| c.capture.is_some());
        if captures.count() >= MAX_CAPTURES {
            let reason = format!("{MAX_CAPTURES} captures run already; end one of them first");
            return Err(Refusal::new(libc::EBUSY, reason));
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return Err(Refusal::new(libc::ECONNRESET, "the connection is closed"));
        };
        if client.capture.replace(options).is_some() {
            return Err(Refusal::new(
                libc::EBUSY,
                "this connection captures already",
            ));
        }
        let links: Vec<LinkInfo> = self.links.iter().map(|link| link.info.clone()).collect();
        for link in links {
            self.capture_cm(id, &link);
        }
        let owners: Vec<OwnerId> = self.owners.keys().copied().collect();
        for owner in owners {
            self.introduce_capture(id, owner);
        }
        Ok(Reply::Done)
    }

    /// Refuses a capture of programs that run and all belong to other users.
    fn check_users(&self, id: ClientId, options: &CaptureOptions) -> Result<(), Refusal> {
        let Some(uid) = self.clients.get(&id).map(|client| client.peer.uid) else {
            return Ok(());
        };
        if options.pid.is_none() && options.program.is_none() {
            return Ok(());
        }
        let named = self.owners.values().filter(|owner| {
            options.pid.is_none_or(|pid| pid == owner.process.pid)
                && (options.program.as_ref()).is_none_or(|name| *name == owner.program)
        });
        let user = |owner: &Owner| {
            let client = self.clients.get(&owner.attachment?.client)?;
            Some(client.peer.uid)
        };
        let users: Vec<u32> = named.filter_map(user).collect();
        match users.first() {
            Some(other) if uid != 0 && !users.contains(&uid) => {
                let what = match (&options.program, options.pid) {
                    (Some(name), _) => format!("program {name}"),
                    (None, pid) => format!("process {}", pid.unwrap_or(0)),
                };
                let reason = format!(
                    "{what} belongs to user {other}, and you are user {uid}; \
                     that user and root may capture it"
                );
                Err(Refusal::new(libc::EPERM, reason))
            }
            _ => Ok(()),
        }
    }

    /// Captures the connection manager's packets on a new link for all captures.
    pub(crate) fn introduce_captures_of_cm(&mut self, link: &LinkInfo) {
        for capture in self.capturing() {
            self.capture_cm(capture, link);
        }
    }

    /// Returns the clients that capture.
    fn capturing(&self) -> Vec<ClientId> {
        let clients = self.clients.iter();
        let captures = clients.filter(|(_, client)| client.capture.is_some());
        captures.map(|(id, _)| *id).collect()
    }

    /// Introduces a program that has just attached to all captures that want it.
    pub(crate) fn introduce_captures(&mut self, owner: OwnerId) {
        for capture in self.capturing() {
            self.introduce_capture(capture, owner);
        }
    }

    fn introduce_capture(&mut self, capture: ClientId, owner: OwnerId) {
        let Some((attachment, filter, source)) = self.captured(capture, owner) else {
            return;
        };
        match ends(filter) {
            Ok([theirs, ours]) => {
                let tap = Reply::Tap {
                    attachment: attachment.number,
                };
                self.send_event(attachment.client, &tap, theirs.into());
                self.send_event(capture, &source, ours.into());
            }
            Err(error) => tracing::warn!(%error, "cannot capture a program"),
        }
    }

    /// Returns the attachment, the filter and the description of a program, if the capture wants
    /// the program and may have it.
    fn captured(&self, capture: ClientId, id: OwnerId) -> Option<(AttachmentId, Filter, Reply)> {
        let reader = self.clients.get(&capture)?;
        let options = reader.capture.as_ref()?;
        let owner = self.owners.get(&id)?;
        let link = self.links.by_index(owner.link)?.config.name.clone();
        let attachment = owner.attachment?;
        let program = self.clients.get(&attachment.client)?;
        let may = reader.peer.uid == 0 || reader.peer.uid == program.peer.uid;
        let wanted = options.link.as_ref().is_none_or(|only| *only == link)
            && options.pid.is_none_or(|pid| pid == owner.process.pid)
            && (options.program.as_ref()).is_none_or(|name| *name == owner.program);
        // A program that has not read its earlier messages would not read this one.
        if !may || !wanted || owner.dead || program.is_behind() {
            return None;
        }
        let filter = filter_of(options);
        let process = Process {
            pid: owner.process.pid,
            program: owner.program.clone(),
            slots: owner.slots.clone(),
        };
        Some((attachment, filter, Reply::Captured { link, process }))
    }
}

/// Creates a ring. Returns the descriptors for the program and for the command.
pub(crate) fn ends(filter: Filter) -> std::io::Result<[[OwnedFd; 2]; 2]> {
    let [one, other] = RingFile::new(filter)?.into_fds()?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let (a, b) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    Ok([[one, a], [other, b]])
}

/// Returns the filter that the writer of a ring applies.
pub(crate) fn filter_of(options: &CaptureOptions) -> Filter {
    Filter {
        qpn: options.qpn,
        snap: options.snap,
    }
}
