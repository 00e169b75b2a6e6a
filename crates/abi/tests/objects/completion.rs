//! Completion queues and channels without completions.

use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;

use crate::common::inline::{poll_cq, req_notify_cq, slot};
use crate::common::{errno, made, open, refused, with_device, zeros};

#[test]
fn completion_queue_checks_its_arguments() {
    with_device(
        "completion::completion_queue_checks_its_arguments",
        |context| unsafe {
            let word = 7usize as *mut core::ffi::c_void;
            let cq = made(ibv_create_cq(context, 100, word, ptr::null_mut(), 0));
            assert_eq!(((*cq).context, (*cq).cq_context), (context, word));
            assert_eq!((*cq).cqe, 127);
            assert!((*cq).channel.is_null());
            let mut wcs: [ibv_wc; 4] = zeros();
            assert_eq!(poll_cq(cq, &mut wcs), 0);
            assert_eq!(poll_cq(cq, &mut []), 0);
            let poll = (*context).ops.poll_cq.unwrap();
            assert_eq!(poll(cq, -1, wcs.as_mut_ptr()), 0);
            assert!(poll(cq, 1, ptr::null_mut()) < 0);
            assert_eq!(req_notify_cq(cq, 0), 0);
            assert_eq!(req_notify_cq(cq, 1), 0);
            assert_eq!(ibv_resize_cq(cq, 1000), 0);
            assert_eq!((*cq).cqe, 1023);
            for bad in [0, -1, 1 << 20, i32::MAX] {
                assert_eq!(ibv_resize_cq(cq, bad), libc::EINVAL);
            }
            assert_eq!((*cq).cqe, 1023);
            assert_eq!(ibv_destroy_cq(cq), 0);
            let vectors = (*context).num_comp_vectors;
            for (cqe, vector) in [(0, 0), (-1, 0), (1 << 20, 0), (1, -1), (1, vectors)] {
                let cq = ibv_create_cq(context, cqe, ptr::null_mut(), ptr::null_mut(), vector);
                refused(cq, libc::EINVAL);
            }
            assert_eq!(ibv_destroy_cq(ptr::null_mut()), libc::EINVAL);
            assert_eq!(ibv_resize_cq(ptr::null_mut(), 1), libc::EINVAL);
        },
    );
}

/// A program may destroy a queue in a loop that polls it: see `retired_cqs`.
#[test]
fn destroyed_queue_can_be_polled_once_more() {
    let name = "completion::destroyed_queue_can_be_polled_once_more";
    with_device(name, |context| unsafe {
        for _ in 0..100 {
            let cq = made(ibv_create_cq(
                context,
                1,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            ));
            assert_eq!(ibv_destroy_cq(cq), 0);
            // The allocator reuses the memory, if it was freed.
            let _rest = vec![0xff_u8; size_of::<ibv_cq>()];
            assert_eq!(poll_cq(cq, &mut [zeros()]), 0);
        }
    });
}

#[test]
fn channel_is_busy_while_queues_use_it() {
    with_device(
        "completion::channel_is_busy_while_queues_use_it",
        |context| unsafe {
            let channel = made(ibv_create_comp_channel(context));
            assert_eq!((*channel).context, context);
            assert_eq!((*channel).refcnt, 0);
            let cq = made(ibv_create_cq(context, 1, ptr::null_mut(), channel, 0));
            assert_eq!((*channel).refcnt, 1);
            assert_eq!((*cq).channel, channel);
            assert_eq!(ibv_destroy_comp_channel(channel), libc::EBUSY);
            let flags = libc::fcntl((*channel).fd, libc::F_GETFL);
            libc::fcntl((*channel).fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            let (mut got, mut word) = (ptr::null_mut(), ptr::null_mut());
            let event = ibv_get_cq_event(channel, &mut got, &mut word);
            assert_eq!((event, errno()), (-1, libc::EAGAIN));
            let nowhere = ibv_get_cq_event(channel, ptr::null_mut(), &mut word);
            assert_eq!((nowhere, errno()), (-1, libc::EINVAL));
            let stranger = open();
            let cq2 = ibv_create_cq(stranger, 1, ptr::null_mut(), channel, 0);
            refused(cq2, libc::EINVAL);
            assert_eq!(ibv_close_device(stranger), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!((*channel).refcnt, 0);
            assert_eq!(ibv_destroy_comp_channel(channel), 0);
            assert_eq!(ibv_destroy_comp_channel(ptr::null_mut()), libc::EINVAL);
            refused(ibv_create_comp_channel(ptr::null_mut()), libc::EINVAL);
        },
    );
}

#[test]
fn signal_interrupts_the_wait_for_an_event() {
    with_device(
        "completion::signal_interrupts_the_wait_for_an_event",
        |context| unsafe {
            extern "C" fn nothing(_: i32) {}
            let mut action: libc::sigaction = zeros();
            action.sa_sigaction = nothing as *const () as usize;
            libc::sigaction(libc::SIGALRM, &action, ptr::null_mut());
            let channel = made(ibv_create_comp_channel(context));
            let me = libc::pthread_self();
            let done = &std::sync::atomic::AtomicBool::new(false);
            #[allow(clippy::disallowed_methods)] // the one who sends the signal
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    while !done.load(std::sync::atomic::Ordering::Acquire) {
                        libc::pthread_kill(me, libc::SIGALRM);
                        libc::usleep(10_000);
                    }
                });
                let (mut cq, mut word) = (ptr::null_mut(), ptr::null_mut());
                let event = ibv_get_cq_event(channel, &mut cq, &mut word);
                assert_eq!((event, errno()), (-1, libc::EINTR));
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            assert_eq!(ibv_destroy_comp_channel(channel), 0);
        },
    );
}

fn attr(wc_flags: u32) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex {
        cqe: 10,
        wc_flags: u64::from(wc_flags),
        ..zeros()
    }
}

#[test]
fn extended_queue_checks_its_flags() {
    with_device(
        "completion::extended_queue_checks_its_flags",
        |context| unsafe {
            let create =
                |mut attr: ibv_cq_init_attr_ex| slot!(context, create_cq_ex(context, &mut attr));
            let all = IBV_WC_STANDARD_FLAGS
                | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
                | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
            let single = ibv_cq_init_attr_ex {
                comp_mask: IBV_CQ_INIT_ATTR_MASK_FLAGS,
                flags: IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
                ..attr(all)
            };
            for attr in [attr(0), attr(all), single] {
                let cq = made(create(attr));
                assert_eq!((*cq).cqe, 15);
                let start = (*cq).start_poll.unwrap();
                // Twice: polling an empty queue must not leave it locked.
                for _ in 0..2 {
                    assert_eq!(start(cq, &mut zeros()), libc::ENOENT);
                }
                let mut unknown = ibv_poll_cq_attr { comp_mask: 1 };
                assert_eq!(start(cq, &mut unknown), libc::EINVAL);
                assert_eq!(ibv_resize_cq(cq.cast(), 100), 0);
                assert_eq!((*cq).cqe, 127);
                assert_eq!(ibv_destroy_cq(cq.cast()), 0);
            }
            for unsupported in [
                IBV_WC_EX_WITH_CVLAN,
                IBV_WC_EX_WITH_FLOW_TAG,
                IBV_WC_EX_WITH_TM_INFO,
            ] {
                refused(create(attr(unsupported)), libc::EOPNOTSUPP);
            }
            refused(create(attr(1 << 20)), libc::EINVAL);
            refused(
                create(ibv_cq_init_attr_ex { cqe: 0, ..attr(0) }),
                libc::EINVAL,
            );
            let many = u32::MAX;
            refused(
                create(ibv_cq_init_attr_ex {
                    cqe: many,
                    ..attr(0)
                }),
                libc::EINVAL,
            );
            let vector = ibv_cq_init_attr_ex {
                comp_vector: many,
                ..attr(0)
            };
            refused(create(vector), libc::EINVAL);
            let unknown = ibv_cq_init_attr_ex {
                comp_mask: 1 << 5,
                ..attr(0)
            };
            refused(create(unknown), libc::EINVAL);
            refused(
                slot!(context, create_cq_ex(context, ptr::null_mut())),
                libc::EINVAL,
            );
        },
    );
}

#[test]
fn extended_queue_keeps_its_parent_domain_busy() {
    let name = "completion::extended_queue_keeps_its_parent_domain_busy";
    with_device(name, |context| unsafe {
        let pd = made(ibv_alloc_pd(context));
        let mut parent: ibv_parent_domain_init_attr = zeros();
        parent.pd = pd;
        let parent = made(slot!(context, alloc_parent_domain(context, &mut parent)));
        let create = |parent_domain| {
            let mut attr = ibv_cq_init_attr_ex {
                comp_mask: IBV_CQ_INIT_ATTR_MASK_PD,
                parent_domain,
                ..attr(0)
            };
            slot!(context, create_cq_ex(context, &mut attr))
        };
        let cq = made(create(parent));
        assert_eq!(ibv_dealloc_pd(parent), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
        refused(create(pd), libc::EINVAL);
        refused(create(ptr::null_mut()), libc::EINVAL);
        assert_eq!(ibv_dealloc_pd(parent), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    });
}
