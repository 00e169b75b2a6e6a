//! A connected pair of queue pairs, and memory of hosts and GPUs.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use super::common::pair::{connected, element};
use super::common::{made, with_device};
use super::cuda::Cuda;

pub(crate) const ACCESS: i32 = (IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC) as i32;

/// Two queue pairs of one process, and CUDA.
pub(crate) struct Fixture {
    pub(crate) cuda: Cuda,
    pub(crate) pd: *mut ibv_pd,
    pub(crate) cqs: [*mut ibv_cq; 2],
    pub(crate) qps: [*mut ibv_qp; 2],
}

/// The place of a test's memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Host,
    Gpu,
}

/// Registered memory.
pub(crate) struct Memory<'a> {
    cuda: &'a Cuda,
    pub(crate) place: Place,
    pub(crate) start: u64,
    pub(crate) mr: *mut ibv_mr,
}

/// Runs a test with a pair, in its own network namespace.
pub(crate) fn with_pair(name: &str, body: impl FnOnce(&mut Fixture)) {
    with_device(name, |context| unsafe {
        let cuda = Cuda::load();
        let pd = made(ibv_alloc_pd(context));
        let new_cq = || {
            made(ibv_create_cq(
                context,
                64,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            ))
        };
        let cqs = [new_cq(), new_cq()];
        let mut fixture = Fixture {
            cuda,
            pd,
            cqs,
            qps: connected(pd, cqs),
        };
        body(&mut fixture);
        for (qp, cq) in fixture.qps.into_iter().zip(cqs) {
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
        }
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

impl Fixture {
    /// Allocates and registers memory.
    pub(crate) fn memory(&self, place: Place, length: usize) -> Memory<'_> {
        let start = match place {
            Place::Gpu => self.cuda.allocate(length),
            Place::Host => Box::leak(vec![0u8; length].into_boxed_slice()).as_ptr() as u64,
        };
        self.register(place, start, length)
    }

    /// Registers memory.
    pub(crate) fn register(&self, place: Place, start: u64, length: usize) -> Memory<'_> {
        let mr = unsafe { made(ibv_reg_mr(self.pd, start as *mut _, length, ACCESS)) };
        Memory {
            cuda: &self.cuda,
            place,
            start,
            mr,
        }
    }

    /// Replaces the queue pairs, after a failure.
    pub(crate) fn reconnect(&mut self) {
        for qp in self.qps {
            assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
        }
        self.qps = unsafe { connected(self.pd, self.cqs) };
    }
}

impl Memory<'_> {
    pub(crate) fn put(&self, offset: u64, data: &[u8]) {
        let to = self.start + offset;
        match self.place {
            Place::Gpu => self.cuda.put(to, data),
            Place::Host => unsafe { ptr::copy(data.as_ptr(), to as *mut u8, data.len()) },
        }
    }

    pub(crate) fn get(&self, offset: u64, length: usize) -> Vec<u8> {
        let from = self.start + offset;
        match self.place {
            Place::Gpu => self.cuda.get(from, length),
            Place::Host => unsafe {
                core::slice::from_raw_parts(from as *const u8, length).to_vec()
            },
        }
    }

    pub(crate) fn word(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(self.get(offset, 8).try_into().unwrap())
    }

    pub(crate) fn sge(&self, offset: u64, length: usize) -> ibv_sge {
        let key = unsafe { (*self.mr).lkey };
        element((self.start + offset) as *const u8, length as u32, key)
    }

    pub(crate) fn rkey(&self) -> u32 {
        unsafe { (*self.mr).rkey }
    }

    /// Returns the remote address of an offset, for a work request.
    pub(crate) fn remote(&self, offset: u64) -> ibv_send_wr_rdma {
        ibv_send_wr_rdma {
            remote_addr: self.start + offset,
            rkey: self.rkey(),
        }
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        assert_eq!(unsafe { ibv_dereg_mr(self.mr) }, 0);
    }
}

/// Returns bytes that differ between messages and positions.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(7) ^ (seed * 97)) as u8;
    (0..length).map(byte).collect()
}
