//! Injected protocol bugs, by which the simulator proves that it finds bugs.
//!
//! Without the feature `bugs` no bug is active, which is known at compile time: the compiler
//! removes all checks.

/// An injected bug of the engine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "bugs"), allow(unreachable_pub))]
pub enum Bug {
    /// A duplicate atomic is executed again, not answered from history.
    ReexecuteDuplicateAtomic,
    /// A duplicate SEND consumes another receive.
    ReexecuteDuplicateSend,
    /// Duplicates are dropped without an acknowledgement.
    NeverReackDuplicates,
    /// Every packet ahead of the expected PSN is answered with a NAK.
    ForgetNakOnce,
    /// A packet ahead of the expected PSN is executed.
    AcceptPsnAhead,
    /// PSNs are compared as integers, which is wrong when they wrap.
    PsnCompareWithoutWrap,
    /// A retried READ request names the first address of the READ.
    LoseReadOffsetOnRetry,
    /// A SEND or WRITE that is retried in its middle sends its first bytes.
    LoseOffsetOnResume,
    /// An ACK for a later PSN completes a READ without its data.
    AckCompletesRead,
    /// A READ response ahead of the expected PSN is accepted.
    AcceptReadResponseAhead,
    /// An ACK for a part of a work request completes it.
    CompletePartlyAcked,
    /// Retries are not counted: a dead peer hangs the queue pair.
    RetryForever,
    /// An ACK does not reset the number of retries left.
    NeverRestoreRetries,
    /// An RNR NAK is handled like an ACK.
    IgnoreRnrNak,
    /// Receives are not flushed when a queue pair fails.
    ForgetToFlushReceives,
    /// Ranges of remote requests are not checked.
    SkipRangeCheck,
    /// The ICRC is not checked.
    SkipIcrcCheck,
    /// The FENCE flag is ignored.
    IgnoreFence,
    /// Immediate data is not delivered.
    LoseImmediate,
    /// A UC message with a missing packet is delivered.
    UcIgnoreGap,
    /// SEND with invalidate leaves the key valid.
    SkipRemoteInvalidate,
    /// A failed send queue is flushed in reverse order.
    FlushNewestFirst,
    /// A loss probe requests one packet of a READ whose request may have been lost.
    ProbeUnseenReadInPart,
    /// A window that splits a READ does not grow while `max_rd_atomic` is reached.
    ForgetWindowBehindReadDepth,
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
    /// All bugs.
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
        Bug::ForgetWindowBehindReadDepth,
        Bug::PredictOtherPartition,
        Bug::PredictOtherQp,
        Bug::PredictAnyPsn,
    ];
}
