use super::*;
use crate::plan::Plan;

fn rule(text: &str) -> Rule {
    let mut rules = Plan::parse(text)
        .unwrap_or_else(|error| panic!("{error}"))
        .rules;
    assert_eq!(rules.len(), 1, "{text}");
    rules.remove(0)
}

#[test]
fn examples_of_the_documentation_are_accepted() {
    let plan = Plan::parse("drop the 3rd ACK; delay 2ms; fail ibv_reg_mr 2 ENOMEM").unwrap();
    let effects: Vec<Effect> = plan.rules.iter().map(|rule| rule.effect).collect();
    let fail = Effect::Fail {
        verb: "ibv_reg_mr",
        errno: 12,
    };
    let delay = Effect::Delay {
        ns: 2_000_000,
        jitter: 0,
    };
    assert_eq!(effects, [Effect::Drop, delay, fail]);
    assert_eq!(plan.rules[0].select.kind, PacketKind::Ack);
    assert_eq!(plan.rules[0].trigger, Trigger::Nth { first: 3, last: 3 });
    assert_eq!(plan.rules[2].trigger, Trigger::Nth { first: 2, last: 2 });
    assert_eq!(Plan::parse("loss 1% seed 7").unwrap().seed, 7);
}

#[test]
fn every_fault_has_a_statement() {
    for text in [
        "loss 0.1%",
        "loss 1% burst 4",
        "loss gilbert 1% 30%",
        "loss gilbert 1% 30% 90% 0.1%",
        "drop 5% ACK in",
        "drop every 10th packet",
        "drop the 3rd to 5th WRITE qp 0x10011",
        "drop CM",
        "drop RTU",
        "duplicate 1% out",
        "duplicate the 1st SEND_ONLY",
        "corrupt 1% undetected",
        "corrupt the 2nd RESPONSE",
        "reorder 2% by 3",
        "delay 2ms jitter 1ms peer 10.0.0.2",
        "delay the 1st REP 2s",
        "slow completions 5ms",
        "rate 100mbit queue 10ms",
        "partition at 1s for 500ms",
        "partition after 100 packets for 2s",
        "blackhole 1500",
        "rnr 100% times 5",
        "rnr the 1st to 8th ACK",
        "nak access the 2nd ACK",
        "nak operation 1% rc",
        "reject",
        "reject the 1st REP",
        "qp error after 10 packets",
        "cq overrun after 3 packets",
        "srq limit at 100ms",
        "port down at 1s for 1s",
        "gid removed after 5 packets",
        "device fatal at 2s",
        "fail ibv_reg_mr 2 ENOMEM",
        "fail the 2nd ibv_reg_mr ENOMEM",
        "fail ibv_poll_cq EIO",
        "fail rdma_connect the 1st to 3rd ECONNREFUSED",
    ] {
        assert_eq!(rule(text).text, text);
    }
}

#[test]
fn both_orders_of_fail_mean_the_same() {
    let (left, right) = (
        rule("fail ibv_reg_mr 2 ENOMEM"),
        rule("fail the 2nd ibv_reg_mr ENOMEM"),
    );
    assert_eq!((left.effect, left.trigger), (right.effect, right.trigger));
}

#[test]
fn comments_empty_statements_and_lines_are_accepted() {
    let plan = Plan::parse("# weather\nloss 1% # a little\n\n; seed 3").unwrap();
    assert_eq!((plan.rules.len(), plan.seed), (1, 3));
    assert_eq!(plan.to_string(), "loss 1%; seed 3");
    assert_eq!(Plan::parse(&plan.to_string()).unwrap(), plan);
}

#[test]
fn burst_has_the_loss_that_was_asked_for() {
    let Trigger::Gilbert { enter, leave, .. } = rule("loss 10% burst 5").trigger else {
        panic!("a model with two states");
    };
    let (enter, leave) = (enter.share(), leave.share());
    assert!(
        (enter / (enter + leave) - 0.1).abs() < 1e-6,
        "{enter} {leave}"
    );
}

#[test]
fn mistakes_name_the_word_and_the_remedy() {
    for (text, complaint) in [
        ("los 1%", "`los` is not a fault; known are loss, drop"),
        ("loss", "which packets? Add a share (`loss 1%`)"),
        (
            "loss 1% blue",
            "unknown word `blue`; after `loss` come burst N",
        ),
        ("loss 1% 2%", "`2%` selects packets a second time"),
        ("loss 1% qp many", "`many` is not a queue pair number"),
        ("loss 1% peer here", "`here` is not an IP address"),
        ("delay", "the time is missing; for example `delay 2ms`"),
        (
            "delay 2",
            "unknown word `2`; after `delay` come a time such as 2ms",
        ),
        ("rate fast", "`fast` is not a rate such as 100mbit"),
        ("rate", "a rate such as 100mbit is missing"),
        ("drop the 5th to 3rd ACK", "the 3rd comes before the 5th"),
        (
            "nak angry 1%",
            "`angry` is not one of access, invalid, operation",
        ),
        ("reject RTU", "only REQ and REP can be rejected"),
        (
            "corrupt 1% REQ",
            "`corrupt` does not exist for messages of the connection manager",
        ),
        ("rnr 1% SEND", "only an ACK or a RESPONSE"),
        ("qp error out", "replace `out` by `in`"),
        ("fail", "the verb is missing"),
        (
            "fail ibv_reg_mr",
            "the error is missing; for example `fail ibv_reg_mr 1 ENOMEM`",
        ),
        (
            "fail ibv_reg_mr 2 ENOMAN",
            "`ENOMAN` is neither the number of a call nor an error",
        ),
        (
            "fail ibv_reg_memory ENOMEM",
            "is not a verb that can fail; known are ibv_reg_mr",
        ),
        ("seed x", "`x` is not a number"),
        ("seed 1; loss 1% seed 2", "the seed is 1 already"),
        ("loss 1% burst", "a number of packets is missing at the end"),
    ] {
        let error = Plan::parse(text).unwrap_err().to_string();
        assert!(error.contains(complaint), "{text}: {error}");
    }
    let many = "loss 1%;".repeat(MAX_RULES + 1);
    let error = Plan::parse(&many).unwrap_err().to_string();
    assert!(error.contains("there may be 64"), "{error}");
}

proptest::proptest! {
    #[test]
    fn parser_never_panics_and_accepts_its_own_output(text in "[a-zA-Z0-9%;_ #]{0,80}") {
        if let Ok(plan) = Plan::parse(&text) {
            proptest::prop_assert_eq!(Plan::parse(&plan.to_string()).unwrap(), plan);
        }
    }
}
