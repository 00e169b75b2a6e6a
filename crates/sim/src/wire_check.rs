//! Checks of packets on the wire against the rules of the protocol.

use std::collections::BTreeMap;

use ferroce_roce::{QpState, Time};
use ferroce_wire::{NakCode, Operation, Packet, Psn, Syndrome, Transport, rnr_delay_ns};

use crate::host::Outgoing;
use crate::model::{Drain, ExpectedDatagram, QpModel};
use crate::network::InFlight;
use crate::scenario::Family;
use crate::world::{Check, World};

/// The destination queue pair number of multicast packets.
pub(crate) const MULTICAST: u32 = 0xff_ffff;
/// Length of the GRH in front of a received datagram.
pub(crate) const GRH: u64 = 40;

/// Returns the destination queue pair number of a packet.
pub(crate) fn destination(bytes: &[u8]) -> Option<u32> {
    Packet::parse(bytes).ok().map(|packet| packet.dest_qpn())
}

/// Returns true if a packet belongs to a connection.
pub(crate) fn is_connected(bytes: &[u8]) -> bool {
    let transport = Packet::parse(bytes).map(|packet| packet.opcode().transport());
    matches!(
        transport,
        Ok(Transport::Rc | Transport::Uc | Transport::Xrc)
    )
}

/// Returns true if a packet is a datagram of the partition of all hosts.
pub(crate) fn is_datagram(bytes: &[u8]) -> bool {
    let packet = Packet::parse(bytes);
    packet.is_ok_and(|packet| packet.deth().is_some()) && bytes[2..4] == [0xff, 0xff]
}

/// Describes a packet for the log.
pub(crate) fn describe(bytes: &[u8]) -> String {
    let packet = match Packet::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => return format!("not a packet: {error}"),
    };
    let mut text = format!(
        "{} qp {:#x} psn {} len {}",
        packet.opcode(),
        packet.dest_qpn(),
        packet.psn(),
        packet.payload().len()
    );
    if packet.ack_req() {
        text += " ack_req";
    }
    if packet.solicited() {
        text += " solicited";
    }
    if let Some(reth) = packet.reth() {
        text += &format!(
            " va {:#x} rkey {:#x} of {}",
            reth.va, reth.rkey, reth.length
        );
    }
    if let Some(eth) = packet.atomic_eth() {
        text += &format!(" va {:#x} rkey {:#x}", eth.va, eth.rkey);
    }
    if let Some(aeth) = packet.aeth() {
        text += &format!(" {:?} msn {}", aeth.syndrome, aeth.msn);
    }
    text
}

impl World {
    /// Checks a packet that a host sends.
    pub(crate) fn note_sent(&mut self, host: usize, out: &Outgoing) -> Check {
        let packet = Packet::parse(&out.bytes).map_err(|e| format!("host {host} sent: {e}"))?;
        let opcode = packet.opcode();
        let Some(&qp) = self.by_number.get(&(host, out.qpn)) else {
            return Err(format!(
                "host {host} sent {opcode} for unknown qp {:#x}",
                out.qpn
            ));
        };
        let name = self.qp_name(qp);
        if opcode.transport() == Transport::Ud {
            return self.note_datagram_sent(qp, out, &packet);
        }
        let Some(peer) = self.peer_of(qp) else {
            return Err(format!("{name} sent {opcode}"));
        };
        let peer_address = self.hosts[self.qps[peer].host].address;
        if out.path.flow.destination != peer_address || packet.dest_qpn() != self.qps[peer].qpn {
            return Err(format!(
                "{name} sent {opcode} to a queue pair other than its peer"
            ));
        }
        if opcode.is_request() {
            let calm = self.scenario.family == Family::Clean && self.scenario.is_lossless();
            return note_request_sent(&mut self.qps[qp], &packet, calm)
                .and_then(|()| check_rnr_wait(&mut self.qps[qp], &packet, self.now))
                .map_err(|why| format!("{name} sent {opcode} psn {}: {why}", packet.psn()));
        }
        let plain_ack = opcode.operation() == Operation::Acknowledge
            && packet
                .aeth()
                .is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        if plain_ack && self.qps[peer].read_psns.contains(&packet.psn().value()) {
            let psn = packet.psn();
            return Err(format!(
                "{name} sent a plain ACK for psn {psn} of a READ, whose data may be lost"
            ));
        }
        let sequence = Some(Syndrome::Nak(NakCode::PsnSequence));
        if packet.aeth().map(|aeth| aeth.syndrome) == sequence
            && !self.qps[qp].naks.insert(packet.psn().value())
        {
            return Err(format!("{name} sent a second NAK for psn {}", packet.psn()));
        }
        Ok(())
    }

    /// Checks a sent datagram against the next work request of its queue pair.
    fn note_datagram_sent(&mut self, qp: usize, out: &Outgoing, packet: &Packet<'_>) -> Check {
        let name = self.qp_name(qp);
        let model = &mut self.qps[qp];
        let failed =
            |send: &usize| self.sends[*send].end.is_some() && !self.sends[*send].succeeded();
        while model.sends.get(model.datagrams_sent).is_some_and(failed) {
            model.datagrams_sent += 1;
        }
        let Some(&send) = model.sends.get(model.datagrams_sent) else {
            return Err(format!("{name} sent a datagram without a work request"));
        };
        model.datagrams_sent += 1;
        let record = &self.sends[send];
        let (Some(target), Some(deth)) = (&record.datagram, packet.deth()) else {
            return Err(format!("{name} sent {} without DETH", packet.opcode()));
        };
        let fits = packet.dest_qpn() == target.qpn
            && out.path.flow.destination == target.address
            && deth.source_qpn == out.qpn
            && deth.qkey == target.qkey
            && packet.immediate().map(|imm| imm.0) == record.imm
            && packet.solicited() == record.solicited
            && packet.payload() == &*record.payload;
        if !fits {
            return Err(format!(
                "{name} sent a datagram that differs from send {send}"
            ));
        }
        Ok(())
    }

    /// Updates the model of a queue pair that accepted a packet.
    pub(crate) fn note_received(&mut self, qp: usize, bytes: &[u8]) -> Check {
        let Ok(packet) = Packet::parse(bytes) else {
            return Err("a malformed packet was accepted".into());
        };
        let model = &mut self.qps[qp];
        match packet.aeth().map(|aeth| aeth.syndrome) {
            Some(Syndrome::RnrNak { timer }) => {
                model.rnr_naks += 1;
                let psn = packet.psn();
                // A second RNR NAK for the same PSN does not extend the wait. That holds even
                // if a packet with an earlier PSN left meanwhile: it may have been assembled
                // before the first RNR NAK.
                let again = |&(waits, until): &(Psn, Time)| waits == psn && self.now < until;
                let first = model.last_rnr_nak.filter(again);
                let later = self.now.after_nanos(rnr_delay_ns(timer));
                let until = first.map_or(later, |(_, until)| until);
                model.last_rnr_nak = Some((psn, until));
                // A requester that is retransmitting earlier PSNs, but cannot send now, proceeds
                // to this PSN without waiting.
                let goes_back = self.hosts[model.host].cannot_send()
                    && model.last_request.is_some_and(|last| last.is_before(psn));
                if !goes_back {
                    model.rnr_wait = Some((psn, until));
                }
            }
            Some(Syndrome::Nak(_)) => {}
            _ if packet.opcode().is_response() => {
                model.rnr_wait = None;
                model.last_rnr_nak = None;
            }
            _ => {}
        }
        let opcode = packet.opcode();
        if opcode.is_response() && opcode.ends_message() {
            // A response acknowledges everything before it, or reveals its loss.
            let psn = packet.psn();
            model.awaited.retain(|&last| Psn::new(last).is_after(psn));
        }
        if packet.opcode().is_request() && !model.is_datagram() && model.is(QpState::Rtr) {
            model.early_requests += 1;
        }
        Ok(())
    }

    /// Records which queue pairs of a host must deliver a datagram that the engine
    /// is about to receive. With `stopping`, only the queue pair that is being destroyed: it has
    /// accepted the datagram.
    pub(crate) fn expect_datagrams(&mut self, host: usize, in_flight: &InFlight, stopping: bool) {
        let Ok(packet) = Packet::parse(&in_flight.bytes) else {
            return;
        };
        let Some(deth) = packet.deth() else {
            return;
        };
        let flow = in_flight.path.flow;
        let mut taken = BTreeMap::new();
        for qp in 0..self.qps.len() {
            let model = &self.qps[qp];
            let meant = match packet.dest_qpn() {
                MULTICAST => model.groups.contains(&flow.destination),
                qpn => qpn == model.qpn,
            };
            let ready = model.host == host
                && model.is_datagram()
                && model.can_receive()
                && (self.stopping == Some(qp)) == stopping;
            if !meant || !ready || model.setup.qkey != deth.qkey {
                continue;
            }
            let len = GRH + packet.payload().len() as u64;
            // One that is being destroyed has taken the receive already.
            let taken_before = stopping && self.qps[qp].srq.is_some();
            if !taken_before && !self.datagram_finds_receive(qp, len, &mut taken) {
                continue;
            }
            self.qps[qp].datagrams.push_back(ExpectedDatagram {
                payload: packet.payload().to_vec(),
                imm: packet.immediate().map(|imm| imm.0),
                src_qp: deth.source_qpn,
                source: flow.source,
                destination: flow.destination,
                solicited: packet.solicited(),
            });
        }
    }

    /// Consumes a receive for a datagram of `len` bytes; returns false if there is
    /// none. A receive that is too short stays for the next datagram. `taken` counts
    /// the receives that copies of the same datagram consume from shared queues.
    fn datagram_finds_receive(
        &mut self,
        qp: usize,
        len: u64,
        taken: &mut BTreeMap<usize, usize>,
    ) -> bool {
        let model = &mut self.qps[qp];
        match model.srq {
            None => {
                let Some(&recv) = model.recvs.get(model.datagrams_taken) else {
                    return false;
                };
                if self.recvs[recv].capacity() < len {
                    return false;
                }
                model.datagrams_taken += 1;
                true
            }
            // Receives of a shared queue fit every datagram.
            Some(srq) => {
                let taken = taken.entry(srq).or_default();
                let found = self.srqs[srq].srq.posted() > *taken;
                *taken += usize::from(found);
                found
            }
        }
    }
}

/// Checks that no more responses are outstanding than `max_rd_atomic` permits.
fn note_awaited(model: &mut QpModel, packet: &Packet<'_>, packets: usize) -> Check {
    let opcode = packet.opcode();
    if opcode.is_send() || opcode.is_write() || !model.kind.is_reliable() {
        return Ok(());
    }
    let requested_before = model.read_psns.contains(&packet.psn().value());
    let awaited = |&last: &u32| !Psn::new(last).is_before(packet.psn());
    // A loss probe requests a part of an outstanding response again. None is awaited if the end of
    // the response arrived early, while the requester was already going back for its beginning.
    let is_part = model.awaited.is_empty() || model.awaited.iter().any(awaited);
    if packets == 1 && requested_before && is_part {
        return Ok(());
    }
    if opcode.operation() == Operation::ReadRequest {
        let psns = (0..packets as u32).map(|ahead| packet.psn().add(ahead).value());
        model.read_psns.extend(psns);
    }
    // This request replaces outstanding requests for parts of its range.
    let (first, last) = (packet.psn(), packet.psn().add(packets as u32 - 1));
    let part = |psn: Psn| !psn.is_before(first) && psn.is_before(last);
    model.awaited.retain(|&awaited| !part(Psn::new(awaited)));
    model.awaited.insert(last.value());
    let most = usize::from(model.setup.depth).next_power_of_two();
    match model.awaited.len() > most {
        true => Err(format!(
            "{} responses are outstanding, {most} are allowed",
            model.awaited.len()
        )),
        false => Ok(()),
    }
}

/// Checks that the requester waits as long as an RNR NAK demands.
fn check_rnr_wait(model: &mut QpModel, packet: &Packet<'_>, now: Time) -> Check {
    let Some((psn, until)) = model.rnr_wait else {
        return Ok(());
    };
    if packet.psn() == psn && now < until {
        return Err(format!("before the RNR wait ends at {until}"));
    }
    if !packet.psn().is_after(psn) {
        model.rnr_wait = None; // the wait is over, or an earlier PSN is sent first
    }
    Ok(())
}

fn note_request_sent(model: &mut QpModel, packet: &Packet<'_>, calm: bool) -> Check {
    if !matches!(model.state, Some(QpState::Rts | QpState::Sqd)) {
        return Err(format!("in state {:?}", model.state));
    }
    if model.drain == Drain::Drained {
        return Err("although its send queue is drained".into());
    }
    model.last_request = Some(packet.psn());
    let (len, mtu) = (packet.payload().len(), model.setup.mtu.bytes());
    let opcode = packet.opcode();
    let full = (opcode.is_send() || opcode.is_write()) && !opcode.ends_message();
    if len > mtu || full && len != mtu {
        return Err(format!("{len} bytes at path MTU {mtu}"));
    }
    // A READ takes as many PSNs as its response has packets.
    let packets = match packet.reth() {
        Some(reth) if opcode.operation() == Operation::ReadRequest => {
            (reth.length as usize).div_ceil(mtu).max(1)
        }
        _ => 1,
    };
    for ahead in 0..packets {
        let psn = packet.psn().add(ahead as u32).value();
        let times = model.sent.entry(psn).or_default();
        *times += 1;
        if calm && model.kind.is_reliable() && *times > 1 && model.rnr_naks == 0 {
            return Err("again, although no packet was lost".into());
        }
    }
    note_awaited(model, packet, packets)
}
