//! A network that drops, duplicates, delays and forges messages.

use std::collections::BTreeMap;

use super::rng::Rng;
use crate::message::{Dreq, Message, Rej, Rtu, Subject};
use crate::{Address, MAD_LEN, Mad, PrivateData, Reason, Time};

/// The faults of a network. `loss`, `repeat`, `late` and `forge` are percentages.
#[derive(Copy, Clone, Debug)]
pub(super) struct Faults {
    pub(super) loss: u64,
    /// Most consecutive losses of one message. The bound tells the oracle whether retries
    /// may run out.
    pub(super) losses: u8,
    pub(super) repeat: u64,
    pub(super) late: u64,
    pub(super) forge: u64,
    /// Time from which all messages are lost.
    pub(super) cut: Option<Time>,
}

pub(super) struct Network {
    rng: Rng,
    faults: Faults,
    /// Number of consecutive losses of each message.
    losses: BTreeMap<[u8; 10], u8>,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) forged: u64,
}

/// A message in flight, with the addresses as its receiver sees them.
pub(super) struct Packet {
    pub(super) arrives: Time,
    pub(super) address: Address,
    pub(super) mad: [u8; MAD_LEN],
}

impl Network {
    pub(super) fn new(seed: u64, faults: Faults) -> Network {
        Network {
            rng: Rng::new(seed, 2),
            faults,
            losses: BTreeMap::new(),
            lost: 0,
            repeated: 0,
            forged: 0,
        }
    }

    /// Returns the packets that result from a sent message: none if it is lost, two if it is
    /// duplicated, and forged packets.
    pub(super) fn send(&mut self, now: Time, from: Address, mad: &[u8; MAD_LEN]) -> Vec<Packet> {
        let address = Address {
            local: from.remote,
            remote: from.local,
        };
        if self.faults.cut.is_some_and(|cut| now >= cut) {
            self.lost += 1;
            return Vec::new();
        }
        let mut packets = Vec::new();
        if self.is_lost(mad) {
            self.lost += 1;
        } else {
            let copies = 1 + u64::from(self.rng.percent(self.faults.repeat));
            self.repeated += copies - 1;
            for _ in 0..copies {
                let arrives = now + self.delay();
                packets.push(Packet {
                    arrives,
                    address,
                    mad: *mad,
                });
            }
        }
        if self.rng.percent(self.faults.forge) {
            self.forge(now, address, mad, &mut packets);
        }
        packets
    }

    fn is_lost(&mut self, mad: &[u8; MAD_LEN]) -> bool {
        let mut key = [0; 10];
        key[..2].copy_from_slice(&mad[16..18]);
        key[2..].copy_from_slice(&mad[24..32]);
        let row = self.losses.entry(key).or_default();
        let lost = *row < self.faults.losses && self.rng.percent(self.faults.loss);
        *row = if lost { *row + 1 } else { 0 };
        lost
    }

    /// Returns a delay, which is never longer than the packet life time in the messages.
    fn delay(&mut self) -> Time {
        match self.rng.percent(self.faults.late) {
            true => self.rng.micros(10_000, 250_000),
            false => self.rng.micros(1, 5_000),
        }
    }

    /// Forges messages against the connection of a REP: with its IDs from a wrong address,
    /// from the right address with wrong IDs, or with a wrong queue pair.
    fn forge(
        &mut self,
        now: Time,
        to_active: Address,
        mad: &[u8; MAD_LEN],
        packets: &mut Vec<Packet>,
    ) {
        let Ok(Mad {
            message: Message::Rep(rep),
            tid,
            ..
        }) = Mad::decode(mad)
        else {
            return;
        };
        let to_passive = Address {
            local: to_active.remote,
            remote: to_active.local,
        };
        let spoofed = |address: Address| Address {
            remote: [192, 0, 2, 66].into(),
            ..address
        };
        let (active, passive) = (rep.remote_id, rep.local_id);
        let guess = self.rng.u64() as u32;
        let rej = |local_id, remote_id| {
            Message::Rej(Rej {
                local_id,
                remote_id,
                subject: Subject::Rep,
                ari_len: 0,
                reason: Reason::CONSUMER,
                ari: [0; 72],
                private_data: PrivateData::EMPTY,
            })
        };
        let rtu = |local_id, remote_id| {
            Message::Rtu(Rtu {
                local_id,
                remote_id,
                private_data: PrivateData::EMPTY,
            })
        };
        let dreq = |remote_qpn| {
            Message::Dreq(Dreq {
                local_id: active,
                remote_id: passive,
                remote_qpn,
                private_data: PrivateData::EMPTY,
            })
        };
        let forgeries = [
            (spoofed(to_passive), rtu(active, passive)),
            (spoofed(to_passive), rej(active, passive)),
            (spoofed(to_active), rej(passive, active)),
            (spoofed(to_passive), dreq(rep.qpn)),
            (to_passive, dreq(rep.qpn ^ 1)),
            (to_passive, rtu(guess, passive)),
            (to_passive, rtu(active, guess)),
            (to_active, rej(guess, active)),
        ];
        for (address, message) in forgeries {
            let mad = Mad {
                tid,
                modifier: 0,
                message,
            };
            let arrives = now + self.rng.micros(1, 400_000);
            packets.push(Packet {
                arrives,
                address,
                mad: mad.encode(),
            });
            self.forged += 1;
        }
    }
}
