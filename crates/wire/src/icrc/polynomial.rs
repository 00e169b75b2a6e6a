//! Arithmetic modulo the CRC polynomial.
//!
//! A CRC register is a polynomial over GF(2) of degree below 32. As in the CRC itself,
//! the constant term is the most significant bit. Appending a zero byte to the message
//! multiplies the register by x^8; dividing by x^8 undoes this for any message.

/// The CRC polynomial without its x^32 term.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Undoes the effect on `register` of the last `bytes` zero bytes.
pub(super) fn shift_back(mut register: u32, mut bytes: usize) -> u32 {
    const LAST: usize = INVERSE_POWERS.len() - 1;
    while bytes > LAST {
        register = multiply(register, INVERSE_POWERS[LAST]);
        bytes -= LAST;
    }
    multiply(register, INVERSE_POWERS[bytes])
}

/// x^(-8n) for every n that a packet with up to 4096 bytes of payload needs. Such a packet
/// needs one multiplication.
static INVERSE_POWERS: [u32; 4096 + 128] = {
    let mut powers = [0; 4096 + 128];
    let mut power = 0x8000_0000;
    let mut n = 0;
    while n < powers.len() {
        powers[n] = power;
        let mut bit = 0;
        while bit < 8 {
            power = divide_by_x(power);
            bit += 1;
        }
        n += 1;
    }
    powers
};

const fn divide_by_x(a: u32) -> u32 {
    // Subtracting the polynomial, including x^32, clears the constant term.
    if a >> 31 == 1 {
        (a ^ POLYNOMIAL) << 1 | 1
    } else {
        a << 1
    }
}

const fn multiply_by_x(a: u32) -> u32 {
    (a >> 1) ^ (POLYNOMIAL & (a & 1).wrapping_neg())
}

#[inline]
fn multiply(a: u32, b: u32) -> u32 {
    let product = carryless(a, b) << 1;
    (product >> 32) as u32 ^ times_x32(product as u32)
}

/// Returns the 63-bit carry-less product.
///
/// The factors are split into numbers that have only every fourth bit set, and these are
/// multiplied as integers. At most eight ones add up in a position, so the carries stay
/// in the three bits between two positions, and the mask removes them.
#[inline]
fn carryless(a: u32, b: u32) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    let a: [u64; 4] = core::array::from_fn(|i| a as u64 & EVERY_FOURTH << i);
    let b: [u64; 4] = core::array::from_fn(|i| b as u64 & EVERY_FOURTH << i);
    let mut product = 0;
    for k in 0..4 {
        let sum = (0..4).fold(0, |sum, i| sum ^ (a[i] * b[(k + 4 - i) % 4]));
        product |= sum & EVERY_FOURTH << k;
    }
    product
}

/// Returns `a` times x^32: the register `a` after four zero bytes. To hash four other
/// bytes, XOR them into `a` first, as a little-endian number.
#[inline]
pub(super) fn times_x32(a: u32) -> u32 {
    times_words(a, 0)
}

/// Returns the register after three words. The three lookups do not depend on each other,
/// so the processor can overlap them.
#[inline]
pub(super) fn after_three(register: u32, words: [u32; 3]) -> u32 {
    times_words(register ^ words[0], 2) ^ times_words(words[1], 1) ^ times_words(words[2], 0)
}

/// Returns `a` times x^(32 * (`after` + 1)): the contribution of a word that has `after`
/// words after it.
#[inline]
fn times_words(a: u32, after: usize) -> u32 {
    let [b0, b1, b2, b3] = a.to_le_bytes().map(usize::from);
    let tables = &SHIFTED_BYTES[4 * after..][..4];
    tables[3][b0] ^ tables[2][b1] ^ tables[1][b2] ^ tables[0][b3]
}

/// The usual CRC tables, for three words: table n holds each byte, in the lowest bits of a
/// register, times x^(8 * (n + 1)).
static SHIFTED_BYTES: [[u32; 256]; 12] = {
    let mut tables = [[0; 256]; 12];
    let mut byte = 0;
    while byte < 256 {
        let mut a = byte as u32;
        let mut n = 0;
        while n < tables.len() {
            a = shift(a, 1);
            tables[n][byte] = a;
            n += 1;
        }
        byte += 1;
    }
    tables
};

/// Returns `a` times x^(8 * bytes).
pub(super) const fn shift(mut a: u32, bytes: usize) -> u32 {
    let mut bit = 0;
    while bit < 8 * bytes {
        a = multiply_by_x(a);
        bit += 1;
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies bit by bit, as the definition says.
    fn multiply_slowly(mut a: u32, b: u32) -> u32 {
        let mut product = 0;
        for bit in (0..32).rev() {
            if b >> bit & 1 == 1 {
                product ^= a;
            }
            a = multiply_by_x(a);
        }
        product
    }

    proptest::proptest! {
        #[test]
        fn multiplication_agrees_with_the_definition(a: u32, b: u32) {
            assert_eq!(multiply(a, b), multiply_slowly(a, b));
        }

        #[test]
        fn division_undoes_multiplication(a: u32) {
            assert_eq!(divide_by_x(multiply_by_x(a)), a);
            assert_eq!(multiply_by_x(divide_by_x(a)), a);
        }

        #[test]
        fn shifting_back_undoes_zero_bytes(register: u32, n in 0usize..20_000) {
            assert_eq!(shift_back(shift(register, n), n), register);
        }
    }

    proptest::proptest! {
        #[test]
        fn hashing_a_word_equals_hashing_four_bytes(a: u32) {
            assert_eq!(times_x32(a), shift(a, 4));
        }

        #[test]
        fn hashing_three_words_at_once_equals_hashing_them_in_turn(register: u32, words: [u32; 3]) {
            let slowly = words.iter().fold(register, |register, word| times_x32(register ^ word));
            assert_eq!(after_three(register, words), slowly);
        }
    }

    #[test]
    fn densest_factors_do_not_overflow() {
        assert_eq!(carryless(u32::MAX, u32::MAX), 0x5555_5555_5555_5555);
    }
}
