//! The state of a datagram socket: queue pairs, peers, and received datagrams.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::PollFlags;

use super::local::{Local, Received, Route};
use super::opening::Attempt;
use super::udp;
use crate::queue::Sizes;
use crate::wait::Waiters;
use crate::wire::AddressHeader;
use crate::{Errno, Result};

/// The part of a datagram socket that its lock protects.
#[derive(Debug)]
pub(super) struct State {
    pub(super) peers: BTreeMap<SocketAddr, Peer>,
    pub(super) locals: Vec<Local>,
    /// Attempts to open the queue pairs of further local addresses.
    pub(super) attempts: BTreeMap<IpAddr, Attempt>,
    /// An epoll descriptor for the completion channels of all queue pairs.
    pub(super) completions: OwnedFd,
    /// Datagrams that are not read, and their senders.
    pub(super) received: VecDeque<(SocketAddr, Vec<u8>)>,
    pub(super) connected: Option<SocketAddr>,
    pub(super) closed: bool,
    pub(super) waiters: Waiters,
    pub(super) sizes: Sizes,
}

/// A peer that datagrams are sent to.
#[derive(Debug)]
pub(super) struct Peer {
    /// Index of the local queue pair.
    pub(super) local: usize,
    /// The route to its queue pair, once that is known. Until then UDP is used.
    pub(super) route: Option<Route>,
}

/// Maximum number of unread datagrams. Further ones are dropped, as UDP does.
const MAX_RECEIVED: usize = 4096;

/// Maximum number of known peers. No datagrams are sent to others.
const MAX_PEERS: usize = 65536;

impl State {
    pub(super) fn new(sizes: Sizes, completions: OwnedFd) -> State {
        State {
            peers: BTreeMap::new(),
            locals: Vec::new(),
            attempts: BTreeMap::new(),
            completions,
            received: VecDeque::new(),
            connected: None,
            closed: false,
            waiters: Waiters::default(),
            sizes,
        }
    }

    /// Returns the index of a local address's queue pair, if it is open.
    pub(super) fn local(&self, ip: IpAddr) -> Option<usize> {
        self.locals.iter().position(|local| local.ip == ip)
    }

    /// Adds the queue pair of another local address.
    pub(super) fn add(&mut self, mut local: Local) -> Result<()> {
        udp::watch(self.completions.as_fd(), local.queue.fd())?;
        local.queue.arm();
        self.locals.push(local);
        Ok(())
    }

    /// Returns a peer, which is added if it is unknown; ENOBUFS if there are too many.
    pub(super) fn peer(&mut self, addr: SocketAddr, local: usize) -> Result<&mut Peer> {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&addr) {
            return Err(Errno::NOBUFS);
        }
        let new = Peer { local, route: None };
        Ok(self.peers.entry(addr).or_insert(new))
    }

    /// Queues a datagram for the program. A connected socket drops those of other peers.
    pub(super) fn deliver(&mut self, from: SocketAddr, bytes: &[u8]) {
        let wanted = self.connected.is_none_or(|peer| peer == from);
        if wanted && self.received.len() < MAX_RECEIVED {
            self.received.push_back((from, bytes.to_vec()));
            self.waiters.wake_all();
        }
    }

    /// Takes completions of all queue pairs.
    pub(super) fn progress(&mut self) {
        let mut any = false;
        for place in 0..self.locals.len() {
            let mut received: Vec<Received> = Vec::new();
            any |= self.locals[place].progress(|one| received.push(one)) > 0;
            for one in received {
                let datagram = self.locals[place].copy(&one);
                self.locals[place].repost(one.slot);
                match AddressHeader::decode(&datagram) {
                    Ok((from, bytes)) => self.deliver(from.0, bytes),
                    Err(error) => tracing::debug!("a datagram is dropped: {}", error.0),
                }
            }
        }
        if any {
            self.waiters.wake_all();
        }
    }

    pub(super) fn arm(&mut self) {
        self.locals.iter_mut().for_each(|local| local.queue.arm());
    }

    /// Takes completion events, after which their queues are not armed. Wakes the threads
    /// that sleep until an event, so that one of them arms the queues again.
    pub(super) fn take_events(&mut self) {
        let mut taken = false;
        for local in &mut self.locals {
            taken |= local.queue.take_events();
        }
        if taken {
            self.waiters.wake_all();
        }
    }

    /// Returns the poll events that are present.
    pub(super) fn ready(&self) -> PollFlags {
        let mut ready = PollFlags::empty();
        if !self.received.is_empty() {
            ready |= PollFlags::IN | PollFlags::RDNORM;
        }
        let waits = self.attempts.values().any(Attempt::delays_sender);
        if !waits && self.locals.iter().all(Local::can_send) {
            ready |= PollFlags::OUT | PollFlags::WRNORM;
        }
        ready
    }
}
