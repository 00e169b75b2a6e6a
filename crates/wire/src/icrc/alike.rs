//! The ICRC of packets that begin alike.

use super::field::Field;
use super::polynomial::times_x32;
use super::recover::{AFTER_ID, Recovered, recover_with};
use super::{FlowIcrc, Icrc, split};
use crate::ICRC_LEN;

/// Bytes that are alike: what comes before acknowledge request and PSN in the BTH.
pub const ALIKE: usize = 8;

/// Packets of one flow that have the same length and begin with the same eight bytes:
/// what they have in common, hashed once. In the middle of a long message all are so.
#[derive(Copy, Clone, Debug)]
pub struct AlikeIcrc {
    flow: FlowIcrc,
    /// The CRC register after those bytes, for identification 0.
    register: u32,
}

static IPV4_ID: Field = Field::followed_by(AFTER_ID + ALIKE);

impl AlikeIcrc {
    /// Prepares for packets of `length` bytes, ICRC included, that begin with `alike`.
    pub fn new(flow: FlowIcrc, length: usize, alike: &[u8; ALIKE]) -> AlikeIcrc {
        let [a, b, c, d, mut notices, e, f, g] = *alike;
        notices |= 0xff; // masked
        let word = |bytes| u32::from_le_bytes(bytes);
        let register = times_x32(flow.after_udp(0, length) ^ word([a, b, c, d]));
        AlikeIcrc {
            flow,
            register: times_x32(register ^ word([notices, e, f, g])),
        }
    }

    /// As [`compute`](super::compute), for a packet that is as was said.
    #[inline]
    pub fn compute(&self, ip_id: u16, packet_without_icrc: &[u8]) -> [u8; ICRC_LEN] {
        self.checksum(ip_id, packet_without_icrc).to_le_bytes()
    }

    /// As [`recover_id`](super::recover_id), for a packet that is as was said.
    #[inline]
    pub fn recover_id(&self, expected: u16, packet: &[u8]) -> Option<Recovered> {
        let (body, icrc) = split(packet)?;
        recover_with(&self.flow, expected, icrc, body.len(), |id| {
            self.checksum(id, body)
        })
    }

    #[inline]
    fn checksum(&self, ip_id: u16, body: &[u8]) -> u32 {
        let id = match self.flow.is_ipv4() {
            true => IPV4_ID.contribution(ip_id),
            false => 0,
        };
        let register = self.register ^ id;
        let rest = &body[ALIKE..];
        match rest.split_first_chunk() {
            Some((word, rest)) => {
                let register = times_x32(register ^ u32::from_le_bytes(*word));
                Icrc::resume(register, rest).value()
            }
            None => Icrc::resume(register, rest).value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;
    use crate::Flow;
    use crate::icrc::{compute, recover_id};

    proptest::proptest! {
        #[test]
        fn packets_are_judged_as_one_by_one(
            v6: bool,
            mut body in proptest::collection::vec(proptest::num::u8::ANY, 12..200),
            id: u16,
            expected: u16,
            damage: bool,
        ) {
            let address = |last| match v6 {
                true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]),
                false => IpAddr::from([192, 0, 2, last as u8]),
            };
            let flow = Flow {
                source: address(1),
                destination: address(2),
                source_port: 0xc123,
            };
            let alike = body.first_chunk().unwrap();
            let prepared = AlikeIcrc::new(FlowIcrc::new(&flow), body.len() + ICRC_LEN, alike);
            let icrc = compute(&flow, id, &body);
            assert_eq!(prepared.compute(id, &body), icrc);
            body.extend(icrc);
            if damage {
                body[9] ^= 1;
            }
            let found = prepared.recover_id(expected, &body);
            assert_eq!(found, recover_id(&flow, expected, &body));
            assert!(found.is_some() || damage);
        }
    }
}
