//! Recovery after a restart of ferroced: the client connects to the new one, and registers
//! the open links and the objects of rdma_cm with it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use super::links::Resumption;
use super::release_closed;
use super::shared::{Shared, next_generation};
use crate::attach::Watch;
use crate::connection::{ANSWER_TIMEOUT, Connection, find_daemon, next_request_number, unexpected};
use crate::error::Error;
use crate::protocol::{Reply, Request, encode_numbered};
use crate::split::{ReplyReceiver, RequestSender};

/// Pause before connecting again to a ferroced that does not answer.
const RETRY: Duration = Duration::from_secs(1);

/// A function that returns the request for an object that was restored and then released by
/// the program; None if the program still has the object.
pub(super) type Orphaned<'a> = Box<dyn FnOnce() -> Option<Request> + 'a>;

/// A new connection on which no other thread sends yet.
pub struct Recovery<'a> {
    shared: &'a Shared,
    sender: RequestSender,
    receiver: ReplyReceiver,
    generation: u64,
    orphaned: Vec<Orphaned<'a>>,
}

impl core::fmt::Debug for Recovery<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Recovery")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// Waits for the next ferroced, and registers all objects of this process with it. Returns
/// None if the client is closed first.
pub(super) fn reconnect(shared: &Shared, dir: &Path) -> Option<ReplyReceiver> {
    let mut watch = None;
    while !shared.has_ended() {
        if watch.is_none() {
            // A ferroced without links removes its directory when it ends. Then only a call
            // of the program causes another attempt.
            watch = Watch::new(dir)
                .inspect_err(|error| tracing::debug!("no notice of another ferroced: {error}"))
                .ok();
        }
        watch.iter().for_each(Watch::clear);
        let wanted = shared.attempts_wanted();
        let error = match attempt(shared, dir) {
            Ok(receiver) => {
                tracing::info!("ferroced is back");
                return Some(receiver);
            }
            Err(error) => error,
        };
        tracing::debug!("no ferroced yet: {error}");
        // The watch reports a new control socket, not a stopped ferroced that continues.
        let timeout = matches!(error, Error::Timeout { .. }).then_some(RETRY);
        shared.attempts_failed(wanted, error);
        shared.wait(watch.as_ref().map(AsFd::as_fd), timeout);
    }
    None
}

fn attempt(shared: &Shared, dir: &Path) -> Result<ReplyReceiver, Error> {
    let connection = match Connection::connect(dir) {
        Err(Error::NoDaemon) if !dir.exists() => find_daemon()?.ok_or(Error::NoDaemon),
        connected => connected,
    };
    let (sender, receiver) = connection?.split();
    let mut recovery = Recovery {
        shared,
        sender,
        receiver,
        generation: next_generation(),
        orphaned: Vec::new(),
    };
    release_closed(shared.netns, |request| {
        let refused = |(errno, message)| Error::Refused { errno, message };
        recovery.call(request)?.map(drop).map_err(refused)
    })?;
    for resumption in shared.links.resumptions() {
        recovery.resume(&resumption)?;
    }
    if let Some(service) = shared.service.get() {
        if let Err((_, message)) = recovery.call(&Request::Subscribe)? {
            tracing::warn!("no events of links: {message}");
        }
        service.recover(&mut recovery)?;
    }
    shared.restore_connection(recovery.sender, recovery.generation, recovery.orphaned);
    Ok(recovery.receiver)
}

impl<'a> Recovery<'a> {
    /// Returns the number of the new connection.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Sends a request, and returns the reply, or the errno and the reason of a refusal.
    /// Events that arrive before the reply are handled.
    ///
    /// # Errors
    /// [`Error::Timeout`] if ferroced does not answer; [`Error::Closed`] if it has ended.
    pub fn call(&mut self, request: &Request) -> Result<Result<Reply, (i32, String)>, Error> {
        self.call_with(request, &[])
    }

    /// Adds a function that returns the request for a restored object that the program has
    /// released meanwhile. It is called when other threads can use the connection.
    pub fn on_orphaned(&mut self, orphaned: impl FnOnce() -> Option<Request> + Send + 'a) {
        self.orphaned.push(Box::new(orphaned));
    }

    fn call_with(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Result<Reply, (i32, String)>, Error> {
        let number = next_request_number();
        let bytes = encode_numbered(Some(number), request);
        // One request is in flight at a time, so the socket has room for it.
        if !self.sender.try_send(&bytes, fds)? {
            return Err(self.sender.timeout_error());
        }
        loop {
            let received = self.receiver.receive_within(ANSWER_TIMEOUT)?;
            let (to, reply, fds) = received.ok_or_else(|| self.sender.timeout_error())?;
            match (to, reply) {
                (Some(to), Reply::Error { errno, message }) if to == number => {
                    return Ok(Err((errno, message)));
                }
                (Some(to), reply) if to == number => return Ok(Ok(reply)),
                (Some(_), _) => {}
                (None, event) => self.shared.event(event, fds),
            }
        }
    }

    /// Registers the slots of an attachment.
    fn resume(&mut self, resumption: &Resumption) -> Result<(), Error> {
        let request = Request::Resume {
            attachment: resumption.number,
            link: resumption.link.clone(),
            kind: resumption.descriptors.kind(),
            slots: resumption.slots.clone(),
        };
        let number = resumption.number;
        match self.call_with(&request, &resumption.descriptors.fds())? {
            Ok(Reply::Resumed { link }) => {
                let shared = self.shared;
                self.on_orphaned(move || {
                    let is_closed = !shared.links.contains(number);
                    is_closed.then_some(Request::Detach { attachment: number })
                });
                self.shared.links.resumed(number, link);
                Ok(())
            }
            Ok(other) => Err(unexpected(&other)),
            Err((_, message)) => {
                tracing::warn!("{} continues without ferroced: {message}", resumption.link);
                self.shared.links.refused(number);
                Ok(())
            }
        }
    }
}
