//! Every operation, once, without losses.

use ferroce_roce::{SendOp, WcOpcode, WcStatus};

use crate::pair::{BASE, Pair, wr};

#[test]
fn send_of_many_packets_is_written_to_the_receive() {
    let mut pair = Pair::rc();
    let data: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
    pair.hosts[0].ram.put(BASE, &data);
    let sge = pair.hosts[1].sge(0x8000, 6000);
    pair.post_recv(1, 7, &[sge]);
    let sge = pair.hosts[0].sge(0, 5000);
    pair.post(0, wr(1, SendOp::Send { imm: Some(9) }, &[sge]));
    pair.run();
    let sent = pair.hosts[0].completions();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].wr_id, sent[0].status), (1, WcStatus::Success));
    let received = pair.hosts[1].completions();
    assert_eq!(received.len(), 1);
    assert_eq!(
        (received[0].wr_id, received[0].byte_len, received[0].imm),
        (7, 5000, 9)
    );
    assert_eq!(received[0].opcode, WcOpcode::Recv);
    assert_eq!(pair.hosts[1].ram.get(BASE + 0x8000, 5000), data);
}

#[test]
fn write_read_and_fetch_add_complete_in_order() {
    let mut pair = Pair::rc();
    let rkey = pair.hosts[1].mr.rkey();
    let remote_addr = BASE + 0x4000;
    pair.hosts[0].ram.put(BASE, &[5; 3000]);
    let sge = pair.hosts[0].sge(0, 3000);
    let op = SendOp::Write {
        remote_addr,
        rkey,
        imm: None,
    };
    pair.post(0, wr(1, op, &[sge]));
    let back = pair.hosts[0].sge(0x9000, 3000);
    pair.post(0, wr(2, SendOp::Read { remote_addr, rkey }, &[back]));
    let old = pair.hosts[0].sge(0xf000, 8);
    let op = SendOp::FetchAdd {
        remote_addr,
        rkey,
        add: 2,
    };
    pair.post(0, wr(3, op, &[old]));
    pair.run();
    let done = pair.hosts[0].completions();
    let ids: Vec<u64> = done.iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
    assert_eq!(pair.hosts[0].ram.get(BASE + 0x9000, 3000), [5; 3000]);
    let fives = u64::from_ne_bytes([5; 8]);
    assert_eq!(pair.hosts[0].ram.word(BASE + 0xf000), fives);
    assert_eq!(pair.hosts[1].ram.word(remote_addr), fives + 2);
}
