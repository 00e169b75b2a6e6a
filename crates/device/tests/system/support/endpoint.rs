//! A program with a device, a queue pair and some memory.

use std::sync::Arc;
use std::time::Instant;

use ferroce_device::transport::{
    Access, AttrMask, Mr, Pd, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, SendData, SendFlags,
    SendOp, SendWr, Sge, UdTarget, Wc, WcStatus,
};
use ferroce_device::{AhAttr, Channel, Cq, Device, Qp};
use ferroce_testnet::deadline::PATIENCE;
use ferroce_wire::{Mtu, Psn};

use super::pages::Pages;
use super::{Introduction, LINK};

/// Bytes of registered memory.
pub(crate) const SIZE: u64 = 4 << 20;
/// Work requests that may wait.
pub(crate) const DEPTH: u32 = 128;
const QKEY: u32 = 0x1234_5678;
const REMOTE: Access = Access::REMOTE_READ
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// One end.
pub(crate) struct Endpoint {
    pub(crate) qp: Qp,
    pub(crate) cq: Arc<Cq>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) mr: Arc<Mr>,
    pub(crate) pages: Pages,
    pub(crate) device: Arc<Device>,
    pd: Arc<Pd>,
    kind: QpType,
    gid_index: u8,
    peer: Option<Introduction>,
}

impl Endpoint {
    pub(crate) fn open(kind: QpType, gid_index: u8) -> Endpoint {
        let device = Device::open(LINK).expect("a device");
        let pd = device.alloc_pd();
        let pages = Pages::new(SIZE as usize);
        let (start, access) = (pages.address(), Access::LOCAL_WRITE | REMOTE);
        let mr = device.register(&pd, start, SIZE, start, access);
        let mr = mr.expect("a region");
        let channel = device.create_channel().expect("a channel");
        let cq = device.create_cq(4 * DEPTH, Some(Arc::clone(&channel)));
        let cq = cq.expect("a completion queue");
        let init = QpInit {
            qp_type: kind,
            pd: Some(Arc::clone(&pd)),
            send_cq: Some(Arc::clone(cq.queue())),
            recv_cq: Some(Arc::clone(cq.queue())),
            srq: None,
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
        let qp = device.create_qp(&init, &[&cq]).expect("a queue pair");
        Endpoint {
            qp,
            cq,
            channel,
            mr,
            pages,
            device,
            pd,
            kind,
            gid_index,
            peer: None,
        }
    }

    pub(crate) fn introduction(&self) -> Introduction {
        let link = self.device.link();
        let gid = link.gid(u32::from(self.gid_index)).expect("a GID");
        Introduction {
            qpn: self.qp.qpn(),
            psn: std::process::id() & 0xff_ffff,
            gid: u128::from_be_bytes(gid.raw()),
            address: self.pages.address(),
            rkey: self.mr.rkey(),
        }
    }

    /// Moves the queue pair to RTS.
    pub(crate) fn connect(&mut self, theirs: &Introduction) {
        let mtu = self.device.link().active_mtu as usize;
        let mut attr = QpAttr {
            access: REMOTE,
            qkey: QKEY,
            path_mtu: Mtu::from_bytes(mtu).expect("an MTU"),
            dest_qpn: theirs.qpn,
            rq_psn: Psn::new(theirs.psn),
            sq_psn: Psn::new(std::process::id() & 0xff_ffff),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let way = self.way(theirs);
        self.peer = Some(*theirs);
        for (state, mask) in [
            (QpState::Init, init_mask(self.kind)),
            (QpState::Rtr, rtr_mask(self.kind)),
            (QpState::Rts, rts_mask(self.kind)),
        ] {
            attr.state = state;
            let way = mask.contains(AttrMask::AV).then_some(&way);
            let modified = self.qp.modify(&attr, mask | AttrMask::STATE, way);
            modified.unwrap_or_else(|error| panic!("to {state:?}: {error}"));
        }
    }

    fn way(&self, theirs: &Introduction) -> AhAttr {
        AhAttr {
            sgid_index: self.gid_index,
            dgid: theirs.gid.to_be_bytes(),
            port: 1,
            ..AhAttr::default()
        }
    }

    /// The address `offset` bytes into the other's memory, and its key.
    pub(crate) fn remote(&self, offset: u64) -> (u64, u32) {
        let peer = self.peer.as_ref().expect("connected");
        (peer.address + offset, peer.rkey)
    }

    /// A WRITE, to the same place in the other's memory.
    pub(crate) fn write(&self, wr_id: u64, offset: u64, length: u32) {
        let (remote_addr, rkey) = self.remote(offset);
        let imm = None;
        self.post(
            wr_id,
            SendOp::Write {
                remote_addr,
                rkey,
                imm,
            },
            offset,
            length,
        );
    }

    /// A READ, from the same place in the other's memory.
    pub(crate) fn read(&self, wr_id: u64, offset: u64, length: u32) {
        let (remote_addr, rkey) = self.remote(offset);
        self.post(wr_id, SendOp::Read { remote_addr, rkey }, offset, length);
    }

    pub(crate) fn post(&self, wr_id: u64, op: SendOp, offset: u64, length: u32) {
        let ud = (self.kind == QpType::Ud).then(|| {
            let peer = self.peer.as_ref().expect("connected");
            let ah = self.device.create_ah(&self.pd, &self.way(peer));
            UdTarget {
                ah: ah.expect("an address handle"),
                remote_qpn: peer.qpn,
                remote_qkey: QKEY,
            }
        });
        let posted = self.qp.post_send(SendWr {
            wr_id,
            op,
            flags: SendFlags::empty(),
            data: SendData::Sges(&[self.sge(offset, length)]),
            ud,
            xrc_srq: 0,
        });
        posted.expect("room in the send queue");
    }

    pub(crate) fn receive(&self, wr_id: u64, offset: u64, length: u32) {
        let sges = [self.sge(offset, length)];
        let posted = self.qp.post_recv(&RecvWr { wr_id, sges: &sges });
        posted.expect("room in the receive queue");
    }

    /// Polls until `count` completions have come.
    pub(crate) fn completions(&self, count: usize) -> Vec<Wc> {
        let end = now() + PATIENCE;
        let mut done = Vec::with_capacity(count);
        while done.len() < count {
            if self.cq.poll(count - done.len(), |wc| done.push(wc)) == 0 {
                assert!(now() < end, "{} of {count} completions", done.len());
                rustix::thread::sched_yield();
            }
        }
        done
    }

    /// Polls until one completion has come, and says how it went.
    pub(crate) fn status(&self) -> WcStatus {
        self.completions(1)[0].status
    }

    /// Polls until `count` completions have come, all of them successes.
    pub(crate) fn succeed(&self, count: usize) -> Vec<Wc> {
        let done = self.completions(count);
        for wc in &done {
            let why = self.device.last_failure();
            assert_eq!(wc.status, WcStatus::Success, "{wc:?} {why:?}");
        }
        done
    }

    pub(crate) fn state(&self) -> QpState {
        self.qp.query().expect("it exists").attr.state
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: self.pages.address() + offset,
            length,
            lkey: self.mr.lkey(),
        }
    }
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

#[allow(
    clippy::disallowed_methods,
    reason = "tests of real processes take real time"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}
