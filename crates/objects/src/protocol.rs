//! The protocols that an adapter can speak.

/// The protocol of an adapter and of its queue pairs.
///
/// The rules that differ between protocols are found by a match on this type. A new variant
/// does not compile until each of them has its own rules.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// RoCE v2: the InfiniBand transport over UDP.
    Roce,
    /// iWARP: RDMAP over DDP over MPA over TCP.
    Iwarp,
}
