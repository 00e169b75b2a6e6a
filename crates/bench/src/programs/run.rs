//! Running of one probe.

use std::time::Duration;

use anyhow::{Context, Result};
use ferroce_harness::{Running, deadline};

use super::place::Place;
use super::probe::{Probe, RunLength, Tool};
use super::sample::Sample;
use super::sockets;

/// Time for one run of a program. Programs that poll memory on two busy cores take long.
const PATIENCE: Duration = Duration::from_secs(90);

/// Runs a probe once.
///
/// # Errors
/// If a program fails, or does not print its figures.
pub(super) fn run(place: &mut Place, probe: &Probe, run_length: RunLength) -> Result<Sample> {
    if let Tool::Sockets(kind) = probe.tool {
        return sockets::measure(kind, probe, run_length);
    }
    let at = place.addresses(probe)?;
    let lines = probe.lines(&at, run_length).context("no command line")?;
    let ours = probe.tool.is_ours();
    let start = |words: &[String], what| {
        let mut command = place.command(words, ours);
        command.envs(lines.environment.iter().map(|(name, value)| (name, value)));
        Running::spawn(&mut command, &place.scratch(), what)
    };
    let until = deadline(PATIENCE);
    let mut server = start(&lines.server, "server")?;
    let said = |running: &Running| running.output().unwrap_or_default();
    let meeting = server.wait_for_listener(at.port, until);
    meeting.with_context(|| said(&server))?;
    let mut client = start(&lines.client, "client")?;
    let end = client.wait_for_success(until);
    end.with_context(|| said(&client) + &said(&server))?;
    let sample = probe.parse(&client.output()?)?;
    if lines.server_ends {
        let end = server.wait_for_success(until);
        end.with_context(|| said(&server))?;
    }
    Ok(sample)
}
