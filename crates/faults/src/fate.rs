//! The fate of one packet.

use crate::plan::Answer;

/// The fate of a packet.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Fate {
    /// How often the packet arrives; 0 if it is lost.
    pub copies: u32,
    /// Time in nanoseconds before which it does not go on.
    pub due: Option<u64>,
    /// Later packets of its flow that go on before it.
    pub behind: u32,
    /// A bit that is inverted.
    pub damage: Option<Damage>,
    /// The response that takes its place.
    pub answer: Option<Answer>,
    /// True if the connection manager rejects it.
    pub rejected: bool,
    /// The rule that decided last.
    pub rule: Option<usize>,
}

/// A bit that is inverted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// A random number that selects the bit.
    pub place: u64,
    /// True if the ICRC fits the damage.
    pub undetected: bool,
}

impl Fate {
    /// The packet goes on as it is.
    pub const PASS: Fate = Fate {
        copies: 1,
        due: None,
        behind: 0,
        damage: None,
        answer: None,
        rejected: false,
        rule: None,
    };

    /// Returns true if the packet goes on now and as it is.
    pub fn is_pass(&self) -> bool {
        Fate {
            rule: None,
            ..*self
        } == Fate::PASS
    }

    /// Returns true if the packet is lost.
    pub fn is_lost(&self) -> bool {
        self.copies == 0
    }
}
