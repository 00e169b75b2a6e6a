//! Checks completions, causes of failures, and that nothing is left at the end.

use ferroce_objects::{Access, Wc, WcFlags, WcOpcode, WcStatus};

use super::conn::Conn;
use super::world::{Run, World};
use crate::CloseCause;

/// Checks that the run has given a connection a reason to end.
pub(super) fn check_cause(conn: &Conn, cause: CloseCause) -> Result<(), String> {
    match conn.fault {
        Some(_) => Ok(()),
        None => Err(format!("the connection ended without a reason: {cause:?}")),
    }
}

/// Checks that an end has received all that its peer posted before it disconnected.
pub(super) fn check_last_messages(conn: &Conn, end: usize) -> Result<(), String> {
    let peer = &conn.ends[1 - end];
    let is_whole = conn.orderly == Some(1 - end) && !peer.send_failed;
    match conn.ends[end].expected.front().filter(|_| is_whole) {
        Some(message) => Err(format!(
            "a message of {} bytes before a disconnect did not arrive",
            message.length
        )),
        None => Ok(()),
    }
}

impl World {
    /// Checks all that has happened since the last call.
    pub(super) fn observe(&mut self) -> Result<(), String> {
        for host in 0..2 {
            self.hosts[host].arena.violation()?;
            while self.hosts[host].engine.poll_event().is_some() {}
            while self.hosts[host].engine.poll_ready().is_some() {}
            // Completions first: they belong to the time before the stream closed.
            while let Some(wc) = self.hosts[host].send_cq.pop() {
                self.check_send(host, &wc)?;
            }
            while let Some(wc) = self.hosts[host].recv_cq.pop() {
                self.check_receive(host, &wc)?;
            }
            self.handle_stream_events(host)?;
        }
        Ok(())
    }

    fn conn_of(&self, host: usize, qpn: u32) -> Result<usize, String> {
        let same = |conn: &Conn| conn.ends[host].qpn == qpn;
        let found = self.conns.iter().position(same);
        found.ok_or_else(|| format!("a completion of unknown queue pair {qpn}"))
    }

    fn check_send(&mut self, host: usize, wc: &Wc) -> Result<(), String> {
        let number = self.conn_of(host, wc.qpn)?;
        let success = wc.status == WcStatus::Success;
        let conn = &mut self.conns[number];
        if !success && conn.fault.is_none() {
            return Err(format!("send {} without a reason: {}", wc.wr_id, wc.status));
        }
        let is_orderly = conn.orderly == Some(host);
        let end = &mut conn.ends[host];
        if success && end.send_failed {
            return Err(format!("send {} succeeds after a failure", wc.wr_id));
        }
        // Sends without the flag complete silently if they succeed.
        let posted = loop {
            let Some(posted) = end.sends.pop_front() else {
                return Err(format!("send {} completes twice", wc.wr_id));
            };
            if posted.wr_id == wc.wr_id {
                break posted;
            }
            if posted.signaled || end.send_failed {
                return Err(format!("send {} before {}", wc.wr_id, posted.wr_id));
            }
        };
        // Only a READ, which needs an answer, may end the last messages of a program.
        if !success && is_orderly && !end.send_failed && posted.read.is_none() {
            return Err(format!("send {} before a disconnect is lost", wc.wr_id));
        }
        end.send_failed |= !success;
        match wc.status {
            WcStatus::Success => {}
            WcStatus::WrFlush => self.run.flushed += 1,
            _ => self.run.errors += 1,
        }
        if !success {
            return Ok(());
        }
        if end.accepted < posted.payload {
            return Err(format!("send {} completes before it is sent", wc.wr_id));
        }
        match posted.read {
            Some((sink, length, pattern)) => {
                if wc.opcode != WcOpcode::RdmaRead || wc.byte_len != length {
                    return Err(format!("a wrong completion of a READ: {wc:?}"));
                }
                self.hosts[host].arena.check(sink, length, length, pattern)
            }
            None => Ok(()),
        }
    }

    fn check_receive(&mut self, host: usize, wc: &Wc) -> Result<(), String> {
        let number = self.conn_of(host, wc.qpn)?;
        let conn = &mut self.conns[number];
        let success = wc.status == WcStatus::Success;
        if !success && conn.fault.is_none() {
            return Err(format!(
                "receive {} without a reason: {}",
                wc.wr_id, wc.status
            ));
        }
        let end = &mut conn.ends[host];
        let receive = match self.hosts[host].srq.is_some() {
            true => {
                let shared = &mut self.hosts[host].shared;
                let at = shared.iter().position(|receive| receive.wr_id == wc.wr_id);
                at.map(|at| shared.remove(at))
            }
            false => end.receives.pop_front().filter(|r| r.wr_id == wc.wr_id),
        };
        let Some(receive) = receive else {
            return Err(format!("receive {} completes out of order", wc.wr_id));
        };
        if !success {
            end.receive_failed = true;
            if self.hosts[host].srq.is_some() {
                self.hosts[host].shared_claims = self.hosts[host].shared_claims.saturating_sub(1);
            }
            return Ok(());
        }
        if end.receive_failed {
            return Err(format!("receive {} succeeds after a failure", wc.wr_id));
        }
        let Some(message) = end.expected.pop_front() else {
            return Err("a message that was never sent".into());
        };
        let host = &mut self.hosts[host];
        host.shared_claims = host.shared_claims.saturating_sub(1);
        if wc.byte_len != message.length {
            return Err(format!(
                "{} bytes arrive of {}",
                wc.byte_len, message.length
            ));
        }
        let (start, length) = (receive.start, receive.length);
        host.arena
            .check(start, length, message.length, message.pattern)?;
        // RFC 5040 5.5: earlier WRITEs are in memory when a message is delivered.
        for (start, length, pattern) in message.writes {
            host.arena.check(start, length, length, pattern)?;
        }
        if wc.flags.contains(WcFlags::WITH_INV) != message.invalidates.is_some() {
            return Err(format!("wrong flags of receive {}", wc.wr_id));
        }
        if let Some(rkey) = message.invalidates {
            let need = Access::REMOTE_WRITE;
            let base = super::arena::BASE;
            let access = host.regions.remote(rkey, &host.pd, wc.qpn, need, base, 8);
            if access.is_ok() || wc.imm != rkey {
                return Err(format!("key {rkey:#x} is still valid"));
            }
        }
        self.run.received += 1;
        Ok(())
    }

    /// Checks that healthy connections have completed all work requests.
    pub(super) fn check_nothing_outstanding(&self) -> Result<(), String> {
        for (number, conn) in self.conns.iter().enumerate() {
            if conn.fault.is_some() {
                continue;
            }
            for end in &conn.ends {
                if !end.ready {
                    return Err(format!("connection {number} was never established"));
                }
                if let Some(posted) = end.sends.iter().find(|posted| posted.signaled) {
                    return Err(format!("send {} hangs", posted.wr_id));
                }
                if let Some(message) = end.expected.front() {
                    return Err(format!("a message of {} bytes is lost", message.length));
                }
            }
        }
        Ok(())
    }

    /// Checks that all connections are closed and nothing is outstanding.
    pub(super) fn finish(mut self) -> Result<Run, String> {
        self.observe()?;
        for (number, conn) in self.conns.iter().enumerate() {
            for end in &conn.ends {
                let fault = |what: &str| {
                    let text = conn.fault.unwrap_or("nothing");
                    Err(format!("connection {number}: {what} after {text}"))
                };
                if !end.closed {
                    return fault("is not closed");
                }
                if end.sends.iter().any(|posted| posted.signaled) {
                    return fault("a send has no completion");
                }
                if !end.receives.is_empty() {
                    return fault("a receive has no completion");
                }
            }
        }
        for host in &self.hosts {
            if host.engine.next_timeout().is_some() {
                return Err("a timer is left".into());
            }
        }
        Ok(self.run)
    }
}
