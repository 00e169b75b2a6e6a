//! A plan: the rules of all faults in force.

use core::fmt;
use core::str::FromStr;

use ferroce_wire::{NakCode, Syndrome};

use crate::grammar::{self, ParseError};
use crate::random::Chance;
use crate::selector::{PacketKind, Select};

/// The faults in force, in the order in which they were written.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// Source of all random decisions.
    pub seed: u64,
    /// The rules.
    pub rules: Vec<Rule>,
    text: String,
}

/// One fault.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// The statement, as it was written.
    pub text: String,
    /// The packets that the rule applies to.
    pub select: Select,
    /// Which of them it affects.
    pub trigger: Trigger,
    /// When it applies.
    pub window: Window,
    /// The misfortune of the selected packets.
    pub effect: Effect,
}

/// Which of the selected packets a rule affects.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// All.
    Always,
    /// Each with a probability.
    Chance(Chance),
    /// The model of Gilbert and Elliott: a good and a bad state, each with its own loss.
    Gilbert {
        /// From good to bad, for each packet.
        enter: Chance,
        /// From bad to good.
        leave: Chance,
        /// Loss in the bad state.
        bad: Chance,
        /// Loss in the good state.
        good: Chance,
    },
    /// The packets with these numbers, from 1.
    Nth {
        /// The first of them.
        first: u64,
        /// The last of them.
        last: u64,
    },
    /// Each packet whose number is a multiple.
    Every(u64),
}

/// When a rule applies. Times count from the first packet or call that the plan sees.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// Begin in nanoseconds.
    pub at: Option<u64>,
    /// Length in nanoseconds.
    pub lasts: Option<u64>,
    /// Selected packets that are spared first.
    pub after: u64,
    /// Most packets that are affected.
    pub times: Option<u64>,
}

/// The effect of a rule.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The packet is lost.
    Drop,
    /// The packet arrives twice.
    Duplicate,
    /// One bit is inverted. Undetected: the ICRC fits the damage.
    Corrupt {
        /// True if the receiver cannot notice it.
        undetected: bool,
    },
    /// The packet is late. Packets keep their order.
    Delay {
        /// Nanoseconds.
        ns: u64,
        /// Nanoseconds more or less, at random.
        jitter: u64,
    },
    /// The packet is sent behind this many later packets of its flow.
    Reorder {
        /// Number of packets that overtake it.
        by: u32,
    },
    /// Packets leave at this rate.
    Rate {
        /// Bits in a second.
        bits: u64,
        /// Nanoseconds of queue; longer queues lose packets.
        queue: u64,
    },
    /// Packets with more bytes, IP header included, are lost.
    BlackHole {
        /// The longest IP packet that arrives.
        bytes: usize,
    },
    /// The response is replaced by another one.
    Answer(Answer),
    /// The connection manager gets a rejection in place of an answer.
    Reject,
    /// The TCP connection of an iWARP stream is reset.
    Reset,
    /// Something happens, once.
    Event(EventKind),
    /// A verb fails.
    Fail {
        /// Name of the verb, one of [`crate::VERBS`].
        verb: &'static str,
        /// The error.
        errno: i32,
    },
}

/// A response in place of an ACK.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Receiver not ready.
    Rnr,
    /// NAK: the request is invalid.
    Invalid,
    /// NAK: the memory key does not allow the access.
    Access,
    /// NAK: the responder failed.
    Operation,
}

impl Answer {
    /// Returns the syndrome of the AETH. The RNR timer is 0.64 ms.
    pub fn syndrome(self) -> Syndrome {
        match self {
            Answer::Rnr => Syndrome::RnrNak { timer: 12 },
            Answer::Invalid => Syndrome::Nak(NakCode::InvalidRequest),
            Answer::Access => Syndrome::Nak(NakCode::RemoteAccess),
            Answer::Operation => Syndrome::Nak(NakCode::RemoteOperational),
        }
    }
}

/// An event that a rule causes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// The queue pair that received the packet moves to the error state.
    QpError,
    /// The completion queue of that queue pair overflows.
    CqOverrun,
    /// The limit event of shared receive queues.
    SrqLimit,
    /// The port goes down, and up again at the end of the window.
    PortDown,
    /// The GIDs of the port vanish, until the end of the window.
    GidRemoved,
    /// The device fails.
    DeviceFatal,
}

impl Rule {
    /// Returns true if ferroced applies the rule: to messages of the connection manager.
    pub fn is_for_connection_manager(&self) -> bool {
        self.select.kind.is_cm() || self.select.kind == PacketKind::All
    }

    /// Returns true if the rule is about packets of programs.
    pub fn is_for_packets(&self) -> bool {
        !matches!(self.effect, Effect::Fail { .. }) && !self.select.kind.is_cm()
    }
}

impl Plan {
    /// Parses faults, separated by semicolons or line ends.
    ///
    /// # Errors
    /// With the statement, the word, and the remedy.
    pub fn parse(text: &str) -> Result<Plan, ParseError> {
        let (seed, rules) = grammar::parse(text)?;
        let text = text.split(['\n', ';']).map(grammar::without_comment);
        let statements: Vec<&str> = text.filter(|statement| !statement.is_empty()).collect();
        Ok(Plan {
            seed,
            rules,
            text: statements.join("; "),
        })
    }

    /// Returns true if the plan has no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns true if a rule is about packets or events of programs.
    pub fn concerns_packets(&self) -> bool {
        self.rules.iter().any(Rule::is_for_packets)
    }

    /// Returns true if a rule is about verbs.
    pub fn concerns_verbs(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| matches!(rule.effect, Effect::Fail { .. }))
    }

    /// Returns true if a rule is about messages of the connection manager.
    pub fn concerns_connection_manager(&self) -> bool {
        self.rules.iter().any(Rule::is_for_connection_manager)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Plan {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Plan, ParseError> {
        Plan::parse(text)
    }
}
