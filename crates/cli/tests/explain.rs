//! `ferroce explain`: reasons of failures, also of a program that was killed.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ferroce_device::transport::{QpType, SendOp, WcStatus};
use ferroce_endpoint::{Endpoint, Options};
use ferroce_testnet::{deadline, isolated};

use common::{Cleanup, fails, ok};

/// The variable that makes the test the program that fails.
const ROLE: &str = "EXPLAIN_TEST_ROLE";

fn connected() -> (Endpoint, Endpoint) {
    let open = || Endpoint::open("rxe0", Options::new(QpType::Rc, 1)).expect("a device");
    let (mut left, mut right) = (open(), open());
    left.connect(&right.introduction().expect("known"))
        .expect("connected");
    right
        .connect(&left.introduction().expect("known"))
        .expect("connected");
    (left, right)
}

/// WRITEs with a wrong key. Returns both ends, whose queue pairs have failed.
fn fail() -> (Endpoint, Endpoint) {
    let (left, right) = connected();
    left.write(1, 0, 10_000).expect("room");
    left.succeed(1).expect("written");
    let (remote_addr, rkey) = left.remote(0);
    let wrong = SendOp::Write {
        remote_addr,
        rkey: rkey ^ 0xff00,
        imm: None,
    };
    left.post(2, wrong, 0, 8).expect("room");
    let failed = left.completions(1).expect("completed");
    assert_eq!(failed[0].status, WcStatus::RemoteAccess);
    assert_eq!(failed[0].vendor_err(), 0x21);
    left.write(3, 0, 8).expect("room");
    let flushed = left.completions(1).expect("completed");
    assert_eq!(
        (flushed[0].status, flushed[0].vendor_err()),
        (WcStatus::WrFlush, 0x01)
    );
    (left, right)
}

#[test]
fn codes_are_decoded_and_wrong_ones_refused() {
    let text = ok("ferroce explain 0x30");
    assert!(text.starts_with("vendor_err 0x30 (no-answer): the peer did not answer"));
    assert!(text.contains("\nremedy: "), "{text}");
    assert_eq!(ok("ferroce explain 48"), text);
    let said = fails("ferroce explain 30");
    assert!(said.contains("in hexadecimal, as 0x30?"), "{said}");
    let said = fails("ferroce explain 0x7f");
    assert!(said.contains("`ferroce explain codes`"), "{said}");
    let all = ok("ferroce explain codes");
    assert!(all.contains("0x61  cq-overflow"), "{all}");
    let documented = include_str!("../../../docs/DEBUGGING.md");
    for line in all.lines() {
        let mut words = line.split_whitespace();
        let (code, name) = (words.next().unwrap(), words.next().unwrap());
        let row = format!("| `{code}` | {name} |");
        assert!(documented.contains(&row), "docs/DEBUGGING.md lacks {row}");
    }
}

#[test]
fn failures_are_explained_in_words() {
    isolated("failures_are_explained_in_words", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        // Over UDP all packets are recorded.
        ok("ferroce link set rxe0 local off");
        assert_eq!(
            ok("ferroce explain"),
            "no queue pair has failed, and there was no asynchronous event\n"
        );
        let (left, right) = fail();
        let (requester, responder) = (left.qp.qpn(), right.qp.qpn());
        let text = ok("ferroce explain");
        for part in [
            format!("queue pair {requester:#08x} of "),
            format!("queue pair {responder:#08x} of "),
            "remote access error: the peer answered remote access error to a WRITE of 8 bytes"
                .into(),
            "vendor_err 0x21 (peer-access): the peer refused the access to its memory".into(),
            "vendor_err 0x10 (key-unknown): no memory region or window has the key".into(),
            // The recorder is on.
            "its packets and decisions:".into(),
        ] {
            assert!(text.contains(&part), "{part}: {text}");
        }
        let one = ok(&format!("ferroce explain {responder:#x}"));
        let peer = format!("its peer is queue pair {requester:#08x}");
        assert!(one.contains("is unknown") && one.contains(&peer), "{one}");
        let json = ok(&format!("ferroce -j explain {requester}"));
        assert!(
            json.contains(r#""vendor_err":33,"name":"peer-access""#),
            "{json}"
        );
        let details = ok("rdma resource show qp -d");
        assert!(
            details.contains("failure remote access error: "),
            "{details}"
        );
        let said = fails("ferroce explain 0x20000");
        assert!(
            said.contains("nothing is recorded of queue pair 0x020000"),
            "{said}"
        );
    });
}

#[test]
fn killed_program_leaves_its_story() {
    if std::env::var_os(ROLE).is_some() {
        let _ends = fail();
        println!("failed");
        // Until it is killed.
        let _never = std::io::read_to_string(std::io::stdin());
    }
    isolated("killed_program_leaves_its_story", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        // Over UDP all packets are recorded.
        ok("ferroce link set rxe0 local off");
        let mut program = Command::new(std::env::current_exe().expect("known"))
            .args(["killed_program_leaves_its_story", "--exact", "--nocapture"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(program.stdout.take().expect("piped"));
        let mut lines = output.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("failed")), "it failed");
        program.kill().expect("it runs");
        program.wait().expect("it ended");
        let ended = format!("(process {}, ended 0 s ago, link rxe0)", program.id());
        let mut text = String::new();
        deadline::until("ferroced has noticed the end", || {
            text = ok("ferroce explain");
            text.contains(" s ago, link rxe0)")
        });
        let ended = ended.split_once(", ").expect("two parts").0;
        assert!(text.contains(ended), "{text}");
        for part in [
            "it failed",
            "its peer is queue pair 0x0",
            "the peer failed",
            "its packets and decisions:",
            ">  RC WRITE_FIRST qp 0x0",
            "<  RC WRITE_ONLY qp > 0x0",
            "[refused: NAK \"remote access error\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let file = common::config_dir().with_extension("pcapng");
        let said = ok(&format!("ferroce explain -w {}", file.display()));
        let count: u32 = said
            .split(' ')
            .next()
            .expect("a word")
            .parse()
            .expect("a number");
        assert!(count >= 8, "{said}");
        let bytes = std::fs::read(&file).expect("a file");
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a pcapng file");
    });
}
