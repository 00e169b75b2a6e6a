//! The contribution of one header field to a CRC.

use super::polynomial::shift;

/// A table of the contributions of a big-endian 16-bit field, for every value of the
/// field and a fixed number of bytes after it.
///
/// A CRC is linear. So the CRC of headers with this field filled in is the CRC of the
/// headers with the field zero, XORed with the contribution.
pub(super) struct Field([[u32; 16]; 4]);

impl Field {
    pub(super) const fn followed_by(bytes: usize) -> Field {
        let mut tables = [[0; 16]; 4];
        let mut nibble = 0;
        while nibble < 4 {
            let mut value = 0;
            while value < 16 {
                let field = (value as u16) << (4 * nibble);
                tables[nibble][value] = shift(to_register(field), bytes + 4);
                value += 1;
            }
            nibble += 1;
        }
        Field(tables)
    }

    #[inline]
    pub(super) fn contribution(&self, value: u16) -> u32 {
        let nibble = |n: usize| self.0[n][value as usize >> (4 * n) & 15];
        nibble(0) ^ nibble(1) ^ nibble(2) ^ nibble(3)
    }
}

/// Converts a field to a polynomial. The bit that is sent last is the constant term.
const fn to_register(field: u16) -> u32 {
    (field.swap_bytes() as u32) << 16
}
