//! Faults on demand: `ferroce run --faults`, `--chaos`, `--scenario` and `--sweep`, and
//! `ferroce link set NAME faults`.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ferroce_testnet::{deadline, isolated};

use common::{Cleanup, FERROCE, fails, ok, with_libraries};

/// Two programs of a test: `ibv_rc_pingpong` as server and client.
const PINGPONG: &str = "
    ibv_rc_pingpong -g 1 -n 10 >/dev/null & server=$!
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server || exit 1; done
    ibv_rc_pingpong -g 1 -n 10 127.0.0.1 >/dev/null; status=$?
    wait $server
    exit $status";

/// The same for a sweep: the server ends with its client.
const SWEPT_PINGPONG: &str = "
    ibv_rc_pingpong -g 1 -n 10 >/dev/null & server=$!
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server || exit 1; done
    ibv_rc_pingpong -g 1 -n 10 127.0.0.1 >/dev/null; status=$?
    kill $server
    exit $status";

/// `rdma_server` and `rdma_client`.
const RDMA: &str = "
    rdma_server -p 7471 >/dev/null & server=$!
    until rdma resource show cm_id | grep -q LISTEN; do kill -0 $server || exit 1; done
    rdma_client -s 127.0.0.1 -p 7471; status=$?
    kill $server
    exit $status";

fn run(arguments: &[&str]) -> Output {
    Command::new(FERROCE)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the numbers before and after `of` in all reports of a fault.
fn reports(errors: &str, fault: &str) -> Vec<(u64, u64)> {
    let marker = format!(": {fault}: ");
    let lines = errors.lines().filter(|line| line.starts_with("faults: "));
    let numbers = lines.filter_map(|line| {
        let (_, rest) = line.split_once(&marker)?;
        let mut words = rest.split(' ');
        let hits = words.next()?.parse().ok()?;
        words.next();
        Some((hits, words.next()?.parse().ok()?))
    });
    numbers.collect()
}

/// Compiles a program of these tests against the system's headers and libraries.
fn compiled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let program = std::env::temp_dir().join(format!("ferroce-{name}-{}", std::process::id()));
    let status = Command::new("cc")
        .arg("-o")
        .args([&program, &source])
        .arg("-libverbs")
        .status();
    assert!(status.expect("cc").success());
    program
}

#[test]
fn third_ack_of_a_run_is_lost_once_and_the_programs_survive() {
    with_libraries(
        "third_ack_of_a_run_is_lost_once_and_the_programs_survive",
        || {
            let fault = "drop the 3rd ACK";
            let output = run(&["run", "--faults", fault, "--", "sh", "-c", PINGPONG]);
            let errors = text(&output.stderr);
            assert!(output.status.success(), "{errors}");
            let reports = reports(&errors, fault);
            assert_eq!(reports.len(), 2, "each program reports: {errors}");
            let hits: u64 = reports.iter().map(|(hits, _)| hits).sum();
            assert_eq!(hits, 1, "{errors}");
        },
    );
}

#[test]
fn verb_fails_with_the_chosen_error() {
    with_libraries("verb_fails_with_the_chosen_error", || {
        let fault = "fail ibv_reg_mr 1 ENOMEM";
        let output = run(&["run", "--faults", fault, "--", "ibv_rc_pingpong", "-g", "1"]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("Couldn't register MR"), "{errors}");
        assert_eq!(reports(&errors, fault), [(1, 1)], "{errors}");
    });
}

#[test]
fn lost_request_of_the_connection_manager_is_repeated_and_a_rejected_one_is_refused() {
    with_libraries(
        "lost_request_of_the_connection_manager_is_repeated_and_a_rejected_one_is_refused",
        || {
            let lost = [
                "run",
                "--faults",
                "drop the 1st REQ",
                "--",
                "sh",
                "-c",
                RDMA,
            ];
            let output = run(&lost);
            assert!(output.status.success(), "{}", text(&output.stderr));
            let rejected = [
                "run",
                "--faults",
                "reject the 1st REQ",
                "--",
                "sh",
                "-c",
                RDMA,
            ];
            let output = run(&rejected);
            let errors = text(&output.stderr);
            assert!(!output.status.success(), "{errors}");
            assert!(
                errors.contains("rdma_connect: Connection refused"),
                "{errors}"
            );
        },
    );
}

#[test]
fn chaos_prints_the_faults_that_its_seed_draws() {
    isolated("chaos_prints_the_faults_that_its_seed_draws", || {
        let drawn = |seed| text(&run(&["run", "--no-link", "--chaos", seed, "--", "true"]).stderr);
        let first = drawn("7");
        assert!(first.starts_with("chaos: --faults 'seed 7; "), "{first}");
        assert_eq!(first, drawn("7"));
        assert_ne!(first, drawn("8"));
    });
}

#[test]
fn mistake_in_faults_names_the_word_and_runs_nothing() {
    isolated("mistake_in_faults_names_the_word_and_runs_nothing", || {
        let output = run(&[
            "run",
            "--no-link",
            "--faults",
            "los 1%",
            "--",
            "echo",
            "ran",
        ]);
        assert_eq!(
            (output.status.code(), text(&output.stdout)),
            (Some(1), String::new())
        );
        assert!(text(&output.stderr).contains("`los` is not a fault; known are"));
        let missing = run(&[
            "run",
            "--no-link",
            "--scenario",
            "/nowhere",
            "--",
            "echo",
            "ran",
        ]);
        assert!(text(&missing.stderr).contains("cannot read scenario /nowhere"));
    });
}

#[test]
fn faults_of_a_link_are_shown_and_reach_running_programs() {
    with_libraries(
        "faults_of_a_link_are_shown_and_reach_running_programs",
        || {
            let _cleanup = Cleanup;
            ok("ferroce link add rxe0 type rxe netdev lo");
            // The end with a message on its way fails. The other one waits for a message for ever.
            let program = "
            ibv_rc_pingpong -g 1 -n 100000000 >/dev/null &
            until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 %1 || exit 1; done
            ibv_rc_pingpong -g 1 -n 100000000 127.0.0.1 >/dev/null &
            wait -n
            kill %1 %2";
            let child = Command::new(FERROCE)
                .args(["run", "--", "bash", "-c", program])
                .stderr(Stdio::piped())
                .spawn()
                .expect("ferroce starts");
            deadline::until("packets flow", || {
                let sent = ok("ferroce stat rxe0");
                let mut words = sent.split(' ').skip_while(|word| *word != "sent_pkts");
                words.nth(1).and_then(|sent| sent.parse().ok()).unwrap_or(0) > 100
            });
            let set = Command::new(FERROCE)
                .args(["link", "set", "rxe0", "faults", "partition"])
                .status();
            assert!(set.expect("ferroce starts").success());
            assert!(ok("ferroce link").ends_with("\n    faults partition \n"));
            assert!(ok("ferroce stat rxe0").ends_with("\n    faults partition \n"));
            assert!(ok("ferroce -j link").contains(r#""faults":"partition""#));
            let output = child.wait_with_output().expect("the program ends");
            let errors = text(&output.stderr);
            let status = "transport retry counter exceeded (12)";
            assert!(errors.contains(status), "IBV_WC_RETRY_EXC_ERR: {errors}");
            ok("ferroce link set rxe0 faults off");
            assert!(!ok("ferroce link").contains("faults"));
            let refused = fails("ferroce link set rxe0 faults los");
            assert!(refused.contains("`los` is not a fault"), "{refused}");
        },
    );
}

#[test]
fn sweep_finds_the_planted_bugs_and_nothing_else() {
    with_libraries("sweep_finds_the_planted_bugs_and_nothing_else", || {
        let program = compiled("planted");
        let name = program.to_str().expect("text");
        let sweep = ["run", "--sweep", "--sweep-limit", "10", "--", name];
        let output = run(&sweep);
        std::fs::remove_file(&program).expect("the program");
        let found = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{found}");
        let expected = format!(
            "10 points, 2 findings, 0 undecided\n\
             CRASHES with signal 11: fail ibv_reg_mr 2 ENOMEM\n    \
             ferroce run --faults 'fail ibv_reg_mr 2 ENOMEM' -- {name}\n\
             HANGS: fail ibv_create_cq 1 ENOMEM\n    \
             ferroce run --faults 'fail ibv_create_cq 1 ENOMEM' -- {name}\n"
        );
        assert_eq!(found, expected, "{}", text(&output.stderr));
    });
}

#[test]
fn programs_of_rdma_core_survive_each_lost_packet_and_failed_call() {
    with_libraries(
        "programs_of_rdma_core_survive_each_lost_packet_and_failed_call",
        || {
            for (test, only) in [
                (SWEPT_PINGPONG, "drop"),
                (SWEPT_PINGPONG, "fail ibv_modify_qp"),
                (RDMA, "1st"),
                (RDMA, "fail rdma_"),
            ] {
                let sweep = [
                    "run",
                    "--sweep",
                    "--sweep-packets",
                    "8",
                    "--sweep-only",
                    only,
                ];
                let output = run(&[&sweep[..], &["--", "sh", "-c", test]].concat());
                let (found, errors) = (text(&output.stdout), text(&output.stderr));
                assert!(output.status.success(), "{only}: {found}{errors}");
                assert!(
                    found.ends_with(" points, 0 findings, 0 undecided\n"),
                    "{only}: {found}"
                );
            }
        },
    );
}

#[test]
fn sweep_needs_a_test_that_passes() {
    with_libraries("sweep_needs_a_test_that_passes", || {
        let output = run(&["run", "--sweep", "--", "false"]);
        let errors = text(&output.stderr);
        assert!(
            errors.contains("the test fails without any fault"),
            "{errors}"
        );
        let output = run(&["run", "--sweep", "--", "true"]);
        assert!(text(&output.stderr).contains("there is no point"));
    });
}

#[test]
fn faults_that_tcp_does_not_have_are_refused_on_a_siw_link() {
    let name = "faults_that_tcp_does_not_have_are_refused_on_a_siw_link";
    with_libraries(name, || {
        let _cleanup = Cleanup;
        ok("ferroce link add siw0 type siw netdev lo");
        let program = ["ibv_rc_pingpong", "-d", "siw0"];
        // For all programs of the link, for one that sees siw links only, and for any other.
        for (fault, arguments) in [
            ("corrupt 1%", &["link", "set", "siw0", "faults"][..]),
            ("loss 1%", &["run", "--type", "siw", "--faults"]),
            ("delay out 2ms", &["run", "--faults"]),
        ] {
            let mut line = [arguments, &[fault]].concat();
            if arguments[0] == "run" {
                line.push("--");
                line.extend(program);
            }
            let output = run(&line);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{fault}: {said}");
            let refusal = format!("the fault `{fault}` is not possible on a link of type siw: ");
            assert!(said.contains(&refusal), "{said}");
        }
        let verb = "fail ibv_reg_mr 1 ENOMEM";
        let line = ["run", "--type", "siw", "--faults", verb, "--"];
        let output = run(&[&line[..], &program].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("Couldn't register MR"), "{said}");
    });
}
