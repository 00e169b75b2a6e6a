//! The AETH syndrome: ACK, RNR NAK or NAK, each with a 5-bit code.

/// The first byte of the AETH. Each of the 256 values maps to exactly one variant.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// Credit code, 5 bits; see [`credits`].
        credits: u8,
    },
    /// Receiver not ready: the responder has no receive posted.
    RnrNak {
        /// Timer code, 5 bits; see [`rnr_delay_ns`].
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A reserved value, kept as the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// An ACK without end-to-end credits.
    pub const ACK_UNLIMITED: Syndrome = Syndrome::Ack { credits: 0x1f };

    /// Decodes the byte.
    #[inline]
    pub const fn from_byte(byte: u8) -> Syndrome {
        let code = byte & 0x1f;
        match byte >> 5 {
            0b000 => Syndrome::Ack { credits: code },
            0b001 => Syndrome::RnrNak { timer: code },
            0b011 => Syndrome::Nak(NakCode::from_code(code)),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// Encodes the byte from the low 5 bits of the code.
    #[inline]
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(code) => 0x60 | code.code(),
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// The reason for a NAK.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// PSN sequence error: a packet is missing, and the requester must retransmit from it.
    PsnSequence,
    /// The request violates the protocol or is longer than the receive buffer.
    InvalidRequest,
    /// Wrong rkey, address range or access permission.
    RemoteAccess,
    /// The responder failed to execute the request.
    RemoteOperational,
    /// Invalid RD request (RD only).
    InvalidRdRequest,
    /// A reserved code, 5 to 31.
    Unknown(u8),
}

impl NakCode {
    const fn from_code(code: u8) -> NakCode {
        match code {
            0 => NakCode::PsnSequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRdRequest,
            other => NakCode::Unknown(other),
        }
    }

    const fn code(self) -> u8 {
        match self {
            NakCode::PsnSequence => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRdRequest => 4,
            NakCode::Unknown(code) => code & 0x1f,
        }
    }
}

/// Returns the delay in nanoseconds that an RNR NAK with this timer code (low 5 bits)
/// asks for.
///
/// Code 1 is the shortest delay, 10 microseconds. Code 31 is 491.52 milliseconds, and
/// code 0 is the longest delay, 655.36 milliseconds.
pub const fn rnr_delay_ns(code: u8) -> u64 {
    const UNIT_NS: u64 = 10_000;
    let units = match code & 0x1f {
        0 => 65536,
        1 => 1,
        code => steps(code),
    };
    units * UNIT_NS
}

/// Returns how many messages beyond the MSN a credit code (low 5 bits) allows, or
/// `None` for code 31: the responder does not use credits.
pub const fn credits(code: u8) -> Option<u32> {
    match code & 0x1f {
        0x1f => None,
        code @ 0..=1 => Some(code as u32),
        code => Some(steps(code) as u32),
    }
}

/// Returns the code of the largest credit count that does not exceed `n`.
pub const fn credit_code(n: u32) -> u8 {
    let mut code = 30;
    while let Some(count) = credits(code) {
        if count <= n {
            break;
        }
        code -= 1;
    }
    code
}

/// Returns the value of a code from 2 on, which the RNR timer and the credit table share:
/// 2, 3, 4, 6, 8, 12, 16, ...
const fn steps(code: u8) -> u64 {
    (2 | code as u64 & 1) << (code / 2 - 1)
}
