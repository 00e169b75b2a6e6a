//! `ferroce run` with programs that bring a libibverbs of their own.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{Cleanup, FERROCE, ok, with_libraries};

/// Exit status of `host` if the library finds no device.
const NO_DEVICE: i32 = 3;
/// The file of a libibverbs in a Python wheel: `auditwheel` inserts a hash into the name.
const RENAMED: &str = "libibverbs-abcdef12.so.1.14.44.0";
const NAMED: &str = "libibverbs.so.1";
const OF_RDMA_CORE: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
/// The version nodes of the functions in `no_devices.c`.
const VERSIONS: &str = "IBVERBS_1.0 { local: *; };\n\
     IBVERBS_1.1 { global: ibv_*; } IBVERBS_1.0;\n\
     IBVERBS_1.8 { global: ibv_reg_mr_iova2; } IBVERBS_1.1;\n";

fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs")).join(name)
}

fn scratch() -> PathBuf {
    std::env::var_os("FERROCE_RUNTIME_DIR").map_or_else(
        || panic!("the test is not isolated"),
        |dir| Path::new(&dir).join("scratch"),
    )
}

fn cc(command: &mut Command) {
    let status = command.status();
    let status = status.expect("a C compiler; as root on Debian: apt-get install gcc");
    assert!(status.success(), "libibverbs-dev is needed");
}

fn compile(name: &str, options: &[&str]) -> PathBuf {
    let program = scratch().join(name.trim_end_matches(".c"));
    cc(Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(source(name))
        .args(options));
    program
}

/// Makes the folders of an installed wheel, `demo` with an extension and `demo.libs` with its
/// libibverbs. Returns the extension, which finds the library by its RPATH alone.
fn wheel(libibverbs: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let (libs, folder) = (scratch().join("demo.libs"), scratch().join("demo"));
    fs::create_dir_all(&libs).expect("a folder");
    fs::create_dir_all(&folder).expect("a folder");
    make(&libs.join(libibverbs));
    let extension = folder.join("_transfer.so");
    cc(Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&extension)
        .arg(source("transfer.c"))
        .arg("-L")
        .arg(&libs)
        .arg(format!("-l:{libibverbs}"))
        .arg("-Wl,--disable-new-dtags,-rpath,$ORIGIN/../demo.libs"));
    extension
}

/// Builds a libibverbs without devices.
fn without_devices(library: &Path) {
    let script = scratch().join("versions");
    fs::write(&script, VERSIONS).expect("a file");
    cc(Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(library)
        .arg(source("no_devices.c"))
        .arg(format!("-Wl,-soname,{RENAMED}"))
        .arg(format!("-Wl,--version-script={}", script.display())));
}

/// Copies rdma-core's libibverbs.
fn of_rdma_core(library: &Path) {
    fs::copy(OF_RDMA_CORE, library).expect("libibverbs1 is installed");
}

fn run(options: &[&str], program: &[&str]) -> Output {
    let output = Command::new(FERROCE)
        .arg("run")
        .args(options)
        .arg("--")
        .args(program)
        .stdin(Stdio::null())
        .output();
    output.expect("ferroce starts")
}

#[track_caller]
fn assert_moves_bytes(program: &[&str]) {
    let output = run(&[], program);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{program:?}: {said}");
    assert_eq!(said, "", "{program:?}");
}

/// A copy that no call reaches is no reason for a warning.
#[test]
fn copy_that_is_only_loaded_gets_no_warning() {
    with_libraries("copy_that_is_only_loaded_gets_no_warning", || {
        let _cleanup = prepare();
        let preload = format!("LD_PRELOAD=$LD_PRELOAD:{OF_RDMA_CORE}");
        // UCX opens sockets of the RDMA subsystem, too. Python's module calls `socket` for it.
        let ucx = "python3 -c 'import contextlib, socket\n\
                   with contextlib.suppress(OSError): socket.socket(16, 3, 20)'";
        for program in ["true", "ibv_devices", ucx] {
            let line = format!("export {preload}; {program}");
            let output = run(&[], &["sh", "-c", &line]);
            assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{program}");
            assert_eq!(output.status.code(), Some(0), "{program}");
        }
    });
}

#[test]
fn copy_that_is_asked_for_by_its_path_gets_a_warning() {
    with_libraries("copy_that_is_asked_for_by_its_path_gets_a_warning", || {
        let _cleanup = prepare();
        let python = "/usr/bin/python3";
        if !Path::new(python).exists() {
            let line = "*** SKIPPED: no python3 ***";
            assert!(std::env::var_os("CI").is_none(), "{line}");
            return eprintln!("{line}");
        }
        let call =
            format!("import ctypes; ctypes.CDLL('{OF_RDMA_CORE}').ibv_get_device_list(None)");
        let output = run(&[], &[python, "-c", &call]);
        let said = String::from_utf8_lossy(&output.stderr);
        let line = format!("warning: {python} uses {OF_RDMA_CORE}, which is not Ferroce's");
        assert_eq!(said.matches(&line).count(), 1, "{said}");
    });
}

/// Adds a link, which ends with the test, and a folder for its files.
fn prepare() -> Cleanup {
    ok("ferroce link add rxe0 type rxe netdev lo");
    fs::create_dir_all(scratch()).expect("a folder");
    Cleanup
}

#[test]
fn renamed_copy_in_a_wheel_is_replaced() {
    with_libraries("renamed_copy_in_a_wheel_is_replaced", || {
        let _cleanup = prepare();
        let extension = wheel(RENAMED, without_devices);
        let host = compile("host.c", &[]);
        let [host, extension] = [&host, &extension].map(|path| path.to_str().expect("text"));
        assert_moves_bytes(&[host, extension]);
        assert_moves_bytes(&[host, extension, "global"]);
        let nested = format!("sh -c '{host} {extension}; exit $?'; exit $?");
        assert_moves_bytes(&["sh", "-c", &nested]);
        if Path::new("/usr/bin/python3").exists() {
            let call =
                format!("import ctypes,sys; sys.exit(ctypes.CDLL('{extension}').transfer())");
            assert_moves_bytes(&["/usr/bin/python3", "-c", &call]);
        }
        // The preloaded library does it: without it the extension finds no device.
        let alone = run(&[], &["env", "-u", "LD_PRELOAD", host, extension]);
        assert_eq!(alone.status.code(), Some(NO_DEVICE));
    });
}

#[test]
fn copy_that_an_rpath_names_is_replaced() {
    with_libraries("copy_that_an_rpath_names_is_replaced", || {
        let _cleanup = prepare();
        let extension = wheel(NAMED, of_rdma_core);
        let host = compile("host.c", &[]);
        let [host, extension] = [&host, &extension].map(|path| path.to_str().expect("text"));
        assert_moves_bytes(&[host, extension]);
        let alone = run(&[], &["env", "-u", "LD_PRELOAD", host, extension]);
        assert_eq!(alone.status.code(), Some(NO_DEVICE));
    });
}

#[test]
fn copy_that_cannot_be_replaced_gets_a_warning() {
    with_libraries("copy_that_cannot_be_replaced_gets_a_warning", || {
        let _cleanup = prepare();
        let extension = wheel(NAMED, of_rdma_core);
        let host = compile("host.c", &[]);
        let [host, extension] = [&host, &extension].map(|path| path.to_str().expect("text"));
        let program = [host, extension, "deepbind"];
        let output = run(&[], &program);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(NO_DEVICE), "{said}");
        let copy = scratch().join("demo.libs").join(NAMED);
        // The dynamic linker names the copy by the path in RPATH.
        let beginning = format!("warning: {host} uses ");
        let lines: Vec<_> = said.lines().filter(|l| l.starts_with(&beginning)).collect();
        assert_eq!(lines.len(), 1, "{}: {said}", copy.display());
        assert!(lines[0].contains("demo.libs/libibverbs.so.1, which is not Ferroce's"));
        let output = run(&["--quiet"], &program);
        assert_eq!(output.status.code(), Some(NO_DEVICE));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("warning: "), "{said}");
    });
}

#[test]
fn copy_linked_statically_gets_a_warning() {
    with_libraries("copy_linked_statically_gets_a_warning", || {
        let _cleanup = prepare();
        let extension = source("transfer.c");
        let options = [
            extension.to_str().expect("text"),
            "-Dtransfer=main",
            "-l:libibverbs.a",
            "-lnl-route-3",
            "-lnl-3",
        ];
        let program = scratch().join("static");
        cc(Command::new("cc").arg("-o").arg(&program).args(options));
        let program = program.to_str().expect("text");
        let output = run(&[], &[program]);
        let said = String::from_utf8_lossy(&output.stderr);
        let line = format!("warning: {program}, or a library of it, contains a copy of libibverbs");
        assert!(said.contains(&line), "{said}");
        assert_eq!(output.status.code(), Some(NO_DEVICE), "{said}");
        let output = run(&["--quiet"], &[program]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("warning: "), "{said}");
    });
}

#[test]
fn verbs_looked_up_by_name_and_version_are_ferroces() {
    with_libraries("verbs_looked_up_by_name_and_version_are_ferroces", || {
        let _cleanup = prepare();
        let program = compile("lookup.c", &[]);
        let output = run(&[], &[program.to_str().expect("text")]);
        let said = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines.len(), 6, "{said}");
        for line in &lines[..4] {
            assert!(line.ends_with("/libferroce.so"), "{said}");
        }
        assert_eq!(lines[4..], ["devices: found", "mlx5: no"], "{said}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    });
}

/// NCCL is an empty library here: its name is all that the note depends on.
#[test]
fn variable_for_nccl_is_set_and_told() {
    with_libraries("variable_for_nccl_is_set_and_told", || {
        let _cleanup = prepare();
        let program = scratch().join("transfer");
        let source = source("transfer.c");
        cc(Command::new("cc").arg("-o").arg(&program).args([
            source.to_str().expect("text"),
            "-Dtransfer=main",
            "-libverbs",
        ]));
        let nccl = scratch().join("libnccl.so.2");
        let options = ["-shared", "-fPIC", "-x", "c", "/dev/null", "-o"];
        cc(Command::new("cc").args(options).arg(&nccl));
        let (program, nccl) = (program.display(), nccl.display());
        let value = "echo $NCCL_GIN_TYPE";
        let load = format!("LD_PRELOAD=$LD_PRELOAD:{nccl}");
        for (line, quiet, expected, notes) in [
            (format!("{program}; {value}"), false, "2\n", 0),
            (format!("{load} {program}; {value}"), false, "2\n", 1),
            (format!("{load} {program}; {value}"), true, "2\n", 0),
        ] {
            let options: &[&str] = if quiet { &["--quiet"] } else { &[] };
            let output = run(options, &["sh", "-c", &line]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                expected,
                "{line}: {said}"
            );
            let note = "note: `ferroce run` has set NCCL_GIN_TYPE=2";
            assert_eq!(said.matches(note).count(), notes, "{line}: {said}");
        }
        // A value of the user stays.
        let mut command = Command::new(FERROCE);
        let command = command.args(["run", "--", "sh", "-c", value]);
        let output = command.env("NCCL_GIN_TYPE", "3").output();
        let said = output.expect("ferroce starts").stdout;
        assert_eq!(String::from_utf8_lossy(&said), "3\n");
    });
}
