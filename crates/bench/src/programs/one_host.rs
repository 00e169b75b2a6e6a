//! Measurements of other ways between two processes of one host: pipes, and copies.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use ferroce_endpoint::Partner;
use serde::{Deserialize, Serialize};

use crate::RoleProcess;
use crate::sockets::now;

/// Copies between two looks at the clock.
const COPIES: u64 = 16;

/// The pipes of a ping-pong, as paths below `/proc`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Pipes {
    reads: String,
    writes: String,
}

/// Creates two pipes, and waits until two processes have opened them.
pub(super) fn connect(near: &mut RoleProcess, far: &mut RoleProcess) -> Result<()> {
    let (there, back) = (rustix::pipe::pipe()?, rustix::pipe::pipe()?);
    let path = |fd: &OwnedFd| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    far.request::<()>(&Pipes {
        reads: path(&there.0),
        writes: path(&back.1),
    })?;
    near.request::<()>(&Pipes {
        reads: path(&back.0),
        writes: path(&there.1),
    })
}

/// Exchanges messages through the pipes that the coordinator names. Returns the time of each
/// round trip, or none if this is the passive end.
pub(super) fn ping_pong(
    coordinator: &mut Partner,
    size: usize,
    times: u32,
    active: bool,
) -> Result<Vec<Duration>> {
    let pipes: Pipes = coordinator.hear()?;
    let mut reads = File::open(&pipes.reads).context("cannot open a pipe for reading")?;
    let writes = OpenOptions::new().write(true).open(&pipes.writes);
    let mut writes = writes.context("cannot open a pipe for writing")?;
    coordinator.say(&())?;
    let mut message = vec![0; size];
    let mut round_trips = Vec::with_capacity(times as usize);
    for _ in 0..times {
        if active {
            let begun = now();
            writes.write_all(&message)?;
            reads.read_exact(&mut message)?;
            round_trips.push(now() - begun);
        } else {
            reads.read_exact(&mut message)?;
            writes.write_all(&message)?;
        }
    }
    Ok(round_trips)
}

/// Copies messages of a size for some milliseconds. Returns the bytes per second.
pub(super) fn memcpy(size: usize, ms: u64) -> f64 {
    let (from, mut to) = (vec![0x5a; size], vec![0; size]);
    let begun = now();
    let mut bytes = 0;
    loop {
        for _ in 0..COPIES {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
        bytes += COPIES * size as u64;
        let elapsed = now() - begun;
        if elapsed >= Duration::from_millis(ms) {
            return bytes as f64 / elapsed.as_secs_f64();
        }
    }
}
