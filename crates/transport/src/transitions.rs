//! Which attributes a queue pair takes, or needs, on its way between states.
//!
//! The table is the one that verbs programs know from the Linux RDMA core: for
//! each type and each pair of states some attributes are required, some are
//! optional, and any other is refused. Two things differ, both because this is
//! RoCE and nothing else: alternate paths are always refused, and the send queue
//! error state has a way back only for the types that can get there.
//!
//! Whether a draining send queue may leave SQD is not decided here: the table
//! knows states, not how far a queue has come.

use core::fmt;

use crate::attr::{AttrMask, QpAttr, QpState, QpType};
use crate::error::VerbsError;
use crate::region::unknown_access;

#[cfg(test)]
mod tests;

/// Most outstanding READs and atomics, in each direction.
pub(crate) const MAX_RD_ATOMIC: u8 = 128;

/// Checks a modify call against the table; returns the state it leads to.
pub(crate) fn check(
    qp_type: QpType,
    current: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState, VerbsError> {
    let next = match mask.contains(AttrMask::STATE) {
        true => attr.state,
        false => current,
    };
    check_mask(qp_type, current, next, mask)?;
    if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != current {
        return Err(VerbsError::invalid(format!(
            "CUR_STATE is {}, but the queue pair is in {}",
            state_name(attr.cur_state),
            state_name(current)
        )));
    }
    check_values(attr, mask)?;
    Ok(next)
}

/// What a transition takes, besides the state itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Rule {
    required: AttrMask,
    optional: AttrMask,
}

fn check_mask(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), VerbsError> {
    let refuse = |why: fmt::Arguments<'_>| {
        Err(VerbsError::invalid(format!(
            "{} -> {} of {} queue pair {why}",
            state_name(from),
            state_name(to),
            type_name(qp_type)
        )))
    };
    let Some(rule) = rule(qp_type, from, to) else {
        return refuse(format_args!("is not possible"));
    };
    if mask.contains(AttrMask::ALT_PATH) {
        return refuse(format_args!(
            "does not take ALT_PATH: RoCE has no alternate paths"
        ));
    }
    let missing = rule.required.difference(mask);
    if !missing.is_empty() {
        return refuse(format_args!("needs {}", Names(missing)));
    }
    let taken = rule.required | rule.optional | AttrMask::STATE;
    let extra = mask.difference(taken);
    if !extra.is_empty() {
        return refuse(format_args!("does not take {}", Names(extra)));
    }
    Ok(())
}

/// The table. `None`: the transition does not exist.
fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
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

/// What INIT needs.
fn basics(qp_type: QpType) -> AttrMask {
    AttrMask::PKEY_INDEX
        | match qp_type {
            QpType::Gsi => AttrMask::QKEY, // its port is given by its nature
            QpType::Ud => AttrMask::PORT | AttrMask::QKEY,
            _ => AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        }
}

/// What RTR needs, and what it takes.
fn ready_to_receive(qp_type: QpType) -> (AttrMask, AttrMask) {
    if qp_type.is_datagram() {
        return (AttrMask::empty(), AttrMask::PKEY_INDEX | AttrMask::QKEY);
    }
    let peer = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let responder = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let required = match qp_type {
        QpType::Rc | QpType::XrcTarget => peer | responder,
        _ => peer, // nothing to read or to wait for at this end
    };
    (required, AttrMask::ACCESS_FLAGS | AttrMask::PKEY_INDEX)
}

/// What RTS needs.
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

/// What may change on the way to RTS, and in it.
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

/// What may change while the send queue stands still.
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

/// What may change on the way back from a send queue error. Reliable queue
/// pairs never have one: theirs end in ERR.
fn after_send_error(qp_type: QpType) -> Option<AttrMask> {
    match qp_type {
        QpType::Uc => Some(AttrMask::CUR_STATE | AttrMask::ACCESS_FLAGS),
        QpType::Ud | QpType::Gsi => Some(AttrMask::CUR_STATE | AttrMask::QKEY),
        _ => None,
    }
}

fn check_values(attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
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

/// Attributes by name.
struct Names(AttrMask);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = self.0.iter_names();
        let mut between = "";
        for (name, _) in names.by_ref() {
            write!(f, "{between}{name}")?;
            between = ", ";
        }
        match names.remaining().bits() {
            0 => Ok(()),
            rest => write!(f, "{between}the unknown bits {rest:#x}"),
        }
    }
}

fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "RESET",
        QpState::Init => "INIT",
        QpState::Rtr => "RTR",
        QpState::Rts => "RTS",
        QpState::Sqd => "SQD",
        QpState::Sqe => "SQE",
        QpState::Err => "ERR",
    }
}

/// With its article.
fn type_name(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "an RC",
        QpType::Uc => "a UC",
        QpType::Ud => "a UD",
        QpType::Gsi => "a GSI",
        QpType::XrcInitiator => "an XRC initiator",
        QpType::XrcTarget => "an XRC target",
    }
}
