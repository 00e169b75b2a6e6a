//! The measurements of links of type siw, beside TCP.

use super::{Group, HUGE, LARGE, LATENCY, RowPlan, group, perftest, sockets};
use crate::programs::probe::{Device, Probe, Sockets, Tool};
use crate::programs::sample::Metric;
use crate::report::Goal;

pub(super) fn groups() -> Vec<Group> {
    vec![
        group("latency", latency()),
        group("bandwidth", bandwidth(Device::Siw, 0.85)),
        group("bandwidth with CRC", bandwidth(Device::SiwCrc, 0.7)),
    ]
}

fn latency() -> Vec<RowPlan> {
    let row = |probe: Probe| RowPlan::new(probe.on(Device::Siw), Metric::Latency);
    let polling = sockets(Sockets::TcpPolling, LATENCY);
    let blocking = sockets(Sockets::TcpBlocking, LATENCY);
    let mut rows = Vec::new();
    for name in ["ib_send_lat", "ib_write_lat"] {
        let probe = perftest(name, LATENCY);
        rows.push(row(probe).beside(&polling).goal(Goal::Ratio(1.4)));
    }
    // A READ is a whole round trip.
    rows.push(row(perftest("ib_read_lat", LATENCY)).beside(&polling));
    let events = perftest("ib_send_lat", LATENCY).options("-e");
    rows.push(row(events).beside(&blocking).goal(Goal::Ratio(1.4)));
    rows
}

/// Returns iperf3 with a processor for each end.
///
/// The kernel runs both ends of iperf3 on one processor by turns, where the data stays in its
/// cache. Programs that poll occupy a processor each, so their data moves from one to the other.
pub(super) fn iperf_on_two_cores() -> Probe {
    Probe::new(Tool::Iperf, 0).options("-A 0,1")
}

/// iperf3 has one TCP stream and no CRC.
fn bandwidth(device: Device, least: f64) -> Vec<RowPlan> {
    let iperf = Probe::new(Tool::Iperf, 0);
    let mut rows = Vec::new();
    for size in [LARGE, HUGE] {
        for name in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            let probe = perftest(name, size).on(device);
            let row = RowPlan::new(probe, Metric::Bandwidth);
            let beside_iperf = row.clone().beside(&iperf);
            rows.push(beside_iperf.goal(Goal::AtLeast(least)));
            rows.push(row.beside(&iperf_on_two_cores()));
        }
    }
    rows
}
