//! A machine stops without disconnecting: the other end detects it, and the next connection
//! works.
//!
//! With iWARP only the guest stops: if a program of Ferroce is killed, the host's kernel closes
//! its TCP connections, as the flow `killed` shows.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use ferroce_harness::deadline;

use super::{Ports, connections};
use crate::case::{CALLERS, Caller, Case, Link, Script};
use crate::run::Site;

/// Timeout of the remaining end: a DREQ is repeated for 74 s.
const PATIENCE: Duration = Duration::from_secs(240);

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(24_000);
    let mut cases = Vec::new();
    for (link, stops) in [
        (Link::Rxe, Caller::Ferroce),
        (Link::Rxe, Caller::Kernel),
        (Link::Siw, Caller::Kernel),
    ] {
        for caller in CALLERS {
            let command = connections::command_on(link, "bereaved");
            let mut case = Case::pair("reboot", caller, ports.next(), &command);
            ports.next();
            let (on, script): (_, Script) = match stops {
                Caller::Ferroce => ("--on ferroce", |site, case, folder| {
                    run(site, case, folder, Caller::Ferroce)
                }),
                Caller::Kernel => ("--on kernel", |site, case, folder| {
                    run(site, case, folder, Caller::Kernel)
                }),
            };
            for command in [&mut case.client, &mut case.server] {
                if command.contains(on) {
                    *command = command.replace("bereaved", "hold");
                }
            }
            case.patience = PATIENCE;
            case.script = Some(script);
            case.link = link;
            // Captures of iWARP are not checked.
            case.packets = (link == Link::Rxe).then_some("send write");
            cases.push(case);
        }
    }
    cases
}

/// Connects, stops one end, checks that the other end fails as expected, and connects again.
fn run(site: &mut Site, case: &Case, folder: &Path, stops: Caller) -> Result<()> {
    let until = deadline(case.patience);
    let mut server = site.serve(case, folder, "server-before", until)?;
    let mut client = site.spawn(case.caller, &case.client, folder, "client-before")?;
    for end in [&mut server, &mut client] {
        end.wait_for_output("connected\n", case.patience)?;
    }
    match stops {
        Caller::Ferroce => site.reset_ferroce()?,
        Caller::Kernel => site.reset_guest()?,
    }
    // The guest has taken its time to boot; the remaining end has its own.
    let until = deadline(case.patience);
    let left = match case.caller == stops {
        true => &mut server,
        false => &mut client,
    };
    left.wait_for_success(until).context("the remaining end")?;
    site.prepare(case)?;
    let port = case.port()? + 1;
    let command = connections::command_on(case.link, "connect");
    let again = Case::pair("reboot", case.caller, port, &command);
    site.run_pair(&again, folder).context("the next connection")
}
