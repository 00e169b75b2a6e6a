//! The vocabulary of verbs: work requests, completions, flags.
//!
//! Names and numeric values follow `libibverbs`, so that the C layer converts
//! by copying fields. What C expresses with unions is an enum here.

use std::sync::Arc;

use bitflags::bitflags;

use crate::ah::AddressHandle;
use crate::region::{Mr, Mw};
use crate::time::Time;

/// Most scatter/gather elements a work request may have.
pub const MAX_SGE: usize = 32;

bitflags! {
    /// What may be done to a memory region, a window, or through a queue pair.
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
        /// Pages may come and go.
        const ON_DEMAND = 1 << 6;
        /// The region consists of huge pages.
        const HUGETLB = 1 << 7;
        /// The peer may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// The peer may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be reordered (accepted, without effect here).
        const RELAXED_ORDERING = 1 << 20;
    }

    /// `ibv_send_flags`.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics.
        const FENCE = 1 << 0;
        /// Complete with a completion even if the queue pair does not do so by itself.
        const SIGNALED = 1 << 1;
        /// The receiver's completion counts as solicited.
        const SOLICITED = 1 << 2;
        /// Data is copied when posted.
        const INLINE = 1 << 3;
    }

    /// `ibv_wc_flags`.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer hold a GRH.
        const GRH = 1 << 0;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// `imm` holds the key that the peer invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// A piece of local memory: `ibv_sge`, and laid out like it.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Where it starts, as the region counts addresses.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// The local key of its region.
    pub lkey: u32,
}

/// What a send work request asks for.
#[derive(Clone, Debug)]
pub enum SendOp {
    /// A message into the peer's next receive buffer.
    Send {
        /// Immediate data, as it stands in memory.
        imm: Option<u32>,
    },
    /// A message that also invalidates one of the peer's keys.
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
        /// Immediate data, as it stands in memory; consumes a receive.
        imm: Option<u32>,
    },
    /// A read from the peer's memory.
    Read {
        /// The peer's address.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Compare and swap of eight bytes.
    CompareSwap {
        /// The peer's address, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What must be there.
        compare: u64,
        /// What replaces it.
        swap: u64,
    },
    /// Fetch and add of eight bytes.
    FetchAdd {
        /// The peer's address, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What is added.
        add: u64,
    },
    /// A write of eight bytes that no reader sees in halves.
    AtomicWrite {
        /// The peer's address, a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// Makes earlier writes visible or persistent.
    Flush {
        /// The peer's address.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// How many bytes; ignored for a whole region.
        length: u32,
        /// Placement type bits: 1 global visibility, 2 persistence.
        placement: u8,
        /// 0 for the range, 1 for the whole region.
        selectivity: u8,
    },
    /// Takes back a local key.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
    /// Binds a memory window.
    BindMw(Box<BindMw>),
}

/// A memory-window bind, as a work request.
#[derive(Clone, Debug)]
pub struct BindMw {
    /// The window.
    pub mw: Arc<Mw>,
    /// The key the window gets; its upper 24 bits are the window's. For type 1
    /// it comes from [`Regions::next_type1_rkey`](crate::Regions::next_type1_rkey).
    pub rkey: u32,
    /// The region under the window; `None` with length zero unbinds a type 1 window.
    pub mr: Option<Arc<Mr>>,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// What the peer may do through it.
    pub access: Access,
}

impl Default for SendOp {
    fn default() -> SendOp {
        SendOp::Send { imm: None }
    }
}

/// Where a datagram goes.
#[derive(Clone, Debug)]
pub struct UdTarget {
    /// The way there.
    pub ah: Arc<AddressHandle>,
    /// The queue pair there.
    pub remote_qpn: u32,
    /// Its Q_Key; with bit 31 set the queue pair's own is sent instead.
    pub remote_qkey: u32,
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Local memory.
    pub data: SendData<'a>,
    /// For UD and GSI.
    pub ud: Option<UdTarget>,
    /// For XRC: the shared receive queue at the other end.
    pub xrc_srq: u32,
}

/// The local memory of a send work request.
#[derive(Copy, Clone, Debug)]
pub enum SendData<'a> {
    /// Gathered from, or scattered to, registered memory when the time comes.
    Sges(&'a [Sge]),
    /// Copied now. The caller has collected it from the program's buffers.
    Inline(&'a [u8]),
}

/// A receive work request.
#[derive(Copy, Clone, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

/// `ibv_wc_status`.
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

/// `ibv_wc_opcode`.
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

/// A completion: `ibv_wc`, with the time of its arrival.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Wc {
    /// From the work request.
    pub wr_id: u64,
    /// When it was queued.
    pub timestamp: Time,
    /// How it went.
    pub status: WcStatus,
    /// What it was; valid on success.
    pub opcode: WcOpcode,
    /// What `imm` means, and whether a GRH was written.
    pub flags: WcFlags,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Immediate data as it stands in memory, or the invalidated key.
    pub imm: u32,
    /// The queue pair.
    pub qpn: u32,
    /// The sender's queue pair (UD).
    pub src_qp: u32,
    /// Whose header the GRH holds (UD).
    pub network: NetworkHeader,
}

/// Which network layer a datagram came through.
///
/// IBTA Annex A17.4.5.1: a completion has a flag for it, since the GRH does not tell.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum NetworkHeader {
    /// It was no datagram.
    #[default]
    None,
    /// An IPv6 header, which looks like a GRH.
    Ipv6,
    /// An IPv4 header in the second half.
    Ipv4,
}
