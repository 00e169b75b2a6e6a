//! `rdma resource`: shows the RDMA objects of programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, anyhow};
use ferroce_control::resources::{CmIdResource, QpResource, Reporter, Resources, StreamResource};
use ferroce_control::{Connection, LinkInfo};

use super::filter::Filter;
use super::row::{self, Row};
use super::words::Words;
use super::{SharedOptions, links};
use crate::link::show::PORT;
use crate::{daemon, output};

pub(super) const USAGE: &str = "\
Usage: rdma resource
          resource show [DEV]
          resource show [qp|cm_id|pd|mr|cq|ctx|srq]
          resource show qp link [DEV/PORT] [FILTER-NAME FILTER-VALUE]
          resource show cm_id link [DEV/PORT] [FILTER-NAME FILTER-VALUE]
          resource show cq|pd|mr|ctx|srq dev [DEV] [FILTER-NAME FILTER-VALUE]
";

/// The kinds of objects, and the filters of each.
const KINDS: [(&str, &[&str]); 7] = [
    (
        "qp",
        &[
            "lqpn",
            "pdn",
            "rqpn",
            "type",
            "state",
            "rq-psn",
            "sq-psn",
            "path-mig-state",
            "pid",
            "wire",
        ],
    ),
    (
        "cm_id",
        &[
            "cm-idn", "lqpn", "qp-type", "state", "ps", "pid", "src-addr", "src-port", "dst-addr",
            "dst-port",
        ],
    ),
    ("cq", &["cqn", "users", "ctxn", "pid"]),
    ("mr", &["mrn", "mrlen", "pdn", "pid"]),
    ("pd", &["pdn", "users", "ctxn", "pid"]),
    ("ctx", &["ctxn", "pid"]),
    ("srq", &["srqn", "type", "lqpn", "pdn", "cqn", "pid"]),
];

/// The names of the kinds.
pub(super) const NAMES: [&str; KINDS.len()] = {
    let mut names = [""; KINDS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = KINDS[at].0;
        at += 1;
    }
    names
};

/// A program that uses a link, and its objects on one open device.
pub(crate) struct ProgramObjects {
    pub(crate) pid: u32,
    pub(crate) comm: String,
    pub(crate) objects: Resources,
}

/// A link, the programs that use it, and its connections.
struct LinkObjects {
    link: LinkInfo,
    programs: Vec<ProgramObjects>,
    connections: Vec<CmIdResource>,
}

pub(super) fn run(mut words: Words<'_>, options: SharedOptions) -> Result<()> {
    if let Some("help") = words.one_of(&["show", "list", "help"]) {
        return output::write(USAGE);
    }
    let kinds = KINDS.map(|(kind, _)| kind);
    let Some(kind) = words.one_of(&kinds) else {
        // `rdma resource show DEV`
        let only = words.next();
        words.end()?;
        let all = collect(only, Objects::All);
        let all = all.map_err(|e| anyhow!("{e:#}; objects are {}", kinds.join(", ")))?;
        let rows: Vec<Row> = all.iter().map(summary).collect();
        return row::show(&rows, options.format);
    };
    let mut only = None;
    if words.one_of(&["link", "dev"]).is_some() {
        only = Some(words.next().context("the name of a link is missing")?);
    }
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    let filter = Filter::parse(words, known.map_or(&[], |(_, known)| *known))?;
    // `DEV/-` selects objects without a port: listeners on the wildcard address.
    let without_port = only.is_some_and(|only| only.ends_with("/-"));
    let with_port = !without_port && only.is_some_and(|only| only.contains('/'));
    let only = only.map(|only| only.trim_end_matches("/-"));
    let mut rows = Vec::new();
    let wanted = match kind {
        "cm_id" => Objects::Connections,
        _ => Objects::All,
    };
    for on_link in collect(only, wanted)? {
        rows.extend(lines(kind, &on_link, options));
    }
    if matches!(kind, "qp" | "cm_id") {
        rows.retain(|row| match row.get("port") {
            Some(_) => !without_port,
            None => !with_port,
        });
    } else if without_port {
        rows.clear();
    }
    rows.retain(|row| filter.admits(row));
    row::show(&rows, options.format)
}

/// Returns a row for each memory region.
pub(super) fn regions(only: Option<&str>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for on_link in collect(only, Objects::All)? {
        for program in &on_link.programs {
            rows.extend(program.objects.mrs.iter().map(|mr| {
                Row::of_device(on_link.link.index, &on_link.link.name)
                    .with("mrn", mr.mrn)
                    .with_key("pid", Some(program.pid))
            }));
        }
    }
    Ok(rows)
}

/// The objects to collect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Objects {
    /// Connections, and the objects of every program.
    All,
    /// Connections only. ferroced knows those of RoCE, so a program that does not answer is no
    /// obstacle. A connection of iWARP is known to its program alone.
    Connections,
}

/// Collects the objects on the links.
fn collect(only: Option<&str>, wanted: Objects) -> Result<Vec<LinkObjects>> {
    let links = links(only)?;
    let Some(mut connection) = daemon::connect()? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for link in links {
        let (mut reporters, mut connections) = connection.resources(Some(&link.name))?;
        reporters.retain(|_| wanted == Objects::All || link.is_iwarp());
        let (programs, notes) = read(reporters);
        for note in notes {
            eprintln!("note: {note}");
        }
        for program in &programs {
            let streams = program.objects.streams.iter();
            connections.extend(streams.map(|stream| of_stream(&link, program, stream)));
        }
        all.push(LinkObjects {
            link,
            programs,
            connections,
        });
    }
    Ok(all)
}

/// Returns a connection of iWARP in the form of all connections.
fn of_stream(link: &LinkInfo, program: &ProgramObjects, stream: &StreamResource) -> CmIdResource {
    let shown = |address: SocketAddr| (address.ip(), Some(address.port()));
    CmIdResource {
        link: link.name.clone(),
        cm_idn: stream.cm_idn,
        lqpn: stream.lqpn,
        qp_type: stream.lqpn.map(|_| "RC".into()),
        state: stream.state.clone(),
        ps: "TCP".into(),
        pid: program.pid,
        comm: program.comm.clone(),
        source: stream.source.map(shown),
        destination: stream.destination.map(shown),
    }
}

/// Returns the objects of each program on a link, and a note for each program whose objects are
/// missing.
pub(crate) fn programs_on(
    connection: &mut Connection,
    link: &str,
) -> Result<(Vec<ProgramObjects>, Vec<String>)> {
    let (reporters, _) = connection.resources(Some(link))?;
    Ok(read(reporters))
}

/// Reads the objects that programs report.
fn read(reporters: Vec<Reporter>) -> (Vec<ProgramObjects>, Vec<String>) {
    let (mut programs, mut notes) = (Vec::new(), Vec::new());
    for reporter in reporters {
        let (pid, comm) = (reporter.process.pid, reporter.process.program.clone());
        match reporter.read() {
            Ok(devices) => programs.extend(devices.into_iter().map(|objects| {
                let comm = comm.clone();
                ProgramObjects { pid, comm, objects }
            })),
            // The program has just ended, and its objects with it.
            Err(_) if gone(pid) => {}
            Err(error) => {
                notes.push(format!(
                    "the objects of process {pid} ({comm}) are missing: {error}"
                ));
            }
        }
    }
    (programs, notes)
}

fn gone(pid: u32) -> bool {
    !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

fn summary(on_link: &LinkObjects) -> Row {
    let LinkInfo { index, name, .. } = &on_link.link;
    let count = |of: fn(&Resources) -> usize| -> usize {
        on_link
            .programs
            .iter()
            .map(|program| of(&program.objects))
            .sum()
    };
    let names = [
        ("ifindex", (*index).into()),
        ("ifname", name.clone().into()),
    ];
    Row::new(format!("{index}: {name}: "), names)
        .with("pd", count(|has| has.pds.len()))
        .with("cq", count(|has| has.cqs.len()))
        .with("qp", count(|has| has.qps.len()))
        .with("cm_id", on_link.connections.len())
        .with("mr", count(|has| has.mrs.len()))
        .with("ctx", on_link.programs.len())
        .with("srq", count(|has| has.srqs.len()))
}

fn lines(kind: &str, on_link: &LinkObjects, options: SharedOptions) -> Vec<Row> {
    if kind == "cm_id" {
        let connections = on_link.connections.iter();
        return connections.map(|c| cm_id(&on_link.link, c)).collect();
    }
    let programs = on_link.programs.iter();
    programs
        .flat_map(|program| of_program(kind, &on_link.link, program, options))
        .collect()
}

fn of_program(
    kind: &str,
    link: &LinkInfo,
    program: &ProgramObjects,
    options: SharedOptions,
) -> Vec<Row> {
    let device = || Row::of_device(link.index, &link.name);
    let owned = |row: Row| {
        row.with("pid", program.pid)
            .with("comm", program.comm.clone())
    };
    let objects = &program.objects;
    let rows: Vec<Row> = match kind {
        "qp" => objects.qps.iter().map(|qp| queue_pair(link, qp)).collect(),
        "cq" => {
            let cqs = objects.cqs.iter().map(|cq| {
                device()
                    .with("cqn", cq.cqn)
                    .with("cqe", cq.cqe)
                    .with("users", cq.users)
                    .with("ctxn", objects.ctxn)
            });
            cqs.collect()
        }
        "mr" => {
            let mrs = objects.mrs.iter().map(|mr| {
                let keys = mr.keys.as_ref();
                device()
                    .with("mrn", mr.mrn)
                    .with_some("rkey", keys.map(|k| format!("{:#x}", k.rkey)))
                    .with_some("lkey", keys.map(|k| format!("{:#x}", k.lkey)))
                    .with_some("iova", keys.map(|k| format!("{:#x}", k.iova)))
                    .with("mrlen", mr.mrlen)
                    .with("pdn", mr.pdn)
            });
            mrs.collect()
        }
        "pd" => {
            let pds = objects.pds.iter().map(|pd| {
                device()
                    .with("pdn", pd.pdn)
                    .with("users", pd.users)
                    .with("ctxn", objects.ctxn)
            });
            pds.collect()
        }
        "srq" => objects
            .srqs
            .iter()
            .map(|srq| {
                let users = objects.qps.iter().filter(|qp| qp.srqn == Some(srq.srqn));
                let numbers: Vec<u32> = users.map(|qp| qp.lqpn).collect();
                let users: Vec<String> = numbers.iter().map(u32::to_string).collect();
                device()
                    .with("srqn", srq.srqn)
                    .with("type", if srq.xrc { "XRC" } else { "BASIC" })
                    .with_some("lqpn", (!users.is_empty()).then(|| users.join(",")))
                    .with("pdn", srq.pdn)
                    .with_some("cqn", srq.cqn)
                    .with_key("lqpn", Some(numbers))
            })
            .collect(),
        _ => vec![device().with("ctxn", objects.ctxn)],
    };
    let mut rows: Vec<Row> = rows.into_iter().map(owned).collect();
    if kind == "qp" {
        let more = rows.into_iter().zip(&objects.qps);
        let more = more.map(|(row, qp)| {
            let details = |row: Row| {
                row.with("sq-posted", qp.sends)
                    .with("rq-posted", qp.receives)
                    .with("window", qp.activity.window)
                    .with("in-flight", qp.activity.in_flight)
                    .with("rtt-us", qp.activity.rtt_ns / 1000)
                    .with("unacked", qp.activity.unacked)
                    .with("retries", qp.activity.retries)
                    .with("rnr-rcvd", qp.activity.rnr_rcvd)
                    .with("rnr-sent", qp.activity.rnr_sent)
                    .with_some("failure", qp.failure.clone())
            };
            let row = match options.format.details {
                true => details(row),
                false => row,
            };
            row.with_some("wire", qp.wire.clone())
        });
        rows = more.collect();
    }
    rows
}

fn queue_pair(link: &LinkInfo, qp: &QpResource) -> Row {
    let connected = qp.rq_psn.is_some();
    Row::of_port(link.index, &link.name, PORT)
        .with("lqpn", qp.lqpn)
        .with_some("pdn", qp.pdn)
        .with_some("rqpn", qp.rqpn)
        .with("type", qp.kind.clone())
        .with("state", qp.state.clone())
        .with_some("rq-psn", qp.rq_psn)
        .with("sq-psn", qp.sq_psn)
        .with_some("path-mig-state", connected.then_some("MIGRATED"))
}

fn cm_id(link: &LinkInfo, id: &CmIdResource) -> Row {
    let shown = |(ip, port): (IpAddr, Option<u16>)| match port {
        Some(port) => format!("{ip}:{port}"),
        None => ip.to_string(),
    };
    // As the kernel shows it, a listener on the wildcard address has no port of the link, and one
    // on another address has the wildcard as its destination.
    let is_listener = id.state == "LISTEN";
    let wildcard = |ip: IpAddr| match ip {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Some(0)),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Some(0)),
    };
    let bound = id.source.filter(|(ip, _)| !ip.is_unspecified());
    let destination = match is_listener {
        true => bound.map(|(ip, _)| wildcard(ip)),
        false => id.destination,
    };
    let row = match is_listener && bound.is_none() {
        true => Row::without_port(link.index, &link.name),
        false => Row::of_port(link.index, &link.name, PORT),
    };
    row.with("cm-idn", id.cm_idn)
        .with_some("lqpn", id.lqpn)
        .with_some("qp-type", id.qp_type.clone())
        .with("state", id.state.clone())
        .with("ps", id.ps.clone())
        .with("pid", id.pid)
        .with("comm", id.comm.clone())
        .with_some("src-addr", id.source.map(shown))
        .with_some("dst-addr", destination.map(shown))
        .with_key("src-addr", id.source.map(|(ip, _)| ip.to_string()))
        .with_key("src-port", id.source.and_then(|(_, port)| port))
        .with_key("dst-addr", destination.map(|(ip, _)| ip.to_string()))
        .with_key("dst-port", destination.and_then(|(_, port)| port))
}

#[cfg(test)]
mod tests {
    use ferroce_control::resources::{QpActivity, SrqResource};

    use super::*;

    #[test]
    fn filter_lqpn_selects_the_srq_of_that_queue_pair() {
        let qp = |lqpn, srqn| QpResource {
            lqpn,
            pdn: Some(1),
            rqpn: None,
            kind: "RC".into(),
            state: "RTS".into(),
            rq_psn: None,
            sq_psn: 0,
            srqn,
            failure: None,
            sends: 0,
            receives: 0,
            wire: None,
            activity: QpActivity::default(),
        };
        let objects = Resources {
            qps: vec![qp(17, Some(3)), qp(18, Some(3)), qp(19, None)],
            srqs: vec![SrqResource {
                srqn: 3,
                xrc: false,
                pdn: 1,
                cqn: None,
            }],
            ..Resources::default()
        };
        let program = ProgramObjects {
            pid: 5,
            comm: "server".into(),
            objects,
        };
        let link = LinkInfo::new("rxe0", "lo", 1);
        let options = SharedOptions {
            format: crate::output::Format::default(),
            force: false,
        };
        let rows = of_program("srq", &link, &program, options);
        let (_, known) = KINDS.iter().find(|(kind, _)| *kind == "srq").unwrap();
        for (line, admitted) in [
            ("lqpn 18", true),
            ("lqpn 10-17", true),
            ("lqpn 19", false),
            ("lqpn 18 pid 5", true),
        ] {
            let line: Vec<String> = line.split(' ').map(String::from).collect();
            let filter = Filter::parse(Words::new(&line), known).unwrap();
            assert_eq!(filter.admits(&rows[0]), admitted, "{line:?}");
        }
    }
}
