//! Datagrams: service ID resolution (SIDR), which finds the queue pair of a service.

use std::sync::Arc;

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{Ece, Gid, IpHeader, PrivateData, SidrAnswer, SidrRequest};
use ferroce_control::{CmAnswer, CmCall};
use ferroce_device::AhAttr;

use crate::client::ControlClient;
use crate::connect::{ConnParams, ip_header};
use crate::error::{
    Error, no_address, no_destination, no_device, no_port, private_data_too_long, unexpected_answer,
};
use crate::id::Shared;
use crate::path::Path;
use crate::qp::sgid_index;

/// Sends a SIDR request to the peer.
pub(crate) fn send_request(id: &Arc<Shared>, params: &ConnParams) -> Result<(), Error> {
    let (link, request) = {
        let inner = id.inner();
        let link = inner.device.as_ref().ok_or_else(no_device)?.index();
        let port = inner.port.ok_or_else(no_port)?;
        let (_, to) = port.destination.ok_or_else(no_destination)?;
        let mut private_data = PrivateData::at(IpHeader::LEN, &params.private_data)
            .map_err(|_too_long| private_data_too_long())?;
        ip_header(&inner)?.emit(&mut private_data.0);
        let request = SidrRequest {
            address: inner.address.ok_or_else(no_address)?,
            service_id: id.space.service_id(to),
            private_data,
        };
        (link, request)
    };
    let call = CmCall::SidrRequest {
        link,
        request: Box::new(request),
    };
    match ControlClient::get()?.call(call, Some(id))? {
        CmAnswer::SidrRequested { .. } => Ok(()),
        _ => Err(unexpected_answer()),
    }
}

/// Answers the peer's SIDR request.
pub(crate) fn answer(
    id: &Arc<Shared>,
    status: SidrStatus,
    qpn: u32,
    data: &[u8],
) -> Result<(), Error> {
    let private_data = PrivateData::new(data).map_err(|_too_long| private_data_too_long())?;
    let (sidr, ece) = {
        let inner = id.inner();
        let ece = Ece {
            vendor_id: inner.remote_ece.vendor_id,
            options: inner.local_ece.options,
        };
        let sidr = inner
            .sidr
            .ok_or_else(|| Error::invalid("the id is not that of a datagram request"))?;
        (sidr, ece)
    };
    let qkey = match status {
        SidrStatus::VALID => id.space.default_qkey().unwrap_or(0),
        _ => 0,
    };
    ControlClient::get()?.perform(CmCall::SidrAnswer {
        sidr,
        answer: Box::new(SidrAnswer {
            status,
            qpn,
            qkey,
            ece,
            private_data,
        }),
    })?;
    id.inner().sidr = None;
    Ok(())
}

/// Returns the address of the peer's queue pair.
pub(crate) fn peer_address(id: &Shared) -> Option<AhAttr> {
    let inner = id.inner();
    let path = Path::of(&inner).ok()?;
    Some(AhAttr {
        sgid_index: sgid_index(&inner).ok()?,
        dgid: Gid::from(inner.address?.remote).0,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: 0,
        port: 1,
    })
}
