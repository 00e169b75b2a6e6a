//! `ferroce run`: exit status, signals and output are the program's, and no link stays
//! behind.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use ferroce_control::find_daemon;
use ferroce_testnet::{deadline, isolated};
use rustix::process::{Pid, Signal, kill_process};

use common::{FERROCE, PINGPONG_PORT, is_listening, with_libraries};

fn run(arguments: &[&str]) -> Output {
    Command::new(FERROCE)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts")
}

fn nothing_is_left() {
    deadline::until("link and ferroced are gone", || {
        find_daemon().is_ok_and(|daemon| daemon.is_none())
    });
}

#[test]
fn exit_status_is_that_of_the_program() {
    isolated("exit_status_is_that_of_the_program", || {
        let output = run(&["run", "--", "sh", "-c", "exit 3"]);
        assert_eq!(output.status.code(), Some(3));
        nothing_is_left();
    });
}

#[test]
fn link_exists_while_the_program_runs() {
    isolated("link_exists_while_the_program_runs", || {
        let output = run(&["run", "--", FERROCE, "link"]);
        let seen = String::from_utf8_lossy(&output.stdout);
        let line = "link rxe0/1 state ACTIVE physical_state LINK_UP netdev lo";
        assert_eq!(seen.trim(), line);
        nothing_is_left();
    });
}

/// A program that waits for all of its children must not wait for a process of `ferroce run`.
#[test]
fn program_has_no_child_that_it_did_not_start() {
    isolated("program_has_no_child_that_it_did_not_start", || {
        let children = "exec cat /proc/$$/task/$$/children";
        let output = run(&["run", "--", "sh", "-c", children]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        nothing_is_left();
    });
}

/// A parent that ignores SIGCHLD passes that on, and the kernel then keeps no status of children.
#[test]
fn program_runs_although_sigchld_is_ignored() {
    isolated("program_runs_although_sigchld_is_ignored", || {
        let ignore = "trap '' CHLD; exec \"$0\" run -- echo here";
        let output = Command::new("sh").args(["-c", ignore, FERROCE]).output();
        let output = output.expect("a shell");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "here\n");
        nothing_is_left();
    });
}

#[test]
fn no_link_starts_no_ferroced() {
    isolated("no_link_starts_no_ferroced", || {
        let output = run(&["run", "--no-link", "--", FERROCE, "link"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
        assert!(find_daemon().expect("known").is_none());
    });
}

#[test]
fn existing_link_is_used_and_stays() {
    isolated("existing_link_is_used_and_stays", || {
        let add = ["link", "add", "mine", "type", "rxe", "netdev", "lo"];
        assert!(run(&add).status.success());
        let output = run(&["run", "--", FERROCE, "link"]);
        let seen = String::from_utf8_lossy(&output.stdout);
        assert!(seen.starts_with("link mine/1"), "{seen}");
        assert!(find_daemon().expect("known").is_some());
        assert!(run(&["link", "delete", "mine"]).status.success());
    });
}

#[test]
fn link_is_deleted_after_the_program_is_killed() {
    isolated("link_is_deleted_after_the_program_is_killed", || {
        let mut child = Command::new(FERROCE)
            .args(["run", "--", "sh", "-c", "echo here; exec sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("ferroce starts");
        let stdout = child.stdout.take().expect("piped");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("text");
        assert_eq!(line, "here\n");
        assert!(find_daemon().expect("known").is_some());
        // The program has replaced `ferroce run`, so the signal reaches it directly.
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::KILL).expect("ours");
        child.wait().expect("ended");
        nothing_is_left();
    });
}

#[test]
fn error_names_the_program_that_cannot_be_run() {
    isolated("error_names_the_program_that_cannot_be_run", || {
        for (program, code, problem) in [
            (
                "no-such-program",
                127,
                "no directory of PATH has a program of that name",
            ),
            ("/no/such/program", 127, "the file does not exist"),
            ("/etc/passwd", 126, "denied"),
        ] {
            let output = run(&["run", "--", program]);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{error}");
            let words = format!("error: cannot run {program}: ");
            assert!(error.starts_with(&words), "{error}");
            assert!(error.contains(problem), "{error}");
        }
        nothing_is_left();
        let folder = common::config_dir();
        std::fs::create_dir_all(&folder).expect("a folder");
        let script = folder.join("script");
        std::fs::write(&script, "#!/no/such/shell\n").expect("a script");
        let runnable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&script, runnable).expect("ours");
        let output = run(&["run", "--no-link", "--", script.to_str().expect("text")]);
        assert_eq!(output.status.code(), Some(127));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("its interpreter"), "{error}");
        let output = run(&["run", "--netdev", "nowhere0", "--", "true"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("nowhere0"));
    });
}

#[test]
fn concurrent_runs_share_a_link_until_the_last_ends() {
    isolated("concurrent_runs_share_a_link_until_the_last_ends", || {
        // Each shell prints the link and waits for the end of its input.
        let see = format!("{FERROCE} link; read _; {FERROCE} link");
        let start = || {
            Command::new(FERROCE)
                .args(["run", "--", "sh", "-c", &see])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("ferroce starts")
        };
        let mut runs = [start(), start(), start()];
        for run in &mut runs {
            let output = run.stdout.as_mut().expect("a pipe");
            let mut line = String::new();
            BufReader::with_capacity(1, output)
                .read_line(&mut line)
                .expect("a line");
            assert!(line.starts_with("link rxe0/1"), "{line}");
        }
        for run in runs {
            let output = run.wait_with_output().expect("it ends");
            let seen = String::from_utf8_lossy(&output.stdout);
            assert_eq!(seen.lines().count(), 1, "{seen}");
        }
        nothing_is_left();
    });
}

#[test]
fn run_directly_after_another_has_a_link() {
    isolated("run_directly_after_another_has_a_link", || {
        for _ in 0..20 {
            let output = run(&["run", "--", FERROCE, "link"]);
            let seen = String::from_utf8_lossy(&output.stdout);
            assert_eq!(seen.lines().count(), 1, "{seen}");
        }
        nothing_is_left();
    });
}

/// The program itself prints only "Failed to modify QP to INIT".
#[test]
fn debug_messages_name_the_cause_of_a_refused_call() {
    with_libraries("debug_messages_name_the_cause_of_a_refused_call", || {
        let words = ["run", "--", "ibv_rc_pingpong", "-d", "rxe0", "-i", "2"];
        let output = Command::new(FERROCE)
            .args(words)
            .env("FERROCE_LOG", "debug")
            .stdin(Stdio::null())
            .output()
            .expect("ferroce starts");
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("no directory of PATH has a program") {
            let why = "NOT TESTED: ibv_rc_pingpong (ibverbs-utils) is not installed";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("{why}");
            return;
        }
        assert!(said.contains("Failed to modify QP to INIT"), "{said}");
        let causes = said.lines().filter(|line| line.contains("refused with"));
        let causes: Vec<_> = causes.collect();
        assert_eq!(causes.len(), 1, "{said}");
        assert!(
            causes[0].contains("EINVAL") && causes[0].contains("PORT is 2"),
            "{said}"
        );
        nothing_is_left();
    });
}

/// The program runs all the same; its link is made without a log filter.
#[test]
fn a_wrong_log_filter_is_named_with_the_remedy() {
    with_libraries("a_wrong_log_filter_is_named_with_the_remedy", || {
        let script = "FERROCE_LOG=debgu exec ibv_devices";
        let output = Command::new(FERROCE)
            .args(["run", "--", "sh", "-c", script])
            .stdin(Stdio::null())
            .output()
            .expect("ferroce starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("FERROCE_LOG: `debgu`"), "{said}");
        nothing_is_left();
    });
}

/// Runs a program and returns its standard error, which has the messages of the library.
fn said_beside(program: &[&str]) -> String {
    let mut line = vec!["run", "--"];
    line.extend(program);
    let output = run(&line);
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn device_without_traffic_gets_a_note() {
    with_libraries("device_without_traffic_gets_a_note", || {
        let pingpong = ["ibv_rc_pingpong", "-d", "rxe0", "-g", "1"];
        let client = [&pingpong[..], &["127.0.0.1"]].concat();
        let note = "note: ibv_rc_pingpong opened rxe0 and neither sent nor received a byte over it";
        let said = said_beside(&client);
        if said.contains("no directory of PATH has a program") {
            return eprintln!("*** SKIPPED: no ibv_rc_pingpong ***");
        }
        assert!(said.contains(note), "no server runs: {said}");
        let in_child = format!("{}; exit 7", client.join(" "));
        let output = run(&["run", "--", "sh", "-c", &in_child]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(note), "a child of the program: {said}");
        assert_eq!(output.status.code(), Some(7));
        let output = run(&["run", "--quiet", "--", "sh", "-c", &in_child]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("note: "), "{said}");
        assert_eq!(output.status.code(), Some(7));
        let mut server = Command::new(FERROCE)
            .args([&["run", "--"], &pingpong[..]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ferroce starts");
        deadline::until("the server listens", || is_listening(PINGPONG_PORT));
        assert_eq!(said_beside(&client), "");
        assert!(server.wait().expect("it ends").success());
        for query in ["ibv_devinfo", "ibv_devices", "true"] {
            assert_eq!(said_beside(&[query]), "", "{query} needs no traffic");
        }
        nothing_is_left();
    });
}

/// ferroced sends the messages of rdma_cm, which the device does not count. `-C 0` sends no
/// messages over the connection.
#[test]
fn connection_without_traffic_gets_no_note() {
    with_libraries("connection_without_traffic_gets_no_note", || {
        for program in ["ucmatose", "udaddy"] {
            let server = [program, "-C", "0"];
            let client = [&server[..], &["-s", "127.0.0.1"]].concat();
            let said = said_beside(&client);
            if said.contains("no directory of PATH has a program") {
                let line = format!("*** SKIPPED: no {program} ***");
                assert!(std::env::var_os("CI").is_none(), "{line}");
                eprintln!("{line}");
                continue;
            }
            let note = format!("note: {program} opened rxe0 and neither sent nor received a byte");
            assert!(said.contains(&note), "no server runs: {said}");
            let server = Command::new(FERROCE)
                .args([&["run", "--"], &server[..]].concat())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("ferroce starts");
            deadline::until("the server listens", || {
                let listeners = run(&["resource", "show", "cm_id", "state", "LISTEN"]);
                !listeners.stdout.is_empty()
            });
            assert_eq!(said_beside(&client), "", "client of {program}");
            let output = server.wait_with_output().expect("it ends");
            assert!(output.status.success(), "{output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(said, "", "server of {program}");
        }
        nothing_is_left();
    });
}
