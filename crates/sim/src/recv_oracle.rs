//! The oracle for receives. It checks that every message arrives once, in order,
//! complete and unchanged.

use core::net::IpAddr;

use ferroce_roce::{QpState, QpType, Wc, WcFlags, WcOpcode, WcStatus};
use ferroce_wire::ip;

use crate::model::{End, Kind, RecvOwner, Solicited};
use crate::post::UNTOUCHED;
use crate::wire_check::GRH;
use crate::world::{Check, World};

impl World {
    /// Checks the completion of a receive.
    pub(crate) fn recv_completed(
        &mut self,
        qp: usize,
        recv: usize,
        wc: &Wc,
    ) -> Result<Solicited, String> {
        let record = &self.recvs[recv];
        if let Some(end) = record.end {
            return Err(format!(
                "completed with {}, but it has already ended: {end:?}",
                wc.status
            ));
        }
        self.check_recv_order(qp, recv)?;
        let mut solicited = Solicited::Yes; // an error counts as solicited
        if wc.status == WcStatus::Success {
            solicited = match self.qps[qp].kind {
                QpType::Ud | QpType::Gsi => self.datagram_received(qp, recv, wc)?,
                QpType::Uc => self.unreliable_received(qp, recv, wc)?,
                _ => self.reliable_received(qp, recv, wc)?,
            };
        } else {
            self.check_recv_error(qp, recv, wc.status)?;
            self.qps[qp].recv_failed |= wc.status != WcStatus::WrFlush;
        }
        self.recv_ended(recv, End::Completed(wc.status));
        Ok(solicited)
    }

    fn check_recv_order(&mut self, qp: usize, recv: usize) -> Check {
        let record = &self.recvs[recv];
        match record.owner {
            RecvOwner::Qp(owner) if owner != qp => Err("completed on another queue pair".into()),
            RecvOwner::Qp(_) => {
                let next = self.qps[qp].recvs_ended;
                let lossy = self.qps[qp].cause.cq_overflow;
                if record.index < next || record.index > next && !lossy {
                    return Err(format!(
                        "number {} of its queue, but number {next} is next",
                        record.index
                    ));
                }
                self.qps[qp].recvs_ended = record.index + 1;
                Ok(())
            }
            RecvOwner::Srq(srq) => match self.uses_srq(qp, srq) {
                true => Ok(()),
                false => Err(
                    "consumed by a queue pair that does not use this shared receive queue".into(),
                ),
            },
        }
    }

    /// Returns true if a queue pair consumes receives of a shared receive queue.
    pub(crate) fn uses_srq(&self, qp: usize, srq: usize) -> bool {
        match self.srqs[srq].xrc {
            Some((domain, _)) => self.qps[qp].domain == Some(domain),
            None => self.qps[qp].srq == Some(srq),
        }
    }

    /// Records the end of a receive and frees its memory.
    pub(crate) fn recv_ended(&mut self, recv: usize, end: End) {
        let host = match self.recvs[recv].owner {
            RecvOwner::Qp(qp) => self.qps[qp].host,
            RecvOwner::Srq(srq) => {
                self.srqs[srq].outstanding.remove(&recv);
                self.srqs[srq].host
            }
        };
        self.recvs[recv].end = Some(end);
        for place in std::mem::take(&mut self.recvs[recv].places) {
            self.hosts[host].arena.remove(place.va);
            self.hosts[host].release(place);
        }
    }

    /// Checks that a received message is the next one of a reliable connection.
    fn reliable_received(&mut self, qp: usize, recv: usize, wc: &Wc) -> Result<Solicited, String> {
        let peer = self.peer_of(qp).ok_or("no peer")?;
        if self.qps[qp].cause.cq_overflow {
            // Completions of earlier messages may be missing.
            let from = self.qps[qp].delivered;
            let found = (from..self.qps[peer].messages.len()).find(|&m| {
                let send = self.qps[peer].messages[m];
                self.message_fits(qp, recv, send, wc).is_ok()
            });
            let at = found.ok_or("a message that was not sent")?;
            self.qps[qp].delivered = at + 1;
            return Ok(Solicited::Unknown);
        }
        let number = self.qps[qp].delivered;
        let Some(&send) = self.qps[peer].messages.get(number) else {
            return Err(format!("received message {number}, which was never sent"));
        };
        if !self.sends[send].allowed.success {
            return Err(format!(
                "received send {send}, which should have been refused"
            ));
        }
        self.message_fits(qp, recv, send, wc)
            .map_err(|e| format!("send {send} received: {e}"))?;
        self.qps[qp].delivered += 1;
        Ok(self.sends[send].solicited.into())
    }

    /// Checks a received message of an unreliable connection. Messages may be
    /// missing. Those that arrive are in order unless the network reorders or
    /// duplicates packets.
    fn unreliable_received(
        &mut self,
        qp: usize,
        recv: usize,
        wc: &Wc,
    ) -> Result<Solicited, String> {
        let peer = self.peer_of(qp).ok_or("no peer")?;
        let from = match self.scenario.disorders() {
            true => 0,
            false => self.qps[qp].delivered,
        };
        let all = self.qps[peer].messages.len();
        let found = (from..all).find(|&m| {
            let send = self.qps[peer].messages[m];
            self.message_fits(qp, recv, send, wc).is_ok()
        });
        let at = found.ok_or("a message that was not sent, or not in this order")?;
        self.qps[qp].delivered = self.qps[qp].delivered.max(at + 1);
        // Empty messages without immediate data are indistinguishable.
        let sure = wc.byte_len > 0 || wc.flags.contains(WcFlags::WITH_IMM);
        let solicited = self.sends[self.qps[peer].messages[at]].solicited;
        Ok(if sure {
            solicited.into()
        } else {
            Solicited::Unknown
        })
    }

    /// Checks a completion and its receive buffer against a message.
    fn message_fits(&self, qp: usize, recv: usize, send: usize, wc: &Wc) -> Check {
        let (message, record) = (&self.sends[send], &self.recvs[recv]);
        let write = message.kind == Kind::Write;
        let opcode = match write {
            true => WcOpcode::RecvRdmaWithImm,
            false => WcOpcode::Recv,
        };
        if wc.opcode != opcode {
            return Err(format!("as {:?}", wc.opcode));
        }
        if wc.byte_len as usize != message.payload.len() {
            return Err(format!(
                "{} bytes of {}",
                wc.byte_len,
                message.payload.len()
            ));
        }
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        if imm != message.imm {
            return Err(format!("immediate {imm:x?}, not {:x?}", message.imm));
        }
        let invalidated = wc.flags.contains(WcFlags::WITH_INV).then_some(wc.imm);
        if invalidated != message.invalidates {
            return Err(format!(
                "invalidated {invalidated:x?}, not {:x?}",
                message.invalidates
            ));
        }
        if let Some(named) = message.xrc_srq
            && record.owner != RecvOwner::Srq(named)
        {
            return Err("by a shared receive queue other than the one named".into());
        }
        let buffer = self.buffer(recv);
        let placed = if write { 0 } else { message.payload.len() };
        if buffer.get(..placed) != Some(&message.payload[..placed]) {
            return Err("with other bytes".into());
        }
        // An incomplete UC message may have left its first packets in the buffer.
        let reliable = self.qps[qp].kind.is_reliable();
        if reliable && buffer[placed..].iter().any(|&byte| byte != UNTOUCHED) {
            return Err("with changed bytes after the end of the message".into());
        }
        if write
            && reliable
            && let Some((host, place)) = message.remote
            && self.hosts[host].arena.filled(place.va) != place.len
        {
            return Err("before all its data was written".into());
        }
        Ok(())
    }

    fn buffer(&self, recv: usize) -> Vec<u8> {
        let record = &self.recvs[recv];
        let host = match record.owner {
            RecvOwner::Qp(qp) => self.qps[qp].host,
            RecvOwner::Srq(srq) => self.srqs[srq].host,
        };
        let arena = &self.hosts[host].arena;
        let pieces = record.places.iter().map(|p| arena.peek(p.va, p.len));
        pieces.flatten().collect()
    }

    /// Checks a received datagram against the next expected one.
    fn datagram_received(&mut self, qp: usize, recv: usize, wc: &Wc) -> Result<Solicited, String> {
        let Some(want) = self.qps[qp].datagrams.pop_front() else {
            return Err("a datagram that never arrived".into());
        };
        let buffer = self.buffer(recv);
        let len = GRH as usize + want.payload.len();
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm);
        if wc.opcode != WcOpcode::Recv
            || wc.byte_len as usize != len
            || imm != want.imm
            || wc.src_qp != want.src_qp
            || !wc.flags.contains(WcFlags::GRH)
        {
            return Err(format!(
                "{wc:?} for a datagram of {len} bytes from {:#x}",
                want.src_qp
            ));
        }
        if buffer[GRH as usize..len] != want.payload[..] {
            return Err("a datagram with other bytes".into());
        }
        check_grh(&buffer[..GRH as usize], want.source, want.destination)?;
        Ok(want.solicited.into())
    }

    /// Checks that a receive may complete with an error status.
    fn check_recv_error(&self, qp: usize, recv: usize, status: WcStatus) -> Check {
        let model = &self.qps[qp];
        if !model.is(QpState::Err) {
            return Err(format!(
                "{status}, but the queue pair is in {:?}",
                model.state
            ));
        }
        if status == WcStatus::WrFlush || self.recvs[recv].errors.contains(&status) {
            return Ok(());
        }
        let peer = self
            .peer_of(qp)
            .ok_or_else(|| format!("{status} without a reason"))?;
        let message = self.qps[peer].messages.get(model.delivered);
        let refused = message.is_some_and(|&send| {
            self.sends[send]
                .allowed
                .errors
                .iter()
                .any(|error| match error {
                    WcStatus::RemoteAccess => status == WcStatus::RemoteAccess,
                    WcStatus::RemoteInvalidRequest => matches!(
                        status,
                        WcStatus::LocalLength | WcStatus::RemoteInvalidRequest
                    ),
                    WcStatus::RemoteOperation => status == WcStatus::LocalQpOperation,
                    _ => false,
                })
        });
        match refused || model.cause.cq_overflow {
            true => Ok(()),
            false => Err(format!("{status} without a reason")),
        }
    }
}

/// Checks the GRH in front of a received datagram.
fn check_grh(grh: &[u8], source: IpAddr, destination: IpAddr) -> Check {
    let fits = match (source, destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            grh[0] >> 4 == 6 && grh[8..24] == source.octets() && grh[24..40] == destination.octets()
        }
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = &grh[20..];
            let valid: Option<&[u8; ip::IPV4_LEN]> = header.first_chunk();
            grh[0] >> 4 != 6
                && header[0] == 0x45
                && header[12..16] == source.octets()
                && header[16..20] == destination.octets()
                && valid.is_some_and(checksum_is_right)
        }
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(format!("a datagram with the header {grh:x?}")),
    }
}

/// Returns true if an IPv4 header's checksum is right: its one's complement sum is
/// all ones.
fn checksum_is_right(header: &[u8; ip::IPV4_LEN]) -> bool {
    let words = header
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}
