//! The state of links, programs and queue pairs at one time.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use ferroce_control::LinkInfo;
use ferroce_control::resources::QpResource;

use crate::daemon;
use crate::rdma::programs_on;

/// Values of counters by name.
pub(super) type Values = BTreeMap<String, u64>;

/// A sample.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) links: Vec<LinkSample>,
    pub(super) programs: Vec<ProgramSample>,
    pub(super) qps: Vec<QpSample>,
    /// Programs whose queue pairs are missing, with the reason.
    pub(super) notes: Vec<String>,
}

/// A link and its counters.
#[derive(Debug, Clone)]
pub(super) struct LinkSample {
    pub(super) info: LinkInfo,
    pub(super) values: Values,
}

/// A program on a link, and its counters there.
#[derive(Debug, Clone)]
pub(super) struct ProgramSample {
    pub(super) link: String,
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) values: Values,
}

/// A queue pair of a program.
#[derive(Debug, Clone)]
pub(super) struct QpSample {
    pub(super) link: String,
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) qp: QpResource,
}

/// Takes a sample of one link, or of all links.
pub(super) fn take(link: Option<&str>) -> Result<Sample> {
    let Some(mut connection) = daemon::connect()? else {
        bail!(
            "there are no links in this network namespace: no ferroced runs; \
             `ferroce link add NAME type rxe netdev IF` adds one"
        );
    };
    let infos = connection.links()?;
    let counters = connection.counters(link, true)?;
    let mut sample = Sample {
        at: now(),
        links: Vec::new(),
        programs: Vec::new(),
        qps: Vec::new(),
        notes: Vec::new(),
    };
    for counted in counters {
        let values = counted.values.into_iter().collect();
        match counted.process {
            None => {
                let info = infos.iter().find(|info| info.name == counted.link);
                let info = info.cloned().context("the link was just added")?;
                sample.links.push(LinkSample { info, values });
            }
            Some(process) => sample.programs.push(ProgramSample {
                link: counted.link,
                pid: process.pid,
                name: process.program,
                values,
            }),
        }
    }
    for link in &sample.links {
        let (programs, notes) = programs_on(&mut connection, &link.info.name)?;
        sample.notes.extend(notes);
        for program in programs {
            let of = |qp| QpSample {
                link: link.info.name.clone(),
                pid: program.pid,
                program: program.comm.clone(),
                qp,
            };
            sample.qps.extend(program.objects.qps.into_iter().map(of));
        }
    }
    Ok(sample)
}

#[allow(clippy::disallowed_methods, reason = "rates need a clock")]
fn now() -> Instant {
    Instant::now()
}
