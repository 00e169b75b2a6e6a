//! The plots of the results.

use super::measure::Results;
use super::probe::{Probe, Sockets, Tool, Wire};
use super::sample::Metric;
use super::svg::{Chart, Series};

/// Returns the plots of results: over message size, and over queue pairs.
pub fn charts(results: &Results) -> Vec<Chart> {
    let cores = match results.count {
        1 => "one core".to_owned(),
        count => format!("{count} cores"),
    };
    let over_size = |title: &str, y_label, metric, y_log, keep: &dyn Fn(&Probe) -> bool| Chart {
        title: format!("{title}, {cores}"),
        x_label: "bytes of a message",
        y_label,
        y_log,
        series: lines(results, metric, keep, |probe| probe.size),
    };
    // Of the local wire, one line is enough.
    let is_shown = |probe: &Probe| match probe.tool {
        Tool::Perftest("ib_write_bw" | "ib_send_lat") => true,
        _ => probe.wire == Wire::Udp,
    };
    let plain = |probe: &Probe| probe.qps == 1 && probe.options.is_empty() && is_shown(probe);
    let is_stream = |tool| match tool {
        Tool::Perftest(name) => name.ends_with("_bw") && name != "ib_atomic_bw",
        Tool::Iperf | Tool::Sockets(Sockets::Stream) => true,
        _ => false,
    };
    let is_ping = |tool| match tool {
        Tool::Perftest(name) => name.ends_with("_lat") && name != "ib_atomic_lat",
        Tool::QperfSocket(name) => name == "tcp_lat",
        Tool::Sockets(kind) => matches!(kind, Sockets::Polling | Sockets::Blocking),
        _ => false,
    };
    let mut bandwidth = over_size("Bandwidth", "Gb/s", Metric::Bandwidth, false, &|probe| {
        plain(probe) && is_stream(probe.tool)
    });
    stretch(&mut bandwidth);
    let mut all = vec![bandwidth];
    all.push(over_size(
        "Latency",
        "microseconds, half a round trip",
        Metric::Latency,
        true,
        &|probe| plain(probe) && is_ping(probe.tool),
    ));
    all.push(over_size(
        "Message rate",
        "thousands of messages per second",
        Metric::Messages,
        true,
        &|probe| plain(probe) && is_stream(probe.tool) && probe.mtu != 1024,
    ));
    let large = |probe: &Probe| match probe.tool {
        Tool::Perftest(_) => (probe.size, probe.mtu, probe.wire) == (64 << 10, 4096, Wire::Udp),
        tool => tool == Tool::Iperf && probe.size == 0,
    };
    let of_ucx =
        |test: &'static str| move |tool| [Tool::Ucx(test), Tool::UcxTcp(test)].contains(&tool);
    let (puts, tags) = (of_ucx("ucp_put_bw"), of_ucx("tag_lat"));
    let mut several = Chart {
        title: format!("Bandwidth of several queue pairs, 64 KiB messages, {cores}"),
        x_label: "queue pairs of one process; streams of iperf3",
        y_label: "Gb/s",
        y_log: false,
        series: lines(
            results,
            Metric::Bandwidth,
            &|probe| large(probe) && is_stream(probe.tool) && probe.options.is_empty(),
            |probe| probe.qps,
        ),
    };
    several.series.retain(|line| line.points.len() > 1);
    all.push(several);
    all.push(over_size(
        "Puts of UCX",
        "Gb/s",
        Metric::Bandwidth,
        false,
        &|probe| plain(probe) && puts(probe.tool),
    ));
    all.push(over_size(
        "Tagged messages of UCX",
        "microseconds, half a round trip",
        Metric::Latency,
        true,
        &|probe| plain(probe) && tags(probe.tool),
    ));
    all.retain(Chart::is_drawable);
    all
}

/// Returns the lines of a plot: one for each program and MTU.
fn lines(
    results: &Results,
    metric: Metric,
    keep: &dyn Fn(&Probe) -> bool,
    place: impl Fn(&Probe) -> u32,
) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for probe in results.samples.keys().filter(|probe| keep(probe)) {
        let Some(value) = results.median(probe, metric) else {
            continue;
        };
        let name = name(probe);
        let at = lines.iter().position(|line| line.name == name);
        let at = at.unwrap_or_else(|| {
            lines.push(Series {
                name,
                is_ours: probe.tool.is_ours(),
                colour: colour(probe),
                points: Vec::new(),
            });
            lines.len() - 1
        });
        lines[at].points.push((place(probe), value));
    }
    for line in &mut lines {
        line.points.sort_by_key(|point| point.0);
        line.points.dedup_by_key(|point| point.0);
    }
    lines
}

/// Returns the number of a line's colour.
fn colour(probe: &Probe) -> u32 {
    match probe.tool {
        _ if probe.mtu == 1024 => 3,
        _ if probe.wire == Wire::Local => 4,
        Tool::Perftest(name) if name.starts_with("ib_send") => 1,
        Tool::Perftest(name) if name.starts_with("ib_read") => 2,
        Tool::Sockets(Sockets::Blocking) => 2,
        Tool::Sockets(_) => 1,
        _ => 0,
    }
}

fn name(probe: &Probe) -> String {
    let name = match probe.tool {
        Tool::Iperf => "TCP (iperf3)",
        Tool::QperfSocket("tcp_lat") => "TCP (qperf)",
        tool => tool.name(),
    };
    match (probe.mtu, probe.wire) {
        (1024, _) => format!("{name}, MTU 1024"),
        (_, Wire::Local) => format!("{name}, local wire"),
        _ => name.to_owned(),
    }
}

/// Draws figures that do not depend on the message size across the plot.
fn stretch(chart: &mut Chart) {
    let points = chart.series.iter().flat_map(|line| &line.points);
    let mut places: Vec<u32> = points.map(|p| p.0).filter(|&place| place > 0).collect();
    places.sort_unstable();
    for line in &mut chart.series {
        if let [(0, value)] = line.points[..]
            && let (Some(&first), Some(&last)) = (places.first(), places.last())
        {
            line.points = vec![(first, value), (last, value)];
        }
        line.points.retain(|point| point.0 > 0);
    }
    chart.series.retain(|line| !line.points.is_empty());
}
