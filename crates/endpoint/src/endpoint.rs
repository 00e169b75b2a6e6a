//! One end of a connection: a device, a queue pair, and memory that the peer may access.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferroce_device::transport::{
    Access, AttrMask, Mr, Pd, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, SendData, SendFlags,
    SendOp, SendWr, Sge, Srq, UdTarget, Wc, WcStatus,
};
use ferroce_device::{AhAttr, CompletionChannel, Cq, Device, Qp};
use ferroce_wire::{Mtu, Psn};
use serde::{Deserialize, Serialize};

use crate::pages::Pages;

/// Size of the registered memory in bytes.
pub const SIZE: u64 = 4 << 20;
/// Depth of the send queue and of the receive queue.
pub const DEPTH: u32 = 128;
/// Timeout for completions; long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Number of empty polls after which the thread yields the processor.
const POLLS_PER_YIELD: u32 = 16;
/// The Q_Key of UD queue pairs.
const QKEY: u32 = 0x1234_5678;
const REMOTE: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Parameters of an endpoint.
#[derive(Debug, Clone)]
pub struct Options {
    /// Type of the queue pair.
    pub kind: QpType,
    /// Local address, as an index into the GID table.
    pub gid_index: u8,
    /// Path MTU; `None` for the link's MTU.
    pub mtu: Option<Mtu>,
    /// Shared receive queue; `None` for a receive queue of its own.
    pub srq: Option<Arc<Srq>>,
}

impl Options {
    /// Returns the parameters of a queue pair that uses a GID, with defaults for the rest.
    pub fn new(kind: QpType, gid_index: u8) -> Options {
        Options {
            kind,
            gid_index,
            mtu: None,
            srq: None,
        }
    }
}

/// The data that an endpoint needs of its peer to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the words of verbs
pub struct Introduction {
    pub qpn: u32,
    pub psn: u32,
    pub gid: [u8; 16],
    pub address: u64,
    pub rkey: u32,
}

/// One end of a connection.
#[derive(Debug)]
#[allow(missing_docs)] // the words of verbs
pub struct Endpoint {
    pub qp: Qp,
    pub cq: Arc<Cq>,
    pub channel: Arc<CompletionChannel>,
    pub mr: Arc<Mr>,
    pub pages: Pages,
    pub device: Arc<Device>,
    pub pd: Arc<Pd>,
    options: Options,
    peer: Option<Introduction>,
}

impl Endpoint {
    /// Opens a device and creates an endpoint on it.
    ///
    /// # Errors
    /// If there is no such link, or the device refuses.
    pub fn open(link: &str, options: Options) -> Result<Endpoint> {
        let device = Device::open(link)?;
        let pd = device.alloc_pd();
        Endpoint::on(&device, &pd, options)
    }

    /// Creates an endpoint on an open device.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn on(device: &Arc<Device>, pd: &Arc<Pd>, options: Options) -> Result<Endpoint> {
        let pages = Pages::new(SIZE as usize)?;
        let (start, access) = (pages.address(), Access::LOCAL_WRITE | REMOTE);
        // SAFETY: `Pages` lends no references to its memory except to atomics. It stays mapped
        // unless `Pages::unmap` is called, whose caller maps nothing else there.
        let mr = unsafe { device.register(pd, start, SIZE, start, access)? };
        let channel = device.create_channel()?;
        let cq = device.create_cq(4 * DEPTH, Some(Arc::clone(&channel)))?;
        let init = QpInit {
            qp_type: options.kind,
            pd: Some(Arc::clone(pd)),
            send_cq: Some(Arc::clone(cq.queue())),
            recv_cq: Some(Arc::clone(cq.queue())),
            srq: options.srq.clone(),
            xrcd: None,
            cap: QpCap {
                max_send_wr: DEPTH,
                max_recv_wr: DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 16,
            },
            sq_sig_all: true,
        };
        let qp = device.create_qp(&init, &[&cq])?;
        Ok(Endpoint {
            qp,
            cq,
            channel,
            mr,
            pages,
            device: Arc::clone(device),
            pd: Arc::clone(pd),
            options,
            peer: None,
        })
    }

    /// Returns the data that the peer needs to connect.
    ///
    /// # Errors
    /// If the GID table entry is empty.
    pub fn introduction(&self) -> Result<Introduction> {
        let link = self.device.link();
        let index = self.options.gid_index;
        let gid = link.gid(u32::from(index));
        let gid = gid.with_context(|| format!("GID index {index} of {} is empty", link.name))?;
        Ok(Introduction {
            qpn: self.qp.qpn(),
            psn: first_psn(),
            gid: gid.raw(),
            address: self.pages.address(),
            rkey: self.mr.rkey(),
        })
    }

    /// Connects to the peer: moves the queue pair to RTS.
    ///
    /// # Errors
    /// If the device refuses a transition.
    pub fn connect(&mut self, theirs: &Introduction) -> Result<()> {
        let active = self.device.link().active_mtu as usize;
        let link_mtu = Mtu::from_bytes(active).unwrap_or(Mtu::Mtu1024);
        let mut attr = QpAttr {
            access: REMOTE,
            qkey: QKEY,
            path_mtu: self.options.mtu.unwrap_or(link_mtu),
            dest_qpn: theirs.qpn,
            rq_psn: Psn::new(theirs.psn),
            sq_psn: Psn::new(first_psn()),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let kind = self.options.kind;
        let address_handle = self.address_handle(theirs);
        self.peer = Some(*theirs);
        for (state, mask) in [
            (QpState::Init, init_mask(kind)),
            (QpState::Rtr, rtr_mask(kind)),
            (QpState::Rts, rts_mask(kind)),
        ] {
            attr.state = state;
            let address_handle = mask.contains(AttrMask::AV).then_some(&address_handle);
            let modified = self
                .qp
                .modify(&attr, mask | AttrMask::STATE, address_handle);
            modified.with_context(|| format!("to {state:?}"))?;
        }
        Ok(())
    }

    /// Sends the next datagrams of a UD queue pair to another peer.
    pub fn set_peer(&mut self, theirs: &Introduction) {
        self.peer = Some(*theirs);
    }

    fn address_handle(&self, theirs: &Introduction) -> AhAttr {
        AhAttr {
            sgid_index: self.options.gid_index,
            dgid: theirs.gid,
            port: 1,
            ..AhAttr::default()
        }
    }

    /// Returns the remote address `offset` bytes into the peer's memory, and its rkey.
    ///
    /// # Panics
    /// If the endpoint is not connected.
    pub fn remote(&self, offset: u64) -> (u64, u32) {
        let peer = self.peer.as_ref().expect("connected");
        (peer.address + offset, peer.rkey)
    }

    /// Returns a WRITE to an offset in the peer's memory.
    pub fn write_to(&self, offset: u64) -> SendOp {
        let (remote_addr, rkey) = self.remote(offset);
        SendOp::Write {
            remote_addr,
            rkey,
            imm: None,
        }
    }

    /// Posts a WRITE to the same offset in the peer's memory.
    ///
    /// # Errors
    /// If the send queue has no room.
    pub fn write(&self, wr_id: u64, offset: u64, length: u32) -> Result<()> {
        self.post(wr_id, self.write_to(offset), offset, length)
    }

    /// Posts a READ from the same offset in the peer's memory.
    ///
    /// # Errors
    /// If the send queue has no room.
    pub fn read(&self, wr_id: u64, offset: u64, length: u32) -> Result<()> {
        let (remote_addr, rkey) = self.remote(offset);
        self.post(wr_id, SendOp::Read { remote_addr, rkey }, offset, length)
    }

    /// Posts a send work request with data at an offset in the local memory.
    ///
    /// # Errors
    /// If it has no room.
    pub fn post(&self, wr_id: u64, op: SendOp, offset: u64, length: u32) -> Result<()> {
        self.post_data(wr_id, op, SendData::Sges(&[self.sge(offset, length)]))
    }

    /// Posts a send work request.
    ///
    /// # Errors
    /// If it has no room.
    pub fn post_data(&self, wr_id: u64, op: SendOp, data: SendData<'_>) -> Result<()> {
        let ud = match &self.peer {
            Some(peer) if self.options.kind == QpType::Ud => Some(UdTarget {
                ah: self
                    .device
                    .create_ah(&self.pd, &self.address_handle(peer))?,
                remote_qpn: peer.qpn,
                remote_qkey: QKEY,
            }),
            _ => None,
        };
        self.qp.post_send(SendWr {
            wr_id,
            op,
            flags: SendFlags::empty(),
            data,
            ud,
            xrc_srq: 0,
        })?;
        Ok(())
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// If it has no room.
    pub fn receive(&self, wr_id: u64, offset: u64, length: u32) -> Result<()> {
        let sges = [self.sge(offset, length)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges })?;
        Ok(())
    }

    /// Polls until `count` completions have come, with any status.
    ///
    /// # Errors
    /// If they do not come within [`PATIENCE`].
    #[allow(clippy::disallowed_methods)] // the timeout needs a clock
    pub fn completions(&self, count: usize) -> Result<Vec<Wc>> {
        let begun = Instant::now();
        let mut done = Vec::with_capacity(count);
        let mut empty_polls = 0_u32;
        while done.len() < count {
            if self.cq.poll(count - done.len(), |wc| done.push(wc)) > 0 {
                continue;
            }
            empty_polls += 1;
            if empty_polls.is_multiple_of(POLLS_PER_YIELD) {
                let in_time = begun.elapsed() < PATIENCE;
                ensure!(
                    in_time,
                    "{} of {count} completions after {PATIENCE:?}",
                    done.len()
                );
                rustix::thread::sched_yield();
            }
        }
        Ok(done)
    }

    /// Polls until `count` completions have come, and checks that all are successes.
    ///
    /// # Errors
    /// If they do not come, or one of them failed.
    pub fn succeed(&self, count: usize) -> Result<Vec<Wc>> {
        let done = self.completions(count)?;
        done.iter().try_for_each(|wc| self.check(wc))?;
        Ok(done)
    }

    /// Checks that a completion is a success.
    ///
    /// # Errors
    /// If it is not; the error includes the device's description of the failure.
    pub fn check(&self, wc: &Wc) -> Result<()> {
        let why = || self.device.last_failure().unwrap_or_default();
        ensure!(wc.status == WcStatus::Success, "{}: {}", wc.status, why());
        Ok(())
    }

    /// Returns the state of the queue pair.
    ///
    /// # Errors
    /// If the queue pair is destroyed.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.qp.query()?.attr.state)
    }

    /// Returns a scatter/gather element for a piece of the local memory.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: self.pages.address() + offset,
            length,
            lkey: self.mr.lkey(),
        }
    }
}

fn first_psn() -> u32 {
    std::process::id() & 0xff_ffff
}

fn init_mask(kind: QpType) -> AttrMask {
    let what = match kind {
        QpType::Ud => AttrMask::QKEY,
        _ => AttrMask::ACCESS_FLAGS,
    };
    AttrMask::PKEY_INDEX | AttrMask::PORT | what
}

fn rtr_mask(kind: QpType) -> AttrMask {
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    match kind {
        QpType::Ud => AttrMask::empty(),
        QpType::Uc => connected,
        _ => connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
    }
}

fn rts_mask(kind: QpType) -> AttrMask {
    let reliable =
        AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    match kind {
        QpType::Ud | QpType::Uc => AttrMask::SQ_PSN,
        _ => AttrMask::SQ_PSN | reliable,
    }
}
