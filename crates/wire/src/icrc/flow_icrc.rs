//! The ICRC of many packets of one flow.

use crc32fast::Hasher;

use super::field::Field;
use super::polynomial::{after_three, times_x32};
use super::{Icrc, Recovered, recover};
use crate::flow::Addresses;
use crate::ip::{DONT_FRAGMENT, IPV4_LEN, IPV6_LEN, UDP, UDP_LEN};
use crate::{Bth, Flow, ICRC_LEN, ROCE_PORT};

/// The hashed IP and UDP headers of a flow.
///
/// In the fields that the ICRC covers, the IP and UDP headers of one flow differ only in
/// the lengths and the IPv4 identification. Tables hold the contributions of these fields,
/// so starting a packet needs no pass over the headers. Keep one value per queue pair and
/// direction.
#[derive(Copy, Clone, Debug)]
pub struct FlowIcrc {
    /// The CRC register after the IP and UDP headers, with lengths and identification zero.
    register: u32,
    ipv4: bool,
}

/// The CRC of eight 0xff bytes. They stand for InfiniBand's local route header, which a
/// RoCEv2 packet does not have.
const AFTER_LRH: u32 = 0x2144_df1c;

static IPV4_TOTAL_LEN: Field = Field::followed_by(IPV4_LEN - 4 + UDP_LEN);
static IPV4_ID: Field = Field::followed_by(recover::AFTER_ID);
static IPV6_PAYLOAD_LEN: Field = Field::followed_by(IPV6_LEN - 6 + UDP_LEN);
static UDP_LENGTH: Field = Field::followed_by(2);

impl FlowIcrc {
    /// Hashes the headers of a flow.
    pub fn new(flow: &Flow) -> FlowIcrc {
        let mut headers = [0; IPV6_LEN + UDP_LEN];
        let ip_len = match flow.addresses() {
            Addresses::V4(source, destination) => {
                // Type of service, time to live and checksum are masked.
                headers[..2].copy_from_slice(&[0x45, 0xff]);
                headers[6..12].copy_from_slice(&[DONT_FRAGMENT, 0, 0xff, UDP, 0xff, 0xff]);
                headers[12..16].copy_from_slice(&source.octets());
                headers[16..20].copy_from_slice(&destination.octets());
                IPV4_LEN
            }
            Addresses::V6(source, destination) => {
                // Traffic class, flow label and hop limit are masked.
                headers[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
                headers[6..8].copy_from_slice(&[UDP, 0xff]);
                headers[8..24].copy_from_slice(&source.octets());
                headers[24..40].copy_from_slice(&destination.octets());
                IPV6_LEN
            }
        };
        let udp = &mut headers[ip_len..ip_len + UDP_LEN];
        udp[..2].copy_from_slice(&flow.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        // The checksum is masked.
        udp[6..8].copy_from_slice(&[0xff, 0xff]);

        let mut hasher = Hasher::new_with_initial(AFTER_LRH);
        hasher.update(&headers[..ip_len + UDP_LEN]);
        FlowIcrc {
            register: !hasher.finalize(),
            ipv4: ip_len == IPV4_LEN,
        }
    }

    /// Returns true if the flow is over IPv4, whose header has an identification.
    pub const fn is_ipv4(&self) -> bool {
        self.ipv4
    }

    /// Starts a packet, like [`Icrc::begin`].
    #[inline]
    pub fn begin(&self, ip_id: u16, udp_payload_len: usize, header: &[u8]) -> Icrc {
        let register = self.after_udp(ip_id, udp_payload_len);
        let Some((bth, extension)) = header.split_first_chunk() else {
            return Icrc::resume(register, header);
        };
        // The headers are a few words that the caller has just written in small stores.
        // Reading them word by word avoids the stall of a vector load that spans them.
        let (words, rest) = extension.as_chunks();
        let register = words.iter().fold(after_bth(register, bth), after_word);
        Icrc::resume(register, rest)
    }

    /// Returns the ICRC of a packet, like [`compute`](super::compute).
    #[inline]
    pub fn compute(&self, ip_id: u16, packet_without_icrc: &[u8]) -> [u8; ICRC_LEN] {
        self.checksum(ip_id, packet_without_icrc).to_le_bytes()
    }

    /// Returns true if the ICRC of a packet is correct, like [`verify`](super::verify).
    #[inline]
    pub fn verify(&self, ip_id: u16, packet_with_icrc: &[u8]) -> bool {
        super::split(packet_with_icrc)
            .is_some_and(|(body, icrc)| self.checksum(ip_id, body) == icrc)
    }

    /// Checks the ICRC and finds the identification, like [`recover_id`](super::recover_id).
    #[inline]
    pub fn recover_id(&self, expected: u16, packet_with_icrc: &[u8]) -> Option<Recovered> {
        recover::recover_id(self, expected, packet_with_icrc)
    }

    #[inline]
    pub(super) fn checksum(&self, ip_id: u16, body: &[u8]) -> u32 {
        let register = self.after_udp(ip_id, body.len() + ICRC_LEN);
        match body.split_first_chunk() {
            Some((bth, rest)) if rest.len() <= SHORT => {
                short_checksum(after_bth(register, bth), rest)
            }
            Some((bth, rest)) => Icrc::resume(after_bth(register, bth), rest).value(),
            None => Icrc::resume(register, body).value(),
        }
    }

    #[inline]
    pub(super) fn after_udp(&self, ip_id: u16, udp_payload_len: usize) -> u32 {
        // The lengths wrap for packets that are too long for UDP. Such packets cannot be
        // sent, and `split` refuses them on receive.
        let udp_len = (UDP_LEN + udp_payload_len) as u16;
        let ip = if self.ipv4 {
            let total_len = udp_len.wrapping_add(IPV4_LEN as u16);
            IPV4_TOTAL_LEN.contribution(total_len) ^ IPV4_ID.contribution(ip_id)
        } else {
            IPV6_PAYLOAD_LEN.contribution(udp_len)
        };
        self.register ^ ip ^ UDP_LENGTH.contribution(udp_len)
    }
}

/// Up to this many bytes after the BTH (an ACK or a small message) the tables are faster
/// than setting up vector instructions.
const SHORT: usize = 48;

#[inline]
fn short_checksum(register: u32, bytes: &[u8]) -> u32 {
    let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let (words, rest) = bytes.as_chunks();
    let (threes, words) = words.as_chunks();
    let register = threes.iter().fold(register, |register, [a, b, c]| {
        after_three(register, [word(a), word(b), word(c)])
    });
    let register = words.iter().fold(register, after_word);
    match rest {
        [] => !register,
        rest => Icrc::resume(register, rest).value(),
    }
}

/// Hashes the BTH. The ICRC masks the byte with FECN and BECN.
#[inline]
fn after_bth(register: u32, bth: &[u8; Bth::LEN]) -> u32 {
    let mut bth = *bth;
    bth[4] = 0xff;
    let word = |at: usize| u32::from_le_bytes([bth[at], bth[at + 1], bth[at + 2], bth[at + 3]]);
    after_three(register, [word(0), word(4), word(8)])
}

#[inline]
fn after_word(register: u32, word: &[u8; 4]) -> u32 {
    times_x32(register ^ u32::from_le_bytes(*word))
}
