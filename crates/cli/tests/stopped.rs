//! Commands while ferroced is stopped by SIGSTOP, a debugger or a frozen container. Each
//! command fails with an error that names ferroced's process.

mod common;

use std::process::Stdio;

use ferroce_control::find_daemon;
use ferroce_testnet::{deadline, isolated};
use rustix::process::{Pid, Signal, kill_process};

use common::{Cleanup, command, ok};

/// A stopped process. Dropping it continues the process, also if the test fails.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        let process = Pid::from_raw(pid.cast_signed()).expect("a process");
        kill_process(process, Signal::STOP).expect("ours");
        let status = format!("/proc/{pid}/status");
        deadline::until("ferroced stops", || {
            std::fs::read_to_string(&status).is_ok_and(|now| now.contains("State:\tT"))
        });
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _it_may_be_gone = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn commands_fail_and_name_a_stopped_ferroced() {
    isolated("commands_fail_and_name_a_stopped_ferroced", || {
        let _cleanup = Cleanup;
        ok("ferroce link add rxe0 type rxe netdev lo");
        let connection = find_daemon().expect("reachable").expect("running");
        let pid = connection.daemon_pid();
        drop(connection);
        let stopped = Stopped::new(pid);
        let lines = [
            "ferroce link",
            "ferroce link add rxe1 type rxe netdev lo",
            "ferroce link set rxe0 mtu 1024",
            "ferroce link delete rxe0",
            "ferroce stat",
            "ferroce devinfo",
            "ferroce gids",
            "ferroce doctor",
            "ferroce config save",
            "ferroce run -- true",
            "rdma link",
            "rdma dev",
            "rdma resource show qp",
            "rdma statistic qp show",
            "rdma monitor",
            "rxe_cfg status",
            "rxe_cfg add lo",
        ];
        // All commands wait at the same time.
        let children = lines.map(|line| {
            let mut command = command(line);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            (line, command.spawn().expect("ferroce starts"))
        });
        let reason = format!(
            "ferroced (pid {pid}) does not answer: it is stopped; `kill -CONT {pid}` continues it"
        );
        for (line, child) in children {
            let output = child.wait_with_output().expect("it ends");
            let said = [output.stderr, output.stdout].concat();
            let said = String::from_utf8(said).expect("text");
            assert!(said.contains(&reason), "{line}: {said}");
            assert!(!output.status.success(), "{line}: {said}");
        }
        drop(stopped);
        let links = ok("ferroce link");
        assert!(links.starts_with("link rxe0/1"), "{links}");
        ok("ferroce link delete rxe0");
    });
}
