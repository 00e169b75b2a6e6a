//! Running of one case.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use ferroce_harness::{Running, deadline, is_bound, is_joined, is_listening};

use crate::case::{Action, Case, Ready};
use crate::place::Place;

/// Runs a case once. The output goes to `folder`.
pub(crate) fn attempt(place: &Place, case: &Case, folder: &Path) -> Result<()> {
    if case.on_siw {
        place.add_siw()?;
        let result = perform(place, case, folder);
        place.delete_siw(deadline(case.patience))?;
        return result;
    }
    let lids = |state| place.user.ferroce(&["link", "set", "rxe0", "lids", state]);
    if !case.by_lid {
        return perform(place, case, folder);
    }
    lids("on")?;
    let result = perform(place, case, folder);
    lids("off")?;
    result
}

fn perform(place: &Place, case: &Case, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let until = deadline(case.patience);
    let said = match &case.action {
        Action::Alone(words) => {
            let mut child = start(place, case, words, folder, "output")?;
            child.wait_for_success(until)?;
            child.output()?
        }
        Action::Pair {
            server,
            client,
            ready,
            persistent,
        } => {
            let mut server = start(place, case, server, folder, "server")?;
            server.wait_until_ready(until, || is_ready(place, *ready))?;
            let mut client = start(place, case, client, folder, "client")?;
            if let Err(error) = client.wait_for_success(until) {
                server.note_threads();
                return Err(error);
            }
            if !persistent {
                server.wait_for_success(until)?;
            }
            client.output()?
        }
        Action::Script(script) => {
            let said = script(place)?;
            fs::write(folder.join("output"), &said)?;
            said
        }
    };
    for text in &case.expect {
        ensure!(said.contains(text), "the program did not print \"{text}\"");
    }
    Ok(())
}

fn is_ready(place: &Place, ready: Ready) -> Result<bool> {
    Ok(match ready {
        Ready::Tcp(port) => is_listening(port)?,
        Ready::Udp(port) => is_bound(port)?,
        Ready::Rdma(port) => place.user.listens(port)?,
        Ready::Group(group) => is_joined(group)?,
    })
}

fn start(
    place: &Place,
    case: &Case,
    words: &[String],
    folder: &Path,
    what: &'static str,
) -> Result<Running> {
    let mut command = place.user.program(words);
    for (name, value) in &case.environment {
        command.env(name, value);
    }
    Running::spawn(&mut command, folder, what)
}
