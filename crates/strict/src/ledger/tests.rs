use super::*;

const QP: QpId = (1, 0x11);
const CQ: CqId = 100;
const SRQ: SrqId = 200;

fn ledger(max_send_wr: u32, capacity: u32, srq: Option<SrqId>) -> Ledger {
    let mut ledger = Ledger::new();
    ledger.set_cq(CQ, capacity);
    let track = QpTrack {
        max_send_wr,
        send_cq: CQ,
        recv_cq: CQ,
        srq,
        signals_all: false,
        is_datagram: false,
    };
    ledger.add_qp(QP, track);
    ledger
}

fn send(wr_id: u64, signaled: bool) -> Sent {
    Sent {
        wr_id,
        signaled,
        keys: vec![7],
        buffers: None,
        posted_at: Vec::new(),
    }
}

fn found(finding: Option<Finding>) -> Option<Check> {
    finding.map(|finding| finding.check)
}

#[test]
fn unsignaled_work_fills_the_send_queue_for_ever() {
    let mut ledger = ledger(3, 16, None);
    for wr_id in 0..3 {
        assert_eq!(ledger.check_send(QP, false), None);
        ledger.sent(QP, send(wr_id, false));
    }
    let finding = ledger.check_send(QP, false).unwrap();
    assert_eq!(finding.check, Check::SendQueue);
    assert!(
        finding.what.contains("none of them is signaled"),
        "{finding:?}"
    );
}

#[test]
fn completion_frees_the_send_and_all_before_it() {
    let mut ledger = ledger(3, 16, None);
    ledger.sent(QP, send(1, false));
    ledger.sent(QP, send(2, false));
    ledger.sent(QP, send(3, true));
    let full = ledger.check_send(QP, true).unwrap();
    assert!(full.what.contains("not polled"), "{full:?}");
    let returned = ledger.polled_send(QP, 3, true);
    let ids: Vec<u64> = returned.iter().map(|sent| sent.wr_id).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(ledger.check_send(QP, true), None);
}

#[test]
fn failed_unsignaled_send_completes_by_itself() {
    let mut ledger = ledger(3, 16, None);
    ledger.sent(QP, send(1, false));
    ledger.sent(QP, send(2, false));
    assert_eq!(ledger.polled_send(QP, 1, false).len(), 1);
    assert_eq!(ledger.polled_send(QP, 2, false).len(), 1);
}

#[test]
fn equal_ids_complete_one_by_one() {
    let mut ledger = ledger(8, 16, None);
    for _ in 0..3 {
        ledger.sent(QP, send(5, true));
    }
    assert_eq!(ledger.polled_send(QP, 5, true).len(), 1);
    assert_eq!(ledger.polled_send(QP, 5, true).len(), 1);
}

#[test]
fn completion_queue_has_room_for_all_work_that_may_complete() {
    let mut ledger = ledger(8, 3, None);
    ledger.posted_receive(QP, 1, vec![]);
    ledger.posted_receive(QP, 2, vec![]);
    ledger.sent(QP, send(3, true));
    assert_eq!(
        found(ledger.check_receive(QP)),
        Some(Check::CompletionQueue)
    );
    assert_eq!(
        found(ledger.check_send(QP, true)),
        Some(Check::CompletionQueue)
    );
    assert_eq!(
        ledger.check_send(QP, false),
        None,
        "unsignaled work adds none"
    );
    ledger.polled_receive(QP, 1, true);
    assert_eq!(ledger.check_send(QP, true), None);
    ledger.reset_qp(QP);
    assert_eq!(ledger.check_receive(QP), None);
}

#[test]
fn shared_receives_count_for_their_only_completion_queue() {
    let mut ledger = ledger(8, 2, Some(SRQ));
    ledger.posted_shared_receive(SRQ, 1, vec![]);
    assert_eq!(ledger.check_shared_receive(SRQ), None);
    ledger.posted_shared_receive(SRQ, 2, vec![]);
    let finding = found(ledger.check_shared_receive(SRQ));
    assert_eq!(finding, Some(Check::CompletionQueue));
    let mut other = ledger.track(QP).unwrap().clone();
    other.recv_cq = 101;
    ledger.add_qp((1, 0x12), other);
    assert_eq!(ledger.check_shared_receive(SRQ), None);
}

#[test]
fn regions_of_outstanding_work_are_in_use() {
    let mut ledger = ledger(8, 16, None);
    assert_eq!(ledger.check_deregister(1, 7), None);
    ledger.sent(QP, send(1, true));
    assert_eq!(
        found(ledger.check_deregister(1, 7)),
        Some(Check::Deregistered)
    );
    assert_eq!(ledger.check_deregister(1, 8), None, "another key");
    assert_eq!(ledger.check_deregister(2, 7), None, "another device");
    ledger.polled_send(QP, 1, true);
    assert_eq!(ledger.check_deregister(1, 7), None);
    ledger.posted_receive(QP, 2, vec![9]);
    assert_eq!(
        found(ledger.check_deregister(1, 9)),
        Some(Check::Deregistered)
    );
    ledger.fail_qp(QP);
    assert_eq!(
        ledger.check_deregister(1, 9),
        None,
        "the error state executes nothing"
    );
}

#[test]
fn regions_of_shared_receives_are_in_use() {
    let mut ledger = ledger(8, 16, Some(SRQ));
    ledger.posted_shared_receive(SRQ, 1, vec![9]);
    assert_eq!(
        found(ledger.check_deregister(1, 9)),
        Some(Check::Deregistered)
    );
    ledger.polled_receive(QP, 1, true);
    assert_eq!(ledger.check_deregister(1, 9), None);
}
