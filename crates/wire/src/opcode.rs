//! Opcodes: the first byte of the BTH, which decides what the packet is and
//! which extension headers it has.

use core::fmt;

mod operation;
mod table;

pub use operation::{Operation, Transport};
use table::{
    AETH, ATOMIC_ACK, ATOMIC_ETH, DETH, Entry, FETH, FIRST, IETH, IMM, LAST, PAYLOAD, RDETH,
    REQUEST, RESPONSE, RETH, SEND, TABLE, WRITE, XRCETH,
};

/// A legal combination of [`Transport`] and [`Operation`].
///
/// Having one means the byte was checked: every question about it is answered
/// by a table lookup and cannot fail.
#[derive(Copy, Clone, Eq, PartialEq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// The opcode of this operation on this transport, if there is one.
    #[inline]
    pub const fn new(transport: Transport, operation: Operation) -> Option<Opcode> {
        // Congestion notification is an operation of its own transport only, at
        // a number that elsewhere means something else.
        let is_notification = matches!(operation, Operation::CongestionNotification);
        if is_notification != matches!(transport, Transport::Cnp) {
            return None;
        }
        Opcode::from_byte((transport as u8) << 5 | (operation as u8 & 0x1f))
    }

    /// The opcode with this value, if it is one.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        match TABLE[byte as usize].operation {
            Some(_) => Some(Opcode(byte)),
            None => None,
        }
    }

    /// The value in the BTH.
    #[inline]
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// The transport service: the upper three bits.
    #[inline]
    pub const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            3 => Transport::Ud,
            4 => Transport::Cnp,
            _ => Transport::Xrc,
        }
    }

    /// The operation: the lower five bits.
    #[inline]
    pub const fn operation(self) -> Operation {
        match self.entry().operation {
            Some(operation) => operation,
            None => unreachable!(),
        }
    }

    /// Bytes of BTH and extension headers before the payload.
    #[inline]
    pub const fn header_len(self) -> usize {
        self.entry().header_len as usize
    }

    #[inline]
    const fn entry(self) -> &'static Entry {
        &TABLE[self.0 as usize]
    }

    #[inline]
    const fn has(self, flags: u32) -> bool {
        self.entry().flags & flags == flags
    }
}

/// Which side the packet goes to.
impl Opcode {
    /// Goes from requester to responder.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.has(REQUEST)
    }

    /// Goes from responder back to requester: acknowledgements and read responses.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.has(RESPONSE)
    }

    /// Any packet of a SEND, with or without immediate or invalidate.
    #[inline]
    pub const fn is_send(self) -> bool {
        self.has(SEND)
    }

    /// Any packet of an RDMA WRITE (ATOMIC_WRITE is not one).
    #[inline]
    pub const fn is_write(self) -> bool {
        self.has(WRITE)
    }

    /// A response that carries READ data (also the answer to FLUSH and ATOMIC_WRITE).
    #[inline]
    pub const fn is_read_response(self) -> bool {
        self.has(RESPONSE | PAYLOAD)
    }

    /// COMPARE_SWAP or FETCH_ADD.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        self.has(ATOMIC_ETH)
    }
}

/// Where in a message the packet stands. Messages that are always one packet
/// (acknowledgements, READ requests, atomics) count as "only".
impl Opcode {
    /// First packet of a message: first or only.
    #[inline]
    pub const fn starts_message(self) -> bool {
        self.has(FIRST)
    }

    /// Last packet of a message: last or only.
    #[inline]
    pub const fn ends_message(self) -> bool {
        self.has(LAST)
    }

    /// First of several.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.entry().flags & (FIRST | LAST) == FIRST
    }

    /// Neither first nor last.
    #[inline]
    pub const fn is_middle(self) -> bool {
        self.entry().flags & (FIRST | LAST) == 0
    }

    /// Last of several.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.entry().flags & (FIRST | LAST) == LAST
    }

    /// The whole message.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.has(FIRST | LAST)
    }
}

/// What follows the BTH.
impl Opcode {
    /// May carry payload.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.has(PAYLOAD)
    }

    /// Carries [`ImmDt`](crate::ImmDt).
    #[inline]
    pub const fn has_immediate(self) -> bool {
        self.has(IMM)
    }

    /// Carries [`Ieth`](crate::Ieth).
    #[inline]
    pub const fn has_invalidate(self) -> bool {
        self.has(IETH)
    }

    /// Carries [`Reth`](crate::Reth).
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// Carries [`Aeth`](crate::Aeth).
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// Carries [`AtomicEth`](crate::AtomicEth).
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.has(ATOMIC_ETH)
    }

    /// Carries [`AtomicAckEth`](crate::AtomicAckEth).
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        self.has(ATOMIC_ACK)
    }

    /// Carries [`Deth`](crate::Deth).
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// Carries [`Rdeth`](crate::Rdeth).
    #[inline]
    pub const fn has_rdeth(self) -> bool {
        self.has(RDETH)
    }

    /// Carries [`XrcEth`](crate::XrcEth).
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        self.has(XRCETH)
    }

    /// Carries [`Feth`](crate::Feth).
    #[inline]
    pub const fn has_feth(self) -> bool {
        self.has(FETH)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport() {
            Transport::Cnp => f.write_str("CNP"),
            transport => write!(f, "{} {}", transport.name(), self.operation().name()),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
