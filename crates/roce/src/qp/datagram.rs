//! UD and the general services queue pair (QP1): each message is one packet without ACK.

use core::net::IpAddr;

use ferroce_wire::{
    Bth, Deth, Flow, ImmDt, Opcode, Operation, Packet, Transport, ip, padding, ud_source_port,
};

use super::requester::gather;
use super::responder::Refusal;
use super::{Due, Qp};
use crate::attr::{QpState, QpType};
use crate::bugs::Bug;
use crate::decision::Decision;
use crate::engine::{Context, Route};
use crate::error::Reason;
use crate::memory::Memory;
use crate::receive::{Datagram, Drop, Received};
use crate::send_queue::Phase;
use crate::transmit::{Batch, NewPacket, Origin, Path};
use crate::verbs::{NetworkHeader, SendFlags, WcFlags, WcOpcode, WcStatus};

/// Well-known Q_Key of QP1.
pub(super) const GSI_QKEY: u32 = 0x8001_0000;
/// Bit of controlled Q_Keys. In a work request it selects the Q_Key of the queue pair.
const CONTROLLED_QKEY: u32 = 1 << 31;
/// Length of the GRH area in front of every received datagram.
const GRH_LEN: usize = 40;

impl Qp {
    /// Adds datagrams to the batch; returns true if more could be sent at once.
    pub(super) fn transmit_datagrams(
        &mut self,
        cx: &mut Context,
        batch: &mut Batch,
        limit: usize,
    ) -> bool {
        while self.state == QpState::Rts {
            let index = self.req.index();
            let Some(wqe) = self.sq.get(index) else {
                return false;
            };
            if self.sq.fails(index) {
                return false;
            }
            if batch.room(limit, 1) == 0 {
                return true;
            }
            if self.awaits_route(cx) {
                return false;
            }
            let mtu = cx.config.port_mtu.bytes() as u32;
            let outcome = match wqe.length {
                length if length > mtu => Err((
                    WcStatus::LocalLength,
                    Reason::DatagramTooLong {
                        length: u64::from(length),
                        mtu,
                    },
                )),
                _ => self.send_datagram(cx, batch, index),
            };
            if let Err((status, reason)) = outcome {
                // The datagrams before it in the batch complete first.
                self.fail_later(cx, index, status, reason);
                return false;
            }
            self.hand_over(batch, index);
            self.req.step();
        }
        false
    }

    /// Adds the datagram of work request `index` to the batch.
    fn send_datagram(
        &mut self,
        cx: &Context,
        batch: &mut Batch,
        index: usize,
    ) -> Result<(), (WcStatus, Reason)> {
        let (psn, own_qkey) = (self.req.psn, self.qkey());
        let Some(wqe) = self.sq.get(index) else {
            return Ok(());
        };
        let Some(ud) = self.sq.target(index) else {
            return Ok(());
        };
        let imm = wqe.op.imm();
        let operation = match imm {
            Some(_) => Operation::SendOnlyImm,
            None => Operation::SendOnly,
        };
        let opcode =
            Opcode::new(Transport::Ud, operation).expect("UD has SEND_ONLY and SEND_ONLY_IMM");
        let mut bth = Bth::new(opcode, ud.remote_qpn & 0xff_ffff, psn);
        bth.pad = padding(wqe.length as usize) as u8;
        bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let qkey = match self.kind {
            QpType::Gsi => GSI_QKEY,
            // IBTA 10.2.5: a program cannot choose a Q_Key with the top bit set.
            _ if ud.remote_qkey & CONTROLLED_QKEY != 0 => own_qkey,
            _ => ud.remote_qkey,
        };
        let av = *ud.ah.av();
        let flow = Flow {
            source: av.source,
            destination: av.destination,
            source_port: self
                .source_port
                .map_or(ud_source_port(self.qpn), core::num::NonZeroU16::get),
        };
        let mut path = Path::new(flow, av.traffic_class, av.hop_limit);
        path.in_memory = cx.routes.of(ud) == Route::Memory;
        let mark = batch.mark();
        if wqe.is_inline() {
            batch.push_inline(self.sq.inline(index));
        } else if let Err(reason) = gather(cx, self, index, wqe, 0, wqe.length, batch) {
            batch.rollback(mark);
            return Err((WcStatus::LocalProtection, reason));
        }
        let header = batch.header(&bth).deth(&Deth {
            qkey,
            source_qpn: self.qpn,
        });
        if let Some(imm) = imm {
            header.immediate(&ImmDt(imm));
        }
        batch.push(
            &path,
            mark,
            NewPacket {
                qpn: self.qpn,
                origin: Origin::Request(psn),
                payload_len: wqe.length,
                flush_quirk: false,
            },
        );
        if let Some(wqe) = self.sq.get_mut(index) {
            wqe.phase = Phase::Started;
            wqe.first_psn = psn;
            wqe.packets = 1;
        }
        self.req.psn = psn.next();
        self.path.in_memory = path.in_memory;
        Ok(())
    }

    /// Returns true if the next datagram waits for a route.
    #[inline]
    pub(crate) fn awaits_route(&self, cx: &Context) -> bool {
        let target = self.sq.target(self.req.index());
        target.is_some_and(|target| cx.routes.of(target) == Route::Sought)
    }

    /// Sends datagrams that have waited for a route.
    pub(crate) fn wake_datagrams(&mut self, cx: &mut Context) {
        if self.kind == QpType::Ud && self.sq.get(self.req.index()).is_some() {
            self.wake(cx, Due::REQUESTS);
        }
    }

    /// Handles a datagram that has passed all checks.
    pub(crate) fn datagram(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) -> Received {
        let received = self.deliver(cx, memory, datagram, packet);
        self.settle(cx);
        received
    }

    /// Writes a datagram to a receive, and completes the receive.
    fn deliver(
        &mut self,
        cx: &mut Context,
        memory: &dyn Memory,
        datagram: &Datagram<'_>,
        packet: &Packet<'_>,
    ) -> Received {
        let payload = packet.payload();
        let total = (GRH_LEN + payload.len()) as u64;
        if self.held_capacity().is_none() && !self.take_receive(cx) {
            return Received::Dropped(Drop::NoReceive);
        }
        let room = self.held_capacity().unwrap_or(0);
        if room < total {
            // As in rxe of Linux 7.2, the receive stays for the next datagram.
            let needed = total;
            cx.decisions
                .add(self.qpn, || Decision::ShortReceive { room, needed });
            return Received::Dropped(Drop::NoReceive);
        }
        let grh = grh(datagram);
        let placed = self
            .place_received(cx, memory, 0, &grh)
            .and_then(|()| self.place_received(cx, memory, GRH_LEN as u64, payload))
            .and_then(|()| {
                let completed = memory.complete_writes();
                completed.map_err(|fault| Refusal::local(Reason::Fault(fault)))
            });
        let Some(wr_id) = self.held_wr_id() else {
            return Received::Dropped(Drop::NoReceive);
        };
        if let Err(Refusal::Fatal { status, reason, .. }) = placed {
            self.resp.release_held();
            self.report(cx, Some(wr_id), status, reason);
            let cq = self.recv_cq.clone();
            self.complete_receive_error(cx, cq, wr_id, status);
            self.enter_error(cx);
            return Received::Accepted;
        }
        let mut wc = self.wc(cx, wr_id, WcStatus::Success, WcOpcode::Recv);
        wc.byte_len = total as u32;
        wc.flags = WcFlags::GRH;
        wc.network = match datagram.destination {
            IpAddr::V4(_) => NetworkHeader::Ipv4,
            IpAddr::V6(_) => NetworkHeader::Ipv6,
        };
        wc.src_qp = packet.deth().map_or(0, |deth| deth.source_qpn);
        if let Some(imm) = packet.immediate()
            && !cx.has_bug(Bug::LoseImmediate)
        {
            wc.flags |= WcFlags::WITH_IMM;
            wc.imm = imm.0;
        }
        self.finish_receive(cx, wc, packet.solicited());
        Received::Accepted
    }
}

/// Returns the 40 bytes in front of a received datagram: an IPv6 header, or 20 zero bytes and
/// an IPv4 header. Programs recognise the IPv4 header by its valid checksum.
fn grh(datagram: &Datagram<'_>) -> [u8; GRH_LEN] {
    let udp_len = datagram.payload.len() + 8;
    match (datagram.source, datagram.destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => ip::ipv6_header(
            source,
            destination,
            datagram.traffic_class,
            0,
            datagram.hop_limit,
            udp_len as u16,
        ),
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut grh = [0; GRH_LEN];
            grh[20..].copy_from_slice(&ip::ipv4_header(
                source,
                destination,
                datagram.traffic_class,
                datagram.hop_limit,
                datagram.ip_id.seen().unwrap_or(0),
                (udp_len + 20) as u16,
            ));
            grh
        }
        _ => [0; GRH_LEN],
    }
}
