//! Networks that lose, reorder, duplicate and delay, in both directions: every byte must be
//! right, and nothing may hang.

use super::Ports;
use crate::case::{CALLERS, Case, Weather};

const WEATHERS: [Weather; 5] = [
    Weather::Loss(1),
    Weather::Loss(5),
    Weather::Reordering,
    Weather::Duplication,
    Weather::Delay,
];

/// Commands, and what they say at the end. Timeouts are as short as programs allow: the
/// kernel recovers a lost READ response by its timer only.
const COMMANDS: [(&str, &str, &str); 5] = [
    (
        "weather",
        "ibv_rc_pingpong -d rxe0 -g 1 -c -s 65536 -n 20 -p {port}",
        "usec/iter",
    ),
    (
        "weather",
        "ibv_srq_pingpong -d rxe0 -g 1 -c -s 4096 -n 100 -p {port}",
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
];

pub(super) fn cases() -> Vec<Case> {
    let mut ports = Ports(20_000);
    let mut cases = Vec::new();
    for weather in WEATHERS {
        for (group, command, expect) in COMMANDS {
            for caller in CALLERS {
                let case = Case::pair(group, caller, ports.next(), command);
                let mut case = case.weather(weather).expect(expect);
                // Whoever has all its completions ends, and cannot acknowledge again what the
                // other sends again because the last acknowledgement was lost. rxe never
                // gives up with the retry_cnt 7 of these programs.
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
