//! Tests of the benchmark of programs: the figures in real output, verdicts, plots and plans.
//! They run no program and measure no times.

use std::collections::{BTreeMap, BTreeSet};

use ferroce_bench::programs::sample::{fabric, iperf, perftest_bandwidth, perftest_latency};
use ferroce_bench::programs::sample::{qperf, ucx};
use ferroce_bench::programs::svg::{Chart, Series};
use ferroce_bench::programs::{
    Addresses, Cores, Device, Machine, Metric, Plan, Probe, Results, RowPlan, RunLength, Sample,
    Tool, bytes, charts, history, page,
};
use ferroce_bench::{Goal, Report};

fn close(sample: &Sample, metric: Metric, value: f64) {
    let found = sample.get(metric).expect("the figure is there");
    assert!((found - value).abs() < 1e-6 * value, "{found}, not {value}");
}

#[test]
fn latency_of_perftest_is_the_typical_one() {
    let sample = perftest_latency(include_str!("outputs/ib_send_lat.txt")).expect("parsed");
    close(&sample, Metric::Latency, 11.02);
    close(&sample, Metric::P99, 10_652.84);
    assert_eq!(sample.get(Metric::Bandwidth), None);
}

#[test]
fn bandwidth_of_perftest_is_the_average() {
    let text = include_str!("outputs/ib_write_bw.txt");
    let sample = perftest_bandwidth(text).expect("parsed");
    close(&sample, Metric::Bandwidth, 5.52);
    close(&sample, Metric::Messages, 10.52);
    let other = text.replace("[Gb/sec]", "[MB/sec]");
    assert!(perftest_bandwidth(&other).is_err(), "another unit");
}

#[test]
fn directions_of_iperf3_are_added() {
    let text = include_str!("outputs/iperf3.txt");
    let report: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let bits = |name: &str| {
        report["end"][name]["bits_per_second"]
            .as_f64()
            .expect("sum")
    };
    let both = bits("sum_received") + bits("sum_received_bidir_reverse");
    close(&iperf(text).expect("parsed"), Metric::Bandwidth, both / 1e9);
}

#[test]
fn figures_of_ucx_libfabric_and_qperf_have_their_units() {
    let sample = ucx(include_str!("outputs/ucx_perftest.txt")).expect("parsed");
    close(&sample, Metric::Latency, 7.565);
    close(&sample, Metric::Messages, 81.915);
    close(&sample, Metric::Bandwidth, 0.62 * 1_048_576.0 * 8.0 / 1e9);

    let sample = fabric(include_str!("outputs/fi_pingpong.txt")).expect("parsed");
    close(&sample, Metric::Latency, 1092.37);

    let latency = qperf(include_str!("outputs/qperf_lat.txt")).expect("parsed");
    close(&latency, Metric::Latency, 92.7);
    let bandwidth = qperf(include_str!("outputs/qperf_bw.txt")).expect("parsed");
    close(&bandwidth, Metric::Bandwidth, 2.33 * 8.0);
    let received = qperf(include_str!("outputs/qperf_udp.txt")).expect("parsed");
    close(&received, Metric::Bandwidth, 2.17 * 8.0);
}

#[test]
fn output_without_figures_is_an_error() {
    for text in ["", "Couldn't connect to 127.0.0.1:18515", " #bytes\n"] {
        for parse in [
            perftest_latency,
            perftest_bandwidth,
            iperf,
            ucx,
            fabric,
            qperf,
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}

/// Results in which each probe of a group has one figure for each round.
fn results(plan: &Plan, title: &str, rounds: impl Fn(&Probe) -> Vec<f64>) -> Results {
    let mut results = Results {
        cores: Cores::Two,
        count: 2,
        rows: Vec::new(),
        samples: BTreeMap::new(),
        skipped: BTreeMap::new(),
        failed: BTreeMap::new(),
    };
    let group = plan.groups.iter().find(|group| group.title == title);
    let group = group.expect("a group");
    let metrics = [
        Metric::Latency,
        Metric::P99,
        Metric::Bandwidth,
        Metric::Messages,
    ];
    let all = |value: f64| {
        metrics
            .iter()
            .fold(Sample::default(), |s, m| s.with(*m, value))
    };
    let probes = group.probes(2).into_iter();
    let samples = probes.map(|probe| {
        let rounds = rounds(&probe).into_iter().map(all).collect();
        (probe, rounds)
    });
    results.add(group, samples.collect());
    results
}

#[test]
fn ratio_is_the_median_of_the_rounds() {
    // The reference is slow in the second round, in which the program is slow, too.
    let results = results(&Plan::new(true, None), "latency", |probe| {
        match probe.tool {
            Tool::Perftest("ib_send_lat") => vec![6.0, 60.0, 6.6],
            Tool::Sockets(_) => vec![5.0, 50.0, 5.5],
            _ => vec![9.0, 9.0, 9.0],
        }
    });
    let send = &results.rows[0];
    assert_eq!(send.what, "ib_send_lat -s 8");
    assert_eq!(send.value, 6.6, "the median");
    let (name, value, ratio) = send.against.expect("a reference");
    assert_eq!((name, value), ("socket floor", 5.5));
    assert!((ratio - 1.2).abs() < 1e-9);
    assert_eq!(
        (send.goal, send.met()),
        (Some(Goal::Ratio(1.3)), Some(true))
    );
    // 60 us of the events against 50 us of the blocking sockets is within 1.5 times.
    let missed = results.rows.iter().filter(|row| row.met() == Some(false));
    assert_eq!(missed.count(), 0, "{:#?}", results.rows);
}

#[test]
fn rows_of_failed_programs_are_left_out() {
    let results = results(&Plan::new(true, None), "latency", |probe| {
        match probe.tool {
            Tool::Perftest("ib_send_lat") => Vec::new(),
            _ => vec![9.0],
        }
    });
    let named = |name: &str| results.rows.iter().any(|row| row.what.starts_with(name));
    assert!(
        !named("ib_send_lat") && !named("ib_read_lat"),
        "{results:#?}"
    );
    assert!(named("ib_write_lat -s 8, 99 %"), "{results:#?}");
}

#[test]
fn goals_depend_on_the_cores() {
    let plan = Plan::new(true, None);
    let group = plan
        .groups
        .iter()
        .find(|group| group.title == "queue pairs");
    let goals = |cores: u32| -> Vec<Option<Goal>> {
        let rows = group.expect("a group").rows.iter();
        let rows = rows.filter(|row| row.cores.contains(&cores));
        rows.map(|row| row.goal).collect()
    };
    let least = |goals: [f64; 3]| goals.map(|goal| Some(Goal::AtLeast(goal))).to_vec();
    assert_eq!(goals(2), least([1.0, 1.0, 1.0]));
    assert_eq!(goals(16), least([1.7, 2.8, 4.0]));
    assert_eq!(goals(4), [Some(Goal::AtLeast(1.7)), None, None]);
}

#[test]
fn only_keeps_groups_and_programs_by_name() {
    let labels = |only: &[&str]| -> Vec<String> {
        let mut plan = Plan::new(true, None);
        plan.keep(
            &only
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>(),
        );
        let rows = plan.groups.iter().flat_map(|group| &group.rows);
        rows.map(|row| row.probe.label()).collect()
    };
    assert_eq!(labels(&["fi_ping"]), ["fi_pingpong -s 64"]);
    assert_eq!(labels(&["libfabric"]), ["fi_pingpong -s 64"]);
    assert!(labels(&["no such program"]).is_empty());
    assert!(labels(&[]).len() > 20);
}

#[test]
fn command_lines_name_the_server() {
    let at = Addresses {
        peer: "127.0.0.1",
        link: "rxe0",
        netdev: "lo",
        port: 7,
    };
    let run_length = RunLength {
        bytes: 1 << 30,
        messages: 100_000,
        round_trips: 10,
        ms: 1,
    };
    let probe = Probe::new(Tool::Perftest("ib_write_bw"), 65_536)
        .mtu(4096)
        .qps(4);
    assert_eq!(probe.label(), "ib_write_bw -s 64K -m 4096 -q 4");
    let lines = probe.lines(&at, run_length).expect("a program");
    assert_eq!(
        lines.client.join(" "),
        "ib_write_bw -d rxe0 -x 1 -F -p 7 -s 65536 -m 4096 -q 4 -n 4400 --report_gbits 127.0.0.1"
    );
    assert_eq!(lines.client[..lines.client.len() - 1], lines.server);
    let ucx = Probe::new(Tool::Ucx("tag_lat"), 8).lines(&at, run_length);
    let environment = ucx.expect("a program").environment;
    assert!(environment.contains(&("UCX_NET_DEVICES", "rxe0:1".to_owned())));
    assert_eq!([8, 4096, 1 << 20].map(bytes), ["8", "4K", "1M"]);
}

fn chart(y_log: bool, points: &[(u32, f64)]) -> Chart {
    Chart {
        title: "Rate <of> programs".into(),
        x_label: "bytes",
        y_label: "Gb/s",
        y_log,
        series: vec![Series {
            name: "A & B".into(),
            is_ours: true,
            colour: 0,
            points: points.to_vec(),
        }],
    }
}

/// Returns the coordinates of the circles of a plot.
fn circles(svg: &str) -> Vec<(f64, f64)> {
    let number = |text: &str, name: &str| -> f64 {
        let rest = text.split(&format!("{name}=\"")).nth(1).expect(name);
        rest.split('"').next().expect(name).parse().expect(name)
    };
    svg.split("<circle ")
        .skip(1)
        .map(|circle| (number(circle, "cx"), number(circle, "cy")))
        .collect()
}

#[test]
fn points_lie_on_logarithmic_scales() {
    let svg = chart(true, &[(8, 10.0), (64, 100.0), (512, 1000.0)]).svg();
    let [a, b, c] = circles(&svg)[..] else {
        panic!("three points: {svg}");
    };
    assert!((b.0 - a.0 - (c.0 - b.0)).abs() < 0.2, "{svg}");
    assert!((b.1 - a.1 - (c.1 - b.1)).abs() < 0.2, "{svg}");
    assert!(c.1 < b.1 && b.1 < a.1, "greater values are higher");
    assert!(svg.contains("Rate &lt;of&gt; programs") && svg.contains("A &amp; B"));
    assert!(svg.contains(">1,000<") && svg.contains(">512<"), "{svg}");
}

#[test]
fn linear_scale_starts_at_zero() {
    let svg = chart(false, &[(1, 10.0), (2, 20.0)]).svg();
    let [a, b] = circles(&svg)[..] else {
        panic!("two points: {svg}");
    };
    let zero = 2.0 * a.1 - b.1;
    assert!(svg.contains(&format!("M74 {zero:.1}H")), "{zero}: {svg}");
    assert!(!chart(false, &[(1, 10.0)]).is_drawable(), "one place");
    for points in [&[][..], &[(8, 0.0)], &[(8, 0.0), (8, 5.0)]] {
        assert!(!chart(true, points).svg().contains("NaN"), "{points:?}");
    }
}

#[test]
fn report_has_plots_table_and_history() {
    let plan = Plan::new(false, None);
    let sweep = results(&plan, "bandwidth over size", |probe| {
        vec![f64::from(probe.size.max(8)).log2()]
    });
    let drawn = charts(&sweep);
    assert!(
        drawn[0].title.starts_with("Bandwidth, 2 cores"),
        "{drawn:#?}"
    );
    let plain = drawn[0].series.iter().find(|line| line.name == "plain UDP");
    let places: Vec<u32> = plain.expect("a line").points.iter().map(|p| p.0).collect();
    assert_eq!(places, [8, 1 << 20], "a line across the plot");

    let machine = Machine {
        time: "2026-11-16 13:05:00".into(),
        commit: "abc".into(),
        cores: 2,
        processor: "X <1>".into(),
        kernel: "6.1".into(),
        place: "Loopback.".into(),
    };
    let table = results(&plan, "latency", |_| vec![5.0]);
    let all = [sweep, table];
    let page = page::page(&machine, false, &all);
    assert_eq!(page.matches("<svg").count(), drawn.len());
    assert!(page.contains("X &lt;1&gt;") && page.contains("ib_send_lat -s 8"));
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(
            !page.contains(outside),
            "the page is self-contained: {outside}"
        );
    }
    let entry = history::entry(&machine, false, &all);
    assert_eq!(entry["runs"][1]["rows"][0]["row"], "ib_send_lat -s 8");
    assert_eq!(entry["runs"][1]["rows"][0]["met"], true);
    assert!(!entry.to_string().contains('\n'), "one line");
}

#[test]
fn least_value_is_a_goal() {
    let results = results(&Plan::new(true, None), "message rate", |_| vec![1100.0]);
    assert_eq!(results.rows[0].met(), Some(false));
    let report = Report {
        rows: results.rows,
        ..Report::default()
    };
    assert!(
        report.to_string().contains(">= 1200 k/s  MISSED"),
        "{report}"
    );
}

#[test]
fn programs_over_siw_connect_by_rdma_cm_and_are_compared_with_tcp() {
    let plan = Plan::iwarp(true, None);
    let rows: Vec<&RowPlan> = plan.groups.iter().flat_map(|group| &group.rows).collect();
    let write = rows.iter().find(|row| {
        let is_write = row.probe.tool == Tool::Perftest("ib_write_bw");
        is_write && row.probe.device == Device::SiwCrc
    });
    let write = write.expect("a row");
    assert_eq!(write.probe.label(), "ib_write_bw -R -s 64K, CRC");
    assert_eq!(write.goal, Some(Goal::AtLeast(0.7)));
    let at = Addresses {
        peer: "10.77.0.1",
        link: "siw1",
        netdev: "veth0",
        port: 18_601,
    };
    let lines = write.probe.lines(&at, plan.run_length).expect("a program");
    let client = lines.client.join(" ");
    assert!(
        client.starts_with("ib_write_bw -d siw1 -R -F -p 18601 "),
        "{client}"
    );
    let names = |row: &&RowPlan| row.against.as_ref().map(|reference| reference.name);
    let names: BTreeSet<&str> = rows.iter().filter_map(names).collect();
    assert_eq!(
        names.into_iter().collect::<Vec<_>>(),
        ["blocking TCP", "iperf3", "iperf3 -A 0,1", "polling TCP"]
    );
}
