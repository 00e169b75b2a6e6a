//! The ICRC of the packets of a uniform run.

use super::field::Field;
use super::polynomial::times_x32;
use super::recover::{AFTER_ID, Recovered, recover_with};
use super::{FlowIcrc, Icrc, split};
use crate::ICRC_LEN;

/// Number of equal bytes at the start of each packet of a uniform run: the BTH up to AckReq
/// and PSN.
pub const UNIFORM_PREFIX_LEN: usize = 8;

/// The hashed common part of the packets of a uniform run.
///
/// The packets of a uniform run belong to one flow, have the same length and start with the
/// same [`UNIFORM_PREFIX_LEN`] bytes. The middle packets of a long message are such a run.
#[derive(Copy, Clone, Debug)]
pub struct UniformIcrc {
    flow: FlowIcrc,
    /// The CRC register after the prefix, for identification 0.
    register: u32,
}

static IPV4_ID: Field = Field::followed_by(AFTER_ID + UNIFORM_PREFIX_LEN);

impl UniformIcrc {
    /// Hashes the common part of packets of `length` bytes, ICRC included, that start with
    /// `prefix`.
    pub fn new(flow: FlowIcrc, length: usize, prefix: &[u8; UNIFORM_PREFIX_LEN]) -> UniformIcrc {
        let [a, b, c, d, mut congestion, e, f, g] = *prefix;
        congestion |= 0xff; // The ICRC masks the byte with FECN and BECN.
        let word = |bytes| u32::from_le_bytes(bytes);
        let register = times_x32(flow.after_udp(0, length) ^ word([a, b, c, d]));
        UniformIcrc {
            flow,
            register: times_x32(register ^ word([congestion, e, f, g])),
        }
    }

    /// Returns the ICRC of a packet of the run, like [`compute`](super::compute).
    #[inline]
    pub fn compute(&self, ip_id: u16, packet_without_icrc: &[u8]) -> [u8; ICRC_LEN] {
        self.checksum(ip_id, packet_without_icrc).to_le_bytes()
    }

    /// Checks the ICRC of a packet of the run, like [`recover_id`](super::recover_id).
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
        let rest = &body[UNIFORM_PREFIX_LEN..];
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
        fn a_uniform_run_gets_the_same_icrcs_as_single_packets(
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
            let prefix = body.first_chunk().unwrap();
            let prepared = UniformIcrc::new(FlowIcrc::new(&flow), body.len() + ICRC_LEN, prefix);
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
