//! Packets of an earlier connection: a UC queue pair accepts the first packet of a message with any
//! PSN, so the PSN does not tell them from new ones.

#[path = "support/connection.rs"]
#[allow(dead_code)] // other tests use the rest
mod connection;
#[path = "support/loopback.rs"]
mod loopback;

use std::sync::Arc;

use connection::End;
use ferroce_roce::{AttrMask, QpAttr, QpState, QpType, Time, WcOpcode};
use ferroce_shard::{Caller, CreditPage};
use loopback::{HERE, Loopback};

const NOW: Time = Time::ZERO;
/// The slot of the wire.
const SLOT: u8 = 1;

/// Returns a queue pair that is its own peer.
fn end(page: &Arc<CreditPage>, kind: QpType) -> End<Loopback> {
    let mut end = End::new(Loopback::default(), page, kind, 0);
    end.connect(end.qpn, HERE, HERE);
    end
}

fn reset(end: &mut End<Loopback>) {
    let reset = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    end.modify(&reset, AttrMask::STATE);
}

/// Posts a WRITE while the wire has no room, so that the WRITE waits.
fn post_waiting_write(end: &mut End<Loopback>) {
    end.core.wire().is_full.set(true);
    end.post_write(NOW, 1);
    assert!(end.core.is_blocked());
}

/// Returns the number of runs that are sent once the wire has room.
fn runs_sent_later(end: &mut End<Loopback>) -> usize {
    end.core.wire().is_full.set(false);
    end.turn(NOW, Caller::ProgressThread);
    end.core.wire().runs.borrow().len()
}

/// An adapter would have dropped the packet on arrival.
#[test]
fn packet_that_arrived_before_rtr_is_dropped() {
    let mut end = end(&Arc::default(), QpType::Uc);
    end.post_send(NOW, 1);
    assert_eq!(end.cq.pop().map(|wc| wc.opcode), Some(WcOpcode::Send));
    reset(&mut end);
    end.connect(end.qpn, HERE, HERE);
    end.post_receive(NOW, 2);
    end.turn(NOW, Caller::ProgressThread);
    assert!(end.cq.pop().is_none(), "the old SEND is received");
}

#[test]
fn run_that_waits_is_dropped_when_its_queue_pair_is_reset() {
    let page = Arc::default();
    let mut end = end(&page, QpType::Uc);
    post_waiting_write(&mut end);
    assert!(page.outstanding(SLOT) > 0);
    reset(&mut end);
    assert!(!end.core.is_blocked());
    assert_eq!(page.outstanding(SLOT), 0, "the run takes no room");
    assert_eq!(runs_sent_later(&mut end), 0);
    assert!(
        end.cq.pop().is_none(),
        "a reset queue pair completes nothing"
    );
}

#[test]
fn run_that_waits_is_dropped_when_its_queue_pair_is_destroyed() {
    let mut end = end(&Arc::default(), QpType::Uc);
    post_waiting_write(&mut end);
    end.destroy();
    assert!(!end.core.is_blocked());
    assert_eq!(runs_sent_later(&mut end), 0);
}

/// It may contain the last ACK for the peer.
#[test]
fn run_of_rc_that_waits_is_sent_after_its_queue_pair_is_destroyed() {
    let mut end = end(&Arc::default(), QpType::Rc);
    post_waiting_write(&mut end);
    end.destroy();
    assert_eq!(runs_sent_later(&mut end), 1);
}
