//! Opcodes: the first byte of the BTH. The opcode determines the operation of the packet
//! and its extension headers.

use core::fmt;

mod operation;
mod table;

pub use operation::{Operation, Transport};
use table::{
    AETH, ATOMIC_ACK, ATOMIC_ETH, DETH, Entry, FETH, FIRST, IETH, IMM, LAST, PAYLOAD, RDETH,
    REQUEST, RESPONSE, RETH, SEND, TABLE, WRITE, XRCETH,
};

/// A valid combination of [`Transport`] and [`Operation`].
///
/// An `Opcode` holds a byte that was checked. So all its methods are table lookups that
/// cannot fail.
#[derive(Copy, Clone, Eq, PartialEq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// Returns the opcode of this operation on this transport, if the transport has it.
    #[inline]
    pub const fn new(transport: Transport, operation: Operation) -> Option<Opcode> {
        // Only the CNP transport has congestion notification. The low five bits of its
        // opcode, 1, mean SEND middle on the other transports.
        let is_notification = matches!(operation, Operation::CongestionNotification);
        if is_notification != matches!(transport, Transport::Cnp) {
            return None;
        }
        Opcode::from_byte((transport as u8) << 5 | (operation as u8 & 0x1f))
    }

    /// Returns the opcode with this value, if the value is an opcode.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        match TABLE[byte as usize].operation {
            Some(_) => Some(Opcode(byte)),
            None => None,
        }
    }

    /// Returns the value in the BTH.
    #[inline]
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Returns the transport service: the upper three bits.
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

    /// Returns the operation: the lower five bits.
    #[inline]
    pub const fn operation(self) -> Operation {
        match self.entry().operation {
            Some(operation) => operation,
            None => unreachable!(),
        }
    }

    /// Returns the length of BTH and extension headers.
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

/// Direction and kind of the packet.
impl Opcode {
    /// Returns true for packets from requester to responder.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.has(REQUEST)
    }

    /// Returns true for packets from responder to requester: acknowledgements and READ
    /// responses.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.has(RESPONSE)
    }

    /// Returns true for any packet of a SEND, with or without immediate or invalidate.
    #[inline]
    pub const fn is_send(self) -> bool {
        self.has(SEND)
    }

    /// Returns true for any packet of an RDMA WRITE (ATOMIC_WRITE is not an RDMA WRITE).
    #[inline]
    pub const fn is_write(self) -> bool {
        self.has(WRITE)
    }

    /// Returns true for READ responses, which also answer FLUSH and ATOMIC_WRITE.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        self.has(RESPONSE | PAYLOAD)
    }

    /// Returns true for COMPARE_SWAP and FETCH_ADD.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        self.has(ATOMIC_ETH)
    }
}

/// Position of the packet in its message. Packets of operations that always take one packet
/// (acknowledgements, READ requests, atomics) count as "only".
impl Opcode {
    /// Returns true for a packet that starts a message: first or only.
    #[inline]
    pub const fn starts_message(self) -> bool {
        self.has(FIRST)
    }

    /// Returns true for a packet that ends a message: last or only.
    #[inline]
    pub const fn ends_message(self) -> bool {
        self.has(LAST)
    }

    /// Returns true for the first of several packets.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.entry().flags & (FIRST | LAST) == FIRST
    }

    /// Returns true for a packet that is neither first nor last.
    #[inline]
    pub const fn is_middle(self) -> bool {
        self.entry().flags & (FIRST | LAST) == 0
    }

    /// Returns true for the last of several packets.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.entry().flags & (FIRST | LAST) == LAST
    }

    /// Returns true for the only packet of a message.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.has(FIRST | LAST)
    }
}

/// Headers and payload after the BTH.
impl Opcode {
    /// Returns true if the packet may carry payload.
    #[inline]
    pub const fn has_payload(self) -> bool {
        self.has(PAYLOAD)
    }

    /// Returns true if the packet carries [`ImmDt`](crate::ImmDt).
    #[inline]
    pub const fn has_immediate(self) -> bool {
        self.has(IMM)
    }

    /// Returns true if the packet carries [`Ieth`](crate::Ieth).
    #[inline]
    pub const fn has_invalidate(self) -> bool {
        self.has(IETH)
    }

    /// Returns true if the packet carries [`Reth`](crate::Reth).
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// Returns true if the packet carries [`Aeth`](crate::Aeth).
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// Returns true if the packet carries [`AtomicEth`](crate::AtomicEth).
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.has(ATOMIC_ETH)
    }

    /// Returns true if the packet carries [`AtomicAckEth`](crate::AtomicAckEth).
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        self.has(ATOMIC_ACK)
    }

    /// Returns true if the packet carries [`Deth`](crate::Deth).
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// Returns true if the packet carries [`Rdeth`](crate::Rdeth).
    #[inline]
    pub const fn has_rdeth(self) -> bool {
        self.has(RDETH)
    }

    /// Returns true if the packet carries [`XrcEth`](crate::XrcEth).
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        self.has(XRCETH)
    }

    /// Returns true if the packet carries [`Feth`](crate::Feth).
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
