//! Networks that lose, reorder, duplicate and delay packets in both directions: every byte
//! must be right, and no program may hang.

use std::time::Duration;

use super::Ports;
use crate::case::{CALLERS, Case};
use crate::weather::Weather;

const WEATHERS: [Weather; 5] = [
    Weather::Loss(1),
    Weather::Loss(5),
    Weather::Reordering,
    Weather::Duplication,
    Weather::Delay,
];

/// Group, command, and expected output. ACK timeouts are as short as programs allow, because
/// the kernel recovers a lost READ response only by its timer. ibv_srq_pingpong has two queue
/// pairs: of sixteen, one would mostly lose its last ACK, see below.
const COMMANDS: [(&str, &str, &str); 7] = [
    (
        "weather",
        "ibv_rc_pingpong -d rxe0 -g 1 -c -s 65536 -n 20 -p {port}",
        "usec/iter",
    ),
    (
        "weather",
        "ibv_srq_pingpong -d rxe0 -g 1 -c -s 4096 -n 100 -q 2 -p {port}",
        "usec/iter",
    ),
    (
        "weather",
        "ib_write_bw -d rxe0 -x 1 -F -s 8192 -n 100 -u 14 -p {port}",
        "BW average[MB/sec]",
    ),
    (
        "weather",
        "ib_read_bw -d rxe0 -x 1 -F -s 8192 -n 100 -u 14 -p {port}",
        "BW average[MB/sec]",
    ),
    (
        "weather",
        "ib_atomic_bw -d rxe0 -x 1 -F -n 100 -u 14 -p {port}",
        "BW average[MB/sec]",
    ),
    (
        "weather",
        "/usr/bin/python3 flows.py operations --on {side} -p {port}",
        "as it should be",
    ),
    (
        "weather",
        "/usr/bin/python3 flows.py read_replay --on {side} -p {port}",
        "as it should be",
    ),
];

/// Connections are also established and ended on these networks.
const SERVER: &str = "rping -s -a 0.0.0.0 -p {port} -C 20 -v";
const CLIENT: &str = "rping -c -a {peer} -p {port} -C 20 -v -V";

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(20_000);
    let mut cases = Vec::new();
    for weather in WEATHERS {
        for caller in CALLERS {
            let case = Case::with_cm_server("weather", caller, ports.next(), SERVER, CLIENT);
            let mut case = case.weather(weather).persistent(true);
            if matches!(weather, Weather::Loss(_)) {
                case = case.may_lose();
            }
            // The connection manager retransmits a lost message after four seconds.
            case.patience = Duration::from_secs(60);
            cases.push(case);
        }
        for (group, command, expect) in COMMANDS {
            for caller in CALLERS {
                let case = Case::pair(group, caller, ports.next(), command);
                let mut case = case.weather(weather).expect(expect);
                // A program that has all its completions exits. If its last ACK was lost, no
                // queue pair is left to acknowledge the retransmission. rxe then retries for
                // ever, because it takes the retry_cnt 7 of these programs for infinite.
                if matches!(weather, Weather::Loss(_)) {
                    case = case.may_lose();
                }
                let short = weather == Weather::Loss(5) && command.contains("rc_pingpong");
                cases.push(if short { case.short() } else { case });
            }
        }
    }
    cases
}
