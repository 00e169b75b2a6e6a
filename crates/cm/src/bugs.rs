//! Injected bugs, with which the simulation proves that it detects errors.
//!
//! They exist in tests only. In other builds `Cm::bug` returns a constant false.

/// A bug that a test can inject into a connection manager.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A duplicate REQ becomes a second request.
    RepeatedReqIsNew,
    /// A duplicate REP is not answered with another RTU.
    NeverRepeatRtu,
    /// A duplicate DREQ is not answered once the connection is gone.
    NeverRepeatDrep,
    /// Unanswered messages are not retransmitted.
    NeverRepeat,
    /// Messages are retransmitted without limit.
    RepeatForever,
    /// A REJ is not kept for duplicates of the rejected message.
    ForgetRefusals,
    /// TIMEWAIT never ends.
    TimewaitForever,
    /// An RTU with unknown IDs establishes a connection.
    BelieveAnyRtu,
    /// The arrival of data does not establish a connection.
    IgnoreCommEst,
    /// An MRA is treated as a rejection.
    MraRejects,
    /// The addresses of messages are not checked.
    IgnoreAddress,
    /// The QPN of a DREQ is not checked.
    IgnoreQpn,
}

#[cfg(test)]
impl Bug {
    /// All bugs.
    pub(crate) const ALL: &'static [Bug] = &[
        Bug::RepeatedReqIsNew,
        Bug::NeverRepeatRtu,
        Bug::NeverRepeatDrep,
        Bug::NeverRepeat,
        Bug::RepeatForever,
        Bug::ForgetRefusals,
        Bug::TimewaitForever,
        Bug::BelieveAnyRtu,
        Bug::IgnoreCommEst,
        Bug::MraRejects,
        Bug::IgnoreAddress,
        Bug::IgnoreQpn,
    ];
}
