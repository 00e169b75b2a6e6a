//! Faults on a link of type siw: iWARP runs over TCP, whose segments the kernel makes.

use crate::plan::{Effect, Plan, Rule};
use crate::selector::PacketKind;

impl Plan {
    /// Checks that all faults are possible on a link of type siw.
    ///
    /// # Errors
    /// With the first fault that is not, the reason and the remedy.
    pub fn check_for_streams(&self) -> Result<(), String> {
        let refused = self.rules.iter().find_map(|rule| {
            let (reason, remedy) = rule.refusal_on_streams()?;
            Some(format!(
                "the fault `{}` is not possible on a link of type siw: {reason}; {remedy}",
                rule.text
            ))
        });
        refused.map_or(Ok(()), Err)
    }
}

impl Rule {
    /// Returns why the rule cannot work over TCP, and the remedy; none if it can.
    fn refusal_on_streams(&self) -> Option<(&'static str, &'static str)> {
        const RXE: &str = "use a link of type rxe";
        const KERNEL: &str = "the kernel sends the segments of TCP, not the program";
        let netem = "`tc qdisc add dev IF root netem` delays, limits and stops TCP; \
                     or use a link of type rxe";
        Some(match self.effect {
            Effect::Fail { .. } => return None,
            Effect::Reject => ("TCP has no messages of the connection manager", RXE),
            _ if self.select.kind.is_cm() => ("TCP has no messages of the connection manager", RXE),
            Effect::Drop if self.select.kind == PacketKind::All => (KERNEL, netem),
            Effect::Drop => (
                "TCP sends lost segments again, so no program misses one",
                netem,
            ),
            Effect::Duplicate => ("TCP drops segments that arrive twice", RXE),
            Effect::Corrupt { .. } => ("TCP drops damaged segments and sends them again", RXE),
            Effect::Reorder { .. } => ("TCP restores the order of segments", RXE),
            Effect::BlackHole { .. } => ("TCP adapts its segments to the path", RXE),
            Effect::Answer(_) => ("iWARP has no ACKs and NAKs", RXE),
            Effect::Delay { .. } | Effect::Rate { .. } => (KERNEL, netem),
            Effect::Event(_) => (
                "events begin with packets, and programs do not see those of TCP",
                RXE,
            ),
        })
    }
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
            ("delay 2ms", "the kernel sends the segments"),
            ("rate 100mbit", "the kernel sends the segments"),
            ("partition", "the kernel sends the segments"),
            ("qp error", "events begin with packets"),
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
}
