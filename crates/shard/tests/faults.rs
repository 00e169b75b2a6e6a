//! Each fault, and the status that IBTA demands for it. The queue pair is its own peer.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::net::IpAddr;
use std::sync::Arc;

use connection::End;
use ferroce_faults::{Counts, LocalCounts, Plan};
use ferroce_roce::{QpState, QpType, Time, WcStatus};
use ferroce_shard::{Caller, Faults, Senders};
use loopback::{HERE, Loopback};

/// Bytes of a long WRITE: 64 packets.
const LONG: u32 = 64 << 10;
const MS: u64 = 1_000_000;

/// The only sender is the queue pair itself, which has the faults.
#[derive(Debug)]
struct Itself;

impl Senders for Itself {
    fn include(&self, _: IpAddr, _: u16) -> bool {
        true
    }

    fn add(&self, _: u16) {}
}

/// A queue pair with faults in force.
struct Test {
    end: End<Loopback>,
    counts: Arc<LocalCounts>,
    now: Time,
}

impl Test {
    fn new(faults: &str) -> Test {
        Test::with_rnr_retry(faults, 7)
    }

    fn with_rnr_retry(faults: &str, rnr_retry: u8) -> Test {
        let mut end = End::new(Loopback::default(), &Arc::default(), QpType::Rc, 0);
        end.rnr_retry = rnr_retry;
        end.connect(end.qpn, HERE, HERE);
        let counts = Arc::new(LocalCounts::default());
        let plan = Plan::parse(faults).unwrap_or_else(|error| panic!("{error}"));
        let faults = Faults {
            plan: Arc::new(plan),
            counts: Arc::clone(&counts) as _,
            senders: Arc::new(Itself),
        };
        end.core.set_faults(Time::ZERO, Some(&faults));
        let now = Time::ZERO;
        Test { end, counts, now }
    }

    /// WRITEs `length` bytes. Returns the status of the completion.
    fn write(&mut self, length: u32) -> WcStatus {
        let sending = self.end.begin_write_of(self.now, 1, length);
        if let Some(packets) = sending {
            let mut next = self.end.send(self.now, packets, true);
            while let Some(packets) = next {
                next = self.end.send(self.now, packets, true);
            }
        }
        self.await_completion()
    }

    /// Sends 64 bytes. Returns the status of the completion of the SEND.
    fn send(&mut self) -> WcStatus {
        self.end.post_send(self.now, 1);
        // The receive completes first, or is flushed after the SEND.
        let (first, second) = (self.await_completion(), self.await_completion());
        [first, second]
            .into_iter()
            .find(|status| *status != WcStatus::Success && *status != WcStatus::WrFlush)
            .unwrap_or(first.max(second))
    }

    /// Does turns, each at the time of the next deadline, until there is a completion.
    fn await_completion(&mut self) -> WcStatus {
        let mut status = None;
        for _ in 0..200_000 {
            self.end.turn(self.now, Caller::ProgressThread);
            self.end.cq.poll(1, |wc| status = Some(wc.status));
            if let Some(status) = status {
                return status;
            }
            if self.end.core.wire().runs.borrow().is_empty() {
                let next = self.end.core.next_deadline(self.now);
                let next = next.expect("a deadline while a work request is outstanding");
                self.now = next.max(self.now.after_nanos(1));
            }
        }
        panic!("no completion after {:?}", self.now);
    }

    fn hits(&self) -> u64 {
        self.counts.read(0).1
    }
}

#[test]
fn lost_late_doubled_and_damaged_packets_are_survived() {
    for faults in [
        "loss 10% seed 1",
        "loss 10% burst 5 seed 1",
        "loss gilbert 2% 20% seed 1",
        "duplicate 30% seed 1",
        "reorder 20% by 3 seed 1",
        "corrupt 10% seed 1",
        "delay 2ms jitter 1ms",
        "rate 100mbit",
        "partition after 20 packets for 50ms",
        "drop every 7th packet",
        "drop the 1st to 3rd ACK",
        "drop the 1st WRITE; drop the 1st WRITE_LAST",
        "rnr the 1st to 2nd ACK",
    ] {
        let mut test = Test::new(faults);
        let before = test.end.bytes(LONG as usize);
        assert_eq!(test.write(LONG), WcStatus::Success, "{faults}");
        assert_eq!(test.end.bytes(LONG as usize), before, "{faults}");
        let idle = faults.starts_with("rate");
        assert!(idle || test.hits() > 0, "{faults}: nothing happened");
    }
}

#[test]
fn lost_acknowledgement_costs_a_retransmission_and_nothing_else() {
    let mut test = Test::new("drop the 1st ACK");
    assert_eq!(test.send(), WcStatus::Success);
    assert_eq!(
        test.counts.read(0),
        (2, 1),
        "the second ACK answers the duplicate"
    );
}

#[test]
fn peer_that_never_answers_is_transport_retry_exceeded() {
    for faults in ["loss 100%", "partition", "drop ACK", "port down"] {
        let mut test = Test::new(faults);
        assert_eq!(test.write(64), WcStatus::RetryExceeded, "{faults}");
    }
}

#[test]
fn black_hole_lets_short_messages_pass_and_fails_long_ones() {
    let mut test = Test::new("blackhole 600");
    assert_eq!(test.write(64), WcStatus::Success);
    assert_eq!(test.write(LONG), WcStatus::RetryExceeded);
}

#[test]
fn receiver_that_is_never_ready_is_rnr_retry_exceeded() {
    let mut test = Test::with_rnr_retry("rnr 100%", 2);
    assert_eq!(test.send(), WcStatus::RnrRetryExceeded);
    assert_eq!(test.hits(), 3, "the first attempt and two retries");
}

#[test]
fn nak_has_the_status_of_its_code() {
    for (code, status) in [
        ("access", WcStatus::RemoteAccess),
        ("invalid", WcStatus::RemoteInvalidRequest),
        ("operation", WcStatus::RemoteOperation),
    ] {
        let mut test = Test::new(&format!("nak {code} the 1st ACK"));
        assert_eq!(test.write(64), status, "{code}");
        let state = test
            .end
            .core
            .engine
            .query_qp(test.end.qpn)
            .unwrap()
            .attr
            .state;
        assert_eq!(state, QpState::Err, "{code}");
    }
}

#[test]
fn undetected_damage_reaches_the_program() {
    let mut test = Test::new("corrupt the 1st WRITE_ONLY undetected");
    let before = test.end.bytes(64);
    assert_eq!(test.write(64), WcStatus::Success);
    let after = test.end.bytes(64);
    let bits: u32 = (before.iter().zip(&after))
        .map(|(one, other)| (one ^ other).count_ones())
        .sum();
    assert_eq!(bits, 1);
}

#[test]
fn delay_is_part_of_the_round_trip() {
    let mut test = Test::new("delay 2ms");
    assert_eq!(test.write(64), WcStatus::Success);
    assert_eq!(test.now.as_nanos() / MS, 4, "the WRITE and its ACK");
    let mut test = Test::new("slow completions 5ms");
    assert_eq!(test.write(64), WcStatus::Success);
    assert_eq!(test.now.as_nanos() / MS, 10);
}

#[test]
fn queue_pair_that_fails_flushes_its_work_requests() {
    for faults in ["qp error after 1 packets", "cq overrun after 1 packets"] {
        let mut test = Test::new(faults);
        assert_eq!(test.write(64), WcStatus::WrFlush, "{faults}");
        assert_eq!(test.hits(), 1, "{faults}");
    }
}

#[test]
fn packets_that_wait_leave_when_faults_end() {
    let mut test = Test::new("delay 10s");
    let first = test.end.begin_write(Time::ZERO, 1).expect("a packet");
    assert!(test.end.send(Time::ZERO, first, true).is_none());
    assert!(test.end.core.wire().runs.borrow().is_empty());
    test.end.core.set_faults(Time::ZERO, None);
    assert_eq!(test.end.core.wire().runs.borrow().len(), 1);
    assert_eq!(test.await_completion(), WcStatus::Success);
    assert_eq!(test.now, Time::ZERO);
}

#[test]
fn same_seed_gives_the_same_run() {
    let run = |seed| {
        let faults =
            format!("loss 5%; reorder 5%; duplicate 5%; delay 1ms jitter 1ms; seed {seed}");
        let mut test = Test::new(&faults);
        assert_eq!(test.write(LONG), WcStatus::Success);
        let counts: Vec<_> = (0..4).map(|rule| test.counts.read(rule)).collect();
        (counts, test.now)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
