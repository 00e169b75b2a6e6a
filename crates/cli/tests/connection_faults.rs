//! Faults at each step of a connection, and a scenario file, with unmodified programs: `rdma_client`
//! and `rdma_server`, `rping`, `ucmatose`.

mod common;

use std::process::{Command, Output, Stdio};

use common::{Cleanup, FERROCE, ok, with_libraries};

/// Starts a server, waits until it listens, and runs its client. Prints the status of the server.
fn script(server: &str, client: &str) -> String {
    format!(
        "{server} & server=$!
        until rdma resource show cm_id | grep -q LISTEN; do kill -0 $server || exit 1; done
        {client}; status=$?
        wait $server; echo server status $?
        exit $status"
    )
}

fn run(faults: [&str; 2], script: &str) -> (Output, String) {
    let output = Command::new(FERROCE)
        .arg("run")
        .args(faults)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts");
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output, said)
}

#[test]
fn connection_survives_each_lost_or_late_message() {
    with_libraries("connection_survives_each_lost_or_late_message", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let pair = script("rdma_server", "rdma_client -s 127.0.0.1");
        for fault in [
            "drop the 1st REP",
            "drop the 1st RTU",
            "drop the 1st DREQ",
            "drop the 1st DREP",
            "delay the 1st REQ 100ms",
            "delay the 1st REP 100ms",
            "delay the 1st RTU 100ms",
            "delay the 1st DREQ 100ms",
            "duplicate the 1st REQ",
            "duplicate the 1st REP",
        ] {
            let (output, said) = run(["--faults", fault], &pair);
            assert!(output.status.success(), "{fault}: {said}");
            assert!(said.contains("rdma_client: end 0"), "{fault}: {said}");
        }
    });
}

#[test]
fn rejected_message_is_refused_at_both_ends() {
    with_libraries("rejected_message_is_refused_at_both_ends", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let pair = script("rdma_server", "rdma_client -s 127.0.0.1");
        let (output, said) = run(["--faults", "reject the 1st REP"], &pair);
        assert!(!output.status.success(), "{said}");
        // The server's REP is rejected. The client asks again, and finds no connection.
        for end in ["rdma_accept", "rdma_connect"] {
            let refused = format!("{end}: Connection refused");
            assert!(said.contains(&refused), "{said}");
        }
    });
}

#[test]
fn programs_survive_the_scenario_of_a_bad_cable() {
    with_libraries("programs_survive_the_scenario_of_a_bad_cable", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let file = common::config_dir().with_extension("toml");
        let scenario = r#"
            description = "connections are slow to set up, and packets are late or lost"
            seed = 7
            faults = ["drop the 3rd to 6th packet", "delay the 1st REP 100ms", "duplicate the 1st RTU"]

            [[step]]
            at = "0ms"
            for = "60s"
            faults = ["delay 1ms jitter 500us"]
        "#;
        std::fs::write(&file, scenario).expect("written");
        let path = file.to_str().expect("text");
        let rping = script("rping -s -C 20", "rping -c -C 20 -V -a 127.0.0.1");
        let ucmatose = script("ucmatose -c 3 -C 4", "ucmatose -c 3 -C 4 -s 127.0.0.1");
        for pair in [rping, ucmatose] {
            let (output, said) = run(["--scenario", path], &pair);
            assert!(output.status.success(), "{said}");
            assert!(said.contains("server status 0"), "{said}");
            let hits = |fault: &str| -> u32 {
                let counts = said.lines().filter_map(|line| {
                    let (_, counts) = line.split_once(&format!(": {fault}: "))?;
                    counts.split(' ').next()?.parse::<u32>().ok()
                });
                counts.sum()
            };
            assert_eq!(hits("drop the 3rd to 6th packet"), 4, "{said}");
            assert!(hits("delay 1ms jitter 500us at 0ms for 60s") > 4, "{said}");
        }
        std::fs::remove_file(&file).expect("the scenario");
    });
}

/// Runs `ucmatose` at both ends of a connection on a port. Prints what each of them says once `last`
/// has ended, and ends the other.
fn ucmatose(port: u16, last: &str) -> String {
    format!(
        "said=$(mktemp -d); cd $said
        ucmatose -p {port} >server 2>&1 & server=$!
        until rdma resource show cm_id | grep -q 'LISTEN.*:{port} '; do
            kill -0 $server || exit 1
        done
        ucmatose -p {port} -s 127.0.0.1 >client 2>&1 & client=$!
        wait {last}
        kill $server $client 2>/dev/null
        wait
        grep -H . server client
        rm -r $said"
    )
}

#[test]
fn step_that_is_unanswered_for_good_is_unreachable() {
    with_libraries("step_that_is_unanswered_for_good_is_unreachable", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        // -110 is -ETIMEDOUT.
        let unreachable = "RDMA_CM_EVENT_UNREACHABLE, error: -110";
        // The server has ended by then: the next REQ finds a connection that is gone.
        let stale = "RDMA_CM_EVENT_REJECTED, error: 10";
        // The connection manager gives up after 15 retries: 70 to 80 s, for all steps at once. These
        // are the events that server and client may see; one of them, if there are any.
        let steps = [
            // No request arrives: the server knows nothing of it.
            ("drop REQ", "$client", [&[][..], &[unreachable]]),
            (
                "drop REP",
                "$server $client",
                [&[unreachable], &[unreachable, stale]],
            ),
            // The client has its answer, and is connected.
            ("drop RTU", "$server", [&[unreachable], &[]]),
        ];
        let runs = (7201..).zip(steps).map(|(port, (fault, last, events))| {
            let child = Command::new(FERROCE)
                .args(["run", "--faults", fault, "--", "sh", "-c"])
                .arg(ucmatose(port, last))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            (fault, events, child.expect("ferroce starts"))
        });
        let runs: Vec<_> = runs.collect();
        for (fault, events, child) in runs {
            let output = child.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            for (end, allowed) in ["server", "client"].into_iter().zip(events) {
                let mut lines = said.lines();
                let prefix = format!("{end}:cmatose: event: ");
                let event = lines.find_map(|line| line.strip_prefix(&prefix));
                let is_right = match event {
                    Some(event) => allowed.contains(&event),
                    None => allowed.is_empty(),
                };
                assert!(is_right, "{fault}: {end}: {event:?}: {said}{errors}");
            }
        }
    });
}
