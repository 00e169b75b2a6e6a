//! Recovery after a restart of ferroced: ports, listeners and connections are registered
//! with the new one.
//!
//! An established connection needs its connection manager only for its end, so its record
//! suffices. Connections that were being set up are lost, and their ids get an error event.

use std::path::Path;
use std::sync::Arc;

use ferroce_control::protocol::encode_numbered;
use ferroce_control::{
    ANSWER_TIMEOUT, CmAnswer, CmCall, CmId, Connection, Error, LinkEventKind, Reply, ReplyReceiver,
    Request, RequestSender, Watch, next_request_number,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::channel::ChannelEvent;
use crate::client::{ControlClient, next_generation, returning, subscribe};
use crate::id::{Shared, State};

/// Pause before connecting again to a ferroced that does not answer.
const RETRY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A new connection to ferroced, which knows the objects of this process.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) sender: RequestSender,
    pub(crate) receiver: ReplyReceiver,
    pub(crate) generation: u64,
    /// The restored objects: their ids, and the calls that return them to ferroced.
    pub(crate) restored: Vec<(Arc<Shared>, CmCall)>,
}

/// Waits for the next ferroced, and registers all objects of this process with it.
pub(crate) fn recover(client: &'static ControlClient, dir: &Path) -> Option<Recovered> {
    let watch = match Watch::new(dir) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!("cannot wait for another ferroced: {error}");
            return None;
        }
    };
    loop {
        watch.clear();
        let error = match reconnect(client, dir) {
            Ok(recovered) => {
                tracing::info!("ferroced is back");
                return Some(recovered);
            }
            Err(error) => error,
        };
        tracing::debug!("no ferroced yet: {error}");
        // The watch reports a new control socket, not a stopped ferroced that continues.
        let timeout = matches!(error, Error::Timeout { .. }).then_some(RETRY);
        let mut fds = [PollFd::new(&watch, PollFlags::IN)];
        let _interrupted = poll(&mut fds, timeout.as_ref());
    }
}

fn reconnect(client: &'static ControlClient, dir: &Path) -> Result<Recovered, Error> {
    let mut connection = Connection::connect(dir)?;
    subscribe(&mut connection)?;
    let (sender, receiver) = connection.split();
    let mut recovery = Recovery {
        client,
        sender,
        receiver,
        restored: Vec::new(),
    };
    let generation = next_generation();
    let ids = {
        let mut handles = client.handles();
        handles.clear_handles(generation);
        handles.ids()
    };
    for id in &ids {
        recovery.restore_port(id)?;
    }
    for id in &ids {
        recovery.restore_connection(id)?;
    }
    Ok(Recovered {
        sender: recovery.sender,
        receiver: recovery.receiver,
        generation,
        restored: recovery.restored,
    })
}

/// A new connection on which no other thread sends yet.
struct Recovery {
    client: &'static ControlClient,
    sender: RequestSender,
    receiver: ReplyReceiver,
    restored: Vec<(Arc<Shared>, CmCall)>,
}

impl Recovery {
    /// Calls the connection manager, and dispatches events that arrive before the answer.
    fn call(&mut self, call: CmCall, id: &Arc<Shared>) -> Result<Result<CmAnswer, i32>, Error> {
        let number = next_request_number();
        let bytes = encode_numbered(Some(number), &Request::Cm(call));
        // One request is in flight at a time, so the socket has room for it.
        if !self.sender.try_send(&bytes)? {
            return Err(self.sender.timeout_error());
        }
        loop {
            let received = self.receiver.receive_within(ANSWER_TIMEOUT)?;
            let (to, reply) = received.ok_or_else(|| self.sender.timeout_error())?;
            match reply {
                Reply::CmEvent(event) => self.client.handles().dispatch(event),
                Reply::CmAnswer(answer) if to == Some(number) => {
                    if let Some(call) = returning(&answer) {
                        self.restored.push((Arc::clone(id), call));
                    }
                    self.client.handles().learn(id, &answer);
                    return Ok(Ok(answer));
                }
                Reply::Error { errno, message } if to == Some(number) => {
                    tracing::warn!("not resumed: {message}");
                    return Ok(Err(errno));
                }
                Reply::Event(event) if event.kind == LinkEventKind::Removed => {
                    self.client.handles().remove_link(event.link.index);
                }
                _ => {}
            }
        }
    }

    fn restore_port(&mut self, id: &Arc<Shared>) -> Result<(), Error> {
        let (port, options, backlog) = {
            let inner = id.inner();
            (inner.port, inner.options, inner.backlog)
        };
        let Some(port) = port.filter(|port| !port.borrowed) else {
            return Ok(());
        };
        let bind = CmCall::Bind {
            space: id.space,
            source: port.source,
            port: port.number,
            destination: port.destination,
            reuse: options.reuse_address,
            af_only: options.af_only,
        };
        if let Ok(CmAnswer::Bound { port, .. }) = self.call(bind, id)?
            && let Some(backlog) = backlog
        {
            let _refusal_is_logged = self.call(CmCall::Listen { port, backlog }, id)?;
        }
        Ok(())
    }

    fn restore_connection(&mut self, id: &Arc<Shared>) -> Result<(), Error> {
        let (conn, snapshot, sidr, established) = {
            let mut inner = id.inner();
            let conn = inner.conn.filter(|_| !inner.ended);
            (conn, inner.snapshot, inner.sidr.take(), inner.established)
        };
        if sidr.is_some() {
            self.lose(id, ChannelEvent::Unreachable(libc::ECONNRESET));
        }
        let Some(CmId { link, .. }) = conn else {
            return Ok(());
        };
        let Some(snapshot) = snapshot else {
            id.inner().ended = true;
            self.lose(
                id,
                match established {
                    true => ChannelEvent::Disconnected(libc::ECONNRESET),
                    false => ChannelEvent::ConnectError(libc::ECONNRESET),
                },
            );
            return Ok(());
        };
        let resume = CmCall::Resume {
            link,
            snapshot: Box::new(snapshot),
        };
        match self.call(resume, id)? {
            Ok(CmAnswer::Connection { .. }) => {}
            _ => {
                id.inner().ended = true;
                self.lose(id, ChannelEvent::Disconnected(libc::ECONNRESET));
            }
        }
        Ok(())
    }

    /// Reports the loss of a connection, unless the id was destroyed meanwhile.
    fn lose(&self, id: &Arc<Shared>, event: ChannelEvent) {
        // While the table is locked, the id is not destroyed.
        let _handles = self.client.handles();
        let is_reported = {
            let inner = id.inner();
            inner.state == State::Connect && !inner.is_released()
        };
        if is_reported {
            id.post(event);
        }
    }
}
