//! Unreliable packets that arrived before their receive was posted.
//!
//! A UC or UD message without a posted receive is lost; between machines that is the rule.
//! On one machine the receiving program may not have had its turn on a processor, while its
//! progress thread had. So such packets wait here until a receive is posted, for at most
//! 500 ms. They count as not taken out until then, and their senders wait for
//! [`credits`](crate::credits).

use std::collections::VecDeque;

use ferroce_roce::{Datagram, Engine, Time};
use ferroce_wire::{Bth, is_unreliable};

use crate::bugs::{Bug, Injected};
use crate::credits::{MAX_WAITING, packet_cost};

/// Longest wait of a packet for a receive.
pub const UNMATCHED_PATIENCE_NS: u64 = 500_000_000;
/// Most that waits, of all queue pairs of a shard: several senders may each have used up
/// the credits before they saw the others' packets.
const MAX_COST: u64 = 4 * MAX_WAITING;

/// Packets that wait for a receive, in the order of their arrival.
#[derive(Debug, Default)]
pub(crate) struct UnmatchedPackets {
    packets: VecDeque<Packet>,
    /// Sum of the packets' costs, as senders count them.
    cost: u64,
    pub(crate) injected: Injected,
}

#[derive(Debug)]
struct Packet {
    arrived: Time,
    qpn: u32,
    payload: Box<[u8]>,
    /// The datagram, with an empty payload.
    datagram: Datagram<'static>,
}

impl UnmatchedPackets {
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Stores a packet and returns true, if it must wait for a receive, or behind an earlier
    /// packet of its queue pair.
    ///
    /// Every packet that is not predicted passes here, so the common answer is inline.
    #[inline]
    pub(crate) fn store(&mut self, now: Time, engine: &Engine, datagram: &Datagram<'_>) -> bool {
        is_unreliable(datagram.payload)
            && datagram.source == datagram.destination
            && self.store_local(now, engine, datagram)
    }

    /// As [`Self::store`], for an unreliable packet of this machine.
    #[inline(never)]
    fn store_local(&mut self, now: Time, engine: &Engine, datagram: &Datagram<'_>) -> bool {
        let payload = datagram.payload;
        let Ok(Bth { dest_qpn: qpn, .. }) = Bth::parse(payload) else {
            return false;
        };
        let behind = self.packets.iter().any(|packet| packet.qpn == qpn)
            && !self.injected.has(Bug::OvertakeUnmatched);
        let cost = packet_cost(payload.len(), 1);
        if !(behind || engine.lacks_receive(payload)) || self.cost + cost > MAX_COST {
            return false;
        }
        self.cost += cost;
        self.packets.push_back(Packet {
            arrived: now,
            qpn,
            payload: payload.into(),
            datagram: Datagram {
                payload: &[],
                ..*datagram
            },
        });
        true
    }

    /// Delivers the packets that have a receive by now, and those that have waited for
    /// 500 ms. A packet waits as long as an earlier one of its queue pair does.
    pub(crate) fn release(
        &mut self,
        now: Time,
        engine: &mut Engine,
        mut deliver: impl FnMut(&mut Engine, &Datagram<'_>),
    ) {
        if self.injected.has(Bug::KeepUnmatched) {
            return;
        }
        let mut waiting = Vec::new();
        let cost = &mut self.cost;
        self.packets.retain(|packet| {
            let in_time = now.nanos_since(packet.arrived) < UNMATCHED_PATIENCE_NS;
            let behind = waiting.contains(&packet.qpn);
            if in_time && (behind || engine.lacks_receive(&packet.payload)) {
                waiting.push(packet.qpn);
                return true;
            }
            *cost -= packet_cost(packet.payload.len(), 1);
            deliver(
                engine,
                &Datagram {
                    payload: &packet.payload,
                    ..packet.datagram
                },
            );
            false
        });
    }
}
