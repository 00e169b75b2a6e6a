//! Deliberate bugs, with which the simulation proves that it can fail.
//!
//! They exist in tests only; elsewhere the answer to "is this bug on?" is a
//! constant no.

/// A mistake that a connection manager may make.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A repeated REQ becomes a second request.
    RepeatedReqIsNew,
    /// A repeated REP is not answered with another RTU.
    NeverRepeatRtu,
    /// A repeated DREQ is not answered once the connection is gone.
    NeverRepeatDrep,
    /// A message that gets no answer is not sent again.
    NeverRepeat,
    /// Retries are never used up.
    RepeatForever,
    /// What was refused is forgotten at once.
    ForgetRefusals,
    /// TIMEWAIT never ends.
    TimewaitForever,
    /// RTUs are taken from anybody.
    BelieveAnyRtu,
    /// The arrival of data does not establish a connection.
    IgnoreCommEst,
    /// An MRA is taken for a rejection.
    MraRejects,
    /// The addresses of messages are not looked at.
    IgnoreAddress,
    /// The QPN of a DREQ is not looked at.
    IgnoreQpn,
}

#[cfg(test)]
impl Bug {
    /// All of them.
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
