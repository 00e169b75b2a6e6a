//! Datagrams: which queue pair of the peer takes them, and which of ours.

use std::sync::Arc;

use ferroce_cm::message::SidrStatus;
use ferroce_cm::{IpHeader, PrivateData, SidrAnswer, SidrRequest};
use ferroce_control::{CmAnswer, CmCall};

use super::Outcome;
use super::address::gid;
use super::attributes::sgid_index;
use super::connect::{Wishes, header};
use super::id::Id;
use super::line::Line;
use super::path::Path;
use super::{no_address, no_destination, no_device, no_port, unexpected};
use crate::errno::refuse;
use crate::ffi::*;

/// Asks the peer for its queue pair.
pub(crate) fn ask(id: &Arc<Id>, wishes: &Wishes) -> Outcome {
    let (link, question) = {
        let inner = id.inner();
        let link = inner.device.ok_or_else(no_device)?.index;
        let port = inner.port.ok_or_else(no_port)?;
        let (_, to) = port.destination.ok_or_else(no_destination)?;
        let mut private_data =
            PrivateData::at(IpHeader::LEN, &wishes.private_data).map_err(|_too_long| {
                refuse(
                    libc::EINVAL,
                    "the private data is longer than the message has room for",
                )
            })?;
        header(&inner)?.emit(&mut private_data.0);
        let question = SidrRequest {
            address: inner.address.ok_or_else(no_address)?,
            service_id: id.space.service_id(to),
            private_data,
        };
        (link, question)
    };
    let call = CmCall::SidrRequest {
        link,
        request: Box::new(question),
    };
    match Line::get()?.call(call, Some(id))? {
        CmAnswer::SidrRequested { .. } => Ok(()),
        _ => Err(unexpected()),
    }
}

/// Answers the peer's question.
pub(crate) fn answer(id: &Arc<Id>, status: SidrStatus, qpn: u32, data: &[u8]) -> Outcome {
    let private_data = PrivateData::new(data).map_err(|_too_long| {
        refuse(
            libc::EINVAL,
            "the private data is longer than the message has room for",
        )
    })?;
    let (question, ece) = {
        let inner = id.inner();
        let ece = ferroce_cm::Ece {
            vendor_id: inner.remote_ece.vendor_id,
            options: inner.local_ece.options,
        };
        (
            inner
                .question
                .ok_or_else(|| refuse(libc::EINVAL, "the id is not that of a datagram request"))?,
            ece,
        )
    };
    let qkey = match status {
        SidrStatus::VALID => id.space.default_qkey().unwrap_or(0),
        _ => 0,
    };
    Line::get()?.perform(CmCall::SidrAnswer {
        sidr: question,
        answer: Box::new(SidrAnswer {
            status,
            qpn,
            qkey,
            ece,
            private_data,
        }),
    })?;
    id.inner().question = None;
    Ok(())
}

/// The way to the peer's queue pair.
pub(crate) fn way(id: &Id) -> Option<ibv_ah_attr> {
    let inner = id.inner();
    let path = Path::of(&inner).ok()?;
    let mut way: ibv_ah_attr = zeroed();
    way.grh = ibv_global_route {
        dgid: gid(inner.address?.remote),
        flow_label: path.flow_label,
        sgid_index: sgid_index(&inner).ok()?,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
    };
    way.is_global = 1;
    way.port_num = 1;
    Some(way)
}
