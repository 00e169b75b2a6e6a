//! The passive side: accept and reject.

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{Accept, Ece, PrivateData, Reason};
use ferroce_control::CmCall;

use crate::client::ControlClient;
use crate::connect::ConnParams;
use crate::devices::MAX_DEPTH;
use crate::error::{Error, no_connection, private_data_too_long};
use crate::id::{Id, State};
use crate::{datagram, iwarp, qp};

impl Id {
    /// Accepts the request that this id was created for. A connection is established when
    /// the event [`Established`](crate::EventKind::Established) follows; for datagrams no
    /// event follows.
    pub fn accept(&self, params: &ConnParams) -> Result<(), Error> {
        let id = self.usable()?;
        let params = params.complete(id)?;
        if id.inner().state != State::Connect {
            return Err(Error::invalid("the id is not that of a connection request"));
        }
        if id.is_iwarp() {
            return iwarp::accept(id, &params);
        }
        if id.is_datagram() {
            let data = &params.private_data;
            return datagram::answer(id, SidrStatus::VALID, params.qpn, data);
        }
        let private_data =
            PrivateData::new(&params.private_data).map_err(|_too_long| private_data_too_long())?;
        let (conn, depths, ece) = {
            let mut inner = id.inner();
            let conn = inner.conn.ok_or_else(no_connection)?;
            let agreed = |own: Option<u8>, peer: u8| own.unwrap_or(peer.min(MAX_DEPTH));
            inner.responder_resources =
                agreed(params.responder_resources, inner.responder_resources);
            inner.initiator_depth = agreed(params.initiator_depth, inner.initiator_depth);
            let ece = Ece {
                vendor_id: inner.remote_ece.vendor_id,
                options: inner.local_ece.options,
            };
            let depths = (inner.responder_resources, inner.initiator_depth);
            if let Some(qp) = &mut inner.qp_parameters {
                (qp.responder_resources, qp.initiator_depth) = depths;
            }
            (conn, depths, ece)
        };
        // Data may arrive as soon as the peer has the REP.
        qp::to_rts(id, Some(depths))?;
        let client = ControlClient::get()?;
        client.handles().add_connection(conn, id);
        let accepted = client.perform(CmCall::Accept {
            conn,
            accept: Box::new(Accept {
                qpn: params.qpn,
                srq: params.srq,
                flow_control: params.flow_control,
                responder_resources: depths.0,
                initiator_depth: depths.1,
                rnr_retry_count: params.rnr_retry_count,
                ece,
                private_data,
            }),
        });
        if accepted.is_err() {
            client.handles().remove_connection(conn);
            let _in_any_case = qp::to_error(id);
        }
        accepted
    }

    /// Rejects the request that this id was created for, or a response.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        self.reject_because(Reason::CONSUMER, private_data)
    }

    /// Rejects a request or response for a reason; datagram requests have no reasons.
    pub fn reject_because(&self, reason: Reason, private_data: &[u8]) -> Result<(), Error> {
        let id = self.usable()?;
        if id.is_iwarp() {
            return iwarp::reject(id, private_data);
        }
        if id.is_datagram() {
            return datagram::answer(id, SidrStatus::REJECTED, 0, private_data);
        }
        let data = PrivateData::new(private_data).map_err(|_too_long| private_data_too_long())?;
        let conn = id.inner().conn.ok_or_else(no_connection)?;
        ControlClient::get()?.perform(CmCall::Reject {
            conn,
            reason,
            private_data: Box::new(data),
        })?;
        id.inner().ended = true;
        Ok(())
    }
}
