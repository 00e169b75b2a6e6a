//! Types of verbs: work requests, completions and flags.
//!
//! Names and numeric values follow `libibverbs`, so that the C layer converts by copying
//! fields. A union of C is an enum here.

use std::sync::Arc;

use bitflags::bitflags;

use crate::ah::AddressHandle;
use crate::region::{Mr, Mw};
use crate::time::Time;

/// Maximum number of scatter/gather elements of a work request.
pub const MAX_SGE: usize = 32;

bitflags! {
    /// Permitted accesses to a memory region, a window, or through a queue pair.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Access: u32 {
        /// The local adapter may write.
        const LOCAL_WRITE = 1 << 0;
        /// The peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read.
        const REMOTE_READ = 1 << 2;
        /// The peer may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero instead of from the virtual address.
        const ZERO_BASED = 1 << 5;
        /// The region is paged on demand.
        const ON_DEMAND = 1 << 6;
        /// The region consists of huge pages.
        const HUGETLB = 1 << 7;
        /// The peer may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be reordered: accepted, without effect.
        const RELAXED_ORDERING = 1 << 20;
    }

    /// Flags of a send work request: `ibv_send_flags`.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Start after earlier READs and atomics have completed.
        const FENCE = 1 << 0;
        /// Produce a completion, even if the queue pair does not for every send.
        const SIGNALED = 1 << 1;
        /// The receiver's completion counts as solicited.
        const SOLICITED = 1 << 2;
        /// Copy the data when the work request is posted.
        const INLINE = 1 << 3;
    }

    /// Flags of a completion: `ibv_wc_flags`.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct WcFlags: u32 {
        /// The packet had a GRH. With UD the first 40 bytes of the receive buffer hold it.
        const GRH = 1 << 0;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// `imm` holds the key that the peer invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// A scatter/gather element: `ibv_sge`, with the same layout.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Start address, as the region counts addresses.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// The operation of a send work request. [`SendOp::info`] describes each.
#[derive(Clone, Debug)]
pub enum SendOp {
    /// A message into the peer's next receive buffer.
    Send {
        /// Immediate data in memory order.
        imm: Option<u32>,
    },
    /// A message that also invalidates a key of the peer.
    SendInvalidate {
        /// The peer's key.
        rkey: u32,
    },
    /// A write into the peer's memory.
    Write {
        /// The peer's address.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// Immediate data in memory order; it consumes a receive of the peer.
        imm: Option<u32>,
    },
    /// A read from the peer's memory.
    Read {
        /// The peer's address.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// An atomic compare and swap of eight bytes.
    CompareSwap {
        /// The peer's address, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The expected value.
        compare: u64,
        /// The new value.
        swap: u64,
    },
    /// An atomic fetch and add of eight bytes.
    FetchAdd {
        /// The peer's address, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The addend.
        add: u64,
    },
    /// A write of eight bytes in one access: no reader sees a part of them.
    AtomicWrite {
        /// The peer's address, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// A flush that makes earlier writes visible or persistent.
    Flush {
        /// The peer's address.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// Number of bytes; ignored for a whole region.
        length: u32,
        /// Placement type bits: 1 is global visibility, 2 is persistence.
        placement: u8,
        /// 0 flushes the range, 1 the whole region.
        selectivity: u8,
    },
    /// Invalidates a local key.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
    /// Binds a memory window.
    BindMw(Box<BindMw>),
}

/// The arguments of a memory window bind.
#[derive(Clone, Debug)]
pub struct BindMw {
    /// The window.
    pub mw: Arc<Mw>,
    /// The window's new key. The upper 24 bits stay those of the window. For type 1 the key
    /// comes from [`Regions::next_type1_rkey`](crate::Regions::next_type1_rkey).
    pub rkey: u32,
    /// The region under the window. `None` with length 0 unbinds a type 1 window.
    pub mr: Option<Arc<Mr>>,
    /// Start address, as the region counts addresses.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// Accesses that the window permits to the peer.
    pub access: Access,
}

impl Default for SendOp {
    fn default() -> SendOp {
        SendOp::Send { imm: None }
    }
}

/// The destination of a datagram.
#[derive(Clone, Debug)]
pub struct UdTarget {
    /// Route to the peer.
    pub ah: Arc<AddressHandle>,
    /// Number of the peer's queue pair.
    pub remote_qpn: u32,
    /// Q_Key of the peer's queue pair. If bit 31 is set, the sender's own Q_Key is sent.
    pub remote_qkey: u32,
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWr<'a> {
    /// Id that the completion returns.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Flags.
    pub flags: SendFlags,
    /// Local memory.
    pub data: SendData<'a>,
    /// Destination of a datagram (UD and GSI).
    pub ud: Option<UdTarget>,
    /// Number of the peer's shared receive queue (XRC).
    pub xrc_srq: u32,
}

/// The local memory of a send work request.
#[derive(Copy, Clone, Debug)]
pub enum SendData<'a> {
    /// Registered memory, which is read or written while the work request is executed.
    Sges(&'a [Sge]),
    /// Inline data, which is copied when the work request is posted.
    Inline(&'a [u8]),
}

/// A receive work request.
#[derive(Copy, Clone, Debug)]
pub struct RecvWr<'a> {
    /// Id that the completion returns.
    pub wr_id: u64,
    /// Memory for the message.
    pub sges: &'a [Sge],
}

/// The status of a completion: `ibv_wc_status`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the names say it
pub enum WcStatus {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    WrFlush = 5,
    MwBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    Fatal = 19,
    General = 21,
}

/// The opcode of a completion: `ibv_wc_opcode`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // the names say it
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// A completion: `ibv_wc`, with a timestamp.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Wc {
    /// Id of the work request.
    pub wr_id: u64,
    /// Time at which the completion was queued.
    pub timestamp: Time,
    /// Status.
    pub status: WcStatus,
    /// Opcode; valid on success.
    pub opcode: WcOpcode,
    /// Flags, which give the meaning of `imm` and tell whether a GRH was written.
    pub flags: WcFlags,
    /// Number of transferred bytes.
    pub byte_len: u32,
    /// Immediate data in memory order, or the invalidated key. In a failed completion, the code
    /// of the failure: see [`Wc::vendor_err`].
    pub imm: u32,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Number of the sender's queue pair (UD).
    pub src_qp: u32,
    /// Network layer of the header in the GRH (UD).
    pub network: NetworkHeader,
}

impl Wc {
    /// Returns the code of a failure (`vendor_err`), as [`VendorCode`](crate::VendorCode)
    /// describes it; 0 for a success, and where no cause is known.
    #[inline]
    pub fn vendor_err(&self) -> u32 {
        match self.status {
            WcStatus::Success => 0,
            _ => self.imm,
        }
    }

    /// True for a message that has arrived.
    #[inline]
    pub fn is_received(&self) -> bool {
        let receive = matches!(self.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm);
        receive && self.status == WcStatus::Success
    }
}

/// The network layer that a datagram arrived through.
///
/// IBTA Annex A17.4.5.1: a completion has a flag for it, because the GRH does not tell.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum NetworkHeader {
    /// The completion is not that of a datagram.
    #[default]
    None,
    /// IPv6: the header has the layout of a GRH.
    Ipv6,
    /// IPv4: the header is in the last 20 bytes of the GRH.
    Ipv4,
}
