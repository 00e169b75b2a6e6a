//! Packets that came before their receive was posted.
//!
//! A message to a UC or UD queue pair without a receive is lost; that is the rule, and
//! between machines it is how it is. On one machine the receiving program may just not
//! have had its turn on a processor, while its progress thread had, so such packets
//! wait here for a moment. Until they are let in they count as not taken out, and
//! [`pace`](crate::pace) holds their senders back.

use std::collections::VecDeque;

use ferroce_transport::{Datagram, Engine, Time};
use ferroce_wire::Bth;

use crate::pace;

/// How long a packet waits.
const PATIENCE_NS: u64 = 500_000_000;
/// How much waits, of all queue pairs of a slot: all that several senders put in who
/// did not know of each other.
const ROOM: u64 = 4 * pace::MOST;

/// Packets that wait for a receive, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Early {
    packets: VecDeque<Packet>,
    /// What they cost, as senders count.
    cost: u64,
}

#[derive(Debug)]
struct Packet {
    came: Time,
    qpn: u32,
    payload: Box<[u8]>,
    /// With no payload of its own.
    datagram: Datagram<'static>,
}

impl Early {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Keeps a packet if it must wait: for a receive, or behind others that do.
    pub(crate) fn keep(&mut self, now: Time, engine: &Engine, datagram: &Datagram<'_>) -> bool {
        let payload = datagram.payload;
        let unreliable = payload
            .first()
            .is_some_and(|&code| pace::is_unreliable(code));
        if !unreliable || datagram.source != datagram.destination {
            return false;
        }
        let Ok(Bth { dest_qpn: qpn, .. }) = Bth::parse(payload) else {
            return false;
        };
        let behind = self.packets.iter().any(|packet| packet.qpn == qpn);
        let cost = pace::cost(payload.len(), 1);
        if !(behind || engine.lacks_receive(payload)) || self.cost + cost > ROOM {
            return false;
        }
        self.cost += cost;
        self.packets.push_back(Packet {
            came: now,
            qpn,
            payload: payload.into(),
            datagram: Datagram {
                payload: &[],
                ..*datagram
            },
        });
        true
    }

    /// Lets in what has a receive by now, and what has waited for too long.
    pub(crate) fn release(
        &mut self,
        now: Time,
        engine: &mut Engine,
        mut take: impl FnMut(&mut Engine, &Datagram<'_>),
    ) {
        let mut waiting = Vec::new();
        let cost = &mut self.cost;
        self.packets.retain(|packet| {
            let patient = now.nanos_since(packet.came) < PATIENCE_NS;
            let behind = waiting.contains(&packet.qpn);
            if patient && (behind || engine.lacks_receive(&packet.payload)) {
                waiting.push(packet.qpn);
                return true;
            }
            *cost -= pace::cost(packet.payload.len(), 1);
            take(
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
