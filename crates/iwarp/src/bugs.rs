//! Injected bugs, with which the simulation proves that it detects errors.
//!
//! They exist in tests only. In other builds `Context::has_bug` returns a constant false.

/// A bug that a test can inject into an engine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Bug {
    /// The MSN stays at its largest value instead of wrapping to 0.
    MsnDoesNotWrap,
    /// A Read is answered from memory whose STag is no longer valid.
    AnswerDeadStag,
    /// Every segment is taken for the last one of its message.
    IgnoreLastBit,
    /// The CRC of a sent FPDU does not cover its pad bytes.
    CrcWithoutPad,
    /// The CRC of received FPDUs is not checked.
    SkipCrcCheck,
    /// The FENCE flag is ignored.
    IgnoreFence,
    /// More Reads are outstanding than the ORD allows.
    IgnoreOrd,
    /// A send completes before the socket has accepted its bytes.
    CompleteUnsent,
    /// Receives are not flushed when the connection fails.
    ForgetToFlushReceives,
    /// Every segment of a SEND has message offset 0.
    LoseMessageOffset,
    /// Every segment of a Read Response names the start of the sink.
    LoseSinkOffset,
    /// Addresses of tagged segments are not checked.
    SkipBoundsCheck,
    /// The second part of a cut payload is placed where the first part was.
    RestartCutPayload,
    /// SEND with invalidate leaves the STag valid.
    SkipInvalidate,
    /// The end of the peer's stream is ignored.
    IgnoreEndOfStream,
    /// A Read completes with the first segment of its response.
    CompleteReadEarly,
    /// A completion of a send overtakes an earlier Read.
    CompleteOutOfOrder,
    /// A partly accepted batch is taken for accepted.
    LosePartialWrite,
    /// A disconnect flushes posted sends that are not in the output yet.
    FlushAtDisconnect,
}

#[cfg(test)]
impl Bug {
    /// All bugs.
    pub(crate) const ALL: &'static [Bug] = &[
        Bug::MsnDoesNotWrap,
        Bug::AnswerDeadStag,
        Bug::IgnoreLastBit,
        Bug::CrcWithoutPad,
        Bug::SkipCrcCheck,
        Bug::IgnoreFence,
        Bug::IgnoreOrd,
        Bug::CompleteUnsent,
        Bug::ForgetToFlushReceives,
        Bug::LoseMessageOffset,
        Bug::LoseSinkOffset,
        Bug::SkipBoundsCheck,
        Bug::RestartCutPayload,
        Bug::SkipInvalidate,
        Bug::IgnoreEndOfStream,
        Bug::CompleteReadEarly,
        Bug::CompleteOutOfOrder,
        Bug::LosePartialWrite,
        Bug::FlushAtDisconnect,
    ];
}
