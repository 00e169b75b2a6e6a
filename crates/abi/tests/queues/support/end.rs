//! A device with queue pairs and memory.

use core::ffi::c_int;
use core::ptr;
use std::time::Instant;

use ferroce_abi::ffi::*;
use ferroce_testnet::deadline::PATIENCE;

use super::verbs::{self, zeroed};
use crate::common::{self, V4};

/// The Q_Key of all datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1234_5678;
const REMOTE: u32 = IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_FLUSH_GLOBAL;

/// An open device with a protection domain.
pub(crate) struct World {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

impl World {
    pub(crate) fn open() -> World {
        let context = common::open();
        let pd = verbs::alloc_pd(context);
        assert!(!pd.is_null());
        World { context, pd }
    }

    pub(crate) fn memory(&self, length: usize) -> Memory {
        let mut bytes = vec![0u8; length].into_boxed_slice();
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | REMOTE;
        let mr = verbs::reg_mr(self.pd, &mut bytes, access);
        Memory {
            bytes: Box::into_raw(bytes),
            mr,
        }
    }

    /// Returns the default attributes of a queue pair.
    pub(crate) fn init(&self, kind: ibv_qp_type) -> ibv_qp_init_attr {
        let cq = verbs::create_cq(self.context, 256);
        ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            qp_type: kind,
            cap: ibv_qp_cap {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 128,
            },
            ..zeroed()
        }
    }

    pub(crate) fn end(&self, kind: ibv_qp_type) -> End {
        let mut init = self.init(kind);
        let qp = verbs::create_qp(self.pd, &raw mut init);
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        self.with(qp, init.send_cq)
    }

    /// Creates an extended queue pair, as [`World::end`] does.
    pub(crate) fn end_ex(&self, kind: ibv_qp_type, ops: u64) -> End {
        let init = self.init(kind);
        let mut init = ibv_qp_init_attr_ex {
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            cap: init.cap,
            qp_type: kind,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: self.pd,
            send_ops_flags: ops,
            ..zeroed()
        };
        let qp = verbs::create_qp_ex(self.context, &raw mut init);
        assert!(!qp.is_null(), "{}", std::io::Error::last_os_error());
        self.with(qp, init.send_cq)
    }

    pub(crate) fn with(&self, qp: *mut ibv_qp, cq: *mut ibv_cq) -> End {
        End {
            qp,
            cq,
            memory: self.memory(1 << 20),
        }
    }

    pub(crate) fn ah(&self) -> *mut ibv_ah {
        let ah = verbs::create_ah(self.pd, &mut way());
        assert!(!ah.is_null());
        ah
    }
}

/// Registered memory, which stays registered until the test ends.
pub(crate) struct Memory {
    bytes: *mut [u8],
    pub(crate) mr: *mut ibv_mr,
}

impl Memory {
    pub(crate) fn put(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= self.bytes.len());
        // SAFETY: inside, and no reference to the memory exists.
        unsafe { ptr::copy(data.as_ptr(), self.bytes.cast::<u8>().add(at), data.len()) };
    }

    pub(crate) fn get(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.bytes.len());
        let mut data = vec![0; length];
        // SAFETY: inside, and no reference to the memory exists.
        unsafe { ptr::copy(self.bytes.cast::<u8>().add(at), data.as_mut_ptr(), length) };
        data
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.get(at, 8).try_into().expect("eight bytes"))
    }

    pub(crate) fn address(&self, at: usize) -> u64 {
        self.bytes.cast::<u8>() as u64 + at as u64
    }

    pub(crate) fn sge(&self, at: usize, length: usize) -> ibv_sge {
        ibv_sge {
            addr: self.address(at),
            length: length as u32,
            lkey: self.lkey(),
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region is never deregistered.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region is never deregistered.
        unsafe { (*self.mr).rkey }
    }
}

/// A queue pair with memory.
pub(crate) struct End {
    pub(crate) qp: *mut ibv_qp,
    pub(crate) cq: *mut ibv_cq,
    pub(crate) memory: Memory,
}

impl End {
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    /// Returns the state in the C structure.
    pub(crate) fn state(&self) -> ibv_qp_state {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).state }
    }

    fn kind(&self) -> ibv_qp_type {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_type }
    }

    pub(crate) fn receive(&self, wr_id: u64, at: usize, length: usize) {
        let mut sge = self.memory.sge(at, length);
        let mut wrs = [receive_wr(wr_id, core::slice::from_mut(&mut sge))];
        assert_eq!(verbs::post_recv(self.qp, &mut wrs), Ok(()));
    }

    /// Waits for a completion, which must be a success.
    pub(crate) fn done(&self) -> ibv_wc {
        let wc = complete(self.cq);
        assert_eq!(wc.status, IBV_WC_SUCCESS, "wr_id {}", wc.wr_id);
        wc
    }

    pub(crate) fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> c_int {
        verbs::modify_qp(self.qp, attr, mask as c_int)
    }

    /// Moves the queue pair to RTS, connected to `peer`.
    pub(crate) fn ready(&self, peer: u32) {
        for (state, mask) in [
            (IBV_QPS_INIT, init_mask(self.kind())),
            (IBV_QPS_RTR, rtr_mask(self.kind())),
            (IBV_QPS_RTS, rts_mask(self.kind())),
        ] {
            let mut attr = attributes(peer);
            attr.qp_state = state;
            assert_eq!(self.modify(&mut attr, mask | IBV_QP_STATE), 0, "to {state}");
            assert_eq!(self.state(), state);
        }
    }
}

/// Connects two queue pairs.
pub(crate) fn connect(one: &End, other: &End) {
    one.ready(other.number());
    other.ready(one.number());
}

/// Returns attributes for all transitions.
pub(crate) fn attributes(peer: u32) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_access_flags: REMOTE,
        qkey: QKEY,
        port_num: 1,
        path_mtu: IBV_MTU_1024,
        dest_qp_num: peer,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ah_attr: way(),
        ..zeroed()
    }
}

/// Returns the address 127.0.0.1.
pub(crate) fn way() -> ibv_ah_attr {
    let mut raw = [0; 16];
    raw[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw },
            flow_label: 0,
            sgid_index: V4,
            hop_limit: 64,
            traffic_class: 0,
        },
        is_global: 1,
        port_num: 1,
        ..zeroed()
    }
}

pub(crate) fn init_mask(kind: ibv_qp_type) -> u32 {
    let what = match kind {
        IBV_QPT_UD => IBV_QP_QKEY,
        _ => IBV_QP_ACCESS_FLAGS,
    };
    IBV_QP_PKEY_INDEX | IBV_QP_PORT | what
}

/// Returns the mask for RTR. XRC is treated like RC, as programs do.
pub(crate) fn rtr_mask(kind: ibv_qp_type) -> u32 {
    let connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    match kind {
        IBV_QPT_UD => 0,
        IBV_QPT_UC => connected,
        _ => connected | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
    }
}

pub(crate) fn rts_mask(kind: ibv_qp_type) -> u32 {
    match kind {
        IBV_QPT_UD | IBV_QPT_UC => IBV_QP_SQ_PSN,
        _ => {
            IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
    }
}

/// Waits for one completion.
#[allow(
    clippy::disallowed_methods,
    reason = "tests of real networks take real time"
)]
pub(crate) fn complete(cq: *mut ibv_cq) -> ibv_wc {
    let end = Instant::now() + PATIENCE;
    let mut wc = zeroed();
    loop {
        match verbs::poll_cq(cq, 1, &raw mut wc) {
            1 => return wc,
            0 => assert!(Instant::now() < end, "no completion"),
            error => panic!("poll_cq: {error}"),
        }
        rustix::thread::sched_yield();
    }
}

/// Returns a signaled send work request.
pub(crate) fn send_wr(wr_id: u64, opcode: ibv_wr_opcode, sges: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr {
        wr_id,
        opcode,
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as c_int,
        send_flags: IBV_SEND_SIGNALED,
        ..zeroed()
    }
}

pub(crate) fn receive_wr(wr_id: u64, sges: &mut [ibv_sge]) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id,
        next: ptr::null_mut(),
        sg_list: sges.as_mut_ptr(),
        num_sge: sges.len() as c_int,
    }
}
