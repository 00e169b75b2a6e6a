//! Faults on a link of type siw, with unmodified programs: `rping`, which checks its data, and
//! `ib_send_bw`.

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

fn rping(count: u32) -> String {
    script(
        &format!("rping -s -v -V -C {count}"),
        &format!("rping -c -v -V -C {count} -a 127.0.0.1"),
    )
}

fn run(faults: &str, script: &str) -> (Output, String) {
    let output = Command::new(FERROCE)
        .args(["run", "--type", "siw", "--faults", faults])
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts");
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output, said)
}

/// Returns how many FPDUs a fault has changed, in all programs of a run.
fn hits(said: &str, fault: &str) -> u32 {
    let counts = said.lines().filter_map(|line| {
        let (_, counts) = line.split_once(&format!(": {fault}: "))?;
        counts.split(' ').next()?.parse::<u32>().ok()
    });
    counts.sum()
}

#[test]
fn late_bytes_arrive_whole_and_in_order() {
    with_libraries("late_bytes_arrive_whole_and_in_order", || {
        let _cleanup = Cleanup;
        ok("ferroce link add siw0 type siw netdev lo");
        for fault in [
            "delay 5ms jitter 2ms",
            "delay every 3rd WRITE 20ms",
            "slow completions 5ms",
            "rate 1mbit",
            "partition at 50ms for 500ms",
            "port down for 300ms after 5 packets",
        ] {
            let (output, said) = run(fault, &rping(20));
            assert!(output.status.success(), "{fault}: {said}");
            assert!(said.contains("server status 0"), "{fault}: {said}");
            assert!(said.contains("ping data: rdma-ping-19"), "{fault}: {said}");
            if !fault.contains(" at ") {
                assert!(hits(&said, fault) > 0, "{fault}: {said}");
            }
        }
    });
}

#[test]
fn reset_connection_flushes_both_ends() {
    with_libraries("reset_connection_flushes_both_ends", || {
        let _cleanup = Cleanup;
        ok("ferroce link add siw0 type siw netdev lo");
        // The server closes its listener between the connection of its setup and the next one, and
        // on a loaded machine the client is refused meanwhile.
        let perftest = "ib_send_bw -d siw0 -R -n 100000";
        let perftest = format!(
            "attempt() {{
                {perftest} >server 2>&1 & server=$!
                until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
                    kill -0 $server || exit 1
                done
                {perftest} 127.0.0.1 >client 2>&1
                refused=0
                grep -q RDMA_CM_EVENT_REJECTED client && refused=1 && kill $server
                wait $server
                return $refused
            }}
            until attempt; do :; done
            cat server client"
        );
        let folder = common::config_dir().with_extension("streams");
        std::fs::create_dir_all(&folder).expect("created");
        let perftest = format!("cd {} || exit 1\n{perftest}", folder.display());
        for fault in ["reset the 50th SEND", "qp error after 60 packets"] {
            let (_, said) = run(fault, &perftest);
            assert_eq!(hits(&said, fault), 1, "{fault}: {said}");
            // IBV_WC_WR_FLUSH_ERR.
            let flushed = said.matches("Failed status 5").count();
            assert_eq!(flushed, 2, "{fault}: {said}");
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    });
}

#[test]
fn reset_connection_is_disconnected_at_both_ends() {
    with_libraries("reset_connection_is_disconnected_at_both_ends", || {
        let _cleanup = Cleanup;
        ok("ferroce link add siw0 type siw netdev lo");
        for (fault, reason) in [
            ("reset the 5th SEND", "reset by a fault that is in force"),
            ("qp error after 9 packets", "vendor_err 0x70 (provoked)"),
        ] {
            let (_, said) = run(fault, &rping(100_000));
            assert_eq!(hits(&said, fault), 1, "{fault}: {said}");
            for end in ["server", "client"] {
                let event = format!("{end} DISCONNECT EVENT");
                assert!(said.contains(&event), "{fault}: {said}");
            }
            let story = ok("ferroce explain");
            assert!(story.contains(reason), "{fault}: {story}");
        }
    });
}

#[test]
fn reset_is_refused_without_a_stream() {
    with_libraries("reset_is_refused_without_a_stream", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let refusal = common::fails("ferroce link set rxe0 faults reset");
        assert!(
            refusal.contains("RoCE has no TCP connection that could be reset; use `qp error`"),
            "{refusal}"
        );
    });
}
