//! Unreliable packets that arrived before their receive was posted.
//!
//! A UC or UD message without a posted receive is lost; between machines that is the rule.
//! On one machine the receiving program may not have had its turn on a processor, while its
//! progress thread had. So such packets wait here until a receive is posted, for at most
//! 500 ms. They count as not taken out until then, and their senders wait for
//! [`credits`](crate::credits).

use std::collections::{BTreeMap, VecDeque};

use ferroce_roce::{Datagram, Engine, Time};
use ferroce_wire::{Bth, is_unreliable};

use crate::bugs::{Bug, Injected};
use crate::credits::{MAX_WAITING, packet_cost};

/// Longest wait of a packet for a receive.
pub const UNMATCHED_PATIENCE_NS: u64 = 500_000_000;
/// Most that waits, of all queue pairs of a shard: several senders may each have used up
/// the credits before they saw the others' packets.
const MAX_COST: u64 = 4 * MAX_WAITING;

/// Packets that wait for a receive.
#[derive(Debug, Default)]
pub(crate) struct UnmatchedPackets {
    /// The packets of each queue pair, in the order of their arrival; no queue is empty. A program
    /// that posts receives one at a time takes packets one at a time: with one queue for all, each
    /// of them would move or pass hundreds of others.
    of_qp: BTreeMap<u32, VecDeque<Packet>>,
    /// Sum of the packets' costs, as senders count them.
    cost: u64,
    pub(crate) injected: Injected,
}

#[derive(Debug)]
struct Packet {
    arrived: Time,
    payload: Box<[u8]>,
    /// The datagram, with an empty payload.
    datagram: Datagram<'static>,
}

impl UnmatchedPackets {
    pub(crate) fn len(&self) -> usize {
        self.of_qp.values().map(VecDeque::len).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.of_qp.is_empty()
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
        let behind = self.of_qp.contains_key(&qpn) && !self.injected.has(Bug::OvertakeUnmatched);
        let cost = packet_cost(payload.len(), 1);
        if !(behind || engine.lacks_receive(payload)) || self.cost + cost > MAX_COST {
            return false;
        }
        self.cost += cost;
        self.of_qp.entry(qpn).or_default().push_back(Packet {
            arrived: now,
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
        let cost = &mut self.cost;
        self.of_qp.retain(|_, packets| {
            while let Some(packet) = packets.front() {
                let in_time = now.nanos_since(packet.arrived) < UNMATCHED_PATIENCE_NS;
                if in_time && engine.lacks_receive(&packet.payload) {
                    return true;
                }
                *cost -= packet_cost(packet.payload.len(), 1);
                let payload = &packet.payload;
                let datagram = packet.datagram;
                deliver(
                    engine,
                    &Datagram {
                        payload,
                        ..datagram
                    },
                );
                packets.pop_front();
            }
            false
        });
    }
}
