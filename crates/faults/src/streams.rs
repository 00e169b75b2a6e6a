//! The faults of each type of link: packets of RoCE can be lost, streams of iWARP can be reset.

use crate::plan::{Effect, EventKind, Plan, Rule};
use crate::selector::{Direction, PacketKind};

const RXE: &str = "use a link of type rxe";

impl Plan {
    /// Checks that all faults are possible on a link of type siw.
    ///
    /// # Errors
    /// With the first fault that is not, the reason and the remedy.
    pub fn check_for_streams(&self) -> Result<(), String> {
        self.check_for("siw", Rule::refusal_on_streams)
    }

    /// Checks that all faults are possible on a link of type rxe.
    ///
    /// # Errors
    /// With the first fault that is not, the reason and the remedy.
    pub fn check_for_packets(&self) -> Result<(), String> {
        self.check_for("rxe", |rule| match rule.effect {
            Effect::Reset => Some((
                "RoCE has no TCP connection that could be reset",
                "use `qp error`, or a link of type siw",
            )),
            _ => None,
        })
    }

    fn check_for(
        &self,
        kind: &str,
        refusal: impl Fn(&Rule) -> Option<(&'static str, &'static str)>,
    ) -> Result<(), String> {
        let refused = self.rules.iter().find_map(|rule| {
            let (reason, remedy) = refusal(rule)?;
            Some(format!(
                "the fault `{}` is not possible on a link of type {kind}: {reason}; {remedy}",
                rule.text
            ))
        });
        refused.map_or(Ok(()), Err)
    }
}

impl Rule {
    /// Returns why the rule cannot work over TCP, and the remedy; none if it can.
    fn refusal_on_streams(&self) -> Option<(&'static str, &'static str)> {
        if matches!(self.effect, Effect::Fail { .. }) {
            return None;
        }
        if self.effect == Effect::Reject || self.select.kind.is_cm() {
            return Some(("TCP has no messages of the connection manager", RXE));
        }
        let refusal = match self.effect {
            Effect::Drop if self.select.kind != PacketKind::All => (
                "TCP sends lost segments again, so no program misses one",
                "`partition` and `delay` make bytes late; for packets that are lost use a link of type rxe",
            ),
            Effect::Duplicate => ("TCP drops segments that arrive twice", RXE),
            Effect::Corrupt { .. } => ("TCP drops damaged segments and sends them again", RXE),
            Effect::Reorder { .. } => ("TCP restores the order of segments", RXE),
            Effect::BlackHole { .. } => ("TCP adapts its segments to the path", RXE),
            Effect::Answer(_) => ("iWARP has no ACKs and NAKs", RXE),
            Effect::Event(EventKind::CqOverrun) => {
                ("its completion queues do not overflow on demand", RXE)
            }
            _ if self.select.direction == Some(Direction::Out) => (
                "programs delay and stop the bytes that they receive",
                "leave out `out`, or use a link of type rxe",
            ),
            _ if !is_of_streams(self.select.kind) => (
                "iWARP has no such packets",
                "name SEND, WRITE, READ, RESPONSE, or use a link of type rxe",
            ),
            _ => return None,
        };
        Some(refusal)
    }
}

/// Returns true for kinds of packets that streams have.
fn is_of_streams(kind: PacketKind) -> bool {
    matches!(
        kind,
        PacketKind::All
            | PacketKind::Packet
            | PacketKind::Request
            | PacketKind::Send
            | PacketKind::Write
            | PacketKind::Read
            | PacketKind::Response
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_may_fail_on_every_link() {
        let plan = Plan::parse("fail ibv_reg_mr 2 ENOMEM; seed 3").expect("valid");
        assert_eq!(plan.check_for_streams(), Ok(()));
        assert_eq!(Plan::default().check_for_streams(), Ok(()));
    }

    #[test]
    fn refusal_names_the_fault_the_reason_and_the_remedy() {
        for (fault, reason) in [
            ("loss 1%", "TCP sends lost segments again"),
            ("drop the 3rd ACK", "TCP sends lost segments again"),
            ("duplicate 1%", "TCP drops segments that arrive twice"),
            ("corrupt 1%", "TCP drops damaged segments"),
            ("reorder 1% by 3", "TCP restores the order"),
            ("blackhole 1500", "TCP adapts its segments"),
            ("nak access the 2nd ACK", "iWARP has no ACKs and NAKs"),
            (
                "reject the 1st REQ",
                "no messages of the connection manager",
            ),
            (
                "delay the 1st REP 2s",
                "no messages of the connection manager",
            ),
            ("delay out 2ms", "the bytes that they receive"),
            ("delay the 1st ACK 2ms", "iWARP has no such packets"),
            ("cq overrun", "do not overflow on demand"),
        ] {
            let text = format!("fail ibv_reg_mr 2 ENOMEM; {fault}");
            let plan = Plan::parse(&text).expect("valid");
            let refusal = plan.check_for_streams().expect_err(fault);
            assert!(
                refusal.starts_with(&format!("the fault `{fault}` ")),
                "{refusal}"
            );
            assert!(refusal.contains(reason), "{refusal}");
            assert!(refusal.contains("use a link of type rxe"), "{refusal}");
        }
    }

    #[test]
    fn streams_can_be_late_cut_and_reset() {
        for fault in [
            "delay 2ms jitter 1ms",
            "slow completions 5ms",
            "rate 100mbit",
            "partition for 2s",
            "reset the 3rd SEND",
            "qp error after 10 packets",
            "port down for 2s",
            "device fatal",
        ] {
            let plan = Plan::parse(fault).expect("valid");
            assert_eq!(plan.check_for_streams(), Ok(()), "{fault}");
        }
    }

    #[test]
    fn only_a_stream_is_reset() {
        let plan = Plan::parse("loss 1%; reset the 3rd SEND").expect("valid");
        let refusal = plan.check_for_packets().expect_err("RoCE has no TCP");
        assert!(refusal.contains("`reset the 3rd SEND`"), "{refusal}");
        assert!(refusal.contains("use `qp error`"), "{refusal}");
        let loss = Plan::parse("loss 1%").expect("valid");
        assert_eq!(loss.check_for_packets(), Ok(()));
    }
}
