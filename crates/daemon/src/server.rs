//! The loop: one thread, which sleeps until a descriptor has something for it.
//!
//! Nothing happens at regular times, except in a network namespace that may be abandoned
//! (`tenancy`). A timeout is set only while a request waits for programs from before a
//! restart, or a connection for an answer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use ferroce_control::LinkConfig;
use ferroce_control::protocol::MAX_REQUEST;
use ferroce_control::sockopt;

use crate::access::Access;
use crate::attachments::Pending;
use crate::client::{Client, ClientId, Received, RequestId, Sent};
use crate::connecting::new_connections;
use crate::connections::Connections;
use crate::ethtool;
use crate::group::Group;
use crate::links::Links;
use crate::listener::{Listener, Lock};
use crate::netdevs::Netdevs;
use crate::netlink::{self, Monitor};
use crate::owner::Owner;
use crate::poller::{Poller, Ready, Token, now};
use crate::qp1::{MadSender, Qp1};
use crate::slots::OwnerId;
use crate::state::{Place, State};
use crate::sysfs::tree::Tree;
use crate::tenancy::Tenancy;

/// Connections at a time. Descriptors are reserved for slots.
const MAX_CLIENTS: usize = 1024;
/// Connections that have not said hello yet.
const MAX_STRANGERS: usize = 128;
/// Requests of one connection before others have their turn.
const TURN: usize = 16;
/// How long a ferroced that was started for somebody waits for them.
const FIRST_CLIENT: Duration = Duration::from_secs(30);

/// ferroced.
pub(crate) struct Server {
    pub(crate) poller: Poller,
    listener: Listener,
    /// Who wants counters in files to be up to date.
    pub(crate) readers: Listener,
    pub(crate) monitor: Monitor,
    pub(crate) lock: Lock,
    pub(crate) access: Access,
    pub(crate) place: Place,
    /// What programs find that look into sysfs.
    pub(crate) tree: Tree,
    pub(crate) netdevs: Netdevs,
    pub(crate) links: Links,
    /// Links that are to be made when they can be.
    pub(crate) wanted: Vec<LinkConfig>,
    pub(crate) group: Option<Group>,
    pub(crate) connections: Connections,
    /// Slot 0 of the group, once there is one.
    pub(crate) qp1: Option<Qp1>,
    pub(crate) mads: MadSender,
    /// What the time of connections counts from.
    pub(crate) epoch: Instant,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) owners: BTreeMap<OwnerId, Owner>,
    /// Requests that cannot be answered yet.
    pub(crate) pending: Vec<Pending>,
    /// Whether an earlier ferroced has left notes about who owns what.
    pub(crate) has_notes: bool,
    /// No slot is given away before: owners that nobody knows of may still come.
    pub(crate) hold_until: Option<Instant>,
    pub(crate) next_id: u64,
    pub(crate) stop: bool,
    buffer: Vec<u8>,
    /// Closed and opened again to turn a connection away when descriptors run out.
    spare: Option<File>,
    /// When to give up on a first client; None once there was one, or if we stay anyway.
    pub(crate) first_client_until: Option<Instant>,
    exit_when_unused: bool,
    /// Whether the network namespace is still used, if that matters.
    tenancy: Option<Tenancy>,
}

/// Why a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The program has closed it: it needs its slots no longer.
    Theirs,
    /// We close it: the program may still use its slots.
    Ours,
}

impl Server {
    pub(crate) fn new(lock: Lock, access: Access, exit_when_unused: bool) -> io::Result<Server> {
        let poller = Poller::new()?;
        let monitor = Monitor::new()?;
        poller.add(&monitor, Token::Netlink)?;
        let netdevs = netlink::look()?;
        let place = Place::here();
        let state = State::load(&lock.state_file(), &place);
        let tree = Tree::open(lock.sysfs_dir());
        let listener = lock.listen(&access)?;
        poller.add(&listener, Token::Listener)?;
        let readers = lock.listen_for_readers(&access)?;
        poller.add(&readers, Token::Readers)?;
        let mut server = Server {
            poller,
            listener,
            readers,
            monitor,
            lock,
            access,
            place,
            tree,
            netdevs,
            links: Links::new(ethtool::speed),
            wanted: Vec::new(),
            group: None,
            connections: new_connections()?,
            qp1: None,
            mads: MadSender::new(),
            epoch: now(),
            clients: BTreeMap::new(),
            owners: BTreeMap::new(),
            pending: Vec::new(),
            has_notes: state.is_some(),
            hold_until: None,
            next_id: 1,
            stop: false,
            buffer: vec![0; MAX_REQUEST],
            spare: File::open("/dev/null").ok(),
            first_client_until: exit_when_unused.then(|| now() + FIRST_CLIENT),
            exit_when_unused,
            tenancy: None,
        };
        server.restore(state.unwrap_or_default());
        tracing::info!(socket = %server.listener.path().display(), "ready");
        Ok(server)
    }

    /// Has it end when nothing else keeps the network namespace.
    pub(crate) fn leave_with_last_tenant(&mut self, interval: Duration) {
        self.tenancy = Tenancy::new(interval);
    }

    /// Serves until told to stop, or until nobody needs it any more.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut abandoned = false;
        while !self.stop && !self.is_unused() && !abandoned {
            let until = self.next_deadline();
            for ready in self.poller.wait(until)? {
                self.on_ready(ready);
                self.speak();
            }
            self.serve_connections();
            self.serve_pending();
            abandoned = self.is_abandoned();
        }
        tracing::info!("ends");
        let unused = abandoned || self.links.is_empty() && self.owners.is_empty();
        let Server {
            lock,
            listener,
            readers,
            ..
        } = self;
        drop((listener, readers));
        if unused {
            lock.clear();
        }
        Ok(())
    }

    fn on_ready(&mut self, ready: Ready) {
        match ready.token {
            Token::Listener => self.accept(),
            Token::Netlink => self.hear_news(),
            Token::Readers => self.serve_readers(),
            Token::Qp1 => self.read_qp1(),
            Token::Process(owner) => self.on_process_end(owner),
            Token::Peer(client) => self.close(client, Farewell::Ours),
            Token::Client(client) => {
                if ready.writable {
                    self.flush(client);
                }
                if ready.readable {
                    self.read(client);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.pending.iter().map(|pending| pending.until);
        // Once it is past, only who comes or goes can change anything.
        let others = self.first_client_until.filter(|&until| now() < until);
        let look = self.tenancy.as_ref().and_then(Tenancy::deadline);
        let deadlines = waiting.chain(others).chain(self.cm_deadline());
        deadlines.chain(look).min()
    }

    fn is_abandoned(&mut self) -> bool {
        let busy = !self.owners.is_empty() || !self.clients.is_empty();
        let tenancy = self.tenancy.as_mut();
        tenancy.is_some_and(|tenancy| tenancy.is_over(now(), busy))
    }

    fn is_unused(&self) -> bool {
        self.exit_when_unused
            && self.links.is_empty()
            && self.owners.is_empty()
            && self.clients.is_empty()
            && self.first_client_until.is_none_or(|until| now() >= until)
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok(socket) => self.welcome(socket),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) if self.drop_stranger() => {}
                    // Or epoll would wake us for ever.
                    Some(libc::EMFILE | libc::ENFILE) => return self.turn_away(),
                    Some(libc::ECONNABORTED | libc::EINTR) => {}
                    Some(libc::EAGAIN) => return,
                    _ => return tracing::warn!(%error, "cannot accept a connection"),
                },
            }
        }
    }

    fn turn_away(&mut self) {
        tracing::warn!("too many open files: a connection is turned away");
        self.spare = None;
        drop(self.listener.accept());
        self.spare = File::open("/dev/null").ok();
    }

    fn welcome(&mut self, socket: std::os::fd::OwnedFd) {
        let Ok(peer) = sockopt::peer(&socket) else {
            return;
        };
        let admitted = self.access.admits(peer, &socket);
        let mut client = Client::new(socket, peer);
        if let Err(refusal) = admitted {
            tracing::warn!(pid = peer.pid, uid = peer.uid, "not served: {refusal}");
            client.send(None, &refusal.into(), Vec::new());
            return;
        }
        self.make_room();
        let id = self.new_id();
        if let Err(error) = self.poller.add(&client, Token::Client(id)) {
            tracing::warn!(%error, "cannot serve a connection");
            return;
        }
        tracing::debug!(client = id, pid = peer.pid, uid = peer.uid, "connected");
        self.clients.insert(id, client);
    }

    /// Closes a connection if there are too many: one that says nothing, else one
    /// that has neither slots nor connections.
    fn make_room(&mut self) {
        if self.strangers().count() >= MAX_STRANGERS {
            // Many may have come at once: their hellos have perhaps not been read yet.
            for id in self.strangers().collect::<Vec<_>>() {
                self.read(id);
            }
            if self.strangers().count() >= MAX_STRANGERS {
                self.drop_stranger();
            }
        }
        if self.clients.len() < MAX_CLIENTS || self.drop_stranger() {
            return;
        }
        let mut clients = self.clients.iter();
        let idle = clients.find(|(_, c)| c.owner.is_none() && !c.connects);
        if let Some(id) = idle.map(|(id, _)| *id) {
            tracing::warn!(client = id, "too many connections: one is closed");
            self.close(id, Farewell::Ours);
        }
    }

    /// Connections that have not said hello, the oldest first.
    fn strangers(&self) -> impl Iterator<Item = ClientId> + '_ {
        let strangers = self.clients.iter().filter(|(_, c)| c.program.is_none());
        strangers.map(|(id, _)| *id)
    }

    /// Closes the oldest connection that has not said hello. False if there is none.
    fn drop_stranger(&mut self) -> bool {
        let Some(id) = self.strangers().next() else {
            return false;
        };
        tracing::warn!(client = id, "closed to make room: it has not said hello");
        self.close(id, Farewell::Ours);
        true
    }

    fn read(&mut self, id: ClientId) {
        for _ in 0..TURN {
            let Some(client) = self.clients.get(&id) else {
                return;
            };
            match client.receive(&mut self.buffer) {
                Received::Request(number, request, fds) => {
                    self.handle(RequestId { client: id, number }, request, fds);
                }
                Received::Nothing => return,
                Received::Closed => return self.close(id, Farewell::Theirs),
                Received::Garbage(what) => return self.reject(id, &what),
            }
        }
    }

    /// Ends a connection that has sent what it should not have.
    pub(crate) fn reject(&mut self, id: ClientId, what: &str) {
        if let Some(client) = self.clients.get(&id) {
            let (pid, uid) = (client.peer.pid, client.peer.uid);
            tracing::warn!(pid, uid, "connection closed: it sent {what}");
        }
        self.close(id, Farewell::Ours);
    }

    /// Ends a connection.
    pub(crate) fn close(&mut self, id: ClientId, farewell: Farewell) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.poller.remove(&client);
        client.pidfd.iter().for_each(|fd| self.poller.remove(fd));
        self.pending.retain(|pending| pending.request.client != id);
        tracing::debug!(client = id, ?farewell, "disconnected");
        self.end_program(id);
        if let Some(owner) = client.owner {
            self.on_disconnect(owner, farewell);
        }
    }

    fn flush(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            let sent = client.flush();
            self.after_sending(id, sent);
        }
    }

    /// Sees to it that the rest goes out, or ends the connection.
    pub(crate) fn after_sending(&mut self, id: ClientId, sent: Sent) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        match sent {
            Sent::All | Sent::Waiting => {
                let waiting = sent == Sent::Waiting;
                if client.writes_watched == waiting {
                    return;
                }
                client.writes_watched = waiting;
                let token = Token::Client(id);
                if self.poller.want_write(client, token, waiting).is_err() {
                    self.close(id, Farewell::Ours);
                }
            }
            Sent::Gone => self.close(id, Farewell::Theirs),
            Sent::Stuck => {
                let pid = client.peer.pid;
                tracing::warn!(pid, "connection closed: it does not read");
                self.close(id, Farewell::Ours);
            }
        }
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
