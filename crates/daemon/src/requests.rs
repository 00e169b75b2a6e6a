//! Handling of requests.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use ferroce_control::{
    CounterValues, LinkConfig, LinkCounters, LinkEvent, LinkEventKind, PROTOCOL, Process, Reply,
    Request, SlotKind,
};

use crate::client::{AttachmentId, ClientId, RequestId};
use crate::group::{Group, GroupError};
use crate::links::{Change, Link};
use crate::netlink::{self, ReadChanges};
use crate::owner::{Owner, described};
use crate::refusal::{Refusal, listed};
use crate::server::{ClosedBy, Server};
use crate::stream_slots;

impl Server {
    /// Handles a request, and replies to it now or later.
    pub(crate) fn handle(&mut self, id: RequestId, request: Request, mut fds: Vec<OwnedFd>) {
        let Some(client) = self.clients.get(&id.client) else {
            return;
        };
        let introduced = client.program.is_some();
        let hello = matches!(request, Request::Hello { .. });
        if introduced == hello {
            return self.reject(id.client, "a Hello at the wrong time, or none");
        }
        if hello == id.number.is_some() {
            return self.reject(id.client, "a request without a number, or a Hello with one");
        }
        if let Err(refusal) = self.access.permits(client.peer, &request) {
            return self.reply(id, refusal.into());
        }
        if !matches!(request, Request::Resume { .. }) {
            // Only Resume carries descriptors.
            fds.clear();
        }
        // Changes that the client made to netdevs before this request must be known.
        if !matches!(request, Request::Cm(_) | Request::CmNotices(_)) {
            self.hear_news();
        }
        let result = match request {
            Request::Hello { protocol, program } => {
                return self.hello(id, protocol, program);
            }
            Request::LinkAdd(config) => {
                self.find_tentative_addresses();
                // The addresses of other links may be among them.
                self.refresh();
                match self.link_add(config) {
                    Ok(ifindex) => return self.link_additions.push((id, ifindex)),
                    Err(refusal) => Err(refusal),
                }
            }
            Request::LinkDelete { name, force } => self.link_delete(&name, force),
            Request::LinkSet {
                name,
                rename,
                mtu,
                crc,
                lids,
                patience,
                speed,
                local,
                strict,
                profile,
            } => {
                let change = Change {
                    mtu,
                    crc,
                    lids,
                    patience,
                    speed,
                    local,
                    strict,
                    profile,
                };
                self.link_set(&name, rename, change)
            }
            Request::LinkFaults { name, faults } => self.set_link_faults(&name, &faults),
            Request::Faults { text } => self.set_client_faults(id.client, &text),
            Request::Links => self.list(id),
            Request::Watch { link } => self.watch(id.client, &link),
            Request::Attach {
                attachment,
                link,
                shards,
            } => return self.attach_or_wait(id, attachment, link, shards),
            Request::Detach { attachment } => self.detach(id.client, attachment),
            Request::Resume {
                attachment,
                link,
                kind,
                slots,
            } => {
                let attachment = AttachmentId {
                    client: id.client,
                    number: attachment,
                };
                self.resume(attachment, &link, kind, &slots, fds)
            }
            Request::Release { kind, slots } => self.release_absent(id.client, kind, &slots),
            Request::Introduce {
                attachment,
                slot,
                peer,
            } => match self.introduce(id.client, attachment, slot, peer) {
                Ok((reply, fds)) => return self.reply_with(id, &reply, fds),
                Err(refusal) => Err(refusal),
            },
            Request::OfferStream {
                attachment,
                slot,
                local,
                peer,
            } => self.offer_stream(id.client, attachment, slot, (local, peer)),
            Request::IntroduceStream {
                attachment,
                slot,
                local,
                peer,
            } => match self.introduce_stream(id.client, attachment, slot, (local, peer)) {
                Ok((reply, fds)) => return self.reply_with(id, &reply, fds),
                Err(refusal) => Err(refusal),
            },
            Request::Subscribe => self.subscribe(id.client),
            Request::Counters { link, processes } => self.counters(id, link.as_deref(), processes),
            Request::Resources { link } => self.resources(id, link.as_deref()),
            Request::Journals => self.journals(id),
            Request::Capture(options) => self.capture(id.client, options),
            Request::Cm(call) => return self.handle_cm(id, call),
            Request::CmNotices(calls) => return self.handle_cm_notices(id.client, calls),
            Request::Shutdown => {
                self.stop = true;
                Ok(Reply::Done)
            }
        };
        self.reply(id, result.unwrap_or_else(Reply::from));
    }

    /// Replies to a request.
    pub(crate) fn reply(&mut self, id: RequestId, reply: Reply) {
        self.reply_with(id, &reply, Vec::new());
    }

    /// Replies to a request, with descriptors.
    pub(crate) fn reply_with(&mut self, id: RequestId, reply: &Reply, fds: Vec<OwnedFd>) {
        if let Some(client) = self.clients.get_mut(&id.client) {
            let sent = client.send(id.number, reply, fds);
            self.after_sending(id.client, sent);
        }
    }

    /// Sends an event to a client, with descriptors.
    pub(crate) fn send_event(&mut self, client: ClientId, event: &Reply, fds: Vec<OwnedFd>) {
        let id = RequestId {
            client,
            number: None,
        };
        self.reply_with(id, event, fds);
    }

    /// Sends a link event to the connection managers and to all clients that it concerns.
    pub(crate) fn announce(&mut self, event: LinkEvent) {
        let link = event.link.index;
        tracing::debug!(link = event.link.name, kind = ?event.kind, "event");
        self.tell_cm(&event);
        let uses = |owner: &Owner| owner.link == link && event.kind != LinkEventKind::Added;
        let listeners: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| {
                let mut owners = client.attachments.values();
                let watches = client.watched.contains(&link) && event.kind != LinkEventKind::Added;
                client.subscribed
                    || watches
                    || owners.any(|owner| self.owners.get(owner).is_some_and(uses))
            })
            .map(|(id, _)| *id)
            .collect();
        let reply = Reply::Event(event);
        for id in listeners {
            self.send_event(id, &reply, Vec::new());
        }
    }

    /// Applies the changes that netlink reports.
    pub(crate) fn hear_news(&mut self) {
        self.read_changes();
        if !self.links.awaiting_link_local().is_empty() {
            self.find_tentative_addresses();
            self.refresh();
        }
    }

    fn read_changes(&mut self) {
        loop {
            match self.monitor.read() {
                Ok(ReadChanges::None) => return,
                // One by one: a port that went down and up again causes two events.
                Ok(ReadChanges::Changes(changes)) => {
                    for change in changes {
                        if self.netdevs.apply(change) {
                            self.refresh();
                        }
                    }
                }
                Ok(ReadChanges::Lost) => self.look_again(),
                Err(error) => {
                    tracing::error!(%error, "netlink");
                    return;
                }
            }
        }
    }

    /// Adds the addresses that the kernel has not reported yet.
    pub(crate) fn find_tentative_addresses(&mut self) {
        if let Err(error) = netlink::add_addresses(&mut self.netdevs) {
            tracing::error!(%error, "cannot list addresses");
        }
    }

    fn look_again(&mut self) {
        match netlink::look() {
            Ok(fresh) => {
                self.netdevs.replace(fresh);
                self.refresh();
            }
            Err(error) => tracing::error!(%error, "cannot list netdevs"),
        }
    }

    /// Handles a change of netdevs: updates the links and announces their changes.
    pub(crate) fn refresh(&mut self) {
        let events = self.links.refresh(&self.netdevs);
        if !events.is_empty() {
            self.save();
        }
        for event in events {
            self.announce(event);
        }
        if !self.configured_links.is_empty() {
            self.add_configured(false);
        }
    }

    fn hello(&mut self, id: RequestId, protocol: u32, program: String) {
        let welcome = Reply::Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
        };
        self.reply(id, welcome);
        if protocol != PROTOCOL {
            tracing::warn!(
                "{program} speaks version {protocol} of the control protocol and ferroced version \
                 {PROTOCOL}: install both from one release, and restart the program"
            );
            return self.close(id.client, ClosedBy::Ferroced);
        }
        if let Some(client) = self.clients.get_mut(&id.client) {
            let shown = program.chars().filter(|c| !c.is_control());
            client.program = Some(shown.take(32).collect());
            self.first_client_until = None;
        }
    }

    /// Adds a link. Returns the index of its netdev.
    pub(crate) fn link_add(&mut self, config: LinkConfig) -> Result<u32, Refusal> {
        let event = self.links.add(config, &self.netdevs)?;
        // A taken UDP port is reported now, not to the first program that attaches.
        if let Err(refusal) = self.need_port() {
            self.links.remove(event.link.index);
            return Err(refusal);
        }
        tracing::info!(link = event.link.name, netdev = event.link.netdev, "added");
        self.save();
        self.introduce_captures_of_cm(&event.link);
        let ifindex = event.link.ifindex;
        self.announce(event);
        Ok(ifindex)
    }

    /// Takes UDP port 4791, if there is a link that needs it.
    pub(crate) fn need_port(&mut self) -> Result<(), Refusal> {
        let has_roce = self.links.iter().any(|link| !link.info.is_iwarp());
        if self.group.is_some() || !has_roce {
            return Ok(());
        }
        match Group::create() {
            Ok(group) => {
                self.begin_with(group);
                Ok(())
            }
            // Programs from before a restart hold the port for us.
            Err(GroupError::Held(_)) => Ok(()),
            Err(GroupError::Refused(refusal)) => Err(refusal),
        }
    }

    fn link_delete(&mut self, name: &str, force: bool) -> Result<Reply, Refusal> {
        let index = self.links.find(name)?.info.index;
        let watchers = self.clients.values();
        let watchers = watchers.filter(|client| client.watched.contains(&index));
        let watchers = watchers.map(|client| {
            described(
                client.peer.pid,
                client.program.as_deref().unwrap_or_default(),
            )
        });
        let users = self.users_of(index).map(Owner::described);
        let users: BTreeSet<String> = users.chain(watchers).collect();
        if !users.is_empty() && !force {
            return Err(Refusal::new(
                libc::EBUSY,
                format!(
                    "link {name} is in use by process {}; end it first, or take its device \
                     away with `ferroce link delete {name} --force`",
                    listed(users)
                ),
            ));
        }
        if let Some(event) = self.links.remove(index) {
            tracing::info!(link = name, "deleted");
            self.save();
            self.announce(event);
        }
        Ok(Reply::Done)
    }

    /// Returns the living programs on a link.
    fn users_of(&self, link: u32) -> impl Iterator<Item = &Owner> {
        let owners = self.owners.values();
        owners.filter(move |owner| owner.link == link && !owner.dead)
    }

    fn list(&mut self, id: RequestId) -> Result<Reply, Refusal> {
        let links: Vec<_> = self.links.iter().map(|link| link.info.clone()).collect();
        for link in links {
            self.reply(id, Reply::Link(link));
        }
        Ok(Reply::Done)
    }

    fn watch(&mut self, id: ClientId, link: &str) -> Result<Reply, Refusal> {
        let link = self.links.find(link)?.info.clone();
        if let Some(client) = self.clients.get_mut(&id) {
            client.watched.insert(link.index);
        }
        Ok(Reply::Watched { link })
    }

    fn subscribe(&mut self, id: ClientId) -> Result<Reply, Refusal> {
        if let Some(client) = self.clients.get_mut(&id) {
            client.subscribed = true;
        }
        Ok(Reply::Done)
    }

    fn counters(
        &mut self,
        id: RequestId,
        only: Option<&str>,
        processes: bool,
    ) -> Result<Reply, Refusal> {
        if let Some(name) = only {
            self.links.find(name)?;
        }
        for answer in self.link_counters(only, processes) {
            self.reply(id, Reply::Counters(answer));
        }
        Ok(Reply::Done)
    }

    /// Returns the counters of one link, or of all links; with `processes`, also those of each
    /// running program.
    pub(crate) fn link_counters(&self, only: Option<&str>, processes: bool) -> Vec<LinkCounters> {
        let mut answers = Vec::new();
        for link in self.links.iter() {
            if only.is_some_and(|name| name != link.config.name) {
                continue;
            }
            let mut sum = link.totals;
            let mut shares = Vec::new();
            for owner in self.owners.values() {
                if owner.link == link.info.index {
                    let counted = self.counted(owner);
                    sum.add(&counted);
                    shares.push(report(&link.config.name, Some(owner), &counted));
                }
            }
            answers.push(report(&link.config.name, None, &sum));
            answers.extend(shares.into_iter().filter(|_| processes));
        }
        answers
    }

    /// Returns the counters of a link, including those of programs that have ended.
    pub(crate) fn counted_on(&self, link: &Link) -> CounterValues {
        let mut sum = link.totals;
        for owner in self.owners.values() {
            if owner.link == link.info.index {
                sum.add(&self.counted(owner));
            }
        }
        sum
    }

    /// Returns the counters of an owner; zeros until its socket group is known.
    fn counted(&self, owner: &Owner) -> CounterValues {
        let mut sum = CounterValues::default();
        match (owner.kind, &self.group) {
            (SlotKind::Udp, Some(group)) => {
                for slot in &owner.slots {
                    sum.add(&group.counted(*slot));
                }
            }
            (SlotKind::Udp, None) => {}
            (SlotKind::Streams, _) => sum = stream_slots::counted(owner),
        }
        sum
    }
}

fn report(link: &str, owner: Option<&Owner>, values: &CounterValues) -> LinkCounters {
    LinkCounters {
        link: link.into(),
        process: owner.map(|owner| Process {
            pid: owner.process.pid,
            program: owner.program.clone(),
            slots: owner.slots.clone(),
        }),
        values: values.named().map(|(n, v)| (n.to_owned(), v)).collect(),
    }
}
