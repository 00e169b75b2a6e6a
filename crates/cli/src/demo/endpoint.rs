//! One end: a device, a queue pair, and memory that the other may use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ferroce_device::transport::{
    Access, AttrMask, Memory, Mr, QpAttr, QpCap, QpInit, QpState, QpType, RecvWr, SendData,
    SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use ferroce_device::{AhAttr, Cq, Device, ProcessMemory, Qp};
use ferroce_wire::{Mtu, Psn};

use super::partner::{Introduction, Partner};

/// Bytes of registered memory.
pub(super) const SIZE: u64 = 4 << 20;
/// Work requests that may wait.
pub(super) const DEPTH: u32 = 128;
/// Index of 127.0.0.1 in the GID table of a loopback link.
const GID_INDEX: u8 = 1;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Endpoint {
    device: Arc<Device>,
    cq: Arc<Cq>,
    qp: Qp,
    mr: Arc<Mr>,
    memory: ProcessMemory,
    /// Where our memory starts.
    start: u64,
    peer: Option<Introduction>,
}

impl Endpoint {
    pub(super) fn open(link: &str) -> Result<Endpoint> {
        let device = Device::open(link)?;
        let pd = device.alloc_pd();
        let buffer = vec![0u8; SIZE as usize].leak();
        let start = buffer.as_mut_ptr() as u64;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_WRITE
            | Access::REMOTE_ATOMIC;
        let mr = device.register(&pd, start, SIZE, start, access)?;
        let cq = device.create_cq(4 * DEPTH, None)?;
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: Some(pd),
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
        let qp = device.create_qp(&init, &[&cq])?;
        Ok(Endpoint {
            device,
            cq,
            qp,
            mr,
            memory: ProcessMemory::current(),
            start,
            peer: None,
        })
    }

    /// Introduces both ends to each other and moves the queue pair to RTS.
    pub(super) fn connect(&mut self, partner: &mut Partner) -> Result<()> {
        let link = self.device.link();
        let gid = link.gid(u32::from(GID_INDEX)).context("no GID 1")?;
        let ours = Introduction {
            qpn: self.qp.qpn(),
            psn: std::process::id() & 0xff_ffff,
            gid: gid.raw(),
            address: self.start,
            rkey: self.mr.rkey(),
        };
        partner.say(&ours)?;
        let theirs: Introduction = partner.hear()?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let mut attr = QpAttr {
            state: QpState::Init,
            access,
            path_mtu: Mtu::from_bytes(link.active_mtu as usize).unwrap_or(Mtu::Mtu1024),
            dest_qpn: theirs.qpn,
            rq_psn: Psn::new(theirs.psn),
            sq_psn: Psn::new(ours.psn),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.qp.modify(&attr, init | AttrMask::STATE, None)?;
        attr.state = QpState::Rtr;
        let rtr = AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let way = AhAttr {
            sgid_index: GID_INDEX,
            dgid: theirs.gid,
            port: 1,
            ..AhAttr::default()
        };
        self.qp.modify(&attr, rtr | AttrMask::STATE, Some(&way))?;
        attr.state = QpState::Rts;
        let rts = AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::SQ_PSN
            | AttrMask::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, rts | AttrMask::STATE, None)?;
        self.peer = Some(theirs);
        Ok(())
    }

    /// The address `offset` bytes into the other's memory, and its key.
    pub(super) fn remote(&self, offset: u64) -> Result<(u64, u32)> {
        let peer = self.peer.as_ref().context("not connected")?;
        Ok((peer.address + offset, peer.rkey))
    }

    pub(super) fn send(&self, wr_id: u64, op: SendOp, offset: u64, length: u32) -> Result<()> {
        let sge = self.sge(offset, length);
        self.qp.post_send(SendWr {
            wr_id,
            op,
            flags: SendFlags::empty(),
            data: SendData::Sges(&[sge]),
            ud: None,
            xrc_srq: 0,
        })?;
        Ok(())
    }

    pub(super) fn receive(&self, wr_id: u64, offset: u64, length: u32) -> Result<()> {
        let sges = [self.sge(offset, length)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges })?;
        Ok(())
    }

    /// Polls until `count` completions have come; all must be successes.
    #[allow(clippy::disallowed_methods)] // a program, with a person waiting
    pub(super) fn wait(&self, count: usize) -> Result<Vec<Wc>> {
        let mut done = Vec::with_capacity(count);
        let begun = Instant::now();
        while done.len() < count {
            let polled = self.cq.poll(count - done.len(), |wc| done.push(wc));
            if polled == 0 {
                ensure!(begun.elapsed() < PATIENCE, "nothing happens any more");
            }
        }
        for wc in &done {
            let why = || self.device.last_failure().unwrap_or_default();
            ensure!(wc.status == WcStatus::Success, "{}: {}", wc.status, why());
        }
        Ok(done)
    }

    pub(super) fn put(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write(self.start + offset, bytes)?)
    }

    pub(super) fn get(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.memory.read(self.start + offset, &mut bytes)?;
        Ok(bytes)
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge {
            addr: self.start + offset,
            length,
            lkey: self.mr.lkey(),
        }
    }
}
