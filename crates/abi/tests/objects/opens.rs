//! Contexts of one process on one link, which share its slots.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use ferroce_control::find_daemon;
use ferroce_testnet::deadline;

use crate::common::pair::{connect, element, post, queue_pair, receive, request, success};
use crate::common::{errno, made, on_loopback, open, pages, refused};

/// UCX's tests open a device so many times; a network namespace has 255 slots.
const OPENS: usize = 300;

/// The usual limit of open files (`ulimit -n`).
const FILES: libc::rlim_t = 1024;

/// Limits the number of this process's descriptors.
unsafe fn limit_files(limit: libc::rlim_t) {
    let mut now: libc::rlimit = crate::common::zeros();
    assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut now), 0);
    now.rlim_cur = limit.min(now.rlim_max);
    assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &now), 0);
}

/// A context with a queue pair and what it needs.
#[derive(Copy, Clone)]
struct End {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
}

impl End {
    unsafe fn open() -> End {
        let context = open();
        let pd = made(ibv_alloc_pd(context));
        let cq = ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
        let cq = made(cq);
        let mr = made(ibv_reg_mr(pd, pages(1).cast(), 4096, 1));
        let qp = queue_pair(pd, cq, IBV_QPT_RC);
        End {
            context,
            pd,
            cq,
            qp,
            mr,
        }
    }

    unsafe fn close(self) {
        assert_eq!(ibv_destroy_qp(self.qp), 0);
        assert_eq!(ibv_destroy_cq(self.cq), 0);
        assert_eq!(ibv_dereg_mr(self.mr), 0);
        assert_eq!(ibv_dealloc_pd(self.pd), 0);
        assert_eq!(ibv_close_device(self.context), 0);
    }
}

/// Connects two queue pairs.
unsafe fn join(one: End, other: End) {
    connect(one.qp, (*other.qp).qp_num);
    connect(other.qp, (*one.qp).qp_num);
}

/// Sends a message from one context to another, and checks the data.
unsafe fn works(one: End, other: End, mark: u8) {
    let memory = |end: End| (*end.mr).addr.cast::<u8>();
    let sge = |end: End| element(memory(end), 64, (*end.mr).lkey);
    ptr::write_bytes(memory(one), mark, 64);
    ptr::write_bytes(memory(other), !mark, 64);
    receive(other.qp, 2, sge(other));
    post(one.qp, request(1, IBV_WR_SEND), sge(one));
    assert_eq!(success(one.cq).wr_id, 1);
    assert_eq!(success(other.cq).wr_id, 2);
    let received = core::slice::from_raw_parts(memory(other), 64);
    assert!(received.iter().all(|byte| *byte == mark));
}

/// Returns the number of slots that programs have, as ferroced knows them.
fn slots() -> usize {
    let mut connection = find_daemon().expect("reachable").expect("running");
    let counters = connection.counters(None, true).expect("counted");
    let processes = counters.into_iter().filter_map(|counted| counted.process);
    processes.map(|process| process.slots.len()).sum()
}

#[test]
fn three_hundred_contexts_share_the_slots_of_one() {
    let name = "opens::three_hundred_contexts_share_the_slots_of_one";
    on_loopback(name, |_ferroced| unsafe {
        limit_files(FILES);
        let mut ends: Vec<End> = (0..OPENS).map(|_| End::open()).collect();
        assert!((1..=4).contains(&slots()), "{}", slots());
        for pair in ends.chunks(2) {
            join(pair[0], pair[1]);
            works(pair[0], pair[1], 7);
        }
        // A context sees only its own objects.
        let (one, other) = (ends[0], ends[1]);
        let mut init: ibv_qp_init_attr = crate::common::zeros();
        init.send_cq = other.cq;
        init.recv_cq = one.cq;
        init.qp_type = IBV_QPT_RC;
        init.cap.max_send_wr = 1;
        init.cap.max_recv_wr = 1;
        refused(ibv_create_qp(one.pd, &mut init), libc::EINVAL);
        refused(ibv_import_pd(other.context, (*one.pd).handle), libc::EINVAL);
        // A shuffled order: 151 is a prime.
        let mut order: Vec<usize> = (1..=OPENS / 2).map(|n| n * 79 % 151 - 1).collect();
        while let Some(place) = order.pop() {
            let (one, other) = (ends[2 * place], ends[2 * place + 1]);
            works(other, one, 8);
            one.close();
            if let Some(next) = order.last() {
                works(ends[2 * next], ends[2 * next + 1], 9);
            }
            other.close();
        }
        ends.clear();
        deadline::until("all slots are free", || slots() == 0);
    });
}

/// A process can open a link 500 times: docs/LIMITS.md says why.
#[test]
fn context_500_opens_and_the_next_is_refused_with_emfile() {
    let name = "opens::context_500_opens_and_the_next_is_refused_with_emfile";
    on_loopback(name, |_ferroced| unsafe {
        limit_files(4 * FILES);
        let devices = ibv_get_device_list(ptr::null_mut());
        let opened: Vec<_> = (0..500).map(|_| made(ibv_open_device(*devices))).collect();
        refused(ibv_open_device(*devices), libc::EMFILE);
        assert_eq!(ibv_close_device(opened[250]), 0);
        made(ibv_open_device(*devices));
    });
}

/// Programs close contexts and leave objects behind.
#[test]
fn closed_context_with_objects_leaves_others_working() {
    let name = "opens::closed_context_with_objects_leaves_others_working";
    on_loopback(name, |_ferroced| unsafe {
        let [one, other] = [(); 2].map(|()| End::open());
        join(one, other);
        for round in 0..20 {
            let left = End::open();
            assert_eq!(ibv_close_device(left.context), 0);
            works(one, other, round);
        }
        one.close();
        other.close();
        deadline::until("all slots are free", || slots() == 0);
    });
}

/// `ibv_open_device` alone takes no slot and starts no thread.
#[test]
fn open_takes_no_slot_and_no_thread() {
    let name = "opens::open_takes_no_slot_and_no_thread";
    on_loopback(name, |_ferroced| unsafe {
        let tasks = || {
            std::fs::read_dir("/proc/self/task")
                .expect("procfs")
                .count()
        };
        let before = tasks();
        let context = open();
        let mut attr: ibv_port_attr = crate::common::zeros();
        assert_eq!(ibv_query_port(context, 1, (&raw mut attr).cast()), 0);
        let flags = libc::fcntl((*context).async_fd, libc::F_GETFL);
        let flags = flags | libc::O_NONBLOCK;
        assert_eq!(libc::fcntl((*context).async_fd, libc::F_SETFL, flags), 0);
        let mut event: ibv_async_event = crate::common::zeros();
        assert_eq!(ibv_get_async_event(context, &mut event), -1);
        assert_eq!(errno(), libc::EAGAIN);
        assert_eq!((tasks(), slots()), (before, 0));
        assert_eq!(ibv_close_device(context), 0);
        let end = End::open();
        assert!(tasks() > before && slots() > 0);
        end.close();
    });
}
