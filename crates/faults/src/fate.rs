//! The fate of one packet.

use core::fmt::Write as _;

use crate::plan::{Answer, Plan};

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
    /// The rules that decided, a bit for each.
    pub rules: u64,
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
        rules: 0,
    };

    /// Returns true if the packet goes on now and as it is.
    pub fn is_pass(&self) -> bool {
        Fate { rules: 0, ..*self } == Fate::PASS
    }

    /// Returns true if the packet is lost.
    pub fn is_lost(&self) -> bool {
        self.copies == 0
    }

    /// Describes the fate of a packet that was judged at a time, for captures: "dropped by fault:
    /// loss 1%". Returns none if the packet goes on now and as it is.
    pub fn describe(&self, judged_at: u64, plan: &Plan) -> Option<String> {
        if self.is_pass() {
            return None;
        }
        let mut parts = Vec::new();
        if self.rejected {
            parts.push("rejected".to_owned());
        } else if self.is_lost() {
            parts.push("dropped".to_owned());
        } else {
            if self.answer.is_some() {
                parts.push("replaced".to_owned());
            }
            match self.damage {
                Some(Damage {
                    undetected: true, ..
                }) => parts.push("corrupted, with a valid ICRC,".to_owned()),
                Some(_) => parts.push("corrupted".to_owned()),
                None => {}
            }
            if self.copies > 1 {
                parts.push(format!("sent {} times", self.copies));
            }
            if self.behind > 0 {
                parts.push(format!("held back behind {}", self.behind));
            }
            if let Some(due) = self.due {
                let us = due.saturating_sub(judged_at) as f64 / 1e3;
                parts.push(match us < 1e3 {
                    true => format!("delayed {us:.0} us"),
                    false => format!("delayed {} ms", (us / 100.0).round() / 10.0),
                });
            }
        }
        let mut text = parts.join(" and ");
        text.push_str(" by fault");
        let rules = plan.rules.iter().enumerate();
        let decided = rules.filter(|(index, _)| self.rules >> index & 1 != 0);
        for (number, (_, rule)) in decided.enumerate() {
            let separator = if number == 0 { ": " } else { "; " };
            let _infallible = write!(text, "{separator}{}", rule.text);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(fate: Fate) -> Option<String> {
        let plan = Plan::parse("loss 1%; delay 2ms").expect("valid");
        fate.describe(1_000_000, &plan)
    }

    #[test]
    fn fates_are_told_in_words_with_their_rules() {
        let lost = Fate {
            copies: 0,
            rules: 1,
            ..Fate::PASS
        };
        assert_eq!(described(lost).unwrap(), "dropped by fault: loss 1%");
        let late = Fate {
            due: Some(3_000_000),
            copies: 2,
            rules: 3,
            ..Fate::PASS
        };
        assert_eq!(
            described(late).unwrap(),
            "sent 2 times and delayed 2 ms by fault: loss 1%; delay 2ms"
        );
        let soon = Fate {
            due: Some(1_040_000),
            rules: 2,
            ..Fate::PASS
        };
        assert_eq!(
            described(soon).unwrap(),
            "delayed 40 us by fault: delay 2ms"
        );
        assert_eq!(described(Fate::PASS), None);
    }
}
