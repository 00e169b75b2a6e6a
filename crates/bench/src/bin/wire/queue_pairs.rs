//! Measurements of queue pairs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, ensure};
use ferroce_bench::sockets::{Deadline, now};
use ferroce_device::transport::{SendData, SendOp, Wc, WcOpcode, WcStatus};
use ferroce_endpoint::{DEPTH, Endpoint, PATIENCE, SIZE};

use crate::requests::Figure;

/// Most bytes of posted WRITEs.
const POSTED: u32 = 4 << 20;
/// Offset in memory that the peer writes to in a ping-pong.
const INBOX: u64 = 64;
/// Most posted receives.
const RECEIVES: u32 = 32;

/// Posts WRITEs over the whole memory for `ms` milliseconds; returns the rate.
pub(crate) fn write(end: &Endpoint, size: u32, ms: u64) -> Result<Figure> {
    let most = (POSTED / size).clamp(2, DEPTH);
    let (mut waiting, mut done, mut place) = (0, 0_u64, 0);
    let begun = now();
    let stop = begun + Duration::from_millis(ms);
    loop {
        let time = now();
        while waiting < most && time < stop {
            end.write(0, place, size)?;
            place = (place + u64::from(size)) % SIZE;
            waiting += 1;
        }
        let mut failed = None;
        let polled = end
            .cq
            .poll(DEPTH as usize, |wc| failed = failed.or(refused(wc)));
        if let Some(wc) = failed {
            end.check(&wc)?;
        }
        waiting -= polled as u32;
        done += polled as u64;
        if waiting == 0 && time >= stop {
            let bytes = done * u64::from(size);
            return Ok(Figure::Rate(bytes as f64 / (now() - begun).as_secs_f64()));
        }
        ensure!(time < stop + PATIENCE, "no completion for {PATIENCE:?}");
    }
}

fn refused(wc: Wc) -> Option<Wc> {
    (wc.status != WcStatus::Success).then_some(wc)
}

/// WRITEs a word and waits until the peer has written one, `times` times.
pub(crate) fn write_ping(end: &Endpoint, times: u32) -> Result<Figure> {
    end.pages.word(INBOX).store(0, Ordering::Relaxed);
    let begun = now();
    for time in 1..=u64::from(times) {
        post_word(end, end.write_to(INBOX), time)?;
        await_word(end, time)?;
    }
    let elapsed = now() - begun;
    drain(end)?;
    Ok(one_way(elapsed, times))
}

/// Answers the WRITEs of [`write_ping`].
pub(crate) fn write_pong(end: &Endpoint, times: u32) -> Result<()> {
    for time in 1..=u64::from(times) {
        await_word(end, time)?;
        post_word(end, end.write_to(INBOX), time)?;
    }
    end.pages.word(INBOX).store(0, Ordering::Relaxed);
    drain(end)
}

fn post_word(end: &Endpoint, op: SendOp, word: u64) -> Result<()> {
    end.post_data(0, op, SendData::Inline(&word.to_ne_bytes()))
}

/// Polls memory until the peer has written the word. Polls the completion queue, too.
fn await_word(end: &Endpoint, word: u64) -> Result<()> {
    let inbox = end.pages.word(INBOX);
    let mut deadline = Deadline::default();
    let mut failed = None;
    while inbox.load(Ordering::Acquire) != word {
        end.cq.poll(4, |wc| failed = failed.or(refused(wc)));
        deadline.check()?;
    }
    failed.map_or(Ok(()), |wc| end.check(&wc))
}

/// Polls all remaining completions.
fn drain(end: &Endpoint) -> Result<()> {
    // Post one more WRITE: its completion is the last.
    end.post(1, end.write_to(INBOX + 64), 0, 8)?;
    let mut deadline = Deadline::default();
    let mut last = false;
    while !last {
        end.cq.poll(16, |wc| last |= wc.wr_id == 1);
        deadline.check()?;
    }
    Ok(())
}

/// SENDs a word and waits for one in return, `times` times.
pub(crate) fn send_ping(end: &Endpoint, times: u32) -> Result<Figure> {
    let mut receives = Receives::post(end, times)?;
    let begun = now();
    for time in 1..=u64::from(times) {
        post_word(end, SendOp::Send { imm: None }, time)?;
        receives.next(end)?;
    }
    let elapsed = now() - begun;
    drain(end)?;
    Ok(one_way(elapsed, times))
}

/// Answers the SENDs of [`send_ping`].
pub(crate) fn send_pong(end: &Endpoint, times: u32) -> Result<()> {
    let mut receives = Receives::post(end, times)?;
    for time in 1..=u64::from(times) {
        receives.next(end)?;
        post_word(end, SendOp::Send { imm: None }, time)?;
    }
    drain(end)
}

/// Posted receives, refilled when fewer than half are left.
struct Receives {
    waiting: u32,
    left: u32,
}

impl Receives {
    fn post(end: &Endpoint, times: u32) -> Result<Receives> {
        let mut receives = Receives {
            waiting: 0,
            left: times,
        };
        receives.refill(end)?;
        Ok(receives)
    }

    fn refill(&mut self, end: &Endpoint) -> Result<()> {
        while self.waiting < RECEIVES && self.left > 0 {
            end.receive(0, INBOX, 8)?;
            self.waiting += 1;
            self.left -= 1;
        }
        Ok(())
    }

    /// Polls until a receive completes. Completions of sends may come before it.
    fn next(&mut self, end: &Endpoint) -> Result<()> {
        let mut deadline = Deadline::default();
        let (mut came, mut failed) = (false, None);
        while !came {
            end.cq.poll(1, |wc| {
                came = wc.opcode == WcOpcode::Recv;
                failed = refused(wc);
            });
            if let Some(wc) = failed {
                end.check(&wc)?;
            }
            deadline.check()?;
        }
        self.waiting -= 1;
        if self.waiting < RECEIVES / 2 {
            self.refill(end)?;
        }
        Ok(())
    }
}

pub(crate) fn one_way(elapsed: Duration, times: u32) -> Figure {
    Figure::Latency(elapsed.as_secs_f64() / f64::from(times) / 2.0)
}
