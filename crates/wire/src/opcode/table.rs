//! The opcode table: one entry per byte value, built at compile time.

use super::{Operation, Transport};

pub(super) const REQUEST: u32 = 1 << 0;
pub(super) const RESPONSE: u32 = 1 << 1;
pub(super) const FIRST: u32 = 1 << 2;
pub(super) const LAST: u32 = 1 << 3;
pub(super) const SEND: u32 = 1 << 4;
pub(super) const WRITE: u32 = 1 << 5;
pub(super) const PAYLOAD: u32 = 1 << 6;
pub(super) const RDETH: u32 = 1 << 7;
pub(super) const DETH: u32 = 1 << 8;
pub(super) const XRCETH: u32 = 1 << 9;
pub(super) const FETH: u32 = 1 << 10;
pub(super) const RETH: u32 = 1 << 11;
pub(super) const ATOMIC_ETH: u32 = 1 << 12;
pub(super) const AETH: u32 = 1 << 13;
pub(super) const ATOMIC_ACK: u32 = 1 << 14;
pub(super) const IMM: u32 = 1 << 15;
pub(super) const IETH: u32 = 1 << 16;

/// Every extension header with its length.
const LENGTHS: [(u32, u8); 10] = [
    (RDETH, 4),
    (DETH, 8),
    (XRCETH, 4),
    (FETH, 4),
    (RETH, 16),
    (ATOMIC_ETH, 28),
    (AETH, 4),
    (ATOMIC_ACK, 8),
    (IMM, 4),
    (IETH, 4),
];

/// The properties of one opcode.
#[derive(Copy, Clone)]
pub(super) struct Entry {
    pub(super) flags: u32,
    pub(super) header_len: u8,
    /// `None` if the byte is not an opcode.
    pub(super) operation: Option<Operation>,
}

const NO_OPCODE: Entry = Entry {
    flags: 0,
    header_len: 0,
    operation: None,
};

pub(super) static TABLE: [Entry; 256] = build();

const fn build() -> [Entry; 256] {
    let mut table = [NO_OPCODE; 256];
    let transports = [
        Transport::Rc,
        Transport::Uc,
        Transport::Rd,
        Transport::Ud,
        Transport::Cnp,
        Transport::Xrc,
    ];
    let mut t = 0;
    while t < transports.len() {
        let mut o = 0;
        while o < Operation::ALL.len() {
            let operation = Operation::ALL[o];
            if exists(transports[t], operation) {
                let flags = flags(transports[t], operation);
                let byte = (transports[t] as u8) << 5 | (operation as u8 & 0x1f);
                table[byte as usize] = Entry {
                    flags,
                    header_len: header_len(flags),
                    operation: Some(operation),
                };
            }
            o += 1;
        }
        t += 1;
    }
    table
}

/// Returns true if the transport has the operation.
const fn exists(transport: Transport, operation: Operation) -> bool {
    transports(operation) & bit(transport) != 0
}

/// Returns the set of one transport.
const fn bit(transport: Transport) -> u8 {
    1 << transport as u8
}

/// Returns the set of transports that have an operation. The match lists every operation, so
/// a new one does not compile until it names its transports.
const fn transports(operation: Operation) -> u8 {
    use Operation as O;
    const RC: u8 = bit(Transport::Rc);
    const UC: u8 = bit(Transport::Uc);
    const RD: u8 = bit(Transport::Rd);
    const UD: u8 = bit(Transport::Ud);
    const CNP: u8 = bit(Transport::Cnp);
    const XRC: u8 = bit(Transport::Xrc);
    match operation {
        O::SendOnly | O::SendOnlyImm => RC | UC | RD | UD | XRC,
        O::SendFirst
        | O::SendMiddle
        | O::SendLast
        | O::SendLastImm
        | O::WriteFirst
        | O::WriteMiddle
        | O::WriteLast
        | O::WriteLastImm
        | O::WriteOnly
        | O::WriteOnlyImm => RC | UC | RD | XRC,
        O::ReadRequest
        | O::ReadResponseFirst
        | O::ReadResponseMiddle
        | O::ReadResponseLast
        | O::ReadResponseOnly
        | O::Acknowledge
        | O::AtomicAcknowledge
        | O::CompareSwap
        | O::FetchAdd => RC | RD | XRC,
        O::SendLastInvalidate | O::SendOnlyInvalidate => RC | XRC,
        O::Resync => RD,
        O::Flush => RC | RD,
        O::AtomicWrite => RC,
        O::CongestionNotification => CNP,
    }
}

const fn flags(transport: Transport, operation: Operation) -> u32 {
    let flags = operation_flags(operation);
    let request = flags & REQUEST != 0;
    flags
        | match transport {
            Transport::Rd if request => RDETH | DETH,
            Transport::Rd => RDETH,
            Transport::Ud => DETH,
            Transport::Xrc if request => XRCETH,
            Transport::Rc | Transport::Uc | Transport::Cnp | Transport::Xrc => 0,
        }
}

/// Returns the flags of an operation on RC, without the headers that other transports add.
const fn operation_flags(operation: Operation) -> u32 {
    use Operation as O;
    const ONLY: u32 = FIRST | LAST;
    const SENDS: u32 = REQUEST | SEND | PAYLOAD;
    const WRITES: u32 = REQUEST | WRITE | PAYLOAD;
    const READ_RESPONSE: u32 = RESPONSE | PAYLOAD;
    match operation {
        O::SendFirst => SENDS | FIRST,
        O::SendMiddle => SENDS,
        O::SendLast => SENDS | LAST,
        O::SendLastImm => SENDS | LAST | IMM,
        O::SendOnly => SENDS | ONLY,
        O::SendOnlyImm => SENDS | ONLY | IMM,
        O::WriteFirst => WRITES | FIRST | RETH,
        O::WriteMiddle => WRITES,
        O::WriteLast => WRITES | LAST,
        O::WriteLastImm => WRITES | LAST | IMM,
        O::WriteOnly => WRITES | ONLY | RETH,
        O::WriteOnlyImm => WRITES | ONLY | RETH | IMM,
        O::ReadRequest => REQUEST | ONLY | RETH,
        O::ReadResponseFirst => READ_RESPONSE | FIRST | AETH,
        O::ReadResponseMiddle => READ_RESPONSE,
        O::ReadResponseLast => READ_RESPONSE | LAST | AETH,
        O::ReadResponseOnly => READ_RESPONSE | ONLY | AETH,
        O::Acknowledge => RESPONSE | ONLY | AETH,
        O::AtomicAcknowledge => RESPONSE | ONLY | AETH | ATOMIC_ACK,
        O::CompareSwap | O::FetchAdd => REQUEST | ONLY | ATOMIC_ETH,
        O::Resync => REQUEST | ONLY,
        O::SendLastInvalidate => SENDS | LAST | IETH,
        O::SendOnlyInvalidate => SENDS | ONLY | IETH,
        O::Flush => REQUEST | ONLY | FETH | RETH,
        O::AtomicWrite => REQUEST | ONLY | RETH | PAYLOAD,
        // A congestion notification is neither a request nor a response. Its 16 reserved
        // bytes count as payload.
        O::CongestionNotification => ONLY | PAYLOAD,
    }
}

const fn header_len(flags: u32) -> u8 {
    let mut len = 12;
    let mut i = 0;
    while i < LENGTHS.len() {
        if flags & LENGTHS[i].0 != 0 {
            len += LENGTHS[i].1;
        }
        i += 1;
    }
    len
}
