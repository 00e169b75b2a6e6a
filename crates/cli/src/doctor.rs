//! `ferroce doctor`: what works here, and what to do about the rest.
//!
//! Each check looks at the real thing and says one of three: it works, it could be
//! better, it does not work. The last is an actual transfer.

mod host;
mod network;
mod software;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::output::{self, Format};

/// Say what works here, and what to do about the rest
#[derive(Debug, Args)]
#[command(
    long_about = "\
Looks at everything that Ferroce needs or likes: the kernel's features, UDP port 4791, netdevs and \
their MTUs, links and their GIDs, the limits of socket buffers, the libraries, the firewall; and \
transfers something. What does not work, or could be better, comes with the remedy.

Exit status 0 if RDMA works here, 1 if something must be done first.",
    after_long_help = "\
EXAMPLES
    ferroce doctor
    ferroce doctor && ib_send_bw
    ferroce -j doctor | jq '.[] | select(.state != \"ok\")'"
)]
pub(crate) struct DoctorArgs {
    /// Transfer nothing
    #[arg(long)]
    no_transfer: bool,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// It works, and could work better, or is worth knowing.
    Note,
    Fails,
}

/// What a check has found.
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
                true => "\nSomething must be done first: see `FAILS` above.\n",
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
