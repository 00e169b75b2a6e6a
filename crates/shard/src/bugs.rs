//! Injected bugs of a shard, with which the simulator proves that it finds such bugs.
//!
//! Bookkeeping finds most of them at once: the simulator counts the packets and the credits
//! that a shard holds. `KeepUnmatched` shows only at the end of a run.
//!
//! Without the feature `bugs` no bug is ever active, and the compiler removes the checks.

/// A mistake that the code of a shard may make.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "bugs"), allow(unreachable_pub))]
pub enum Bug {
    /// A received acknowledgement that was deferred is dropped.
    LoseReceivedAck,
    /// No deadline is set for acknowledgements whose sending was deferred.
    ForgetAckDeadline,
    /// Deferred acknowledgements are not sent before a queue pair changes or ends.
    ForgetDeferredAcks,
    /// No deadline is set for posted work requests that wait for more of them.
    ForgetWaitingPosts,
    /// Packets that have arrived are not received before the error state, RTR of UC, or the end
    /// of a queue pair.
    SkipArrivedPackets,
    /// A run that waited for room in the socket is charged to the receiver twice.
    ChargeTwice,
    /// A run that the wire has dropped stays charged to the receiver.
    ForgetRefund,
    /// The receiver counts each unreliable packet twice.
    CreditTwice,
    /// A packet without a receive is overtaken by later packets of its queue pair.
    OvertakeUnmatched,
    /// Packets that waited for a receive are never delivered.
    KeepUnmatched,
    /// A run is sent although an earlier run waits for room.
    OvertakeWaitingRun,
    /// A run that finds no room is dropped.
    LoseWaitingRun,
    /// The last packet of a merged run is dropped if it is shorter than the others.
    DropShortSegment,
    /// The last packet of a merged run keeps the length of the others.
    MisjudgeLastSegment,
}

#[cfg(feature = "bugs")]
impl Bug {
    /// All bugs.
    pub const ALL: &'static [Bug] = &[
        Bug::LoseReceivedAck,
        Bug::ForgetAckDeadline,
        Bug::ForgetDeferredAcks,
        Bug::ForgetWaitingPosts,
        Bug::SkipArrivedPackets,
        Bug::ChargeTwice,
        Bug::ForgetRefund,
        Bug::CreditTwice,
        Bug::OvertakeUnmatched,
        Bug::KeepUnmatched,
        Bug::OvertakeWaitingRun,
        Bug::LoseWaitingRun,
        Bug::DropShortSegment,
        Bug::MisjudgeLastSegment,
    ];
}

/// The active bug, if any.
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
