//! Completion channels, completion queues, polling, events.

use core::ffi::c_int;
use core::ptr;

use ferroce_abi::exports::*;
use ferroce_abi::ffi::*;
use libc::{EBUSY, EINVAL};

use super::guard::{Guarded, zeros};
use super::input::Input;
use super::{MOST, World, async_fd, nonblocking};

/// Maximum size of a completion queue.
const MAX_CQE: c_int = (1 << 20) - 1;
/// The value of an unused entry of the array for completions.
const UNTOUCHED: u64 = u64::MAX;

pub(super) struct Cq {
    pub(super) c: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
}

fn size(input: &mut Input<'_>) -> (c_int, bool) {
    let wrong = [0, -1, c_int::MIN, MAX_CQE + 1, c_int::MAX];
    match input.one_in(8) {
        true => (input.pick(&wrong), false),
        false => (input.pick(&[64, 1, 2, 16, 256]), true),
    }
}

impl World {
    pub(super) fn create_channel(&mut self) {
        if self.channels.len() == MOST {
            return;
        }
        self.say("create_comp_channel".into());
        // SAFETY: the context is open.
        let channel = unsafe { ibv_create_comp_channel(self.context) };
        self.check_made(channel, &[0]);
        // SAFETY: the object was just created.
        nonblocking(unsafe { (*channel).fd });
        self.channels.push(channel);
    }

    pub(super) fn destroy_channel(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.channels) else {
            return;
        };
        let channel = self.channels[at];
        let used = self.cqs.iter().any(|cq| cq.channel == channel);
        self.say(format!("destroy_comp_channel {channel:p}"));
        // SAFETY: the object is live; if it is destroyed, it is removed below.
        let got = unsafe { ibv_destroy_comp_channel(channel) };
        self.check(got, &[if used { EBUSY } else { 0 }]);
        if got == 0 {
            self.channels.remove(at);
        }
    }

    pub(super) fn create_cq(&mut self, input: &mut Input<'_>) {
        if self.cqs.len() == MOST {
            return;
        }
        let (cqe, good) = size(input);
        let channel = match input.index(&self.channels) {
            Some(at) if input.one_in(2) => self.channels[at],
            _ => ptr::null_mut(),
        };
        // SAFETY: the context is open.
        let vectors = unsafe { (*self.context).num_comp_vectors };
        let vector = match input.one_in(16) {
            true => input.pick(&[-1, vectors, c_int::MAX]),
            false => 0,
        };
        self.say(format!("create_cq {cqe} {channel:p} {vector}"));
        // SAFETY: the channel is live, or NULL.
        let c = unsafe { ibv_create_cq(self.context, cqe, ptr::null_mut(), channel, vector) };
        let fine = good && vector == 0;
        if self.check_made(c, &[if fine { 0 } else { EINVAL }]) {
            // SAFETY: the object was just created.
            assert!(unsafe { (*c).cqe } >= cqe);
            self.cqs.push(Cq { c, channel });
        }
    }

    pub(super) fn resize_cq(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.cqs) else {
            return;
        };
        let c = self.cqs[at].c;
        let (cqe, good) = size(input);
        self.say(format!("resize_cq {c:p} {cqe}"));
        // SAFETY: the object is live.
        let (before, got, after) = unsafe { ((*c).cqe, ibv_resize_cq(c, cqe), (*c).cqe) };
        let may: &[c_int] = match (good, cqe >= before) {
            (false, _) => &[EINVAL],
            (true, true) => &[0],
            (true, false) => &[0, EINVAL], // more may be waiting
        };
        self.check(got, may);
        match got {
            0 => assert!(after >= cqe),
            _ => assert_eq!(after, before),
        }
    }

    pub(super) fn destroy_cq(&mut self, input: &mut Input<'_>) {
        let Some(at) = input.index(&self.cqs) else {
            return;
        };
        let c = self.cqs[at].c;
        let used = |qp: &super::queues::Qp| qp.send_cq == c || qp.recv_cq == c;
        let expected = if self.qps.iter().any(used) { EBUSY } else { 0 };
        self.say(format!("destroy_cq {c:p}"));
        // SAFETY: the object is live; if it is destroyed, it is removed below.
        let got = unsafe { ibv_destroy_cq(c) };
        self.check(got, &[expected]);
        if got == 0 {
            self.cqs.remove(at);
        }
    }

    pub(super) fn poll(&mut self, input: &mut Input<'_>) {
        const ROOM: usize = 8;
        let Some(at) = input.index(&self.cqs) else {
            return;
        };
        let c = self.cqs[at].c;
        let count = input.pick(&[8, 8, 1, 2, 0, -1, c_int::MIN]);
        let mut wcs = Guarded::new([zeros::<ibv_wc>(); ROOM]);
        for wc in &mut wcs.it {
            wc.wr_id = UNTOUCHED;
        }
        self.say(format!("poll_cq {c:p} {count}"));
        if self.traffic && input.one_in(3) {
            // SAFETY: the call accesses no memory. Packets in flight may arrive meanwhile.
            unsafe { libc::usleep(200) };
        }
        // SAFETY: the queue is live, the array has room, and the function pointer is set.
        let got =
            unsafe { (*self.context).ops.poll_cq.expect("filled")(c, count, wcs.it.as_mut_ptr()) };
        let may: Vec<c_int> = (0..=count.max(0)).collect();
        self.check(got, &may);
        let (taken, left) = wcs.it.split_at(got as usize);
        for wc in taken {
            assert!(wc.status <= IBV_WC_TM_RNDV_INCOMPLETE, "{}", wc.status);
            let what = match wc.status {
                IBV_WC_SUCCESS => format!("completed {}", wc.opcode),
                status => format!("failed {status}"),
            };
            *self.tally.entry(what).or_default() += 1;
            let known = self.outstanding.remove(&wc.wr_id);
            assert!(known, "{} completed though it was not posted", wc.wr_id);
        }
        assert!(left.iter().all(|wc| wc.wr_id == UNTOUCHED));
    }

    /// Arms completion queues, and takes completion events and asynchronous events.
    pub(super) fn events(&mut self, input: &mut Input<'_>) {
        if let (Some(at), true) = (input.index(&self.cqs), input.one_in(2)) {
            let c = self.cqs[at].c;
            self.say(format!("req_notify_cq {c:p}"));
            let solicited = c_int::from(input.byte() & 1);
            // SAFETY: the object is live, and the function pointer is set.
            let got = unsafe { (*self.context).ops.req_notify_cq.expect("filled")(c, solicited) };
            self.check(got, &[0]);
        }
        if let Some(at) = input.index(&self.channels) {
            let channel = self.channels[at];
            self.say(format!("get_cq_event {channel:p}"));
            let mut out = Guarded::new((ptr::null_mut(), ptr::null_mut()));
            // SAFETY: the channel is live and non-blocking.
            let got = unsafe { ibv_get_cq_event(channel, &mut out.it.0, &mut out.it.1) };
            self.check(got, &[0, -1]);
            if got == 0 {
                let c = out.it.0;
                let cq = self.cqs.iter().find(|cq| cq.c == c);
                assert!(cq.is_some_and(|cq| cq.channel == channel), "whose event?");
                // SAFETY: the object is live.
                unsafe { ibv_ack_cq_events(c, 1) };
            }
        }
        self.async_events();
    }

    pub(super) fn async_events(&mut self) {
        assert!(async_fd(self.context) >= 0);
        loop {
            let mut event = Guarded::new(zeros::<ibv_async_event>());
            // SAFETY: the context is open and non-blocking.
            if unsafe { ibv_get_async_event(self.context, &mut event.it) } != 0 {
                return;
            }
            self.say(format!("an event of type {}", event.it.event_type));
            // SAFETY: the event was just taken, and its object is live.
            unsafe { ibv_ack_async_event(&mut event.it) };
        }
    }
}
