//! `ferroce doctor`: checks what Ferroce needs on this machine, and prints remedies.
//!
//! Each check has one of three results: it works, it works and could be better, it fails.
//! The last check transfers data.

mod host;
mod network;
mod software;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::output::{self, Format};

/// Check whether RDMA works here, and print a remedy for each problem
#[derive(Debug, Args)]
#[command(
    long_about = "\
Checks what Ferroce needs: kernel features, UDP port 4791, netdevs and their MTUs, links and their \
GIDs, socket buffer limits, the libraries, the firewall. The last check transfers data between two \
processes. Each check prints `ok`, `note` or `FAILS`, and a remedy where there is one.",
    after_long_help = "\
EXIT STATUS
    0 if RDMA works here, 1 if a check failed

EXAMPLES
    ferroce doctor
    ferroce doctor && ferroce run -- ib_send_bw -d rxe0 -x 1
    ferroce -j doctor | jq '.[] | select(.state != \"ok\")'"
)]
pub(crate) struct DoctorArgs {
    /// Skip the transfer
    #[arg(long)]
    no_transfer: bool,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// RDMA works, but could work better, or the text is worth knowing.
    Note,
    Fails,
}

/// A check with its result.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn new(check: &'static str, state: State, text: impl Into<String>) -> Finding {
        Finding {
            check,
            state,
            text: text.into(),
            remedy: None,
        }
    }

    fn ok(check: &'static str, text: impl Into<String>) -> Finding {
        Finding::new(check, State::Ok, text)
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }
}

impl DoctorArgs {
    pub(crate) fn run(self, format: Format) -> Result<ExitCode> {
        let mut findings = host::findings();
        findings.extend(network::findings());
        findings.extend(software::findings());
        if !self.no_transfer {
            findings.push(software::transfer());
        }
        if format.json || format.pretty {
            format.write_json(&findings)?;
        } else {
            output::write(&findings.iter().map(text).collect::<String>())?;
        }
        let fails = findings.iter().any(|f| f.state == State::Fails);
        if !format.json && !format.pretty {
            output::write(match fails {
                true => "\nRDMA does not work here yet: correct the problems marked `FAILS`.\n",
                false => "\nRDMA works here.\n",
            })?;
        }
        Ok(match fails {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}

fn text(finding: &Finding) -> String {
    let state = match finding.state {
        State::Ok => "ok",
        State::Note => "note",
        State::Fails => "FAILS",
    };
    let mut lines = finding.text.lines();
    let first = lines.next().unwrap_or_default();
    let mut text = format!("{state:<6}{:<10}{first}\n", finding.check);
    for line in lines.chain(finding.remedy.iter().flat_map(|remedy| remedy.lines())) {
        text += &format!("                {line}\n");
    }
    text
}
