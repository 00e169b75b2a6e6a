//! iWARP's attributes for each change of state.
//!
//! siw looks at STATE and ACCESS_FLAGS only, and ignores all other attributes. A queue pair
//! gets ready by the connection manager, not by a program: programs that use rdma_cm move
//! their queue pairs to RTR all the same, which changes nothing before the connection exists.
//! As in siw, RTR and SQD without a connection, and INIT after an error, succeed and change nothing.

use super::{Rule, Table};
use crate::attr::{AttrMask, QpAttr, QpState, QpType};
use crate::error::VerbsError;
use crate::region::unknown_access;

/// iWARP's rules.
pub(super) const TABLE: Table = Table {
    rule,
    refused: &[],
    check_values,
};

/// Returns the attributes of a transition, or `None` if the transition does not exist.
fn rule(qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd};
    if qp_type != QpType::Rc {
        return None;
    }
    match (from, to) {
        (_, Reset | Err)
        | (Reset | Init | Err, Init)
        | (Reset | Init | Rtr, Rtr)
        | (Rtr | Rts, Rts)
        | (Reset | Init | Rtr | Rts | Sqd, Sqd) => Some(Rule {
            required: AttrMask::empty(),
            optional: AttrMask::all(),
        }),
        _ => None,
    }
}

fn check_values(attr: &QpAttr, mask: AttrMask) -> Result<(), VerbsError> {
    let unknown = unknown_access(attr.access);
    if mask.contains(AttrMask::ACCESS_FLAGS) && unknown != 0 {
        return Err(VerbsError::invalid(format!(
            "ACCESS_FLAGS has the unknown bits {unknown:#x}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Protocol;
    use crate::verbs::Access;

    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];

    fn check(from: QpState, to: QpState, mask: AttrMask) -> Result<QpState, VerbsError> {
        let attr = QpAttr {
            state: to,
            ..QpAttr::default()
        };
        super::super::check(Protocol::Iwarp, QpType::Rc, from, &attr, mask)
    }

    #[test]
    fn attributes_of_infiniband_are_neither_required_nor_refused() {
        let from_to = [
            (QpState::Reset, QpState::Init),
            (QpState::Init, QpState::Rtr),
            (QpState::Rtr, QpState::Rts),
            (QpState::Rts, QpState::Sqd),
        ];
        for (from, to) in from_to {
            assert_eq!(check(from, to, AttrMask::STATE), Ok(to));
            let all = AttrMask::all().difference(AttrMask::CUR_STATE);
            assert_eq!(check(from, to, all), Ok(to));
        }
    }

    #[test]
    fn every_state_leads_to_reset_and_err() {
        for from in STATES {
            for to in [QpState::Reset, QpState::Err] {
                assert_eq!(check(from, to, AttrMask::STATE), Ok(to));
            }
        }
        assert!(check(QpState::Err, QpState::Rts, AttrMask::STATE).is_err());
        assert!(check(QpState::Sqd, QpState::Rts, AttrMask::STATE).is_err());
    }

    #[test]
    fn only_rc_queue_pairs_and_known_access_flags_exist() {
        let mut attr = QpAttr {
            state: QpState::Init,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
        let check = |qp_type, attr: &QpAttr| {
            super::super::check(Protocol::Iwarp, qp_type, QpState::Reset, attr, mask)
        };
        assert!(check(QpType::Rc, &attr).is_ok());
        assert!(check(QpType::Ud, &attr).is_err());
        attr.access = Access::from_bits_retain(1 << 15);
        assert!(check(QpType::Rc, &attr).is_err());
    }
}
