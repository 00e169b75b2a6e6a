//! `ferroce stat --prometheus`, on a real ferroced.

mod common;

use common::{Cleanup, fails, fails_with, ok};
use ferroce_testnet::{isolated, netdev};

#[test]
fn stat_prints_open_metrics() {
    isolated("stat_prints_open_metrics", || {
        let _cleanup = Cleanup;
        assert!(ok("ferroce stat --prometheus").ends_with("# EOF\n"));
        netdev::set_up("lo");
        ok("ferroce link add rxe0 type rxe netdev lo");
        ok("ferroce link set rxe0 faults partition");
        let text = ok("ferroce stat --prometheus rxe0");
        for line in [
            "ferroce_link_info{link=\"rxe0\",netdev=\"lo\",type=\"rxe\"} 1",
            "ferroce_link_active{link=\"rxe0\"} 1",
            "ferroce_link_faulty{link=\"rxe0\"} 1",
            "ferroce_link_programs{link=\"rxe0\"} 0",
            "ferroce_link_rcvd_pkts_total{link=\"rxe0\"} 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
        let more = ok("ferroce stat --prometheus --processes");
        assert!(more.contains("# TYPE ferroce_program_sent_pkts counter\n"));
        fails("ferroce stat --prometheus rxe7");
        fails_with(2, "ferroce stat --prometheus --watch 1");
    });
}
