//! Queue pair types, states and attributes: the arguments of create, modify and query.

use std::sync::Arc;

use bitflags::bitflags;
use ferroce_wire::{Mtu, Psn};

use crate::ah::AddressVector;
use crate::cq::Cq;
use crate::region::Pd;
use crate::srq::{Srq, Xrcd};
use crate::verbs::Access;

/// `ibv_qp_type`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Queue pair 1, for management datagrams: UD with a fixed number and Q_Key.
    Gsi,
    /// Extended reliable connection, sending side.
    XrcInitiator,
    /// Extended reliable connection, receiving side.
    XrcTarget,
}

impl QpType {
    /// Acknowledged and retried.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcInitiator | QpType::XrcTarget)
    }

    /// Datagrams, with an address in every request.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, QpType::Ud | QpType::Gsi)
    }
}

/// `ibv_qp_state`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpState {
    /// Nothing is set, nothing may be posted.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains, then stands still.
    Sqd = 4,
    /// The send queue failed, receives go on (UC and UD).
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// True if requests of the peer are accepted.
    #[inline]
    pub const fn receives(self) -> bool {
        use QpState::{Rtr, Rts, Sqd, Sqe};
        matches!(self, Rtr | Rts | Sqd | Sqe)
    }
}

bitflags! {
    /// `ibv_qp_attr_mask`.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AttrMask: u32 {
        /// The state to move to.
        const STATE = 1 << 0;
        /// The state the caller believes it in.
        const CUR_STATE = 1 << 1;
        /// Tell when the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What the peer may do.
        const ACCESS_FLAGS = 1 << 3;
        /// Partition.
        const PKEY_INDEX = 1 << 4;
        /// Port.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// The way to the peer.
        const AV = 1 << 7;
        /// Largest payload of a packet.
        const PATH_MTU = 1 << 8;
        /// ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retries without an answer.
        const RETRY_CNT = 1 << 10;
        /// Retries while the peer is not ready.
        const RNR_RETRY = 1 << 11;
        /// First PSN to receive.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// How long an unready receiver asks to wait.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN to send.
        const SQ_PSN = 1 << 16;
        /// READs and atomics outstanding as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes.
        const CAP = 1 << 19;
        /// The peer queue pair.
        const DEST_QPN = 1 << 20;
        /// Rate limit.
        const RATE_LIMIT = 1 << 25;
    }
}

/// `ibv_qp_attr`: the fields that the mask names are valid, the rest is ignored.
///
/// Those that every packet needs stand together, at the end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // as in libibverbs
#[repr(C)]
pub struct QpAttr {
    pub av: Option<AddressVector>,
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub qkey: u32,
    pub pkey_index: u16,
    pub port: u8,
    pub path_mtu: Mtu,
    pub state: QpState,
    pub cur_state: QpState,
    pub en_sqd_async_notify: bool,
    pub min_rnr_timer: u8,
    pub dest_qpn: u32,
    pub access: Access,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    /// Reported by query: a send queue on its way to SQD.
    pub sq_draining: bool,
}

impl Default for QpAttr {
    fn default() -> QpAttr {
        QpAttr {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            en_sqd_async_notify: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: 0,
            av: None,
            path_mtu: Mtu::Mtu1024,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            rq_psn: Psn::new(0),
            max_rd_atomic: 0,
            min_rnr_timer: 0,
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: 0,
            dest_qpn: 0,
            sq_draining: false,
        }
    }
}

/// `ibv_qp_cap`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // as in libibverbs
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `ibv_qp_init_attr`.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The type.
    pub qp_type: QpType,
    /// Protection domain; an XRC target has none.
    pub pd: Option<Arc<Pd>>,
    /// Completions of the send queue; an XRC target has none.
    pub send_cq: Option<Arc<Cq>>,
    /// Completions of the receive queue; XRC queue pairs have none.
    pub recv_cq: Option<Arc<Cq>>,
    /// A shared receive queue instead of an own one.
    pub srq: Option<Arc<Srq>>,
    /// The XRC domain of an XRC target.
    pub xrcd: Option<Arc<Xrcd>>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send completes with a completion.
    pub sq_sig_all: bool,
}
