//! Channels through shared memory for TCP connections between two programs of this host.
//!
//! A program does not know the slot of a connection's other end. Both ends know the addresses of
//! the connection, by which ferroced finds the two programs.

use core::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::links::OpenLink;
use crate::connection::unexpected;
use crate::error::Error;
use crate::protocol::{Reply, Request};

/// A channel through shared memory for a TCP connection.
#[derive(Debug)]
pub struct StreamIntroduction {
    /// The slot of this program.
    pub slot: u8,
    /// The addresses of the connection: that of this end, and that of the other end.
    pub addresses: (SocketAddr, SocketAddr),
    /// The shared memory.
    pub memory: OwnedFd,
    /// This program's socket for wakeups.
    pub socket: OwnedFd,
}

impl StreamIntroduction {
    /// Returns a channel with these descriptors; none if one is missing.
    pub(super) fn new(
        slot: u8,
        addresses: (SocketAddr, SocketAddr),
        fds: Vec<OwnedFd>,
    ) -> Option<StreamIntroduction> {
        let [memory, socket] = fds.try_into().ok()?;
        Some(StreamIntroduction {
            slot,
            addresses,
            memory,
            socket,
        })
    }
}

impl OpenLink {
    /// Offers a channel for a connection with these addresses to its other end, without waiting
    /// for the answer. A thread of the client passes the answer to `take`. Returns false if there
    /// is no connection to ferroced.
    pub fn offer_stream(
        &self,
        slot: u8,
        (local, peer): (SocketAddr, SocketAddr),
        take: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> bool {
        let request = Request::OfferStream {
            attachment: self.number(),
            slot,
            local,
            peer,
        };
        self.ask(&request, move |answer| {
            take(answer.and_then(|(last, _)| match last {
                Reply::Done => Ok(()),
                other => Err(unexpected(&other)),
            }));
        })
    }

    /// Asks for the channel of a connection with these addresses, which its other end has
    /// offered, without waiting for the answer. A thread of the client passes the channel to
    /// `take`, or the reason why there is none. Returns false if there is no connection to
    /// ferroced.
    pub fn introduce_stream(
        &self,
        slot: u8,
        addresses: (SocketAddr, SocketAddr),
        take: impl FnOnce(Result<StreamIntroduction, Error>) + Send + 'static,
    ) -> bool {
        let (local, peer) = addresses;
        let request = Request::IntroduceStream {
            attachment: self.number(),
            slot,
            local,
            peer,
        };
        self.ask(&request, move |answer| {
            take(answer.and_then(|(last, fds)| {
                match last {
                    Reply::StreamIntroduced { .. } => StreamIntroduction::new(slot, addresses, fds)
                        .ok_or_else(|| Error::Unexpected("a channel without descriptors".into())),
                    other => Err(unexpected(&other)),
                }
            }));
        })
    }
}
