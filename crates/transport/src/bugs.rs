//! Deliberate protocol bugs, with which the simulator proves that it can fail.
//!
//! Without the `bugs` feature the answer to "is this bug on?" is a constant no,
//! and the compiler removes the question.

/// A mistake that a protocol engine may make.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "bugs"), allow(unreachable_pub))]
pub enum Bug {
    /// A duplicate atomic is executed again instead of answered from memory.
    ReexecuteDuplicateAtomic,
    /// A duplicate SEND is placed into a receive of its own.
    ReexecuteDuplicateSend,
    /// Duplicates are dropped without an acknowledgement.
    NeverReackDuplicates,
    /// Every packet ahead of the expected PSN is answered with a NAK.
    ForgetNakOnce,
    /// A packet ahead of the expected PSN is taken as if it were the next.
    AcceptPsnAhead,
    /// PSNs are compared as plain numbers: wrong at the wrap.
    PsnCompareWithoutWrap,
    /// A READ that is requested again starts at its first address.
    LoseReadOffsetOnRetry,
    /// A SEND or WRITE that is resumed sends its first bytes again.
    LoseOffsetOnResume,
    /// An acknowledgement behind a READ completes the READ without its data.
    AckCompletesRead,
    /// A READ response ahead of the expected one is taken as if it were the next.
    AcceptReadResponseAhead,
    /// An acknowledgement completes a work request that it covers only in part.
    CompletePartlyAcked,
    /// Retries are never used up: a dead peer hangs the queue pair.
    RetryForever,
    /// Retries are counted over the whole life of the queue pair.
    NeverRestoreRetries,
    /// The RNR wait is skipped and the request counted as received.
    IgnoreRnrNak,
    /// Receives are not flushed when a queue pair fails.
    ForgetToFlushReceives,
    /// Ranges of remote requests are not checked.
    SkipRangeCheck,
    /// The ICRC is not checked.
    SkipIcrcCheck,
    /// A fence does not wait.
    IgnoreFence,
    /// Immediate data is not delivered.
    LoseImmediate,
    /// A UC message with a hole is delivered.
    UcIgnoreGap,
    /// SEND with invalidate leaves the key valid.
    SkipRemoteInvalidate,
    /// A failed send queue flushes newest first.
    FlushNewestFirst,
    /// A loss probe asks for one packet of a READ whose request may have been lost.
    ProbeUnseenReadInPart,
    /// Header prediction accepts a packet of another partition in the middle of a run.
    PredictOtherPartition,
    /// Header prediction accepts a packet to another queue pair in the middle of a run.
    PredictOtherQp,
    /// Header prediction accepts every PSN.
    PredictAnyPsn,
}

/// The active bug, if any. Without the feature `bugs` it has no size.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Injected {
    #[cfg(feature = "bugs")]
    pub(crate) bug: Option<Bug>,
}

impl Injected {
    /// Returns true if this bug is active.
    #[cfg(feature = "bugs")]
    #[inline]
    pub(crate) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns false: no bug can be active.
    #[cfg(not(feature = "bugs"))]
    #[inline]
    pub(crate) const fn has(self, _: Bug) -> bool {
        false
    }
}

#[cfg(feature = "bugs")]
impl Bug {
    /// All of them.
    pub const ALL: &'static [Bug] = &[
        Bug::ReexecuteDuplicateAtomic,
        Bug::ReexecuteDuplicateSend,
        Bug::NeverReackDuplicates,
        Bug::ForgetNakOnce,
        Bug::AcceptPsnAhead,
        Bug::PsnCompareWithoutWrap,
        Bug::LoseReadOffsetOnRetry,
        Bug::LoseOffsetOnResume,
        Bug::AckCompletesRead,
        Bug::AcceptReadResponseAhead,
        Bug::CompletePartlyAcked,
        Bug::RetryForever,
        Bug::NeverRestoreRetries,
        Bug::IgnoreRnrNak,
        Bug::ForgetToFlushReceives,
        Bug::SkipRangeCheck,
        Bug::SkipIcrcCheck,
        Bug::IgnoreFence,
        Bug::LoseImmediate,
        Bug::UcIgnoreGap,
        Bug::SkipRemoteInvalidate,
        Bug::FlushNewestFirst,
        Bug::ProbeUnseenReadInPart,
        Bug::PredictOtherPartition,
        Bug::PredictOtherQp,
        Bug::PredictAnyPsn,
    ];
}
