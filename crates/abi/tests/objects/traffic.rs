//! Data transfer to and from all kinds of memory.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::{alloc_mw, bind_mw, dealloc_mw, slot};
use crate::common::pair::{completion, connected, element, post, receive, request, success, write};
use crate::common::{made, pages, with_device, zeros};

const ACCESS: i32 = (IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_MW_BIND) as i32;

/// A connected pair in one domain, with memory.
struct Fixture {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cqs: [*mut ibv_cq; 2],
    qps: [*mut ibv_qp; 2],
    memory: *mut u8,
    mr: *mut ibv_mr,
}

fn with_pair(name: &str, body: impl FnOnce(&Fixture)) {
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let cqs = [(); 2].map(|()| {
            made(ibv_create_cq(
                context,
                64,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            ))
        });
        let qps = connected(pd, cqs);
        let memory = pages(4);
        let mr = made(ibv_reg_mr(pd, memory.cast(), 16384, ACCESS));
        body(&Fixture {
            context,
            pd,
            cqs,
            qps,
            memory,
            mr,
        });
        assert_eq!(ibv_destroy_cq(cqs[0]), libc::EBUSY);
        for (qp, cq) in qps.into_iter().zip(cqs) {
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
        }
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}

impl Fixture {
    unsafe fn lkey(&self) -> u32 {
        (*self.mr).lkey
    }

    unsafe fn bytes(&self, at: usize, length: usize) -> &[u8] {
        core::slice::from_raw_parts(self.memory.add(at), length)
    }

    unsafe fn put(&self, at: usize, bytes: &[u8]) {
        ptr::copy(bytes.as_ptr(), self.memory.add(at), bytes.len());
    }

    /// Writes text to the first page, and returns its scatter/gather element.
    unsafe fn text(&self, text: &[u8]) -> ibv_sge {
        self.put(0, text);
        element(self.memory, text.len() as u32, self.lkey())
    }
}

#[test]
fn null_region_drops_writes_and_reads_zeros() {
    let name = "traffic::null_region_drops_writes_and_reads_zeros";
    with_pair(name, |f| unsafe {
        let null = made(slot!(f.context, alloc_null_mr(f.pd)));
        let key = (*null).lkey;
        let text = f.text(b"lost");
        receive(f.qps[1], 1, element(0x1234 as *const u8, 10_000, key));
        post(f.qps[0], request(2, IBV_WR_SEND), text);
        assert_eq!(success(f.cqs[1]).byte_len, 4);
        success(f.cqs[0]);
        f.put(4096, &[7; 8192]);
        receive(f.qps[1], 3, element(f.memory.add(4096), 8192, f.lkey()));
        post(
            f.qps[0],
            request(4, IBV_WR_SEND),
            element(ptr::null(), 8000, key),
        );
        assert_eq!(success(f.cqs[1]).byte_len, 8000);
        success(f.cqs[0]);
        assert!(f.bytes(4096, 8000).iter().all(|&byte| byte == 0));
        assert_eq!(f.bytes(4096 + 8000, 1), [7]);
        assert_eq!(ibv_dereg_mr(null), 0);
    });
}

#[test]
fn peer_writes_to_device_memory() {
    let name = "traffic::peer_writes_to_device_memory";
    with_pair(name, |f| unsafe {
        let mut attr = ibv_alloc_dm_attr {
            length: 64,
            log_align_req: 0,
            comp_mask: 0,
        };
        let dm = made(slot!(f.context, alloc_dm(f.context, &mut attr)));
        let access = ACCESS as u32 | IBV_ACCESS_ZERO_BASED;
        let mr = made(slot!(f.context, reg_dm_mr(f.pd, dm, 16, 32, access)));
        write(f.qps[0], f.text(b"device"), 4, (*mr).rkey);
        success(f.cqs[0]);
        let mut back = [0u8; 64];
        let copied = (*dm).memcpy_from_dm.unwrap()(back.as_mut_ptr().cast(), dm, 0, 64);
        assert_eq!((copied, &back[20..26]), (0, &b"device"[..]));
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(slot!(f.context, free_dm(dm)), 0);
    });
}

#[test]
fn peer_writes_to_a_mapped_file() {
    with_pair("traffic::peer_writes_to_a_mapped_file", |f| unsafe {
        let file = libc::memfd_create(c"memory".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(file, 8192), 0);
        let mr = made(ibv_reg_dmabuf_mr(
            f.pd,
            4100,
            4000,
            0x7004,
            file,
            ACCESS & 7,
        ));
        write(f.qps[0], f.text(b"file"), 0x7004 + 10, (*mr).rkey);
        success(f.cqs[0]);
        let mut back = [0u8; 4];
        assert_eq!(libc::pread(file, back.as_mut_ptr().cast(), 4, 4110), 4);
        assert_eq!(back, *b"file");
        assert_eq!(ibv_dereg_mr(mr), 0);
        libc::close(file);
    });
}

#[test]
fn implicit_on_demand_region_covers_all_memory() {
    with_pair(
        "traffic::implicit_on_demand_region_covers_all_memory",
        |f| unsafe {
            let access = ACCESS & 7 | IBV_ACCESS_ON_DEMAND as i32;
            let all = made(ibv_reg_mr(f.pd, ptr::null_mut(), usize::MAX, access));
            let later = pages(1);
            let sge = f.text(b"anywhere");
            let sge = ibv_sge {
                lkey: (*all).lkey,
                ..sge
            };
            write(f.qps[0], sge, later as u64, (*all).rkey);
            success(f.cqs[0]);
            assert_eq!(core::slice::from_raw_parts(later, 8), b"anywhere");
            assert_eq!(ibv_dereg_mr(all), 0);
        },
    );
}

#[test]
fn imported_objects_carry_data() {
    with_pair("traffic::imported_objects_carry_data", |f| unsafe {
        let second = made(ibv_import_device(libc::dup((*f.context).cmd_fd)));
        let pd = made(ibv_import_pd(second, (*f.pd).handle));
        let mr = made(ibv_import_mr(pd, (*f.mr).handle));
        let cqs = [(); 2].map(|()| {
            made(ibv_create_cq(
                second,
                64,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            ))
        });
        let qps = connected(pd, cqs);
        let sge = ibv_sge {
            lkey: (*mr).lkey,
            ..f.text(b"imported")
        };
        write(qps[0], sge, f.memory as u64 + 4096, (*mr).rkey);
        success(cqs[0]);
        assert_eq!(f.bytes(4096, 8), b"imported");
        ibv_unimport_mr(mr);
        ibv_unimport_pd(pd);
        for (qp, cq) in qps.into_iter().zip(cqs) {
            assert_eq!(ibv_destroy_qp(qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
        }
        assert_eq!(ibv_close_device(second), 0);
    });
}

unsafe fn binding(f: &Fixture, length: u64) -> ibv_mw_bind {
    let mut bind: ibv_mw_bind = zeros();
    bind.wr_id = 9;
    bind.send_flags = IBV_SEND_SIGNALED;
    bind.bind_info.mr = f.mr;
    bind.bind_info.addr = f.memory as u64 + 4096;
    bind.bind_info.length = length;
    bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
    bind
}

#[test]
fn type_1_window_grants_and_revokes_access() {
    with_pair(
        "traffic::type_1_window_grants_and_revokes_access",
        |f| unsafe {
            let mw = made(alloc_mw(f.pd, IBV_MW_TYPE_1));
            let before = (*mw).rkey;
            let bind = |mut bind: ibv_mw_bind| bind_mw(f.qps[1], mw, &mut bind);
            assert_eq!(bind(binding(f, 100)), 0);
            let rkey = (*mw).rkey;
            assert_ne!(rkey, before);
            let wc = success(f.cqs[1]);
            assert_eq!((wc.wr_id, wc.opcode), (9, IBV_WC_BIND_MW));
            write(f.qps[0], f.text(b"window"), f.memory as u64 + 4096, rkey);
            success(f.cqs[0]);
            assert_eq!(f.bytes(4096, 6), b"window");
            assert_eq!(ibv_dereg_mr(f.mr), libc::EINVAL);

            let mut nothing = binding(f, 0);
            nothing.bind_info.mr = ptr::null_mut();
            nothing.bind_info.addr = 0;
            assert_eq!(bind(nothing), 0);
            success(f.cqs[1]);
            write(f.qps[0], f.text(b"late"), f.memory as u64 + 4096, rkey);
            assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_ACCESS_ERR);

            let mut zero_based = binding(f, 100);
            zero_based.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
            assert_eq!(bind(zero_based), libc::EINVAL);
            let mut nowhere = binding(f, 100);
            nowhere.bind_info.mr = ptr::null_mut();
            assert_eq!(bind(nowhere), libc::EINVAL);
            assert_eq!(bind_mw(f.qps[1], mw, ptr::null_mut()), libc::EINVAL);
            assert_eq!(
                bind_mw(ptr::null_mut(), mw, &mut binding(f, 1)),
                libc::EINVAL
            );
            let other = made(ibv_alloc_pd(f.context));
            let foreign = made(ibv_reg_mr(other, f.memory.cast(), 4096, ACCESS));
            let mut elsewhere = binding(f, 100);
            elsewhere.bind_info.mr = foreign;
            assert_eq!(bind(elsewhere), libc::EPERM);
            assert_eq!(ibv_dereg_mr(foreign), 0);
            assert_eq!(ibv_dealloc_pd(other), 0);
            assert_eq!(dealloc_mw(mw), 0);
        },
    );
}

#[test]
fn type_2_window_grants_and_revokes_access() {
    with_pair(
        "traffic::type_2_window_grants_and_revokes_access",
        |f| unsafe {
            let mw = made(alloc_mw(f.pd, IBV_MW_TYPE_2));
            assert_eq!(bind_mw(f.qps[1], mw, &mut binding(f, 100)), libc::EINVAL);
            let rkey = (*mw).rkey & !0xff | 0x42;
            let mut wr = request(3, IBV_WR_BIND_MW);
            wr.ext.bind_mw = ibv_send_wr_bind_mw {
                mw,
                rkey,
                bind_info: binding(f, 100).bind_info,
            };
            post(f.qps[1], wr, zeros());
            assert_eq!(success(f.cqs[1]).opcode, IBV_WC_BIND_MW);
            write(f.qps[0], f.text(b"second"), f.memory as u64 + 4096, rkey);
            success(f.cqs[0]);
            assert_eq!(f.bytes(4096, 6), b"second");
            assert_eq!(ibv_dereg_mr(f.mr), libc::EINVAL);
            assert_eq!(dealloc_mw(mw), 0);
            write(f.qps[0], f.text(b"late"), f.memory as u64 + 4096, rkey);
            assert_eq!(completion(f.cqs[0]).status, IBV_WC_REM_ACCESS_ERR);
        },
    );
}
