//! RoCE's attributes for each change of state.
//!
//! The table is the one that verbs programs know from the Linux RDMA core, with two
//! differences. RoCE has no alternate paths, so ALT_PATH is always refused. Only the queue
//! pair types that can enter SQE can leave it for RTS.

use super::{Names, Rule, Table};
use crate::attr::{AttrMask, QpAttr, QpState, QpType};
use crate::error::VerbsError;
use crate::region::unknown_access;

/// Largest number of outstanding READs and atomics, in each direction.
const MAX_RD_ATOMIC: u8 = 128;

/// RoCE's rules.
pub(super) const TABLE: Table = Table {
    rule,
    refused: &[(AttrMask::ALT_PATH, "RoCE has no alternate paths")],
    check_values,
};

/// Returns the attributes of a transition, or `None` if the transition does not exist.
pub(super) fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let none = AttrMask::empty();
    let (required, optional) = match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Err) => return None,
        (_, Err) => (none, none),
        (Reset, Init) => (basics(qp_type), none),
        (Init, Init) => (none, basics(qp_type)),
        (Init, Rtr) => ready_to_receive(qp_type),
        (Rtr, Rts) => (ready_to_send(qp_type), adjustable(qp_type)),
        (Rts, Rts) | (Sqd, Rts) => (none, adjustable(qp_type)),
        (Rts, Sqd) => (none, AttrMask::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (none, adjustable_when_drained(qp_type)),
        (Sqe, Rts) => (none, after_send_error(qp_type)?),
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// Returns the attributes that INIT requires.
fn basics(qp_type: QpType) -> AttrMask {
    AttrMask::PKEY_INDEX
        | match qp_type {
            QpType::Gsi => AttrMask::QKEY, // each port has its own GSI queue pair
            QpType::Ud => AttrMask::PORT | AttrMask::QKEY,
            _ => AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        }
}

/// Returns the required and the optional attributes of RTR.
fn ready_to_receive(qp_type: QpType) -> (AttrMask, AttrMask) {
    if qp_type.is_datagram() {
        return (AttrMask::empty(), AttrMask::PKEY_INDEX | AttrMask::QKEY);
    }
    let peer = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let responder = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let required = match qp_type {
        QpType::Rc | QpType::XrcTarget => peer | responder,
        _ => peer, // such a responder sends no READ response and no RNR NAK
    };
    (required, AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX)
}

/// Returns the attributes that RTS requires.
fn ready_to_send(qp_type: QpType) -> AttrMask {
    AttrMask::SQ_PSN
        | match qp_type {
            QpType::Rc | QpType::XrcInitiator => {
                AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::MAX_QP_RD_ATOMIC
            }
            QpType::XrcTarget => AttrMask::TIMEOUT,
            _ => AttrMask::empty(),
        }
}

/// Returns the attributes that may change when a queue pair moves to RTS or stays there.
fn adjustable(qp_type: QpType) -> AttrMask {
    if qp_type.is_datagram() {
        return AttrMask::CUR_STATE | AttrMask::QKEY;
    }
    let all = AttrMask::CUR_STATE | AttrMask::ACCESS_FLAGS | AttrMask::PATH_MIG_STATE;
    match qp_type {
        QpType::Rc | QpType::XrcTarget => all | AttrMask::MIN_RNR_TIMER,
        _ => all,
    }
}

/// Returns the attributes that may change while the send queue is drained.
fn adjustable_when_drained(qp_type: QpType) -> AttrMask {
    if qp_type.is_datagram() {
        return AttrMask::PKEY_INDEX | AttrMask::QKEY;
    }
    let all =
        AttrMask::AV | AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX | AttrMask::PATH_MIG_STATE;
    let reliable = AttrMask::PORT | AttrMask::TIMEOUT;
    let requester = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    let responder = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    match qp_type {
        QpType::Rc => all | reliable | requester | responder,
        QpType::XrcInitiator => all | reliable | requester,
        QpType::XrcTarget => all | reliable | responder,
        _ => all,
    }
}

/// Returns the attributes that may change when a queue pair leaves SQE. Reliable queue pairs
/// never enter SQE: their send errors lead to ERR.
fn after_send_error(qp_type: QpType) -> Option<AttrMask> {
    match qp_type {
        QpType::Uc => Some(AttrMask::CUR_STATE | AttrMask::ACCESS_FLAGS),
        QpType::Ud | QpType::Gsi => Some(AttrMask::CUR_STATE | AttrMask::QKEY),
        _ => None,
    }
}

pub(super) fn check_values(attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
    let most = [
        (AttrMask::PKEY_INDEX, u32::from(attr.pkey_index), 0),
        (AttrMask::TIMEOUT, attr.timeout.into(), 31),
        (AttrMask::RETRY_CNT, attr.retry_cnt.into(), 7),
        (AttrMask::RNR_RETRY, attr.rnr_retry.into(), 7),
        (
            AttrMask::MAX_QP_RD_ATOMIC,
            attr.max_rd_atomic.into(),
            MAX_RD_ATOMIC.into(),
        ),
        (
            AttrMask::MAX_DEST_RD_ATOMIC,
            attr.max_dest_rd_atomic.into(),
            MAX_RD_ATOMIC.into(),
        ),
        (AttrMask::DEST_QPN, attr.dest_qpn, 0x00ff_ffff),
    ];
    for (name, value, most) in most {
        if mask.contains(name) && value > most {
            return Err(VerbsError::invalid(format!(
                "{} is {value}, at most {most} is possible",
                Names(name)
            )));
        }
    }
    if mask.contains(AttrMask::PORT) {
        check_port("PORT", attr.port)?;
    }
    if mask.contains(AttrMask::ACCESS_FLAGS) {
        let unknown = unknown_access(attr.access);
        if unknown != 0 {
            return Err(VerbsError::invalid(format!(
                "ACCESS_FLAGS has the unknown bits {unknown:#x}"
            )));
        }
    }
    if mask.contains(AttrMask::AV) {
        check_av(attr)?;
    }
    Ok(())
}

fn check_av(attr: &QpAttr) -> Result<(), VerbsError> {
    let Some(av) = &attr.av else {
        return Err(VerbsError::invalid("AV has no GRH, RoCE needs one"));
    };
    check_port("the port of AV", av.port)?;
    let (source, destination) = (av.source, av.destination);
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(VerbsError::invalid(format!(
            "AV leads from {source} to {destination}: one is IPv4, the other IPv6"
        )));
    }
    if destination.is_unspecified() || destination.is_multicast() {
        return Err(VerbsError::invalid(format!(
            "AV leads to {destination}, which is no single peer"
        )));
    }
    Ok(())
}

fn check_port(what: &str, port: u8) -> Result<(), VerbsError> {
    if port == 1 {
        return Ok(());
    }
    Err(VerbsError::invalid(format!(
        "{what} is {port}, the device has only port 1"
    )))
}
