//! CRC32C, the checksum of an FPDU.
//!
//! RFC 5044 4.4: the CRC covers the length field, the ULPDU and the pad bytes. The FPDU ends
//! with the CRC, least significant byte first, as in iSCSI. The field is always present. If
//! the connection does not use CRCs, the sender writes zero and the receiver ignores it.

/// Bytes of the CRC at the end of an FPDU.
pub const CRC_LEN: usize = 4;

/// A CRC32C over bytes that come in several parts.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Crc32c(u32);

impl Crc32c {
    /// Returns the CRC of no bytes.
    #[inline]
    pub const fn new() -> Crc32c {
        Crc32c(0)
    }

    /// Adds bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// Returns the CRC as an FPDU carries it.
    #[inline]
    pub const fn to_bytes(self) -> [u8; CRC_LEN] {
        self.0.to_le_bytes()
    }
}

/// Returns the CRC of `bytes` as an FPDU carries it.
#[inline]
pub fn of(bytes: &[u8]) -> [u8; CRC_LEN] {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second implementation: divides bit by bit.
    fn slow(bytes: &[u8]) -> u32 {
        let mut register = u32::MAX;
        for byte in bytes {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = match register & 1 {
                    1 => register >> 1 ^ 0x82f6_3b78,
                    _ => register >> 1,
                };
            }
        }
        !register
    }

    #[test]
    fn crc_is_that_of_a_bitwise_division() {
        let bytes: Vec<u8> = (0..5000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for length in [0, 1, 2, 3, 7, 8, 63, 64, 1023, 1024, 4096, 5000] {
            assert_eq!(of(&bytes[..length]), slow(&bytes[..length]).to_le_bytes());
        }
        assert_eq!(slow(b"123456789"), 0xe306_9283, "the check value of CRC32C");
    }

    #[test]
    fn crc_of_parts_is_the_crc_of_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for cut in 0..bytes.len() {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.to_bytes(), of(&bytes), "cut at {cut}");
        }
    }
}
