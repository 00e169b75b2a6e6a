//! The attributes that a queue pair takes, or requires, when its state changes.
//!
//! Each protocol has a [`Table`], found by [`table`]: for each queue pair type and each pair
//! of states some attributes are required, some are optional, and all others are refused.
//!
//! The table knows states, not the progress of a queue. So it does not decide whether a
//! draining send queue may leave SQD: the engine does.

mod iwarp;
mod roce;
#[cfg(test)]
mod tests;

use core::fmt;

use crate::attr::{AttrMask, QpAttr, QpState, QpType};
use crate::error::VerbsError;
use crate::protocol::Protocol;

/// The rules of one protocol for changes of state.
#[derive(Debug)]
pub struct Table {
    /// Returns the attributes of a transition, or `None` if the transition does not exist.
    rule: fn(QpType, QpState, QpState) -> Option<Rule>,
    /// Attributes that no transition takes, with the reason.
    refused: &'static [(AttrMask, &'static str)],
    /// Checks the values of the attributes that the mask names.
    check_values: fn(&QpAttr, AttrMask) -> Result<(), VerbsError>,
}

/// Returns the rules of a protocol.
pub fn table(protocol: Protocol) -> &'static Table {
    match protocol {
        Protocol::Roce => &roce::TABLE,
        Protocol::Iwarp => &iwarp::TABLE,
    }
}

/// The attributes of a transition, besides the state itself.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Rule {
    required: AttrMask,
    optional: AttrMask,
}

/// Checks a modify call against the rules of the protocol. Returns the new state.
pub fn check(
    protocol: Protocol,
    qp_type: QpType,
    current: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState, VerbsError> {
    table(protocol).check(qp_type, current, attr, mask)
}

impl Table {
    fn check(
        &self,
        qp_type: QpType,
        current: QpState,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<QpState, VerbsError> {
        let next = match mask.contains(AttrMask::STATE) {
            true => attr.state,
            false => current,
        };
        self.check_mask(qp_type, current, next, mask)?;
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != current {
            return Err(VerbsError::invalid(format!(
                "CUR_STATE is {}, but the queue pair is in {}",
                state_name(attr.cur_state),
                state_name(current)
            )));
        }
        (self.check_values)(attr, mask)?;
        Ok(next)
    }

    fn check_mask(
        &self,
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
        let Some(rule) = (self.rule)(qp_type, from, to) else {
            return refuse(format_args!("is not possible"));
        };
        for &(refused, why) in self.refused {
            if mask.intersects(refused) {
                return refuse(format_args!("does not take {}: {why}", Names(refused)));
            }
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
}

/// Displays attributes by name.
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

/// Returns the name of a type with its article.
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
