//! The benchmark moves the bytes it says it moves. Nothing here looks at times.

use ferroce_bench::{Op, Pair, Setup, Traffic};

#[test]
fn every_operation_moves_every_byte() {
    for icrc in [true, false] {
        for op in [Op::Send, Op::Write, Op::Read] {
            for (qps, burst) in [(1, 64), (7, 1), (100, 16)] {
                let setup = Setup {
                    qps,
                    queue: 64,
                    icrc,
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
