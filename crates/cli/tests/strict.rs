//! Strict mode and profiles: `ferroce run --strict`, `--profile`, and the words of links.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{DeleteLinks, FERROCE, fails, ok, with_libraries};

/// `ibv_rc_pingpong` as server and client, with these options.
fn pingpong(options: &str) -> String {
    format!(
        "ibv_rc_pingpong -n 10 {options} >/dev/null & server=$!
        until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do kill -0 $server || exit 1; done
        ibv_rc_pingpong -n 10 {options} 127.0.0.1 >/dev/null; status=$?
        test $status -eq 0 || kill $server
        wait $server
        exit $status"
    )
}

/// Runs a command line under `ferroce run`.
fn run(options: &[&str], script: &str) -> Output {
    Command::new(FERROCE)
        .arg("run")
        .args(options)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .output()
        .expect("ferroce starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
fn usual_program_has_no_warnings() {
    with_libraries("usual_program_has_no_warnings", || {
        let _links = DeleteLinks;
        let output = run(&["--strict=error", "--profile", "mlx5"], &pingpong("-g 1"));
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert_eq!(
            errors.matches("ibv_rc_pingpong: 0 warnings").count(),
            2,
            "{errors}"
        );
        assert!(
            errors.contains("packets were written last bytes first"),
            "{errors}"
        );
        assert!(!errors.contains("strict: warning"), "{errors}");
    });
}

#[test]
fn program_without_strict_mode_says_nothing() {
    with_libraries("program_without_strict_mode_says_nothing", || {
        let _links = DeleteLinks;
        let output = run(&[], &pingpong("-g 1"));
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert!(!errors.contains("strict"), "{errors}");
    });
}

#[test]
fn lid_of_an_unmodified_program_is_found() {
    with_libraries("lid_of_an_unmodified_program_is_found", || {
        let _links = DeleteLinks;
        ok("ferroce link add rxe0 type rxe netdev lo lids on");
        let output = run(&["--strict"], &pingpong(""));
        let errors = text(&output.stderr);
        assert!(output.status.success(), "a warning: {errors}");
        let start = "strict: warning [lid] ibv_modify_qp: is_global is 0";
        assert_eq!(
            errors.matches(start).count(),
            2,
            "one for each program: {errors}"
        );
        for part in [
            "called by: ",
            "ibv_rc_pingpong+0x",
            "hardware:  ",
            "fix:       ",
        ] {
            assert!(errors.contains(part), "{part}: {errors}");
        }
        let output = run(&["--strict=error"], &pingpong(""));
        let errors = text(&output.stderr);
        assert!(!output.status.success(), "{errors}");
        assert!(
            errors.contains("ibv_modify_qp fails with EINVAL"),
            "{errors}"
        );
    });
}

#[test]
fn each_mistake_of_a_program_is_found_once() {
    with_libraries("each_mistake_of_a_program_is_found_once", || {
        let _links = DeleteLinks;
        let program = compiled("sinner");
        let name = program.to_str().expect("text");
        for (mistake, check) in [
            ("none", None),
            ("timeout", Some("[timeout]")),
            ("unsignaled", Some("[sq-size]")),
        ] {
            let output = run(&["--strict"], &format!("{name} {mistake}"));
            let errors = text(&output.stderr);
            assert!(output.status.success(), "{mistake}: {errors}");
            assert_eq!(text(&output.stdout), "done\n");
            let count = errors.matches("strict: warning").count();
            // Two queue pairs are connected at one place.
            assert_eq!(count, usize::from(check.is_some()), "{mistake}: {errors}");
            if let Some(check) = check {
                assert!(errors.contains(check), "{errors}");
                assert!(errors.contains(&format!("{name}+0x")), "{errors}");
            }
        }
        let output = run(&["--strict=error"], &format!("{name} timeout"));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains("ibv_modify_qp to RTS: Invalid argument"),
            "{errors}"
        );
        std::fs::remove_file(&program).expect("the program");
    });
}

#[test]
fn profile_shows_and_enforces_the_limits_of_an_adapter() {
    with_libraries(
        "profile_shows_and_enforces_the_limits_of_an_adapter",
        || {
            let _links = DeleteLinks;
            let shown = |profile| text(&run(&["--profile", profile], "ibv_devinfo -v").stdout);
            let mlx5 = shown("mlx5");
            let lines: Vec<String> = mlx5
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect();
            for line in [
                "vendor_id: 0x02c9",
                "max_sge: 30",
                "max_qp_rd_atom: 16",
                "max_cqe: 4194303",
            ] {
                assert!(lines.iter().any(|shown| shown == line), "{line}: {mlx5}");
            }
            assert!(shown("efa").contains("ATOMIC_NONE"));
            let output = run(&["--profile", "efa"], "ibv_rc_pingpong -g 1");
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{errors}");
            assert!(errors.contains("Couldn't create QP"), "{errors}");
        },
    );
}

#[test]
fn link_has_strict_mode_and_profile() {
    with_libraries("link_has_strict_mode_and_profile", || {
        let _links = DeleteLinks;
        ok("ferroce link add rxe0 type rxe netdev lo strict on profile mlx5");
        let shown = ok("ferroce link");
        assert!(shown.contains("\n    strict on profile mlx5 \n"), "{shown}");
        ok("ferroce link set rxe0 strict error profile off");
        let shown = ok("ferroce link");
        assert!(shown.contains("\n    strict error \n"), "{shown}");
        let output = run(&[], &pingpong("-g 1"));
        let errors = text(&output.stderr);
        assert_eq!(errors.matches(": 0 warnings").count(), 2, "{errors}");
        ok("ferroce config save");
        let saved = ok("ferroce config");
        assert!(saved.contains("strict error"), "{saved}");
        let wrong = fails("ferroce link set rxe0 strict maybe");
        assert!(wrong.contains("use `on`, `error` or `off`"), "{wrong}");
        let wrong = fails("ferroce link set rxe0 profile cx9");
        assert!(
            wrong.contains("use `mlx5`, `efa`, `rxe` or `off`"),
            "{wrong}"
        );
        ok("ferroce link set rxe0 strict off");
        assert!(!ok("ferroce link").contains("strict"));
    });
}

#[test]
fn mistakes_in_options_are_named() {
    for (option, message) in [
        ("--strict=maybe", "strict `maybe` is not valid"),
        ("--profile=cx9", "profile `cx9` is not known"),
    ] {
        let output = run(&[option], "true");
        assert_eq!(output.status.code(), Some(2));
        let errors = text(&output.stderr);
        assert!(errors.contains(message), "{errors}");
    }
}
