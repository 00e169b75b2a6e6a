//! `rdma resource show cm_id`: listeners and connections of real programs.

mod common;

use std::process::{Child, Stdio};

use ferroce_testnet::deadline;
use rustix::process::{Pid, Signal, kill_process};

use common::{Cleanup, cable, ok, with_libraries};

/// A program that is killed on drop, also if the test fails while the program is stopped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _ended_already = self.0.wait();
    }
}

/// Starts one side of rping.
fn rping(side: &str) -> Program {
    let command = format!("ferroce run -- rping {side} -a 10.0.0.1 -p 7175");
    let child = common::command(&command).stdout(Stdio::null()).spawn();
    Program(child.expect("ferroce starts"))
}

/// Runs a test with a server of rping that waits for a connection on a link of this type.
fn with_rping_server(name: &str, kind: &str, test: impl FnOnce(Program)) {
    with_libraries(name, || {
        if !std::path::Path::new("/usr/bin/rping").exists() {
            let line = "*** SKIPPED: rping is not installed ***";
            assert!(std::env::var_os("CI").is_none(), "{line}");
            return eprintln!("{line}");
        }
        let _cleanup = Cleanup;
        cable("eth0", "far0", "10.0.0.1/24");
        ok(&format!("rdma link add {kind}0 type {kind} netdev eth0"));
        let server = rping("-s");
        deadline::until("the server listens", || {
            !common::run("rdma res show cm_id state LISTEN")
                .stdout
                .is_empty()
        });
        test(server);
    });
}

/// A thread that waits for an event of the connection manager also receives the request to
/// list objects.
#[test]
fn programs_that_wait_for_a_disconnect_list_their_objects() {
    with_rping_server(
        "programs_that_wait_for_a_disconnect_list_their_objects",
        "rxe",
        |server| {
            let client = rping("-c");
            deadline::until("the connection exists", has_both_ends);
            for _ in 0..3 {
                let listed = ok("rdma resource show qp");
                for program in [&server, &client] {
                    let pid = format!(" pid {} ", program.0.id());
                    assert!(listed.contains(&pid), "{listed}");
                }
            }
        },
    );
}

/// Returns true if both ends of a connection have a queue pair. A program that has just
/// started, or attaches to another ferroced, may not answer yet: that is a note.
fn has_both_ends() -> bool {
    let ends = common::run("rdma res show cm_id state CONNECT qp-type RC");
    assert!(ends.status.success());
    String::from_utf8_lossy(&ends.stdout).lines().count() == 2
}

/// Both ends of a connection of rping are shown, also after a restart of ferroced.
#[test]
fn connections_are_shown_with_their_ports() {
    with_rping_server("connections_are_shown_with_their_ports", "rxe", |server| {
        // While the server is stopped it cannot accept: its end has no queue pair yet. The
        // state is CONNECT from the request on, as with the kernel.
        let server_pid = Pid::from_child(&server.0);
        kill_process(server_pid, Signal::STOP).expect("ours");
        let client = rping("-c");
        deadline::until("the request has arrived", || {
            ok("rdma res show cm_id state CONNECT").lines().count() == 2
        });
        assert_eq!(ok("rdma res show cm_id qp-type RC").lines().count(), 1);
        kill_process(server_pid, Signal::CONT).expect("ours");
        deadline::until("the server has accepted", has_both_ends);
        check_ports("rxe0", &server, &client);
        // The next ferroced learns the connections from the programs.
        common::end_daemon();
        deadline::until("both ends are known again", has_both_ends);
        check_ports("rxe0", &server, &client);
    });
}

/// The programs list connections of iWARP, which ferroced does not know.
#[test]
fn iwarp_connections_are_shown_with_their_ports() {
    with_rping_server(
        "iwarp_connections_are_shown_with_their_ports",
        "siw",
        |server| {
            let listener = ok("rdma res show cm_id");
            assert!(listener.starts_with("link siw0/1 cm-idn "), "{listener}");
            assert!(listener.contains(" state LISTEN ps TCP pid "), "{listener}");
            let ends = " comm rping src-addr 10.0.0.1:7175 dst-addr 0.0.0.0:0 \n";
            assert!(listener.ends_with(ends), "{listener}");
            let client = rping("-c");
            deadline::until("the connection exists", has_both_ends);
            check_ports("siw0", &server, &client);
            let summary = ok("rdma resource show siw0");
            assert!(summary.contains(" qp 2 cm_id 3 "), "{summary}");
            // The server follows the client's first bytes.
            deadline::until("both ends use shared memory", || {
                let ends = ok("rdma res show qp");
                ends.lines().all(|line| line.ends_with(" wire local "))
            });
            let json: serde_json::Value =
                serde_json::from_str(&ok("rdma -j res show cm_id dst-port 7175")).expect("JSON");
            assert_eq!(json[0]["pid"], client.0.id());
            assert_eq!(json[0]["dst-addr"], "10.0.0.1:7175");
            common::end_daemon();
            deadline::until("both ends are known again", has_both_ends);
            check_ports("siw0", &server, &client);
            drop(client);
            deadline::until("the connections have ended", || {
                common::run("rdma res show cm_id state CONNECT")
                    .stdout
                    .is_empty()
            });
        },
    );
}

/// Checks both lines of a connection.
fn check_ports(link: &str, server: &Program, client: &Program) {
    let (to, from) = (
        ok("rdma res show cm_id dst-port 7175"),
        ok("rdma res show cm_id src-port 7175 state CONNECT"),
    );
    let owner = |program: &Program| format!(" ps TCP pid {} comm rping ", program.0.id());
    for (line, program) in [(&to, client), (&from, server)] {
        assert!(
            line.starts_with(&format!("link {link}/1 cm-idn ")),
            "{line}"
        );
        assert!(line.contains(" qp-type RC state CONNECT"), "{line}");
        assert!(line.contains(&owner(program)), "{line}");
    }
    // Each end's destination is the other end's source.
    let word = |line: &str, name: &str| {
        let mut words = line.split(' ').skip_while(|word| *word != name);
        words.nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(word(&to, "dst-addr"), "10.0.0.1:7175");
    assert_eq!(word(&from, "src-addr"), "10.0.0.1:7175");
    assert_eq!(word(&to, "src-addr"), word(&from, "dst-addr"));
    assert!(word(&to, "src-addr").starts_with("10.0.0.1:"), "{to}");
}
