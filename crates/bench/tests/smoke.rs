//! Tests that the engine benchmark moves the right bytes. They measure no times.

use ferroce_bench::{Op, Pair, Setup, Traffic};
use ferroce_wire::Mtu;

#[test]
fn every_operation_moves_every_byte() {
    for icrc in [true, false] {
        for op in [Op::Send, Op::Write, Op::Read] {
            for (qps, burst) in [(1, 64), (7, 1), (100, 16)] {
                let setup = Setup {
                    qps,
                    queue: 64,
                    icrc,
                    mtu: Mtu::Mtu4096,
                };
                let mut pair = Pair::new(setup).expect("a pair");
                for size in [0, 1, 64, 4096] {
                    let traffic = Traffic { op, size, burst };
                    pair.spoil(traffic);
                    assert_eq!(pair.arrived(traffic), size == 0, "spoiled before");
                    pair.exchange(traffic).expect("an exchange");
                    assert!(pair.arrived(traffic), "{traffic:?} over {qps} queue pairs");
                }
            }
        }
    }
}

#[test]
fn message_of_many_packets_arrives_complete() {
    for op in [Op::Write, Op::Read] {
        let mut pair = Pair::new(Setup {
            qps: 1,
            queue: 64,
            icrc: true,
            mtu: Mtu::Mtu1024,
        })
        .expect("a pair");
        let traffic = Traffic {
            op,
            size: 64 << 10,
            burst: 64,
        };
        pair.spoil(traffic);
        assert!(!pair.arrived(traffic), "spoiled before");
        pair.exchange(traffic).expect("an exchange");
        assert!(pair.arrived(traffic));
    }
}
