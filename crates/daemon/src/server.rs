//! The event loop: one thread, which sleeps until a descriptor is ready.
//!
//! Nothing happens at regular intervals, except in a network namespace that may be abandoned
//! (`namespace_use`). A timeout is set only while a request waits for programs from before a
//! restart, a connection for a message of its peer, or a link for its link-local address.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use ferroce_control::LinkConfig;
use ferroce_control::protocol::MAX_REQUEST;
use ferroce_control::sockopt;

use crate::access::Access;
use crate::attachments::Pending;
use crate::client::{Client, ClientId, Received, RequestId, Sent};
use crate::cm_taps::CmTaps;
use crate::connecting::new_connections;
use crate::connections::Connections;
use crate::ethtool;
use crate::faults::CmFaults;
use crate::group::Group;
use crate::introductions::Introductions;
use crate::ipv6_settings;
use crate::journals::EndedJournals;
use crate::link_local::LinkLocalWait;
use crate::links::{Links, Queries};
use crate::listener::{Listener, Lock};
use crate::metrics::Metrics;
use crate::namespace_use::NamespaceUse;
use crate::netdevs::Netdevs;
use crate::netlink::{self, Monitor};
use crate::owner::Owner;
use crate::poller::{Poller, Ready, Token, now};
use crate::qp1::{MadSender, Qp1, SentMad};
use crate::slots::{OwnerId, Slots};
use crate::state::{Place, State};
use crate::stream_introductions::StreamOffers;
use crate::sysfs::tree::Tree;

/// Most connections. The other descriptors are for slots.
const MAX_CLIENTS: usize = 1024;
/// Most connections without a Hello.
const MAX_UNGREETED: usize = 128;
/// Time that a ferroced which ends when unused waits for its first client.
const FIRST_CLIENT: Duration = Duration::from_secs(30);

/// The state of ferroced.
pub(crate) struct Server {
    pub(crate) poller: Poller,
    listener: Listener,
    /// Clients waiting for refreshed counter files.
    pub(crate) readers: Listener,
    pub(crate) monitor: Monitor,
    pub(crate) lock: Lock,
    pub(crate) access: Access,
    pub(crate) place: Place,
    /// The mirror of sysfs.
    pub(crate) tree: Tree,
    pub(crate) netdevs: Netdevs,
    pub(crate) link_local_wait: Option<LinkLocalWait>,
    /// Requests that added a link whose index 0 is not settled yet, with the netdev of that link.
    pub(crate) link_additions: Vec<(RequestId, u32)>,
    pub(crate) links: Links,
    /// Configured links that cannot be created yet.
    pub(crate) configured_links: Vec<LinkConfig>,
    pub(crate) group: Option<Group>,
    /// Slots for streams, which have no sockets here.
    pub(crate) stream_slots: Slots,
    pub(crate) connections: Connections,
    /// Faults of the connection manager's messages.
    pub(crate) cm_faults: CmFaults,
    /// Captures of the connection manager's messages.
    pub(crate) cm_taps: CmTaps,
    /// The receiving end of slot 0, once the group exists.
    pub(crate) qp1: Option<Qp1>,
    pub(crate) mads: MadSender,
    /// MADs from this host to a link of this host, with the netdev of that link.
    pub(crate) local_mads: VecDeque<(u32, SentMad)>,
    /// The zero of the connection manager's clock.
    pub(crate) epoch: Instant,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) owners: BTreeMap<OwnerId, Owner>,
    /// Slots that have a channel through shared memory.
    pub(crate) introductions: Introductions,
    pub(crate) stream_offers: StreamOffers,
    /// Clients with messages of the connection manager that are to be sent: those with events
    /// before those with replies only.
    pub(crate) deferred: VecDeque<ClientId>,
    /// Rounds of the event loop since the first of these messages.
    pub(crate) deferred_rounds: u32,
    /// Requests that cannot be answered yet.
    pub(crate) pending: Vec<Pending>,
    /// The readers of metrics, if there is a socket for them.
    pub(crate) metrics: Option<Metrics>,
    /// Journals of programs that have ended.
    pub(crate) ended_journals: EndedJournals,
    /// True if an earlier ferroced has left a state file with the owners of slots.
    pub(crate) has_saved_state: bool,
    /// No slot is assigned before this time: owners that are not in the state file may
    /// resume.
    pub(crate) hold_slots_until: Option<Instant>,
    pub(crate) next_id: u64,
    pub(crate) stop: bool,
    buffer: Vec<u8>,
    /// Spare descriptor, closed to accept and refuse a connection when none are left.
    pub(crate) spare: Option<File>,
    /// Deadline for the first client; `None` after it, or if ferroced stays anyway.
    pub(crate) first_client_until: Option<Instant>,
    exit_when_unused: bool,
    /// The check whether the network namespace is in use, if ferroced ends with it.
    namespace_use: Option<NamespaceUse>,
}

/// The end that closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClosedBy {
    /// The program closed it and does not need its slots any more.
    Program,
    /// ferroced closes it. The program may still use its slots.
    Ferroced,
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
            link_local_wait: None,
            link_additions: Vec::new(),
            links: Links::new(Queries {
                speed: ethtool::speed,
                allow_link_local: ipv6_settings::allow_link_local,
            }),
            configured_links: Vec::new(),
            group: None,
            stream_slots: Slots::default(),
            connections: new_connections()?,
            cm_faults: CmFaults::default(),
            cm_taps: CmTaps::default(),
            qp1: None,
            mads: MadSender::new(),
            local_mads: VecDeque::new(),
            epoch: now(),
            clients: BTreeMap::new(),
            owners: BTreeMap::new(),
            introductions: Introductions::default(),
            stream_offers: StreamOffers::default(),
            deferred: VecDeque::new(),
            deferred_rounds: 0,
            pending: Vec::new(),
            metrics: None,
            ended_journals: EndedJournals::default(),
            has_saved_state: state.is_some(),
            hold_slots_until: None,
            next_id: 1,
            stop: false,
            buffer: vec![0; MAX_REQUEST],
            spare: File::open("/dev/null").ok(),
            first_client_until: exit_when_unused.then(|| now() + FIRST_CLIENT),
            exit_when_unused,
            namespace_use: None,
        };
        server.restore(state.unwrap_or_default());
        tracing::info!(socket = %server.listener.path().display(), "ferroced is ready");
        Ok(server)
    }

    /// Makes ferroced end when nothing else keeps the network namespace open.
    pub(crate) fn end_with_namespace(&mut self, interval: Duration) {
        self.namespace_use = NamespaceUse::new(interval);
    }

    /// Serves until a client stops ferroced, or until it is unused.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut abandoned = false;
        // The links of a configuration or of an earlier ferroced may lack an address.
        self.await_link_local();
        while !self.stop && !self.is_unused() && !abandoned {
            let until = match self.has_deferred() {
                true => Some(now()),
                false => self.next_deadline(),
            };
            let ready = self.poller.wait(until)?;
            self.send_deferred(ready.is_empty());
            for ready in ready {
                self.on_ready(ready);
                self.speak();
            }
            self.serve_connections();
            self.serve_pending();
            self.await_link_local();
            self.drop_slow_readers();
            abandoned = self.is_abandoned();
        }
        self.send_deferred(true);
        tracing::info!("ferroced ends");
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
            Token::Metrics => self.accept_readers(),
            Token::Reader(id) => self.serve_reader(id),
            Token::Process(owner) => self.on_process_end(owner),
            Token::Peer(client) => self.close(client, ClosedBy::Ferroced),
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
        // Afterwards only a client that connects or disconnects changes anything.
        let others = self.first_client_until.filter(|&until| now() < until);
        let look = self.namespace_use.as_ref().and_then(NamespaceUse::deadline);
        let readers = self.metrics.as_ref().and_then(Metrics::deadline);
        let address = self.link_local_wait.as_ref().map(LinkLocalWait::deadline);
        let deadlines = waiting
            .chain(others)
            .chain(self.cm_deadline())
            .chain(address);
        deadlines.chain(look).chain(readers).min()
    }

    fn is_abandoned(&mut self) -> bool {
        let busy = !self.owners.is_empty() || !self.clients.is_empty();
        let namespace_use = self.namespace_use.as_mut();
        namespace_use.is_some_and(|check| check.is_abandoned(now(), busy))
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
                    Some(libc::EMFILE | libc::ENFILE) if self.drop_ungreeted() => {}
                    // The connection must be accepted, or epoll would return at once.
                    Some(libc::EMFILE | libc::ENFILE) => return self.refuse_connection(),
                    Some(libc::ECONNABORTED | libc::EINTR) => {}
                    Some(libc::EAGAIN) => return,
                    _ => return tracing::warn!(%error, "cannot accept a connection"),
                },
            }
        }
    }

    fn refuse_connection(&mut self) {
        tracing::warn!("too many open files: refusing a connection");
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
            tracing::warn!(pid = peer.pid, uid = peer.uid, "client refused: {refusal}");
            client.send(None, &refusal.into(), Vec::new());
            return;
        }
        self.make_room();
        let id = self.new_id();
        if let Err(error) = self.poller.add(&client, Token::Client(id)) {
            tracing::warn!(%error, "cannot watch a connection");
            return;
        }
        tracing::debug!(
            client = id,
            pid = peer.pid,
            uid = peer.uid,
            "client connected"
        );
        self.clients.insert(id, client);
    }

    /// Closes a connection if there are too many: one without a Hello, else one that has
    /// neither slots nor rdma_cm ids.
    fn make_room(&mut self) {
        if self.ungreeted().count() >= MAX_UNGREETED {
            // Many may have connected at once: their Hellos may be unread.
            for id in self.ungreeted().collect::<Vec<_>>() {
                self.read(id);
            }
            if self.ungreeted().count() >= MAX_UNGREETED {
                self.drop_ungreeted();
            }
        }
        if self.clients.len() < MAX_CLIENTS || self.drop_ungreeted() {
            return;
        }
        let mut clients = self.clients.iter();
        let idle = clients.find(|(_, c)| c.attachments.is_empty() && !c.connects);
        if let Some(id) = idle.map(|(id, _)| *id) {
            tracing::warn!(client = id, "too many connections: closing an idle one");
            self.close(id, ClosedBy::Ferroced);
        }
    }

    /// Returns the connections without a Hello, the oldest first.
    fn ungreeted(&self) -> impl Iterator<Item = ClientId> + '_ {
        let ungreeted = self.clients.iter().filter(|(_, c)| c.program.is_none());
        ungreeted.map(|(id, _)| *id)
    }

    /// Closes the oldest connection without a Hello. Returns false if there is none.
    fn drop_ungreeted(&mut self) -> bool {
        let Some(id) = self.ungreeted().next() else {
            return false;
        };
        tracing::warn!(
            client = id,
            "too many connections: closing one that has sent no Hello"
        );
        self.close(id, ClosedBy::Ferroced);
        true
    }

    /// Handles one request. If there are more, the poller reports the client again: a look for
    /// more would mostly be in vain, because programs wait for replies.
    fn read(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        match client.receive(&mut self.buffer) {
            Received::Request(number, request, fds) => {
                self.handle(RequestId { client: id, number }, request, fds);
            }
            Received::Nothing => {}
            Received::Closed => self.close(id, ClosedBy::Program),
            Received::Garbage(what) => self.reject(id, &what),
        }
    }

    /// Closes a connection that has sent an invalid message.
    pub(crate) fn reject(&mut self, id: ClientId, what: &str) {
        if let Some(client) = self.clients.get(&id) {
            let (pid, uid) = (client.peer.pid, client.peer.uid);
            tracing::warn!(pid, uid, "connection closed: the client sent {what}");
        }
        self.close(id, ClosedBy::Ferroced);
    }

    /// Closes a connection and releases what belongs to it.
    pub(crate) fn close(&mut self, id: ClientId, closed_by: ClosedBy) {
        let Some(mut client) = self.clients.remove(&id) else {
            return;
        };
        // Messages that were deferred.
        client.flush();
        self.poller.remove(&client);
        client.pidfd.iter().for_each(|fd| self.poller.remove(fd));
        self.pending.retain(|pending| pending.request.client != id);
        tracing::debug!(client = id, ?closed_by, "client disconnected");
        self.end_program(id);
        for owner in client.attachments.into_values() {
            self.on_disconnect(owner, closed_by);
        }
    }

    pub(crate) fn flush(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(&id) {
            let sent = client.flush();
            self.after_sending(id, sent);
        }
    }

    /// Waits for the socket to become writable if data is left, or closes the connection.
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
                    self.close(id, ClosedBy::Ferroced);
                }
            }
            Sent::Gone => self.close(id, ClosedBy::Program),
            Sent::Stuck => {
                let pid = client.peer.pid;
                tracing::warn!(pid, "connection closed: the client does not read");
                self.close(id, ClosedBy::Ferroced);
            }
        }
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
