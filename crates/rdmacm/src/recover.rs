//! Recovery after a restart of ferroced: ports, listeners and connections are registered
//! with the new one.
//!
//! An established connection needs its connection manager only for its end, so its record
//! suffices. Connections that were being set up are lost, and their ids get an error event.

use std::sync::Arc;

use ferroce_control::client::{Recovery, returning_call};
use ferroce_control::{CmAnswer, CmCall, CmId, Error, Reply, Request};

use crate::channel::ChannelEvent;
use crate::client::ControlClient;
use crate::id::{Shared, State};

/// Registers all objects of this process with a new ferroced.
pub(crate) fn recover(client: &ControlClient, recovery: &mut Recovery<'_>) -> Result<(), Error> {
    let ids = {
        let mut handles = client.handles();
        handles.clear_handles(recovery.generation());
        handles.ids()
    };
    let mut restoration = Restoration { client, recovery };
    for id in &ids {
        restoration.restore_port(id)?;
    }
    for id in &ids {
        restoration.restore_connection(id)?;
    }
    Ok(())
}

/// The registration of ids on a new connection.
struct Restoration<'a, 'b> {
    client: &'a ControlClient,
    recovery: &'a mut Recovery<'b>,
}

impl Restoration<'_, '_> {
    /// Calls the connection manager. The object in the answer becomes that of the id.
    fn call(&mut self, call: CmCall, id: &Arc<Shared>) -> Result<Result<CmAnswer, i32>, Error> {
        match self.recovery.call(&Request::Cm(call))? {
            Ok(Reply::CmAnswer(answer)) => {
                if let Some(call) = returning_call(&answer) {
                    let id = Arc::clone(id);
                    self.recovery
                        .on_orphaned(move || id.inner().is_released().then_some(Request::Cm(call)));
                }
                self.client.handles().learn(id, &answer);
                Ok(Ok(answer))
            }
            Ok(other) => {
                tracing::warn!("ferroced sent an unexpected message: {other:?}");
                Ok(Err(libc::EPROTO))
            }
            Err((errno, message)) => {
                tracing::warn!("not resumed: {message}");
                Ok(Err(errno))
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
