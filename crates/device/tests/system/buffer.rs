//! Owned memory: it carries data as long as it exists, and no longer.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use ferroce_device::Buffer;
use ferroce_device::transport::{Access, QpType, SendData, SendOp, WcStatus};

use crate::support::{Endpoint, V4, on_loopback, pair, pattern};

const SIZE: u32 = 100_000;

fn post(end: &Endpoint, op: SendOp, buffer: &Buffer) {
    let sge = buffer.sge(0, SIZE);
    let posted = end.post_data(1, op, SendData::Sges(&[sge]));
    posted.expect("room");
}

fn read_from_peer(end: &Endpoint) -> SendOp {
    let (remote_addr, rkey) = end.remote(0);
    SendOp::Read { remote_addr, rkey }
}

#[test]
fn buffer_carries_data_both_ways() {
    on_loopback("buffer::buffer_carries_data_both_ways", |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let size = SIZE as usize;
        let buffer = Buffer::new(&ours.device, &ours.pd, size, Access::LOCAL_WRITE).expect("room");
        assert_eq!((buffer.len(), buffer.is_empty()), (size, false));
        let empty = Buffer::new(&ours.device, &ours.pd, 0, Access::LOCAL_WRITE).expect("room");
        assert!(empty.is_empty());
        empty.read(0, &mut []);
        buffer.write(0, &pattern(1, SIZE));
        post(&ours, ours.write_to(0), &buffer);
        ours.succeed(1);
        theirs.expect(&format!("check 1 0 {SIZE}"), "right");
        buffer.write(0, &pattern(2, SIZE));
        post(&ours, read_from_peer(&ours), &buffer);
        ours.succeed(1);
        let mut bytes = vec![0; size];
        buffer.read(0, &mut bytes);
        assert!(bytes == pattern(1, SIZE));
        // The expected panics shall not look like failures in the log.
        let hook = take_hook();
        set_hook(Box::new(|_| {}));
        let mut panics = 0;
        for (offset, length) in [(size, 1), (0, size + 1), (usize::MAX, 2)] {
            let mut outside = |copy: &dyn Fn()| {
                panics += u32::from(catch_unwind(AssertUnwindSafe(copy)).is_err());
            };
            outside(&|| buffer.write(offset, &vec![0; length]));
            outside(&|| buffer.read(offset, &mut vec![0; length]));
            outside(&|| _ = buffer.sge(offset, length as u32));
        }
        set_hook(hook);
        assert_eq!(panics, 9);
    });
}

/// Work requests name memory by numbers, which outlive a buffer.
#[test]
fn work_request_that_names_a_dropped_buffer_fails() {
    let name = "buffer::work_request_that_names_a_dropped_buffer_fails";
    on_loopback(name, |_ferroced| {
        let (ours, mut theirs) = pair(QpType::Rc, V4);
        let size = SIZE as usize;
        let buffer = Buffer::new(&ours.device, &ours.pd, size, Access::LOCAL_WRITE).expect("room");
        // Some of these READs are under way when the buffer is dropped.
        for _ in 0..8 {
            post(&ours, read_from_peer(&ours), &buffer);
        }
        let stale = buffer.sge(0, SIZE);
        drop(buffer);
        // The allocator gives the same address again; no READ may write there.
        let heir = vec![7_u8; size + 2 * 4096];
        let posted = ours.post_data(9, ours.write_to(0), SendData::Sges(&[stale]));
        posted.expect("room: the keys are checked later");
        let statuses: Vec<WcStatus> = ours.completions(9).iter().map(|wc| wc.status).collect();
        let failed = statuses
            .iter()
            .position(|status| *status == WcStatus::LocalProtection);
        let failed = failed.expect("one fails");
        for (at, status) in statuses.iter().enumerate() {
            match at.cmp(&failed) {
                std::cmp::Ordering::Less => assert_eq!(*status, WcStatus::Success),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => assert_eq!(*status, WcStatus::WrFlush),
            }
        }
        assert!(heir.iter().all(|byte| *byte == 7), "not written to");
        theirs.expect("state", "Rts");
    });
}
