//! What a datagram socket knows: its queue pairs, its peers, and what has arrived.

use core::ffi::c_int;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use rustix::event::PollFlags;

use super::local::{Arrived, Local, Way};
use super::udp;
use crate::rsocket::queue::Sizes;
use crate::rsocket::wait::Waiters;
use crate::rsocket::wire::AddressHeader;

#[derive(Debug)]
pub(super) struct Book {
    /// Peers go before the queue pairs that they are reached from.
    pub(super) peers: BTreeMap<SocketAddr, Peer>,
    pub(super) locals: Vec<Local>,
    pub(super) arrived: VecDeque<(SocketAddr, Vec<u8>)>,
    pub(super) connected: Option<SocketAddr>,
    pub(super) closed: bool,
    pub(super) waiters: Waiters,
    pub(super) sizes: Sizes,
}

/// Somebody whom datagrams go to.
#[derive(Debug)]
pub(super) struct Peer {
    /// The queue pair they go from.
    pub(super) local: usize,
    /// How, once its queue pair is known.
    pub(super) way: Option<Way>,
}

/// Datagrams that nobody takes are thrown away, like those of UDP.
const MAX_ARRIVED: usize = 4096;

/// Peers that are remembered. Those beyond are reached over UDP.
const MAX_PEERS: usize = 65536;

impl Book {
    pub(super) fn new(sizes: Sizes) -> Book {
        Book {
            peers: BTreeMap::new(),
            locals: Vec::new(),
            arrived: VecDeque::new(),
            connected: None,
            closed: false,
            waiters: Waiters::default(),
            sizes,
        }
    }

    /// The queue pair of a local address.
    pub(super) fn local(
        &mut self,
        ip: IpAddr,
        completions: BorrowedFd<'_>,
    ) -> Result<usize, c_int> {
        let known = self.locals.iter().position(|local| local.ip == ip);
        if let Some(known) = known {
            return Ok(known);
        }
        let mut local = Local::new(ip, self.sizes)?;
        udp::watch(completions, local.queue.fd())?;
        local.queue.arm();
        self.locals.push(local);
        Ok(self.locals.len() - 1)
    }

    /// A peer, who is remembered.
    pub(super) fn peer(&mut self, addr: SocketAddr, local: usize) -> Result<&mut Peer, c_int> {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&addr) {
            return Err(libc::ENOBUFS);
        }
        let new = Peer { local, way: None };
        Ok(self.peers.entry(addr).or_insert(new))
    }

    pub(super) fn deliver(&mut self, from: SocketAddr, bytes: &[u8]) {
        let wanted = self.connected.is_none_or(|peer| peer == from);
        if wanted && self.arrived.len() < MAX_ARRIVED {
            self.arrived.push_back((from, bytes.to_vec()));
            self.waiters.wake_all();
        }
    }

    /// Looks at completions.
    pub(super) fn progress(&mut self) {
        let mut any = false;
        for place in 0..self.locals.len() {
            let mut arrived: Vec<Arrived> = Vec::new();
            any |= self.locals[place].progress(|one| arrived.push(one)) > 0;
            for one in arrived {
                let read = AddressHeader::decode(self.locals[place].bytes(&one));
                let read = read.map(|(from, bytes)| (from.0, bytes.to_vec()));
                match read {
                    Ok((from, bytes)) => self.deliver(from, &bytes),
                    Err(error) => tracing::debug!("a datagram is dropped: {}", error.0),
                }
                self.locals[place].give_back(one.slot);
            }
        }
        if any {
            self.waiters.wake_all();
        }
    }

    pub(super) fn arm(&mut self) {
        self.locals.iter_mut().for_each(|local| local.queue.arm());
    }

    pub(super) fn take_events(&mut self) {
        self.locals
            .iter_mut()
            .for_each(|local| local.queue.take_events());
    }

    pub(super) fn ready(&self) -> PollFlags {
        let mut ready = PollFlags::empty();
        if !self.arrived.is_empty() {
            ready |= PollFlags::IN | PollFlags::RDNORM;
        }
        if self.locals.iter().all(Local::can_send) {
            ready |= PollFlags::OUT | PollFlags::WRNORM;
        }
        ready
    }
}
