//! The two parts of an opcode: transport and operation.

/// The transport service of an opcode: its upper three bits.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram, which IBTA defines and no known adapter implements.
    Rd = 2,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification.
    Cnp = 4,
    /// Extended reliable connection.
    Xrc = 5,
}

impl Transport {
    /// Returns the usual abbreviation.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Rd => "RD",
            Transport::Ud => "UD",
            Transport::Cnp => "CNP",
            Transport::Xrc => "XRC",
        }
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// The operation of an opcode: its lower five bits.
        #[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
        #[repr(u8)]
        pub enum Operation {
            $($(#[$doc])* $variant = $code,)*
        }

        impl Operation {
            /// All operations.
            pub const ALL: &'static [Operation] = &[$(Operation::$variant,)*];

            /// Returns the name that protocol analysers print.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Operation::$variant => $name,)*
                }
            }
        }
    };
}

operations! {
    /// SEND, first of several packets.
    SendFirst = 0x00, "SEND_FIRST";
    /// SEND, neither first nor last.
    SendMiddle = 0x01, "SEND_MIDDLE";
    /// SEND, last of several.
    SendLast = 0x02, "SEND_LAST";
    /// SEND with immediate, last of several.
    SendLastImm = 0x03, "SEND_LAST_IMM";
    /// SEND in one packet.
    SendOnly = 0x04, "SEND_ONLY";
    /// SEND with immediate in one packet.
    SendOnlyImm = 0x05, "SEND_ONLY_IMM";
    /// RDMA WRITE, first of several packets.
    WriteFirst = 0x06, "WRITE_FIRST";
    /// RDMA WRITE, neither first nor last.
    WriteMiddle = 0x07, "WRITE_MIDDLE";
    /// RDMA WRITE, last of several.
    WriteLast = 0x08, "WRITE_LAST";
    /// RDMA WRITE with immediate, last of several.
    WriteLastImm = 0x09, "WRITE_LAST_IMM";
    /// RDMA WRITE in one packet.
    WriteOnly = 0x0a, "WRITE_ONLY";
    /// RDMA WRITE with immediate in one packet.
    WriteOnlyImm = 0x0b, "WRITE_ONLY_IMM";
    /// RDMA READ request.
    ReadRequest = 0x0c, "READ_REQUEST";
    /// READ data, first of several packets.
    ReadResponseFirst = 0x0d, "READ_RESPONSE_FIRST";
    /// READ data, neither first nor last: the only response without an AETH.
    ReadResponseMiddle = 0x0e, "READ_RESPONSE_MIDDLE";
    /// READ data, last of several.
    ReadResponseLast = 0x0f, "READ_RESPONSE_LAST";
    /// READ data in one packet. Without payload, the response to FLUSH and ATOMIC_WRITE.
    ReadResponseOnly = 0x10, "READ_RESPONSE_ONLY";
    /// Positive or negative acknowledgement.
    Acknowledge = 0x11, "ACKNOWLEDGE";
    /// Response to an atomic, with the original value.
    AtomicAcknowledge = 0x12, "ATOMIC_ACKNOWLEDGE";
    /// Atomic compare and swap.
    CompareSwap = 0x13, "COMPARE_SWAP";
    /// Atomic fetch and add.
    FetchAdd = 0x14, "FETCH_ADD";
    /// Resynchronise (RD only).
    Resync = 0x15, "RESYNC";
    /// SEND with invalidate, last of several.
    SendLastInvalidate = 0x16, "SEND_LAST_INVALIDATE";
    /// SEND with invalidate in one packet.
    SendOnlyInvalidate = 0x17, "SEND_ONLY_INVALIDATE";
    /// FLUSH: makes earlier WRITEs globally visible or persistent.
    Flush = 0x1c, "FLUSH";
    /// Atomic write of eight bytes.
    AtomicWrite = 0x1d, "ATOMIC_WRITE";
    /// Congestion notification. The opcode on the wire is 0x81, so the lower five bits
    /// are 1; the discriminant differs from theirs because 1 is [`Operation::SendMiddle`].
    CongestionNotification = 0x21, "CNP";
}
