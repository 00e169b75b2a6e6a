//! Trying one case.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use ferroce_harness::{Running, deadline, now};

use crate::case::{Action, Case};
use crate::place::Place;

/// Tries a case; what was said is kept in `folder`.
pub(crate) fn attempt(place: &Place, case: &Case, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let until = deadline(case.patience);
    let said = match &case.action {
        Action::Alone(words) => {
            let mut child = start(place, case, words, folder, "output")?;
            child.succeeds(until)?;
            child.said()?
        }
        Action::Pair {
            server,
            client,
            port,
            persistent,
        } => {
            let mut server = start(place, case, server, folder, "server")?;
            server.listens(*port, until)?;
            let mut client = start(place, case, client, folder, "client")?;
            client.succeeds(until)?;
            if !persistent {
                server.succeeds(until)?;
            }
            client.said()?
        }
        Action::Called {
            server,
            client,
            persistent,
        } => {
            let mut server = start(place, case, server, folder, "server")?;
            let said = call(place, case, client, &mut server, folder, until)?;
            if !persistent {
                server.succeeds(until)?;
            }
            said
        }
        Action::Script(script) => {
            let said = script(place)?;
            fs::write(folder.join("output"), &said)?;
            said
        }
    };
    for text in &case.expect {
        ensure!(said.contains(text), "it does not say \"{text}\"");
    }
    Ok(())
}

/// What clients say when nobody listens yet. Not all of them think that a failure.
const REFUSED: [&str; 6] = [
    "refused",
    "connect to",
    "REJECTED, error 8",
    "REJECTED, error: 8",
    "UNREACHABLE, error: 1",
    "Unexpected CM event bl blka 8",
];

/// Starts a client again and again, until it is answered.
fn call(
    place: &Place,
    case: &Case,
    client: &[String],
    server: &mut Running,
    folder: &Path,
    until: Instant,
) -> Result<String> {
    loop {
        let mut client = start(place, case, client, folder, "client")?;
        let result = client.succeeds(until);
        let said = client.said()?;
        if now() > until || !REFUSED.iter().any(|text| said.contains(text)) {
            return result.map(|()| said);
        }
        let ended = server.ends(now())?;
        ensure!(ended.is_none(), "the server ended, the client said: {said}");
    }
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
