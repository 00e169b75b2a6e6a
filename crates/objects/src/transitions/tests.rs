//! Tests of RoCE's table against a second copy of it, written as text.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::roce::{check_values, rule};
use super::{Names, Rule, state_name};
use crate::ah::AddressVector;
use crate::attr::{AttrMask, QpAttr, QpState, QpType};
use crate::error::VerbsError;
use crate::protocol::Protocol;
use crate::verbs::Access;

fn check(
    qp_type: QpType,
    current: QpState,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<QpState, VerbsError> {
    super::check(Protocol::Roce, qp_type, current, attr, mask)
}

const TYPES: [(&str, QpType); 6] = [
    ("RC", QpType::Rc),
    ("UC", QpType::Uc),
    ("UD", QpType::Ud),
    ("GSI", QpType::Gsi),
    ("XRC_INI", QpType::XrcInitiator),
    ("XRC_TGT", QpType::XrcTarget),
];

const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];

/// Types; transition; required; optional. No other transition exists, except that every
/// state leads to RESET, and every state but RESET leads to ERR.
const TABLE: &str = "
RC UC XRC_INI XRC_TGT; RESET INIT; PKEY_INDEX PORT ACCESS_FLAGS;
UD;                    RESET INIT; PKEY_INDEX PORT QKEY;
GSI;                   RESET INIT; PKEY_INDEX QKEY;

RC UC XRC_INI XRC_TGT; INIT INIT;; PKEY_INDEX PORT ACCESS_FLAGS
UD;                    INIT INIT;; PKEY_INDEX PORT QKEY
GSI;                   INIT INIT;; PKEY_INDEX QKEY

RC XRC_TGT; INIT RTR; AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER; ACCESS_FLAGS PKEY_INDEX
UC XRC_INI; INIT RTR; AV PATH_MTU DEST_QPN RQ_PSN; ACCESS_FLAGS PKEY_INDEX
UD GSI;     INIT RTR;; PKEY_INDEX QKEY

RC;      RTR RTS; TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC; CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
XRC_INI; RTR RTS; TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC; CUR_STATE ACCESS_FLAGS PATH_MIG_STATE
XRC_TGT; RTR RTS; TIMEOUT SQ_PSN; CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
UC;      RTR RTS; SQ_PSN; CUR_STATE ACCESS_FLAGS PATH_MIG_STATE
UD GSI;  RTR RTS; SQ_PSN; CUR_STATE QKEY

RC XRC_TGT; RTS RTS;; CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
UC XRC_INI; RTS RTS;; CUR_STATE ACCESS_FLAGS PATH_MIG_STATE
UD GSI;     RTS RTS;; CUR_STATE QKEY

RC UC UD GSI XRC_INI XRC_TGT; RTS SQD;; EN_SQD_ASYNC_NOTIFY

RC XRC_TGT; SQD RTS;; CUR_STATE ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE
UC XRC_INI; SQD RTS;; CUR_STATE ACCESS_FLAGS PATH_MIG_STATE
UD GSI;     SQD RTS;; CUR_STATE QKEY

RC;      SQD SQD;; PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
XRC_INI; SQD SQD;; PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
XRC_TGT; SQD SQD;; PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
UC;      SQD SQD;; AV ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
UD GSI;  SQD SQD;; PKEY_INDEX QKEY

UC;     SQE RTS;; CUR_STATE ACCESS_FLAGS
UD GSI; SQE RTS;; CUR_STATE QKEY
";

fn mask(names: &str) -> AttrMask {
    names
        .split_whitespace()
        .map(|name| AttrMask::from_name(name).unwrap_or_else(|| panic!("{name}?")))
        .collect()
}

/// Returns the rule of a transition in the text.
fn expected(qp_type: &str, from: QpState, to: QpState) -> Option<Rule> {
    let transition = [state_name(from), state_name(to)];
    for line in TABLE.lines().filter(|line| !line.is_empty()) {
        let mut fields = line.split(';');
        let mut next = || fields.next().unwrap_or("");
        if next().split_whitespace().any(|t| t == qp_type)
            && next().split_whitespace().eq(transition)
        {
            return Some(Rule {
                required: mask(next()),
                optional: mask(next()),
            });
        }
    }
    let anyway = to == QpState::Reset || (to == QpState::Err && from != QpState::Reset);
    anyway.then_some(Rule {
        required: AttrMask::empty(),
        optional: AttrMask::empty(),
    })
}

fn every_transition() -> impl Iterator<Item = (&'static str, QpType, QpState, QpState)> {
    TYPES.into_iter().flat_map(|(name, qp_type)| {
        STATES
            .into_iter()
            .flat_map(move |from| STATES.into_iter().map(move |to| (name, qp_type, from, to)))
    })
}

/// Returns valid attributes for a queue pair that moves from `from` to `to`.
fn attr(from: QpState, to: QpState) -> QpAttr {
    QpAttr {
        state: to,
        cur_state: from,
        av: Some(av("10.0.0.1", "10.0.0.2")),
        dest_qpn: 0x12_3456,
        ..QpAttr::default()
    }
}

fn av(source: &str, destination: &str) -> AddressVector {
    AddressVector {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        sgid_index: 0,
        flow_label: 0,
        hop_limit: 64,
        traffic_class: 0,
        sl: 0,
        port: 1,
    }
}

fn words(result: Result<QpState, VerbsError>) -> String {
    match result.expect_err("refused") {
        VerbsError::Invalid(why) => why,
        other => panic!("{other:?} is not EINVAL"),
    }
}

#[test]
fn table_equals_its_copy() {
    for (name, qp_type, from, to) in every_transition() {
        assert_eq!(
            rule(qp_type, from, to),
            expected(name, from, to),
            "{name} {from:?} -> {to:?}"
        );
    }
}

#[test]
fn transition_needs_required_and_takes_optional_attributes() {
    for (name, qp_type, from, to) in every_transition() {
        let attr = attr(from, to);
        let Some(rule) = expected(name, from, to) else {
            let why = words(check(qp_type, from, &attr, AttrMask::STATE));
            assert!(why.contains("is not possible"), "{why}");
            continue;
        };
        let required = rule.required | AttrMask::STATE;
        for mask in [required, required | rule.optional] {
            assert_eq!(check(qp_type, from, &attr, mask), Ok(to));
        }
        for optional in rule.optional {
            assert_eq!(check(qp_type, from, &attr, required | optional), Ok(to));
        }
    }
}

#[test]
fn each_missing_attribute_is_refused_by_name() {
    let mut refused = 0;
    for (name, qp_type, from, to) in every_transition() {
        let Some(rule) = expected(name, from, to) else {
            continue;
        };
        for missing in rule.required {
            let mask = rule.required.difference(missing) | rule.optional | AttrMask::STATE;
            let why = words(check(qp_type, from, &attr(from, to), mask));
            assert!(why.ends_with(&format!("needs {}", Names(missing))), "{why}");
            refused += 1;
        }
    }
    assert_eq!(refused, 17 + 20 + 15);
}

#[test]
fn each_extra_attribute_is_refused_by_name() {
    for (name, qp_type, from, to) in every_transition() {
        let Some(rule) = expected(name, from, to) else {
            continue;
        };
        let taken = rule.required | rule.optional | AttrMask::STATE;
        for extra in AttrMask::all().difference(taken) {
            let mask = rule.required | AttrMask::STATE | extra;
            let why = words(check(qp_type, from, &attr(from, to), mask));
            let named = format!("does not take {}", Names(extra));
            assert!(why.contains(&named), "{why}");
        }
    }
}

#[test]
fn several_names_and_unknown_bits_are_listed() {
    let mask = AttrMask::STATE | AttrMask::PORT;
    let to_init = attr(QpState::Reset, QpState::Init);
    assert_eq!(
        words(check(QpType::Rc, QpState::Reset, &to_init, mask)),
        "RESET -> INIT of an RC queue pair needs ACCESS_FLAGS, PKEY_INDEX"
    );
    let mask = AttrMask::from_bits_retain(1 << 30) | AttrMask::STATE | AttrMask::CAP;
    let to_err = attr(QpState::Rts, QpState::Err);
    assert_eq!(
        words(check(QpType::Ud, QpState::Rts, &to_err, mask)),
        "RTS -> ERR of a UD queue pair does not take CAP, the unknown bits 0x40000000"
    );
}

#[test]
fn modify_without_state_keeps_the_state() {
    let attr = attr(QpState::Rts, QpState::Reset); // `state` is not in the mask
    let mask = AttrMask::ACCESS_FLAGS;
    for (from, allowed) in [
        (QpState::Reset, false),
        (QpState::Init, true),
        (QpState::Rtr, false),
        (QpState::Rts, true),
        (QpState::Sqd, true),
        (QpState::Sqe, false),
        (QpState::Err, false),
    ] {
        let got = check(QpType::Rc, from, &attr, mask);
        assert_eq!(got.is_ok(), allowed, "{from:?}: {got:?}");
        assert!(!allowed || got == Ok(from));
    }
}

#[test]
fn cur_state_must_be_the_state() {
    let mask = AttrMask::STATE | AttrMask::CUR_STATE;
    let mut attr = attr(QpState::Sqd, QpState::Rts);
    assert_eq!(
        check(QpType::Rc, QpState::Sqd, &attr, mask),
        Ok(QpState::Rts)
    );
    attr.cur_state = QpState::Rts;
    assert_eq!(
        words(check(QpType::Rc, QpState::Sqd, &attr, mask)),
        "CUR_STATE is RTS, but the queue pair is in SQD"
    );
}

#[test]
fn values_are_checked_if_the_mask_names_them() {
    type Set = fn(&mut QpAttr, u32);
    let limits: [(AttrMask, u32, Set); 7] = [
        (AttrMask::PKEY_INDEX, 0, |a, v| a.pkey_index = v as u16),
        (AttrMask::TIMEOUT, 31, |a, v| a.timeout = v as u8),
        (AttrMask::RETRY_CNT, 7, |a, v| a.retry_cnt = v as u8),
        (AttrMask::RNR_RETRY, 7, |a, v| a.rnr_retry = v as u8),
        (AttrMask::MAX_QP_RD_ATOMIC, 128, |a, v| {
            a.max_rd_atomic = v as u8
        }),
        (AttrMask::MAX_DEST_RD_ATOMIC, 128, |a, v| {
            a.max_dest_rd_atomic = v as u8
        }),
        (AttrMask::DEST_QPN, 0xff_ffff, |a, v| a.dest_qpn = v),
    ];
    for (name, most, set) in limits {
        let mut attr = QpAttr::default();
        set(&mut attr, most);
        assert_eq!(check_values(&attr, name), Ok(()));
        set(&mut attr, most + 1);
        assert_eq!(
            check_values(&attr, AttrMask::all().difference(name | AttrMask::AV)),
            Ok(())
        );
        let why = check_values(&attr, name).unwrap_err().to_string();
        assert!(
            why.contains(&format!("{} is {}", Names(name), most + 1)),
            "{why}"
        );
    }
}

#[test]
fn port_must_be_1() {
    for port in [0, 2, 255] {
        let mut attr = QpAttr {
            port,
            ..QpAttr::default()
        };
        assert!(check_values(&attr, AttrMask::PORT).is_err());
        assert_eq!(check_values(&attr, AttrMask::empty()), Ok(()));
        attr.av = Some(AddressVector {
            port,
            ..av("::1", "::1")
        });
        assert!(check_values(&attr, AttrMask::AV).is_err());
    }
}

#[test]
fn access_flags_must_be_known_or_hints() {
    let with = |bits| QpAttr {
        access: Access::from_bits_retain(bits),
        ..QpAttr::default()
    };
    let check = |bits| check_values(&with(bits), AttrMask::ACCESS_FLAGS);
    assert_eq!(check(0x3ff), Ok(()));
    assert_eq!(check(0x3ff0_0000), Ok(()));
    for bit in [10, 19, 30, 31] {
        assert!(check(1 << bit).is_err(), "bit {bit}");
    }
}

#[test]
fn address_vector_must_name_one_peer_of_one_ip_family() {
    let with = |source: IpAddr, destination: IpAddr| QpAttr {
        av: Some(AddressVector {
            source,
            destination,
            ..av("::1", "::1")
        }),
        ..QpAttr::default()
    };
    let v4 = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    let v6 = |last| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
    assert_eq!(check_values(&with(v4(1), v4(2)), AttrMask::AV), Ok(()));
    assert_eq!(check_values(&with(v6(1), v6(2)), AttrMask::AV), Ok(()));
    let group = "ff02::1".parse().unwrap();
    for bad in [
        with(v4(1), v6(2)),
        with(v6(1), v4(2)),
        with(v4(1), Ipv4Addr::UNSPECIFIED.into()),
        with(v6(1), group),
        QpAttr::default(),
    ] {
        assert!(check_values(&bad, AttrMask::AV).is_err(), "{bad:?}");
    }
}
