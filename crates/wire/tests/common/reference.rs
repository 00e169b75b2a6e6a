//! A slow and simple implementation of the ICRC: masks the whole packet and divides bit by
//! bit. It shares no code with the library.

/// Returns the CRC-32 of Ethernet.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for byte in bytes {
        register ^= *byte as u32;
        for _ in 0..8 {
            let carry = register & 1;
            register >>= 1;
            if carry == 1 {
                register ^= 0xedb8_8320;
            }
        }
    }
    !register
}

/// Returns the bytes that the ICRC covers: eight 0xff bytes and the masked IP packet. The
/// packet is given without its ICRC.
pub(crate) fn masked(ip: &[u8]) -> Vec<u8> {
    let mut ip = ip.to_vec();
    let ip_len = if ip[0] >> 4 == 4 {
        for at in [1, 8, 10, 11] {
            ip[at] = 0xff;
        }
        20
    } else {
        ip[0] |= 0x0f;
        for at in [1, 2, 3, 7] {
            ip[at] = 0xff;
        }
        40
    };
    for at in [6, 7, 8 + 4] {
        ip[ip_len + at] = 0xff;
    }
    [vec![0xff; 8], ip].concat()
}

/// Returns the ICRC of an IP packet in wire order. The packet is given without its ICRC.
pub(crate) fn icrc(ip: &[u8]) -> [u8; 4] {
    crc32(&masked(ip)).to_le_bytes()
}
