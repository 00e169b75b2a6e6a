//! Programs under valgrind, AddressSanitizer and gdb, started by `ferroce run`.

mod common;

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::{DeleteLinks, FERROCE, with_libraries};

/// Completions of the two WRITEs. The queue pair is its own peer: a WRITE to unmapped memory
/// moves it to the error state, so the work request is flushed.
const RESULTS: [&str; 2] = ["there: success", "gone: Work Request Flushed Error"];

/// The option of valgrind that names reports which are no errors.
const SUPPRESSIONS: &str = concat!(
    "--suppressions=",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/programs/valgrind.supp"
);

/// Returns true if a program is installed. Otherwise prints that the test is skipped; in CI
/// that is a failure.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join(program).exists()) {
        return true;
    }
    let line =
        format!("*** SKIPPED: no {program}; as root on Debian: apt-get install {program} ***");
    assert!(std::env::var_os("CI").is_none(), "{line}");
    eprintln!("{line}");
    false
}

/// Compiles the program into the test's directory.
fn compile(options: &[&str]) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/memory_gone.c");
    let dir = std::env::var_os("FERROCE_RUNTIME_DIR").expect("the test is isolated");
    let program = PathBuf::from(dir).join("memory_gone");
    let status = Command::new("cc")
        .args(options)
        .args(["-g", "-o"])
        .arg(&program)
        .args([source, "-libverbs"])
        .status()
        .expect("a C compiler; as root on Debian: apt-get install gcc");
    assert!(status.success(), "libibverbs-dev is needed");
    program
}

/// Returns the output of a command line under `ferroce run`, with the program at its end.
fn run(line: &[&str], program: PathBuf, argument: &str) -> Output {
    let output = Command::new(FERROCE)
        .args(["run", "--"])
        .args(line)
        .arg(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output();
    output.expect("ferroce starts")
}

fn words(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{out}\n{err}", output.status)
}

#[test]
fn valgrind_finds_no_error_in_the_library() {
    if !is_installed("valgrind") {
        return;
    }
    with_libraries("valgrind_finds_no_error_in_the_library", || {
        let _links = DeleteLinks;
        // valgrind reports tables of the library as possibly lost: it searches for pointers
        // to their start, and the library keeps pointers into their middle.
        let leaks = "--errors-for-leak-kinds=definite";
        let valgrind = [
            "valgrind",
            "-q",
            "--leak-check=full",
            leaks,
            SUPPRESSIONS,
            "--error-exitcode=9",
        ];
        let output = run(&valgrind, compile(&[]), "there");
        let words = words(&output);
        assert!(output.status.success(), "{words}");
        assert!(words.contains(RESULTS[0]), "{words}");
    });
}

#[test]
fn write_to_unmapped_memory_fails_under_valgrind() {
    if !is_installed("valgrind") {
        return;
    }
    let name = "write_to_unmapped_memory_fails_under_valgrind";
    with_libraries(name, || {
        let _links = DeleteLinks;
        let output = run(&["valgrind", "-q"], compile(&[]), "gone");
        let words = words(&output);
        assert!(output.status.success(), "{words}");
        assert!(RESULTS.iter().all(|line| words.contains(line)), "{words}");
    });
}

#[test]
fn address_sanitizer_finds_bugs_of_the_program() {
    let name = "address_sanitizer_finds_bugs_of_the_program";
    with_libraries(name, || {
        let _links = DeleteLinks;
        let program = compile(&["-fsanitize=address"]);
        let output = run(&[], program.clone(), "gone");
        let good = words(&output);
        assert!(output.status.success(), "{good}");
        assert!(RESULTS.iter().all(|line| good.contains(line)), "{good}");
        let bad = words(&run(&[], program, "bug"));
        assert!(bad.contains("heap-use-after-free"), "{bad}");
    });
}

#[test]
fn write_to_unmapped_memory_fails_under_gdb() {
    if !is_installed("gdb") {
        return;
    }
    with_libraries("write_to_unmapped_memory_fails_under_gdb", || {
        let _links = DeleteLinks;
        let pass = "handle SIGSEGV SIGBUS nostop noprint pass";
        let gdb = ["gdb", "-batch", "-ex", pass, "-ex", "run", "--args"];
        let output = run(&gdb, compile(&[]), "gone");
        let words = words(&output);
        assert!(words.contains("exited normally"), "{words}");
        assert!(RESULTS.iter().all(|line| words.contains(line)), "{words}");
    });
}
