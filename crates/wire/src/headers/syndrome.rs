//! The AETH syndrome: acknowledgement, RNR NAK or NAK, with its 5-bit code.

/// The first byte of the AETH. Every byte value has exactly one form.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Positive acknowledgement.
    Ack {
        /// Credit code, 5 bits; see [`credits`].
        credits: u8,
    },
    /// Receiver not ready: nothing to receive into.
    RnrNak {
        /// Timer code, 5 bits; see [`rnr_delay_ns`].
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// A value with no meaning: the byte itself.
    Reserved(u8),
}

impl Syndrome {
    /// An acknowledgement that makes no statement about credits.
    pub const ACK_UNLIMITED: Syndrome = Syndrome::Ack { credits: 0x1f };

    /// Reads the byte.
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

    /// The byte; of the codes only the low 5 bits count.
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

/// Why a request was refused.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// A request is missing before this one: go back.
    PsnSequence,
    /// The request breaks the protocol or does not fit the receive buffer.
    InvalidRequest,
    /// Bad key, bounds or permission.
    RemoteAccess,
    /// The responder failed for reasons of its own.
    RemoteOperational,
    /// RD only.
    InvalidRdRequest,
    /// A code with no meaning (5 bits, above 4).
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

/// How long to wait after an RNR NAK with this timer code (low 5 bits).
///
/// From 10 microseconds for code 1 to 655.36 milliseconds for code 0: zero is
/// the longest, not the shortest.
pub const fn rnr_delay_ns(code: u8) -> u64 {
    const UNIT_NS: u64 = 10_000;
    let units = match code & 0x1f {
        0 => 65536,
        1 => 1,
        code => steps(code),
    };
    units * UNIT_NS
}

/// Messages that a credit code (low 5 bits) allows beyond the MSN, or none if
/// the responder does not count credits.
pub const fn credits(code: u8) -> Option<u32> {
    match code & 0x1f {
        0x1f => None,
        code @ 0..=1 => Some(code as u32),
        code => Some(steps(code) as u32),
    }
}

/// The code for the largest count of credits that is no more than `n`.
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

/// Both tables climb alike from code 2: 2, 3, 4, 6, 8, 12, 16, ...
const fn steps(code: u8) -> u64 {
    (2 | code as u64 & 1) << (code / 2 - 1)
}
