//! A connection that is set up: reports its beginning and end to the id.

use std::sync::{Arc, Mutex, Weak};

use ferroce_device::StreamUser;
use ferroce_device::iwarp::CloseCause;

use super::{IwarpEvent, Stage};
use crate::channel::ChannelEvent;
use crate::client::ControlClient;
use crate::error::{Error, no_connection};
use crate::event::PeerParams;
use crate::id::Shared;
use crate::lock;

/// The user of a stream. It does not keep the id alive: it is dropped under the lock of a
/// shard, and the id may own a queue pair of that shard.
pub(super) struct Connection {
    id: Weak<Shared>,
    /// The peer's parameters, for the event ESTABLISHED of the active side.
    params: Mutex<Option<PeerParams>>,
}

impl Connection {
    pub(super) fn new(id: &Arc<Shared>, params: Option<PeerParams>) -> Connection {
        Connection {
            id: Arc::downgrade(id),
            params: Mutex::new(params),
        }
    }
}

impl StreamUser for Connection {
    fn established(&self) {
        let params = lock(&self.params).take();
        report(&self.id, |id| {
            id.inner().established = true;
            Some(IwarpEvent::Established(params))
        });
    }

    fn closed(&self, cause: CloseCause) {
        report(&self.id, |id| {
            let mut inner = id.inner();
            if core::mem::replace(&mut inner.closed, true) {
                return None;
            }
            Some(match core::mem::replace(&mut inner.established, false) {
                true => IwarpEvent::Disconnected,
                false if cause == CloseCause::TimedOut => IwarpEvent::ConnectError(libc::ETIMEDOUT),
                false => IwarpEvent::ConnectError(libc::ECONNRESET),
            })
        });
    }
}

/// Queues an event of an id, unless it was destroyed.
pub(super) fn report(id: &Weak<Shared>, event: impl FnOnce(&Arc<Shared>) -> Option<IwarpEvent>) {
    let Some(client) = ControlClient::current() else {
        return;
    };
    // While the table is locked it has a reference: the one here is not the last, whose end
    // would destroy the queue pair under the lock of its shard.
    let handles = client.handles();
    if let Some(id) = handles.find(id) {
        let is_reported = !id.inner().is_released();
        if is_reported && let Some(event) = event(&id) {
            id.post(ChannelEvent::Iwarp(event));
        }
        drop(id);
    }
    drop(handles);
}

/// Ends the connection of an id in order, or gives its request up.
pub(crate) fn disconnect(id: &Arc<Shared>) -> Result<(), Error> {
    let (stage, device) = {
        let mut inner = id.inner();
        let device = inner.device.clone();
        match &inner.stage {
            Stage::Connected(qpn) => (Stage::Connected(*qpn), device),
            Stage::None => return Err(no_connection()),
            // The lock of the id is not held while they are dropped.
            Stage::Request(_) | Stage::Connecting(_) => (core::mem::take(&mut inner.stage), device),
        }
    };
    if let (Stage::Connected(qpn), Some(device)) = (&stage, device)
        && let Err(error) = device.device().disconnect_stream(*qpn)
    {
        // As in librdmacm: the connection has ended already.
        tracing::debug!("nothing to disconnect: {error}");
    }
    Ok(())
}
