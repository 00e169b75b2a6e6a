//! Types, states and attributes of queue pairs: the arguments of create, modify and query.

use std::sync::Arc;

use bitflags::bitflags;
use ferroce_wire::{Mtu, Psn};

use crate::ah::AddressVector;
use crate::cq::Cq;
use crate::region::Pd;
use crate::srq::{Srq, Xrcd};
use crate::verbs::Access;

/// The type of a queue pair: `ibv_qp_type`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Queue pair 1 for management datagrams: UD with a fixed number and Q_Key.
    Gsi,
    /// Extended reliable connection, sending side.
    XrcInitiator,
    /// Extended reliable connection, receiving side.
    XrcTarget,
}

impl QpType {
    /// True if requests are acknowledged and retransmitted.
    #[inline]
    pub const fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcInitiator | QpType::XrcTarget)
    }

    /// True if every work request has its own destination.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, QpType::Ud | QpType::Gsi)
    }
}

/// The state of a queue pair: `ibv_qp_state`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum QpState {
    /// No attribute is set, and nothing may be posted.
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue is draining or drained: no new work request starts.
    Sqd = 4,
    /// The send queue has failed, and the receive queue works on (UC and UD).
    Sqe = 5,
    /// The queue pair has failed: all work requests are flushed.
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
    /// The valid fields of [`QpAttr`]: `ibv_qp_attr_mask`.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AttrMask: u32 {
        /// The new state.
        const STATE = 1 << 0;
        /// The state that the caller expects the queue pair to be in.
        const CUR_STATE = 1 << 1;
        /// Ask for an event once the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Operations that the peer may do.
        const ACCESS_FLAGS = 1 << 3;
        /// Index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// Port number.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// Route to the peer.
        const AV = 1 << 7;
        /// Maximum payload of a packet.
        const PATH_MTU = 1 << 8;
        /// ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Number of retries without a response.
        const RETRY_CNT = 1 << 10;
        /// Number of retries after RNR NAKs.
        const RNR_RETRY = 1 << 11;
        /// PSN of the first request to receive.
        const RQ_PSN = 1 << 12;
        /// Maximum number of outstanding READs and atomics as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path.
        const ALT_PATH = 1 << 14;
        /// Delay that an RNR NAK asks for.
        const MIN_RNR_TIMER = 1 << 15;
        /// PSN of the first request to send.
        const SQ_PSN = 1 << 16;
        /// Maximum number of outstanding READs and atomics as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// Queue sizes.
        const CAP = 1 << 19;
        /// Number of the peer's queue pair.
        const DEST_QPN = 1 << 20;
        /// Rate limit.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Attributes of a queue pair: `ibv_qp_attr`. Only the fields that the mask names are valid.
///
/// The fields that every packet needs are together at the end, in one cache line of a queue
/// pair.
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
    /// True while a send queue drains; only a query reports it.
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

/// Sizes of a queue pair's queues: `ibv_qp_cap`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // as in libibverbs
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Arguments of the creation of a queue pair: `ibv_qp_init_attr`.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Type of the queue pair.
    pub qp_type: QpType,
    /// Protection domain. An XRC target has none.
    pub pd: Option<Arc<Pd>>,
    /// Completion queue of the send queue. An XRC target has none.
    pub send_cq: Option<Arc<Cq>>,
    /// Completion queue of the receive queue. XRC queue pairs have none.
    pub recv_cq: Option<Arc<Cq>>,
    /// Shared receive queue, in place of the queue pair's own receive queue.
    pub srq: Option<Arc<Srq>>,
    /// XRC domain of an XRC target.
    pub xrcd: Option<Arc<Xrcd>>,
    /// Requested sizes.
    pub cap: QpCap,
    /// True if every send work request gets a completion.
    pub sq_sig_all: bool,
}
