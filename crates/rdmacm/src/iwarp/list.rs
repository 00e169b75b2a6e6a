//! The list of connections on a link, for `rdma resource show cm_id`.

use ferroce_control::resources::StreamResource;

use super::Stage;
use crate::client::ControlClient;
use crate::id::Inner;

/// Returns the connections of this process on the link with this index. ferroced lists the
/// listeners, whose ports it has.
pub(crate) fn streams_on(link: u32) -> Vec<StreamResource> {
    let Some(client) = ControlClient::current() else {
        return Vec::new();
    };
    let ids = client.handles().ids();
    let streams = ids.iter().filter_map(|id| {
        let inner = id.inner();
        let is_here = inner.device.as_ref().is_some_and(|d| d.index() == link);
        let state = state(&inner).filter(|_| is_here)?;
        Some(StreamResource {
            cm_idn: id.number,
            lqpn: qpn(&inner.stage),
            state: state.into(),
            source: inner.local,
            destination: inner.peer,
        })
    });
    streams.collect()
}

fn qpn(stage: &Stage) -> Option<u32> {
    match stage {
        Stage::Connecting(connecting) => Some(connecting.qpn()),
        Stage::Connected(qpn) => Some(*qpn),
        Stage::None | Stage::Request(_) => None,
    }
}

/// Returns the state of a connection; none if the id has none.
fn state(inner: &Inner) -> Option<&'static str> {
    match inner.stage {
        Stage::None => None,
        Stage::Connected(_) if inner.closed => Some("DISCONNECT"),
        Stage::Request(_) | Stage::Connecting(_) | Stage::Connected(_) => Some("CONNECT"),
    }
}
