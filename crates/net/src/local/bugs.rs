//! Injected bugs of the local wire, with which the simulator proves that it finds such bugs.
//!
//! Without the feature `bugs` no bug is ever active, and the compiler removes the checks.

/// A mistake that the code of the local wire may make.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "bugs"), allow(unreachable_pub))]
pub enum Bug {
    /// The reader checks the length of a record, and then reads it from shared memory again.
    ReadLengthTwice,
    /// The reader does not check the position that the writer has published.
    TrustWriterPosition,
    /// The writer does not check the position that the reader has published.
    TrustReaderPosition,
    /// The writer publishes a record before it has copied it.
    PublishBeforeCopy,
    /// The writer takes the ring for one record longer than it is, and overwrites the oldest.
    OverfillRing,
    /// The writer returns to the start of the ring although records were not read.
    ReturnBeforeRead,
    /// The writer discards bytes that were not read.
    DiscardUnread,
    /// The writer does not wake a reader that sleeps.
    ForgetReaderWakeup,
    /// The reader does not wake a writer that waits for room.
    ForgetWriterWakeup,
    /// The last record of a closed channel is delivered twice.
    RepeatRecordAfterClose,
    /// Records that a dead process has written are not received.
    DropRecordsOfDeadPeer,
    /// A datagram with addresses of another host is received.
    AcceptForeignAddress,
}

#[cfg(feature = "bugs")]
impl Bug {
    /// All bugs.
    pub const ALL: &'static [Bug] = &[
        Bug::ReadLengthTwice,
        Bug::TrustWriterPosition,
        Bug::TrustReaderPosition,
        Bug::PublishBeforeCopy,
        Bug::OverfillRing,
        Bug::ReturnBeforeRead,
        Bug::DiscardUnread,
        Bug::ForgetReaderWakeup,
        Bug::ForgetWriterWakeup,
        Bug::RepeatRecordAfterClose,
        Bug::DropRecordsOfDeadPeer,
        Bug::AcceptForeignAddress,
    ];
}

/// The active bug, if any.
#[derive(Copy, Clone, Default, Debug)]
#[cfg_attr(not(feature = "bugs"), allow(unreachable_pub))]
pub struct Injected {
    #[cfg(feature = "bugs")]
    bug: Option<Bug>,
}

impl Injected {
    /// Enables one bug.
    #[cfg(feature = "bugs")]
    pub fn new(bug: Option<Bug>) -> Injected {
        Injected { bug }
    }

    /// Returns true if this bug is active.
    #[cfg(feature = "bugs")]
    #[inline]
    pub(super) fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Returns false: no bug can be active.
    #[cfg(not(feature = "bugs"))]
    #[inline]
    pub(super) const fn has(self, _: Bug) -> bool {
        false
    }
}
